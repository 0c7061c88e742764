"""What a run leaves of each client: its own model, and its test metric with that, with the common model and alone."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.cases import few
from support.command import fedopt

from fedopt import load
from fedopt.drawing import figures
from fedopt.drawing import run as drawing
from fedopt.metrics import CLIENT_ACCURACY, CLIENT_RMSE, interval
from fedopt.problems.linear_regression import LinearRegression
from fedopt.results.folder import RunFolder
from fedopt.running.loop import point_of
from fedopt.testing.harness import pairs, small, steps

FEW = ["budget.rounds=3", "eval.every=2", "hardware.threads=1", "participation.cohort=2", "partitioner.clients=4"]
SHARDS = ["dataset=digits", "partitioner=shards", "problem.own_test=0.25", "problem.model=softmax"]
PERSONAL = ["pfedme", "ditto", "fedrep", "per_fedavg", "per_fedavg_hvp", "local_only"]
OTHERS = [algo for algo, problem in pairs() if problem == "linear_regression" and algo not in PERSONAL]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """A function that does a run with these words, and returns it with the points that were evaluated."""

    def done(algo, *words, problem="linear_regression"):
        seen = []
        evaluate = LinearRegression.evaluate
        monkeypatch.setattr(LinearRegression, "evaluate", lambda p, *point: seen.append(point) or evaluate(p, *point))
        words = [f"algo={algo}", f"problem={problem}", *FEW, *words, f"output_dir={tmp_path / 'run'}"]
        result = fedopt(monkeypatch, capsys, *words)
        assert result.code == 0, result.err
        return tmp_path / "run", seen

    return done


def ends(*columns):
    """These columns of clients.csv, with those of their intervals."""
    return [f"{column}{end}" for column in columns for end in ("", "_low", "_high")]


def clients_of(folder):
    return list(csv.DictReader((folder / "clients.csv").read_text().splitlines()))


@pytest.mark.parametrize("algo", PERSONAL)
def test_personal_models_are_those_that_were_evaluated(algo, run):
    folder, seen = run(algo)
    variables = load(folder).variables
    assert [*variables] == ["x", "personal"]
    assert variables["personal"].shape == (4, 6)
    assert all(torch.equal(*pair) for pair in zip(variables.values(), seen[-1], strict=True))
    assert not torch.equal(variables["personal"], seen[-2][1])


@pytest.mark.parametrize("algo", ["pfedme", "per_fedavg"])
def test_personal_models_of_the_best_evaluation(algo, run):
    folder, seen = run(algo, "keep=best", "eval.metric=distance", "budget.rounds=6", "algo.beta=0.9")
    best = int(
        np.argmin([float(row["distance"]) for row in csv.DictReader((folder / "metrics.csv").read_text().splitlines())])
    )
    found = load(folder, "best").variables
    assert all(torch.equal(*pair) for pair in zip(found.values(), seen[best], strict=True))


def test_methods_without_models_of_clients_have_none(run):
    assert [*load(run("fedavg")[0]).variables] == ["x"]


@pytest.fixture
def sites(tmp_path):
    """A table of three sites, of which one has no test examples, and its words."""
    rng = np.random.default_rng(1)
    parts = {"x_train": rng.normal(size=(60, 2)), "x_test": rng.normal(size=(40, 2))}
    parts |= {
        "client_train": np.repeat(["Ahus, Oslo", "Bern", "Cork"], 20),
        "client_test": np.repeat(["Bern", "Cork"], 20),
    }
    for of in ("train", "test"):
        slope = np.char.str_len(parts[f"client_{of}"])[:, None] / 5
        parts[f"y_{of}"] = (slope * parts[f"x_{of}"]).sum(1) + rng.normal(size=len(slope))
    np.savez(tmp_path / "sites.npz", **parts)
    words = ["dataset=npz", f"dataset.path={tmp_path / 'sites.npz'}", "dataset.pixels=raw", "partitioner=by_column"]
    return parts, [*words, "partitioner.clients=null"]


def test_clients_csv_has_the_error_of_each_client(run, sites):
    parts, words = sites
    folder, seen = run("pfedme", *words)
    rows, (x, own), card = clients_of(folder), seen[-1], RunFolder(folder).card()
    assert [*rows[0]] == [
        "client",
        "examples",
        "test_rows",
        *ends("own_rmse", "common_rmse", "alone_rmse", "alone_unpenalised_rmse"),
    ]
    assert [row["test_rows"] for row in rows] == ["0", "20", "20"]
    assert [(row["client"], row["examples"]) for row in rows] == [("Ahus, Oslo", "20"), ("Bern", "20"), ("Cork", "20")]
    assert {rows[0][kind] for kind in ends("own_rmse", "common_rmse", "alone_rmse", "alone_unpenalised_rmse")} == {""}
    design = {of: np.column_stack([parts[f"x_{of}"], np.ones(len(parts[f"x_{of}"]))]) for of in ("train", "test")}
    assert card["client_metric"] == CLIENT_RMSE
    for i, row in enumerate(rows[1:], 1):
        of = {part: parts[f"client_{part}"] == row["client"] for part in ("train", "test")}
        for kind, model in (("own_rmse", own[i]), ("common_rmse", x)):
            off = design["test"][of["test"]] @ np.asarray(model) - parts["y_test"][of["test"]]
            assert float(row[kind]) == pytest.approx(np.sqrt(np.mean(off**2))), (kind, row)
            for end, quantile in (("low", 0.975), ("high", 0.025)):
                wanted = np.sqrt(np.sum(off**2) / stats.chi2.ppf(quantile, 20))
                assert float(row[f"{kind}_{end}"]) == pytest.approx(wanted)


def test_clients_csv_has_accuracies(run):
    folder, _ = run("local_only", *SHARDS, "problem.alone=true", problem="classification")
    rows, final = clients_of(folder), load(folder).final
    assert not [column for column in rows[0] if column.startswith("common")]
    values = {kind: np.array([float(row[f"{kind}_accuracy"]) for row in rows]) for kind in ("own", "alone")}
    assert values["own"].mean() == pytest.approx(final["personal_accuracy"])
    assert values["own"].min() == pytest.approx(final["worst_personal_accuracy"])
    assert 100 * np.mean(values["own"] > values["alone"]) == final["better_than_alone"]
    assert RunFolder(folder).card()["client_metric"] == CLIENT_ACCURACY


@pytest.mark.parametrize("algo", ["fedavg", "simfbo"])
def test_clients_csv_of_methods_without_models_of_clients(algo, run):
    """The common model, and alone, if that is known."""
    folder, seen = run(algo, "preset=none")
    wanted = ["client", "examples", "test_rows", *ends("common_rmse", "alone_rmse", "alone_unpenalised_rmse")]
    assert [*clients_of(folder)[0]] == wanted
    assert [*load(folder).variables] == ["x"]
    assert torch.equal(load(folder).variables["x"], seen[-1][0])


@pytest.mark.parametrize("algo", few(OTHERS, ["acc_fcsg_m", "fedmsa", "scaffold"].count))
def test_models_of_clients_of_every_method(algo):
    e = small(algo, "linear_regression")
    point = point_of(e, steps(e, 1)[-1], 1)
    x, t = (v.numpy() for v in (e.original.test_examples.x, e.original.test_examples.y))
    off, M = x @ point[0].numpy() - t, e.problem.clients
    common = [np.sqrt(np.mean(off[i::M] ** 2)) for i in range(M)]  # examples are dealt out in turn
    assert e.problem.clients_table(*point)["common_rmse"] == pytest.approx(common)


def test_a_run_that_was_killed_after_its_last_row_has_its_clients(run, monkeypatch, capsys):
    folder, _ = run("ditto")
    before = (folder / "clients.csv").read_bytes()
    for name in ("clients.csv", "summary.json"):
        (folder / name).unlink()
    words = ["algo=ditto", "problem=linear_regression", *FEW, "resume=true", f"output_dir={folder}"]
    assert fedopt(monkeypatch, capsys, *words).code == 0
    assert (folder / "clients.csv").read_bytes() == before


def test_a_run_that_diverges_in_the_end_leaves_no_clients(run, monkeypatch, capsys):
    steps = "algo.eta={kind: piecewise, boundaries: [3], values: [0.05, 1e9]}"
    folder, _ = run("fedavg", steps)
    assert (folder / "clients.csv").exists()
    words = ["algo=fedavg", "problem=linear_regression", *FEW, steps, "budget.rounds=40", "resume=true"]
    assert fedopt(monkeypatch, capsys, *words, f"output_dir={folder}").code == 3
    assert not (folder / "clients.csv").exists()


def test_tests_of_unknown_clients_alone_are_refused(sites, monkeypatch, capsys, tmp_path):
    parts, words = sites
    np.savez(tmp_path / "sites.npz", **parts | {"client_test": np.repeat(["Dublin", "Elba"], 20)})
    words = ["algo=pfedme", "problem=linear_regression", *FEW, *words, f"output_dir={tmp_path / 'run'}"]
    result = fedopt(monkeypatch, capsys, *words)
    assert result.code == 2
    assert "no client has both training and test examples" in result.err


def test_clients_csv_of_one_model(run):
    """Accuracies of the common model, with Wilson's intervals."""
    folder, _ = run("fedavg", *SHARDS, problem="classification")
    rows = clients_of(folder)
    assert [*rows[0]][:2] == ["client", "examples"]
    assert {"test_rows", *ends("common_accuracy")} <= {*rows[0]}
    for row in rows:
        n = int(row["test_rows"])
        assert n == round(0.25 * (n + int(row["examples"])))
        right = round(n * float(row["common_accuracy"]) / 100)
        wanted = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert [float(row[end]) for end in ends("common_accuracy")] == pytest.approx(
            [100 * right / n, *np.multiply(100, wanted)]
        )


