"""Models as files: what a few lines of pandas make of them is what the run has measured, and files that were sent run no code."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from support.command import fedopt as command
from torch import nn

import fedopt
from fedopt import UserError
from fedopt.data.model import Card, Model

FEATURES = ["age", "dose", "site", "score"]  # site is constant
WORDS = [
    "dataset=csv",
    "dataset.path=clinics.csv",
    "dataset.client=clinic",
    "dataset.split=split",
    "partitioner=by_column",
]
WORDS += [f"dataset.features=[{','.join(FEATURES)}]", "participation.cohort=null", "budget.rounds=3"]
REAL = [*WORDS, "dataset.label=length", "dataset.real=true"]
CLASSES = [*WORDS, "dataset.label=event", "problem.model=linear"]
NAMES = ["Aue", "Bonn", "Celle"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table in the working directory, with columns of different sizes."""
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(0), 240
    made = pd.DataFrame(rng.normal([50, 0.2, 7, 1000], [12, 0.1, 0, 300], (n, 4)), columns=FEATURES)
    made["clinic"], made["split"] = rng.choice(NAMES, n), rng.choice(["train", "test"], n)
    made["length"] = 0.1 * made.age - 8 * made.dose + made.clinic.map(len) + rng.normal(size=n)
    made["event"] = (made.age + rng.normal(0, 12, n) > 55).astype(int)
    made["stage"] = rng.choice(["mild", "none", "severe"], n)
    made.to_csv("clinics.csv", index=False)
    return made


def outputs(path, rows):
    """What any program makes of the file of a linear model."""
    model = json.loads(path.read_text())
    x = rows[model["features"]].fillna(dict(zip(model["features"], model["fill"] or [], strict=False)))
    x = (x - model["means"]) / model["deviations"]
    return x.to_numpy() @ np.transpose(model["coefficients"]) + model["intercept"]


@pytest.mark.parametrize("pixels", ["standardised", "unit", "raw"])
@pytest.mark.parametrize("algo", ["fedavg", "ditto"])
def test_pandas_reproduces_a_regression(table, tmp_path, algo, pixels):
    """The test error of the run, from the files of the models that its clients deploy."""
    run = fedopt.run(
        [*REAL, f"algo={algo}", "problem=linear_regression", "algo.eta=1e-7", f"dataset.pixels={pixels}"], quiet=True
    )
    errors = []
    for name, rows in table[table.split == "test"].groupby("clinic"):
        model = run.model(client=name)
        model.save(path := tmp_path / "model.json")
        errors.append(outputs(path, rows)[:, 0] - rows.length)
        for one in (model, fedopt.load_model(path)):
            np.testing.assert_allclose(one.predict(rows[rows.columns[::-1]]) - rows.length, errors[-1], atol=1e-9)
        assert model.card.own == (algo == "ditto")
    rmse = np.sqrt((np.concatenate(errors) ** 2).mean())
    assert rmse == pytest.approx(run.final["test_rmse"], rel=1e-8)


@pytest.mark.parametrize("label", ["event", "stage"])
@pytest.mark.parametrize("algo", ["fedavg", "ditto", "fedrep"])
def test_pandas_reproduces_a_classification(table, tmp_path, algo, label):
    words = [
        *CLASSES,
        f"algo={algo}",
        "problem=classification",
        f"dataset.label={label}",
        "problem.metrics=[accuracy,loss]",
    ]
    run = fedopt.run([*words, *["algo.own=all"] * (algo == "fedrep")], quiet=True)
    classes = sorted(set(table[label]))  # as in the table: numbers, or texts
    losses, hits = [], []
    for name, rows in table[table.split == "test"].groupby("clinic"):
        (model := run.model(client=name)).save(tmp_path / "model.json")
        z = outputs(tmp_path / "model.json", rows)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        file = json.loads((tmp_path / "model.json").read_text())
        assert model.classes_.tolist() == file["classes"] == classes
        assert (file["client"], file["own"]) == (name, algo != "fedavg")
        losses.append(-np.log(p[np.arange(len(p)), rows[label].map(classes.index)]))
        hits.append(np.array(classes)[z.argmax(1)] == rows[label])
        np.testing.assert_allclose(model.predict_proba(rows), p, atol=1e-6)
        assert ((model.predict(rows) == rows[label]) == hits[-1]).all()
    assert np.concatenate(losses).mean() == pytest.approx(run.final["test_loss"], rel=1e-6)
    assert 100 * np.concatenate(hits).mean() == pytest.approx(run.final["test_accuracy"])
    if algo == "ditto":
        rows = table[table.split == "test"]
        assert 100 * (run.model().predict(rows) == rows[label]).mean() == pytest.approx(run.final["common_accuracy"])
    if algo == "fedrep":
        with pytest.raises(UserError, match=r"has no common model; choose a client: Aue, Bonn, Celle"):
            run.model()


