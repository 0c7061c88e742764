"""Which model a metric is of, and on which rows: against NumPy, on a table of clients that the data name."""

import csv
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from support.command import fedopt

from fedopt import load
from fedopt.config.composed import compose
from fedopt.errors import UserError
from fedopt.running.assemble import assemble
from fedopt.running.loop import Progress, evaluate, point_of
from fedopt.testing.harness import small, steps

NAMES = np.array(["Aue", "Bad Ems", "Calw", "Dachau"])  # Dachau has no training rows


def made(real=False, val=True):
    """Arrays of an .npz: clients of 40, 24 and 16 training rows, of which every fourth is for validation."""
    rng = np.random.default_rng(3)
    owners = {"train": NAMES[np.repeat([0, 1, 2], [40, 24, 16])], "test": NAMES[rng.integers(0, 4, 60)]}
    arrays = {f"client_{of}": names for of, names in owners.items()}
    for of, names in owners.items():
        x = rng.normal(size=(len(names), 3)).astype(np.float32)
        score = x @ [1, -1, 0.5] + np.char.str_len(names) / 3 - 1.5 + rng.normal(size=len(names))
        arrays |= {f"x_{of}": x, f"y_{of}": score if real else (score > 0).astype(np.int64)}
    return arrays | ({"val_train": np.arange(80) % 4 == 0} if val else {})


@pytest.fixture
def clinics(tmp_path):
    """A function that saves such a table, and returns its arrays and the words of a run on it."""

    def saved(**of):
        arrays = made(**of)
        np.savez(tmp_path / "clinics.npz", **arrays)
        words = [
            "dataset=npz",
            f"dataset.path={tmp_path / 'clinics.npz'}",
            "dataset.pixels=raw",
            "hardware.dtype=float64",
        ]
        return arrays, [
            *words,
            "partitioner=by_column",
            "partitioner.clients=null",
            "participation.cohort=null",
            "preset=none",
        ]

    return saved


def experiment(algo, words, problem="classification", *more):
    model = ["problem.model=linear"] if problem != "linear_regression" else []
    return assemble(compose([f"algo={algo}", f"problem={problem}", "hardware.threads=1", *model, *words, *more]))


def taken(e, rounds=2):
    state = steps(e, rounds)[-1]
    found, *_ = evaluate(e, state, Progress(round=rounds))
    return found, [v.numpy() for v in point_of(e, state, rounds)]


def outputs(model, x, classes=2):
    """Those of a linear network with the parameters of a flat vector, or of a linear model with an intercept."""
    if len(model) == x.shape[1] + 1:
        return x @ model[:-1] + model[-1]
    weight, bias = np.split(model, [classes * x.shape[1]])
    return x @ weight.reshape(classes, -1).T + bias


def of_rows(x, owners, common, own):
    """The outputs for each row by the model of its client, and whether there is a model at all."""
    by = {name: own[i] for i, name in enumerate(NAMES[:3])} if own is not None else {}
    models = [by.get(name, common) for name in owners]
    there = np.array([model is not None for model in models])
    return np.array([outputs(m, row[None])[0] for m, row in zip(models, x, strict=True) if m is not None]), there


def accuracy(logits, y):
    return 100 * np.mean(logits.argmax(1) == y)


def loss(logits, y):
    return np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y])


@pytest.mark.parametrize("algo", ["ditto", "fedrep", "local_only", "fedavg", "drfa", "afl", "fgdro"])
def test_metrics_of_classes_are_of_the_model_that_each_rows_client_deploys(algo, clinics):
    arrays, words = clinics()
    own_part = ["algo.own=4"] if algo == "fedrep" else []
    e = experiment(algo, [*words, "problem.metrics=[accuracy,loss]"], "classification", *own_part)
    found, (x, *own) = taken(e)
    common = None if algo in ("fedrep", "local_only") else x
    own = own[0] if own else None
    assert (own is not None) == (algo in ("ditto", "fedrep", "local_only"))
    logits, there = of_rows(arrays["x_test"], arrays["client_test"], common, own)
    y, owners = arrays["y_test"][there], arrays["client_test"][there]
    wanted = {"test_accuracy": accuracy(logits, y), "test_loss": loss(logits, y)}
    of_clients = [accuracy(logits[owners == name], y[owners == name]) for name in NAMES[:3]]
    wanted |= {"personal_accuracy": np.mean(of_clients), "worst_personal_accuracy": min(of_clients)}
    val = arrays["val_train"]
    logits, _ = of_rows(arrays["x_train"][val], arrays["client_train"][val], common, own)
    wanted |= {
        "val_accuracy": accuracy(logits, arrays["y_train"][val]),
        "val_loss": loss(logits, arrays["y_train"][val]),
    }
    if own is not None and common is not None:
        logits, y = outputs(common, arrays["x_test"]), arrays["y_test"]
        wanted |= {"common_accuracy": accuracy(logits, y), "common_loss": loss(logits, y)}
    logits, _ = of_rows(arrays["x_train"][~val], arrays["client_train"][~val], common, own if common is None else None)
    wanted["train_loss"] = loss(logits, arrays["y_train"][~val])
    assert found == pytest.approx({key: found[key] for key in found if key not in wanted} | wanted, rel=1e-6)
    assert {*wanted} <= {*found}
    assert [metric.name for metric in e.problem.metrics][:2] == ["val_accuracy", "val_loss"]
    assert not {"common_accuracy", "common_loss"} & {*found} - {*wanted}
    assert e.problem.splits["train"].sizes.sum() == 60
    assert "20 validation" in e.problem.remark
    assert not [note for note in e.problem.notes if "validation" in note]