def test_no_clients_csv_without_a_metric_of_clients(monkeypatch, capsys, tmp_path):
    words = ["algo=fedbio_local", "problem=quadratic_local_bilevel", *FEW, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *words).code == 0
    assert not (tmp_path / "run" / "clients.csv").exists()


def test_intervals_of_extreme_values():
    """No interval without test rows; all right, or all wrong, is not certain."""
    low, high = interval("accuracy", np.array([100.0, 0.0, np.nan]), np.array([8, 8, 0]))
    wanted = [stats.binomtest(k, 8).proportion_ci(method="wilson") for k in (8, 0)]
    np.testing.assert_allclose([low[:2], high[:2]], 100 * np.transpose(wanted), atol=1e-9)
    assert np.isnan([low[2], high[2]]).all()


def test_clients_csv_of_lower_levels(monkeypatch, capsys, tmp_path):
    words = ["algo=fedbio_local", "problem=personalised_regression", *FEW]
    assert fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}").code == 0
    own = [float(row["own_rmse"]) for row in clients_of(tmp_path / "run")]
    assert np.mean(own) == pytest.approx(load(tmp_path / "run").final["personal_rmse"])


# The picture


def drawn(monkeypatch, tmp_path, text, metric):
    figures_drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, *_, title, **__: figures_drawn.append((figure.axes[0], title)))
    (tmp_path / "clients.csv").write_text(text)
    drawing.clients(tmp_path / "clients.png", tmp_path / "clients.csv", metric)
    return figures_drawn[0]