def test_missing_cells_are_filled_in_as_in_training(table):
    """With the means of the client's training rows. The error is the run's, from frames with the empty cells."""
    table.loc[::3, "age"] = None
    table.to_csv("clinics.csv", index=False)
    run = fedopt.run(
        [*REAL, "dataset.missing=mean", "algo=ditto", "problem=linear_regression", "algo.eta=0.01"], quiet=True
    )
    rows, train = table[table.split == "test"], table[table.split == "train"]
    for name, of in train.groupby("clinic"):
        assert run.model(client=name).card.fill == pytest.approx(of[FEATURES].mean().tolist())
    squares = [(run.model(client=name).predict(of) - of.length) ** 2 for name, of in rows.groupby("clinic")]
    assert np.sqrt(np.concatenate(squares).mean()) == pytest.approx(run.final["test_rmse"], rel=1e-6)
    filled = train.age.fillna(train.groupby("clinic").age.transform("mean"))
    assert run.model().card.fill[0] == pytest.approx(filled.mean())


def test_models_of_personalised_regression(table):
    """They are the exact solutions of the inner problems."""
    words = ["algo=fedbio_local", "problem=personalised_regression", "problem.lam=0.5"]
    run = fedopt.run([*REAL, *words], quiet=True)
    rows = table[table.split == "test"]
    squares = [(run.model(client=name).predict(of) - of.length) ** 2 for name, of in rows.groupby("clinic")]
    assert np.sqrt(np.concatenate(squares).mean()) == pytest.approx(run.final["test_rmse"], rel=1e-5)


def test_a_tuned_loss_calibrates_probabilities(table, tmp_path):
    """The decision is the paper's, by the logits themselves."""
    words = [
        "algo=fedmsa",
        "problem=loss_tuning",
        "problem.largest=80",
        "problem.imbalance=0.5",
        "problem.dropout=0.2",
    ]
    run = fedopt.run([*CLASSES, *words, "problem.model=mlp", "problem.widths=[5]"], quiet=True)
    rows, model = table[table.split == "test"], run.model()
    logits = model(torch.tensor(rows[FEATURES].to_numpy())).detach().double().numpy()
    delta, shift = run.variables["x"].double().numpy().reshape(2, 2)
    tuned = np.exp(logits / (1 + np.exp(-delta)) + shift)
    model.save(tmp_path / "model.safetensors")
    for one in (model, fedopt.load_model(tmp_path / "model.safetensors")):
        np.testing.assert_allclose(one.predict_proba(rows), tuned / tuned.sum(1, keepdims=True), atol=1e-6)
        assert one.predict(rows).tolist() == logits.argmax(1).tolist()
        assert 100 * (one.predict(rows) == rows.event).mean() == pytest.approx(run.final["test_accuracy"])


def test_scores_of_auc(table):
    run = fedopt.run([*CLASSES, "algo=coda_plus", "problem=auc", "problem.positive=1"], quiet=True)
    rows = table[table.split == "test"]
    score = run.model().predict_proba(rows)[:, 1]
    pairs = score[rows.event == 1][:, None] - score[rows.event == 0]
    assert (pairs > 0).mean() + (pairs == 0).mean() / 2 == pytest.approx(run.final["test_auc"])


@pytest.mark.parametrize("model", ["cnn", "mlp", "linear", "support.networks.Normed"])
def test_a_network_of_images(model, tmp_path):
    words = [
        "algo=fedavg",
        "problem=classification",
        "dataset=digits",
        f"problem.model={model}",
        "partitioner.clients=5",
    ]
    run = fedopt.run([*words, "participation.cohort=null", "budget.rounds=1"], quiet=True)
    images = np.random.default_rng(0).integers(0, 17, (9, 8, 8))
    trained = run.model()
    for name in ["model.safetensors", *["model.json"] * (model == "linear")]:
        trained.save(tmp_path / name)
        read = fedopt.load_model(tmp_path / name)
        np.testing.assert_allclose(read.predict_proba(images), trained.predict_proba(images), atol=1e-6)
        assert read.predict(images).tolist() == trained.predict(images).tolist()
        assert not read.training
    if model != "linear":
        with pytest.raises(UserError, match=r"must end in \.safetensors; only linear models"):
            trained.save(tmp_path / "model.json")


def model_of(fills=None):
    """A model of two features, whose outputs are a, and b / 10."""
    card = Card(
        kind="classification", features=["a", "b"], classes=["no", "yes"], shape=[2], network={"model": "linear"}
    )
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = torch.eye(2)
    return Model(
        nn.Sequential(nn.Flatten(), nn.Sequential(layer)), (np.zeros(2), np.array([1.0, 10.0])), card, None, fills
    )