@pytest.mark.parametrize("algo", ["pfedme", "local_only", "fedavg"])
def test_metrics_of_real_targets_are_of_the_model_that_each_rows_client_deploys(algo, clinics):
    arrays, words = clinics(real=True)
    e = experiment(algo, words, "linear_regression")
    found, (x, *own) = taken(e)
    common = None if algo == "local_only" else x
    own, val = own[0] if own else None, arrays["val_train"]

    def rmse(values, there, y):
        return np.sqrt(np.mean((values - y[there]) ** 2))

    wanted = {"test_rmse": rmse(*of_rows(arrays["x_test"], arrays["client_test"], common, own), arrays["y_test"])}
    rows = arrays["x_train"][val], arrays["client_train"][val]
    wanted["val_rmse"] = rmse(*of_rows(*rows, common, own), arrays["y_train"][val])
    if algo == "pfedme":
        wanted["common_rmse"] = rmse(outputs(x, arrays["x_test"]), slice(None), arrays["y_test"])
    rows = arrays["x_train"][~val], arrays["client_train"][~val]
    values, _ = of_rows(*rows, common, own if common is None else None)
    wanted["train_loss"] = 0.5 * np.mean((values - arrays["y_train"][~val]) ** 2)
    assert {key: found[key] for key in wanted} == pytest.approx(wanted, rel=1e-6)
    assert ("common_rmse" in found, "distance" in found) == (algo == "pfedme", algo != "local_only")
    assert e.problem.metrics[0].name == "val_rmse"


VALIDATED = [
    "fair_classification",
    "auc",
    "x_risk",
    "robust_nn",
    "robust_federated",
    "robust_federated_global",
    "hierarchical",
]
OF_BILEVEL = ["loss_tuning", "hyper_representation", "data_cleaning", "client_weights", "regularisation"]


@pytest.mark.parametrize("problem", VALIDATED + OF_BILEVEL)
def test_every_problem_about_classes_measures_the_rows_for_validation(problem, clinics):
    """At its start, by the model that it exports; problems that validate by themselves keep their own val_loss."""
    arrays, words = clinics()
    algo = {"hierarchical": "zo_hfl", "x_risk": "fedxl", "robust_federated": "local_scgdm"}
    algo |= {"robust_federated_global": "feddro", **dict.fromkeys(OF_BILEVEL, "fednest")}
    model = [] if problem == "regularisation" else ["problem.model=mlp", "problem.widths=[4]"]
    e = assemble(
        compose([f"algo={algo.get(problem, 'fedavg_s')}", f"problem={problem}", "hardware.threads=1", *words, *model])
    )
    names = [metric.name for metric in e.problem.metrics]
    first = {"auc": "val_auc", "x_risk": "val_auc"}.get(problem, "val_accuracy")
    assert names[0] == first
    assert len({*names}) == len(names)
    state = e.algorithm.init(e.problem)
    found, *_ = evaluate(e, state, Progress())
    if first == "val_accuracy" and problem != "regularisation":
        val, network = arrays["val_train"], e.problem.network(*point_of(e, state, 0))
        logits = network(torch.from_numpy(arrays["x_train"][val])).detach().numpy()
        assert found["val_accuracy"] == pytest.approx(accuracy(logits, arrays["y_train"][val]))
    assert not [note for note in e.problem.notes if "not used" in note]