def test_the_picture_says_who_gains(monkeypatch, tmp_path):
    text = "client,examples,own_rmse,common_rmse,alone_rmse\na,1,2,1,3\nb,1,,,\nc,1,4,3,5\nd,1,2,2,1\ne,1,4,5,4\n"
    axes, title = drawn(monkeypatch, tmp_path, text, CLIENT_RMSE)
    assert title == "50 % of 4 clients do better with their own model than alone, 25 % than with the common model"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c", "e", "a", "d"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {
        "alone": [[0, 5], [1, 4], [2, 3], [3, 1]],
        "with their own model: better": [[0, 4], [2, 2]],
        "with their own model: worse": [[3, 2]],
        "with their own model: equal": [[1, 4]],
        "with the common model": [[0, 3], [1, 5], [2, 1], [3, 2]],
    }


def test_the_picture_fades_what_rests_on_few(monkeypatch, tmp_path):
    """Fewer than ten test rows; their intervals, however wide, do not stretch the axis."""
    text = "client,examples,test_rows,own_rmse,own_rmse_low,own_rmse_high,alone_rmse\na,1,10,2,1,3,4\nb,1,9,1,0,99,3\n"
    axes, _ = drawn(monkeypatch, tmp_path, text, CLIENT_RMSE)
    dots = {line.get_xydata().tolist()[0][1]: line.get_alpha() for line in axes.lines if line.get_marker() == "o"}
    assert dots == {2: 1, 1: drawing.PALE}
    lines = [c.get_segments()[0].tolist() for c in axes.collections]
    assert [[0, 1], [0, 3]] in lines
    assert [[1, 0], [1, 99]] in lines
    assert axes.get_ylim() == pytest.approx((0.85, 4.15))


def test_the_picture_of_one_model(monkeypatch, tmp_path):
    axes, title = drawn(monkeypatch, tmp_path, "client,examples,common_accuracy\na,1,90\nb,1,70\n", CLIENT_ACCURACY)
    assert title == "2 clients with the common model"
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 70], [1, 90]]]
    assert axes.lines[0].get_label() == "with the common model"


def test_no_picture_without_test_examples(tmp_path):
    (tmp_path / "clients.csv").write_text("client,examples,common_rmse,alone_rmse\na,1,,\n")
    drawing.clients(tmp_path / "clients.png", tmp_path / "clients.csv", CLIENT_RMSE)
    assert not (tmp_path / "clients.png").exists()