def test_frames_by_name_and_missing_cells():
    frame = pd.DataFrame({"id": ["x", "y"], "b ": [20.0, None], "a": [1, 1]})
    with pytest.raises(UserError, match=r"column b: has cells that are empty"):
        model_of().predict(frame)
    with pytest.raises(UserError, match=r"column b: has cells that are empty or not finite"):
        model_of({"": np.zeros(2)}).predict(frame.assign(**{"b ": "20 mg"}))
    with pytest.raises(UserError, match=r"column a, b: must occur exactly once, did you mean A\?"):
        model_of().predict(frame[["id"]].assign(A=1))
    fills = {"Aue": np.array([0.0, 30.0]), "": np.array([0.0, 5.0])}
    assert model_of(fills).predict(frame).tolist() == ["yes", "no"]
    assert model_of(fills).of("Aue", None).predict(frame).tolist() == ["yes", "yes"]
    assert model_of(fills).of("Bonn", None).predict(frame[1:]).tolist() == ["no"]
    assert model_of(fills).predict([[2, 10], [0, np.nan]]).tolist() == ["no", "yes"]
    np.testing.assert_allclose(model_of().predict_proba(frame[:1]), [[1 / (1 + np.e), np.e / (1 + np.e)]], rtol=1e-6)


BROKEN = {
    "size mismatch for network.1.0.weight": {"coefficients": [[1, 2]]},
    'Missing key(s) in state_dict: "network.1.0.weight"': {"coefficients": None},
    "it lacks 'mean'": {"means": None},
    "shape '[2]' is invalid": {"means": [1.0]},
    "shape '[1000000000000]' is invalid": {"shape": [10**12]},
    "deviations that are not positive": {"deviations": [0.0, 1.0]},
    "numbers that are not finite": {"intercept": [float("nan"), 0.0]},
    "size mismatch for scale": {"scale": [1.0], "shift": [1.0, 1.0]},
    "classes": {"classes": 2},
    "kind: Input should be": {"kind": "cluster"},
    "its feature names do not match": {"features": ["a"]},
    "its feature names do not match the shape": {"fill": [1.0]},
    "its format is not fedopt model 1": {"format": "fedopt model 2"},
    "must be a subclass of torch.nn.Module": {"network": {"model": "os.system"}},
    "there is no such model": {"network": {"model": "transformer"}},
    "Unexpected keyword": {"code": "import os"},
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_file_in_one_line(tmp_path, why):
    path = tmp_path / "model.json"
    model_of().save(path)
    whole = json.loads(path.read_text()) | BROKEN[why]
    path.write_text(json.dumps({key: value for key, value in whole.items() if value is not None or key == "client"}))
    with pytest.raises(UserError) as caught:
        fedopt.load_model(path)
    assert why in str(caught.value)
    assert str(caught.value).startswith(f"{path}: is not a model that fedopt can read (")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1]", b"[" * 10**5], ids=repr)
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_file_that_is_no_model(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="is not a model that fedopt can read"):
        fedopt.load_model(tmp_path / name)


def test_half_a_file(tmp_path):
    path = tmp_path / "model.safetensors"
    model_of().save(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="is not a model that fedopt can read"):
        fedopt.load_model(path)
    with pytest.raises(UserError, match="there is no such file"):
        fedopt.load_model(tmp_path / "other.json")


def test_the_command(table, monkeypatch, capsys, tmp_path):
    fedopt.run(
        [*REAL, "algo=ditto", "problem=linear_regression", "keep=best", "eval.metric=test_rmse"],
        output_dir="run",
        quiet=True,
    )
    common = "the common model of all clients; --client NAME writes one of the"
    for words, file, what in (([], "model", common), (["--client", "Aue"], "model_Aue", "the personal model of Aue")):
        assert command(monkeypatch, capsys, "export", "run", *words).out.startswith(f"wrote run/{file}.json: {what}")
    aue = fedopt.load_model("run/model_Aue.json")
    assert (aue.card.client, aue.card.own, aue.card.run["chosen"]["algo"]) == ("Aue", True, "ditto")
    rows = table[table.clinic == "Aue"]
    np.testing.assert_allclose(aue.predict(rows), fedopt.load("run").model(client="Aue").predict(rows))
    for words, why in (
        (["run"], "run/model.json: exists already"),
        (["run", "--client", "aue"], "did you mean Aue?; choose from Aue, Bonn, Celle"),
        (["run", "--out", "m.txt"], "m.txt: must end in .json or .safetensors"),
        (["nowhere"], "nowhere: contains no run with a checkpoint"),
    ):
        result = command(monkeypatch, capsys, "export", *words)
        assert (result.code, result.out) == (2, "")
        assert why in result.err
        assert result.err.count("\n") == 1
    assert command(monkeypatch, capsys, "export", "run", "--force").code == 0
    assert "test_rmse" in fedopt.load_model("run/model.json").card.run["metrics"]