@pytest.mark.parametrize(("algo", "problem"), [("coda_plus", "auc"), ("fedxl", "x_risk"), ("fednest", "data_cleaning")])
def test_chosen_metrics_are_measured_by_every_problem(algo, problem, clinics):
    _, words = clinics(val=False)
    words = [*words, "problem.model=mlp", "problem.widths=[4]", "problem.metrics=[balanced_accuracy,brier]"]
    e = assemble(compose([f"algo={algo}", f"problem={problem}", "hardware.threads=1", *words]))
    found, *_ = evaluate(e, e.algorithm.init(e.problem), Progress())
    assert {"test_balanced_accuracy", "test_brier"} <= {*found}
    assert "test_accuracy" not in found


def test_personal_models_are_handed_out_measured_or_not():
    """Of a problem that measures none, and of classification without rows for it."""
    for problem in ("quadratic_minimisation", "classification"):
        e = small("local_only", problem)
        x, own = point_of(e, steps(e, 1)[-1], 1)
        assert own.shape == (e.problem.clients, len(x))
    assert e.problem.own_models


def test_local_rows_are_those_that_the_data_name(clinics):
    arrays, words = clinics()
    p = experiment("fedavg", words).original
    for i, name in enumerate(NAMES[:3]):
        rows = p.local_set.rows[p.local_set.owner == i]
        np.testing.assert_array_equal(rows, np.flatnonzero(arrays["client_test"] == name))
    counts = p.clients_table(*p.start())
    train = arrays["y_train"][~arrays["val_train"]]
    events = arrays["y_test"] == np.bincount(train).argmin()
    for i, name in enumerate(NAMES[:3]):
        assert counts["test_rows"][i] == np.sum(arrays["client_test"] == name)
        assert counts["events"][i] == np.sum(events & (arrays["client_test"] == name))
    with pytest.raises(UserError, match=r"the data already name each client's test rows"):
        experiment("fedavg", words, "classification", "problem.own_test=0.2")


ABOUT_CLASSES = ["loss_tuning", "hyper_representation", "data_cleaning", "fair_classification", "auc", "robust_nn"]


@pytest.mark.parametrize("problem", ABOUT_CLASSES)
def test_every_problem_about_examples_measures_clients_and_those_alone(problem, clinics):
    """The loss of a tuned model is that of its calibrated output, which is compared with that of the client alone."""
    arrays, words = clinics(val=False)
    algo = "fedmsa" if problem in OF_BILEVEL else "fedavg_s"
    e = experiment(
        algo, words, problem, "problem.model=mlp" if problem == "hyper_representation" else "problem.model=linear"
    )
    values, table = e.problem.evaluate(*e.problem.start()), e.problem.clients_table(*e.problem.start())
    main = "auc" if problem == "auc" else "accuracy"
    assert {f"personal_{main}", "better_than_alone", f"alone_{main}"} <= {m.name for m in e.problem.metrics} & {*values}
    assert table["test_rows"].tolist() == [np.sum(arrays["client_test"] == name) for name in NAMES[:3]]
    assert values["better_than_alone"] == pytest.approx(100 * np.mean(table[f"common_{main}"] > table[f"alone_{main}"]))


def test_clients_are_compared_by_the_log_loss_of_probabilities_where_a_class_is_rare(clinics):
    arrays, words = clinics(val=False)
    for of in ("train", "test"):
        ones = np.flatnonzero(arrays[f"y_{of}"])
        arrays[f"y_{of}"][np.setdiff1d(ones, ones[::3])] = 0
    np.savez(words[1].partition("=")[2], **arrays)
    e = experiment("fedmsa", words, "loss_tuning")
    assert e.problem.client_metric.name == "loss"
    x, y = e.problem.start()
    x = x + torch.tensor([0.0, 1.0, 0.5, -0.5]).to(x)
    values, scale, shift = e.problem.evaluate(x, y), 1 / (1 + np.exp([-0.0, -1.0])), [0.5, -0.5]
    logits = outputs(y.numpy(), arrays["x_test"]) * scale + shift
    of_clients = [
        loss(logits[mine], arrays["y_test"][mine]) for mine in (arrays["client_test"] == n for n in NAMES[:3])
    ]
    assert values["personal_loss"] == pytest.approx(np.mean(of_clients))
    table = e.problem.clients_table(x, y)
    np.testing.assert_allclose(table["common_loss"], of_clients)
    assert values["better_than_alone"] == pytest.approx(100 * np.mean(of_clients < table["alone_loss"]))
    right = outputs(y.numpy(), arrays["x_test"]).argmax(1) == arrays["y_test"]
    mine = [(arrays["client_test"] == name) & (arrays["y_test"] == 1) for name in NAMES[:3]]
    np.testing.assert_allclose(table["common_recall_1"], [100 * right[rows].mean() for rows in mine])
    wanted = stats.binomtest(int(right[mine[0]].sum()), int(mine[0].sum())).proportion_ci(method="wilson")
    ends = [table[f"common_recall_1_{end}"][0] for end in ("low", "high")]
    np.testing.assert_allclose(ends, np.multiply(100, wanted))