def test_the_picture_of_accuracies_has_the_worst_first_too(monkeypatch, tmp_path):
    axes, title = drawn(
        monkeypatch, tmp_path, "client,examples,common_accuracy,alone_accuracy\na,1,90,80\nb,1,70,70\n", CLIENT_ACCURACY
    )
    assert title == "50 % of 2 clients do better with the common model than alone"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b", "a"]
    assert axes.get_ylabel() == "accuracy on own test examples (%); higher is better"


# traffic.csv


@pytest.fixture
def traffic(monkeypatch, capsys, tmp_path):
    """A function that does a run with these words in a folder of this name, and returns the columns of its traffic.csv."""

    def done(name, *words):
        result = fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / name}")
        assert result.code == 0, result.err
        return pd.read_csv(tmp_path / name / "traffic.csv")

    return done


@pytest.mark.parametrize("words", [(), ("participation.sampling=by_weight",)])
def test_a_client_that_drops_out_has_received_the_model(words, traffic):
    """Cohorts are sampled before anyone drops out, so that what is sent to each client does not depend on the dropout."""
    words = ["algo=fedavg", "problem=linear_regression", *FEW, "budget.rounds=9", *words]
    stay, leave = (traffic(p, *words, f"participation.dropout={p}") for p in ("0", "0.5"))
    size = 6 * 8  # of a model
    assert (stay.bytes_down == size * stay.rounds).all()
    assert not stay.bytes_down_lost.any()
    assert (leave.bytes_down == stay.bytes_down).all()
    assert (leave.bytes_up == size * leave.rounds).all()
    assert (leave.bytes_down - leave.bytes_down_lost == leave.bytes_up).all()
    assert 9 <= leave.rounds.sum() < stay.rounds.sum()
    assert leave.MB_down.to_numpy() == pytest.approx(leave.bytes_down / 1e6, rel=1e-5)


def test_a_round_of_several_messages_is_one_round_of_a_client(traffic, tmp_path):
    """Who drops out gets the first message of the round alone, and a resume changes nothing."""
    words = ["algo=fedmsa", "problem=quadratic_bilevel", *FEW, "participation.dropout=0.5", "algo.anchor=cohort"]
    want = traffic("whole", *words, "budget.rounds=6")
    assert want.rounds.max() <= 6
    table = pd.read_csv(tmp_path / "whole" / "metrics.csv")
    assert (want.bytes_down - want.bytes_down_lost).sum() == table["bytes_down"].iloc[-1]
    assert table["comm_rounds"].iloc[-1] == 12
    traffic("part", *words, "budget.rounds=2")
    assert traffic("part", "resume=true", "budget.rounds=6").equals(want)


# A loss that another run has tuned


@pytest.mark.parametrize("algo", ["ditto", pytest.param("fedrep", marks=pytest.mark.full)])
def test_personal_models_train_with_the_loss_of_another_run(algo, run, monkeypatch, capsys, tmp_path):
    """Its path is relative to the directory where the run began, also where it is read back from another one."""
    words = ["algo=fedmsa", "problem=loss_tuning", "dataset=digits", "algo.alpha=0.5", *FEW]
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, *words, "output_dir=tuned").code == 0
    load("tuned").model().save("tuned.safetensors")
    x = load("tuned").variables["x"]
    assert x.abs().max() > 1e-4
    model = "mlp" if algo == "fedrep" else "linear"
    of_classes = ["dataset=digits", "problem.own_test=0.25", f"problem.model={model}", "partitioner=iid"]
    folder, _ = run(algo, *of_classes, "problem.loss=tuned.safetensors", problem="classification")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert load(folder).model(client=0)
    assert load(folder).variables["personal"].isfinite().all()
    monkeypatch.chdir(tmp_path)
    plain = ["algo=fedavg", "problem=classification", *of_classes, *FEW, "output_dir=plain"]
    assert fedopt(monkeypatch, capsys, *plain).code == 0
    load("plain").model().save("plain.safetensors")
    for of, said in (
        ("none.json", "none.json: there is no such file; `fedopt export RUN` writes one"),
        ("tuned", "tuned: is not a model that fedopt can read"),
        ("plain.safetensors", "plain.safetensors: is not a model of problem=loss_tuning"),
    ):
        words = [f"algo={algo}", "problem=classification", *of_classes, *FEW, f"problem.loss={of}"]
        result = fedopt(monkeypatch, capsys, *words)
        assert (result.code, said in result.err, result.err.count("\n")) == (2, True, 1)


def test_the_interval_of_no_or_all_test_rows_ends_at_the_share():
    """Exactly, and not at 3e-15."""
    rows = np.arange(1, 200)
    assert (interval("accuracy", np.zeros(len(rows)), rows)[0] == 0).all()
    assert (interval("accuracy", np.full(len(rows), 100.0), rows)[1] == 100).all()
