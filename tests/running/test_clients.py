"""What a run leaves of each client: its own model, and its test metric with that, with the common model and alone."""

import csv

import numpy as np
import pytest
import torch
from support.cases import few
from support.command import fedopt

from fedopt import load
from fedopt.drawing import figures
from fedopt.drawing import run as drawing
from fedopt.metrics import CLIENT_ACCURACY, CLIENT_RMSE
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
    assert [*rows[0]] == ["client", "examples", "own", "common", "alone", "alone_unpenalised"]
    assert [(row["client"], row["examples"]) for row in rows] == [("Ahus, Oslo", "20"), ("Bern", "20"), ("Cork", "20")]
    assert [rows[0][kind] for kind in ("own", "common", "alone")] == ["", "", ""]
    design = {of: np.column_stack([parts[f"x_{of}"], np.ones(len(parts[f"x_{of}"]))]) for of in ("train", "test")}
    assert card["client_metric"] == CLIENT_RMSE
    for i, row in enumerate(rows[1:], 1):
        of = {part: parts[f"client_{part}"] == row["client"] for part in ("train", "test")}
        alone = np.linalg.lstsq(design["train"][of["train"]], parts["y_train"][of["train"]])[0]
        for kind, model in (("own", own[i]), ("common", x), ("alone_unpenalised", alone)):
            off = design["test"][of["test"]] @ np.asarray(model) - parts["y_test"][of["test"]]
            assert float(row[kind]) == pytest.approx(np.sqrt(np.mean(off**2))), (kind, row)


def test_clients_csv_has_accuracies(run):
    folder, _ = run("local_only", *SHARDS, "problem.alone=true", problem="classification")
    rows, final = clients_of(folder), load(folder).final
    values = {kind: np.array([float(row[kind]) for row in rows]) for kind in ("own", "common", "alone")}
    assert values["own"].mean() == pytest.approx(final["personal_accuracy"])
    assert values["own"].min() == pytest.approx(final["worst_personal_accuracy"])
    assert 100 * np.mean(values["own"] > values["alone"]) == final["better_than_alone"]
    assert values["common"].mean() < values["own"].mean()
    assert RunFolder(folder).card()["client_metric"] == CLIENT_ACCURACY


@pytest.mark.parametrize("algo", ["fedavg", "simfbo"])
def test_clients_csv_of_methods_without_models_of_clients(algo, run):
    """The common model against alone, if that is known; else there is nothing to compare."""
    folder, seen = run(algo, "preset=none")
    assert [*clients_of(folder)[0]] == ["client", "examples", "common", "alone", "alone_unpenalised"]
    assert [*load(folder).variables] == ["x"]
    assert torch.equal(load(folder).variables["x"], seen[-1][0])


@pytest.mark.parametrize("algo", few(OTHERS, ["acc_fcsg_m", "fedmsa", "scaffold"].count))
def test_models_of_clients_of_every_method(algo):
    e = small(algo, "linear_regression")
    point = point_of(e, steps(e, 1)[-1], 1)
    common = e.original.errors_of_clients(point[0], point[0].expand(e.problem.clients, -1))["common"]
    assert e.problem.of_clients(*point)["common"] == pytest.approx(common, nan_ok=True)


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


@pytest.mark.parametrize("words", [["algo=fedavg", "problem=classification", *SHARDS], ["algo=fedbio_local"]])
def test_no_clients_csv_without_two_models(words, monkeypatch, capsys, tmp_path):
    usual = [*FEW, "problem=personalised_regression", *words, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *usual).code == 0
    assert not (tmp_path / "run" / "clients.csv").exists()


def test_clients_csv_of_learnt_strengths(monkeypatch, capsys, tmp_path):
    words = ["algo=fedbio_local", "problem=personalised_regression", "problem.strengths=client", *FEW]
    assert fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}").code == 0
    own = [float(row["own"]) for row in clients_of(tmp_path / "run")]
    assert np.mean(own) == pytest.approx(load(tmp_path / "run").final["personal_rmse"])


# The picture


def drawn(monkeypatch, tmp_path, text, metric):
    figures_drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, *_, title, **__: figures_drawn.append((figure.axes[0], title)))
    (tmp_path / "clients.csv").write_text(text)
    drawing.clients(tmp_path / "clients.png", tmp_path / "clients.csv", metric)
    return figures_drawn[0]


def test_the_picture_says_who_gains(monkeypatch, tmp_path):
    text = "client,examples,own,common,alone\na,1,2,1,3\nb,1,,,\nc,1,4,3,5\nd,1,2,2,1\ne,1,4,5,4\n"
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


def test_no_picture_without_test_examples(tmp_path):
    (tmp_path / "clients.csv").write_text("client,examples,common,alone\na,1,,\n")
    drawing.clients(tmp_path / "clients.png", tmp_path / "clients.csv", CLIENT_RMSE)
    assert not (tmp_path / "clients.png").exists()


def test_the_picture_of_accuracies_has_the_worst_first_too(monkeypatch, tmp_path):
    axes, title = drawn(monkeypatch, tmp_path, "client,examples,common,alone\na,1,90,80\nb,1,70,70\n", CLIENT_ACCURACY)
    assert title == "50 % of 2 clients do better with the common model than alone"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b", "a"]
    assert axes.get_ylabel() == "accuracy on own test examples (%); higher is better"


@pytest.mark.pictures
def test_a_picture_that_is_missing_is_drawn(run):
    folder, _ = run("pfedme")
    for name in ("clients.png", "metrics.png"):
        (folder / name).unlink()
    run("pfedme", "resume=true")
    assert (folder / "clients.png").stat().st_size > 1000