def test_own_test_rows_are_stratified_and_do_not_follow_the_seed(clinics, monkeypatch, capsys, tmp_path):
    """Each class of a client has its share, rounded up or down; own_test.csv names the rows among the file's training rows."""
    arrays = made()
    arrays.pop("client_test")
    np.savez(tmp_path / "few.npz", **arrays)
    _, words = clinics()
    words = ["algo=fedavg", "problem=classification", *words, f"dataset.path={tmp_path / 'few.npz'}", "budget.rounds=1"]
    written = []
    for seed, more in ((1, []), (2, []), (2, ["problem.own_test_seed=7"]), (2, ["problem.own_test_seed=null"])):
        out = tmp_path / f"run{len(written)}"
        result = fedopt(monkeypatch, capsys, *words, "problem.own_test=0.3", f"seed={seed}", *more, f"output_dir={out}")
        assert result.code == 0, result.err
        written.append(list(csv.DictReader((out / "own_test.csv").read_text().splitlines())))
    assert written[0] == written[1]
    assert written[0] != written[2]
    assert written[2] != written[3]
    trained = ~arrays["val_train"]
    for rows in written[:3]:
        places = np.array([int(row["row"]) - 1 for row in rows])
        assert [row["client"] for row in rows] == arrays["client_train"][places].tolist()
        assert trained[places].all()
        for name in NAMES[:3]:
            mine = trained & (arrays["client_train"] == name)
            held_out = places[arrays["client_train"][places] == name]
            assert len(held_out) == np.rint(0.3 * mine.sum())
            for label in (0, 1):
                share = np.sum(arrays["y_train"][mine] == label) * len(held_out) / mine.sum()
                assert abs(np.sum(arrays["y_train"][held_out] == label) - share) < 1
    assert "18 own test" in (tmp_path / "run0" / "log.txt").read_text() + result.out + result.err


def test_each_row_is_predicted_once_by_its_clients_model(monkeypatch):
    e = small("local_only", "classification", "problem.model=mlp")
    p, (x,) = e.problem, e.problem.start()
    own = x + 0.1 * torch.randn(p.clients, len(x), generator=torch.Generator().manual_seed(0))
    of = p.test_set._replace(owner=np.random.default_rng(0).integers(-1, p.clients, len(p.test_set.owner)))
    calls, predicted = [], type(p).predicted
    monkeypatch.setattr(type(p), "predicted", lambda self, *of: calls.append(1) or predicted(self, *of))
    found = p.predictions(of, partial(p.predicted, x), own)
    assert len(calls) == 1 + p.clients
    for row, owner in enumerate(of.owner):
        one = p.net(own[owner] if owner >= 0 else x, p.test_examples.x[row][None])[0]
        torch.testing.assert_close(found[row], one)


def test_clients_csv_has_further_scores_of_each_client(clinics, monkeypatch, capsys, tmp_path):
    """By its own model and by the common one, on its test rows; empty where scikit-learn does not define it."""
    arrays, words = clinics(val=False)
    words = ["algo=ditto", "problem=classification", "problem.model=linear", *words, "budget.rounds=2"]
    out = tmp_path / "run"
    assert fedopt(monkeypatch, capsys, *words, "problem.metrics=[recall_1,auc]", f"output_dir={out}").code == 0
    variables = load(out).variables
    for i, row in enumerate(csv.DictReader((out / "clients.csv").read_text().splitlines())):
        mine = arrays["client_test"] == NAMES[i]
        x, y = arrays["x_test"][mine], arrays["y_test"][mine]
        for kind, model in (("own", variables["personal"][i]), ("common", variables["x"])):
            logits = outputs(model.numpy(), x)
            assert float(row[f"{kind}_recall_1"]) == pytest.approx(100 * np.mean(logits[y == 1].argmax(1) == 1))
            score = logits[:, 1] - logits[:, 0]
            pairs = score[y == 1][:, None] - score[y == 0]
            assert float(row[f"{kind}_auc"]) == pytest.approx(np.mean(pairs > 0))
            assert float(row[f"{kind}_accuracy"]) == pytest.approx(accuracy(logits, y))
