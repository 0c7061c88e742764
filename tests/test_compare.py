"""fedopt-compare on run folders made by hand."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from command import ROOT, code_of

from fedopt.metrics import DISTANCE, TEST_ACCURACY, TRAIN_LOSS, Metric
from fedopt.reproduce import compare
from fedopt.results import figures

FEDMSA = {"_target_": "fedopt.algorithms.fedmsa.FedMSA", "_solves_": ["bilevel", "minimisation"], "K": 5}
FEDAVG = {"_target_": "fedopt.algorithms.fedavg.FedAvg", "_solves_": ["minimisation"], "eta": 0.1}
MCO = {"_target_": "fedopt.problems.mco.Mco", "d": 10}


def record(folder, values, seed=0, metric="test_accuracy", every=10, status="finished", algo=FEDMSA, **config):
    """A run with an evaluation each `every` rounds: 2 exchanges, 100 bytes down, 50 up and half a second a round."""
    folder.mkdir(parents=True)
    config = {"seed": seed, "name": "a_b", "algo": algo, "problem": MCO, "output_dir": str(folder), **config}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = [f"round,comm_rounds,bytes_down,bytes_up,grad_calls,train_seconds,train_loss,{metric}"]
    for r, value in zip(range(0, 10_000, every), values, strict=False):
        lines.append(f"{r},{2 * r},{100 * r},{50 * r},{7 * r},{0.5 * r},0.25,{value}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    described = {"test_accuracy": TEST_ACCURACY, "distance": DISTANCE}.get(metric, Metric(metric, metric))
    card = {"metrics": [asdict(described), asdict(TRAIN_LOSS)]}
    (folder / "run.json").write_text(json.dumps(card))
    (folder / "summary.json").write_text(json.dumps({"status": status}))
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs fedopt-compare; gives the exit code, compare.csv as a table (None without one), stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedopt-compare", *map(str, arguments), "--out", str(tmp_path / "out")])
        code = code_of(compare.main)
        csv = tmp_path / "out" / "compare.csv"
        return code, pd.read_csv(csv) if csv.exists() else None, *capsys.readouterr()

    return run


def test_means_and_deviations_over_seeds(tmp_path, command):
    for seed, values in enumerate([(10, 95, 80), (20, 60, 90), (30, 70, 100)]):
        record(tmp_path / "runs" / "deep" / f"m{seed}", values, seed)
    record(tmp_path / "runs" / "a0", (10, 40), algo=FEDAVG)
    code, csv, out, err = command(tmp_path / "runs")
    assert (code, err) == (0, "")
    assert list(csv["algo"]) == ["FedAvg", "FedMSA"]
    fedavg, fedmsa = csv.to_dict("records")
    assert (fedmsa["runs"], fedmsa["seeds"], fedmsa["status"]) == (3, 3, "3 finished")
    assert fedmsa["final_test_accuracy_mean"] == pytest.approx(90)  # of 80, 90, 100
    assert fedmsa["final_test_accuracy_std"] == pytest.approx(10)
    assert fedmsa["best_test_accuracy_mean"] == pytest.approx(95)  # of 95, 90, 100
    assert fedmsa["best_test_accuracy_std"] == pytest.approx(5)
    assert fedavg["final_test_accuracy_mean"] == 40
    assert np.isnan(fedavg["final_test_accuracy_std"])
    assert "90 ± 10" in out
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("x", "mean", "std"),
    [  # reached in rounds 10 and 20; of 40 and 20, 30 ± sqrt(200)
        ("round", 15, 50**0.5),
        ("comm_rounds", 30, 200**0.5),
        ("bytes", 150 * 15, 150 * 50**0.5),
        ("seconds", 7.5, 0.5 * 50**0.5),
    ],
)
def test_what_the_target_took(tmp_path, command, x, mean, std):
    record(tmp_path / "runs" / "0", (10, 85, 80), 0)  # reached once counts
    record(tmp_path / "runs" / "1", (10, 60, 90), 1)
    record(tmp_path / "runs" / "2", (10, 60, 84.9), 2)
    _, csv, out, _ = command(tmp_path / "runs", "--target", 85, "--x", x)
    (row,) = csv.to_dict("records")
    assert row["reached"] == 2
    assert row[f"{x}_to_target_mean"] == pytest.approx(mean)
    assert row[f"{x}_to_target_std"] == pytest.approx(std)
    assert "2 of 3" in out
    assert f"{x} to 85" in out


def test_distances_go_down(tmp_path, command):
    record(tmp_path / "runs" / "0", (4, 1, 2), metric="distance")
    _, csv, _, _ = command(tmp_path / "runs", "--target", 2)
    (row,) = csv.to_dict("records")
    assert (row["final_distance_mean"], row["best_distance_mean"]) == (2, 1)
    assert (row["comm_rounds_to_target_mean"], row["reached"]) == (20, 1)
    _, csv, out, _ = command(tmp_path / "runs", "--target", 0.5)
    assert (csv["reached"][0], np.isnan(csv["comm_rounds_to_target_mean"][0])) == (0, True)
    assert "0 of 1" in out
    record(tmp_path / "zero" / "0", (4, 0), metric="distance")
    _, csv, _, _ = command(tmp_path / "zero", "--target", 0)
    assert csv["comm_rounds_to_target_mean"][0] == 20


def test_default_metric(tmp_path):
    """The one that the first run's problem names first; a run without it is skipped, and named."""
    runs = [compare.read(record(tmp_path / m, (1, 2), metric=m), "round") for m in ("distance", "test_accuracy")]
    assert compare.default_metric(runs) == "distance"
    assert compare.default_metric(runs[::-1]) == "test_accuracy"


def test_groups_by_what_differs(tmp_path):
    def keys(*configs):
        runs = []
        for j, config in enumerate(configs):
            folder = record(tmp_path / f"{len(list(tmp_path.iterdir()))}", (1, 2), seed=j, **config)
            runs.append(compare.read(folder, "round"))
        return compare.default_keys(runs)

    apart = [{"hardware": {"threads": j}, "logger": {"_target_": f"l{j}"}, "resume": bool(j)} for j in range(2)]
    assert keys(*apart) == ["algo"]
    assert keys({}, {"algo": FEDAVG}) == ["algo"]  # and not K and eta, which only one of them has
    assert keys({}, {"algo": {**FEDMSA, "K": 1}}) == ["algo.K"]
    assert keys({"algo": FEDAVG}, {}, {"algo": {**FEDMSA, "K": 1}}) == ["algo", "algo.K"]
    assert keys({}, {"problem": {**MCO, "d": 20, "_class_": "other"}}) == ["problem.d"]
    assert keys({"partitioner": {"clients": 2}}, {"partitioner": {"clients": 2.0}}) == ["algo"]
    assert keys({"participation": {"cohort": None}}, {"participation": {"cohort": 3}}) == ["participation.cohort"]
    clients = [{"partitioner": {"clients": n}} for n in (2, 3)]
    assert keys(*clients) == ["partitioner.clients"]


def test_chosen_groups(tmp_path, command):
    for K in (10, 5, 1):
        for seed in range(2):
            record(tmp_path / "runs" / f"{K}-{seed}", (1, K + seed), seed, algo={**FEDMSA, "K": K})
    _, csv, _, _ = command(tmp_path / "runs", "--group-by", "algo.K,problem")
    assert list(csv["algo.K"]) == [1, 5, 10]  # by size and not by name
    assert list(csv["problem"]) == ["Mco"] * 3
    assert list(csv["final_test_accuracy_mean"]) == [1.5, 5.5, 10.5]
    _, csv, _, _ = command(tmp_path / "runs", "--group-by", "algo")
    assert list(csv["runs"]) == [6]
    assert list(csv["seeds"]) == [2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--group-by", "algo.k"], "--group-by=algo.k: no run's config has this key, did you mean algo.K?"),
        (["--group-by", "problm"], "did you mean problem?"),
        (["--metric", "test_acuracy"], "--metric=test_acuracy: no run has it, did you mean test_accuracy?"),
        (["--x", "hours"], "invalid choice: 'hours'"),
        (["--target", "high"], "high is not a finite number"),
        (["nowhere"], "nowhere: there is no such folder"),
    ],
)
def test_mistakes_are_answered_in_one_line(tmp_path, command, arguments, said):
    record(tmp_path / "runs" / "0", (1, 2))
    code, csv, out, err = command(tmp_path / "runs", *arguments)
    assert (code, csv, out) == (2, None, "")
    assert err.startswith("fedopt: ")
    assert err.count("\n") == 1
    assert said in err


def test_full_error(tmp_path, command, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(compare.UserError, match="no such folder"):
        command(tmp_path / "nowhere")


def test_a_terminal_without_unicode(tmp_path):
    record(tmp_path / "runs" / "0", (1, 2))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-c", "from fedopt import __main__; __main__.compare()", "runs"]
    result = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_unfinished_row_is_not_read(tmp_path, command):
    folder = record(tmp_path / "runs" / "0", (10, 50, 97), status="running")
    whole = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(whole[:-2])  # 9 in place of 97
    code, csv, out, err = command(tmp_path / "runs")
    assert (code, err, csv["final_test_accuracy_mean"][0]) == (0, "", 50)
    assert "1 running" in out
    (folder / "summary.json").unlink()
    assert "1 unknown" in command(tmp_path / "runs")[2]


def test_broken_runs_are_skipped(tmp_path, command):
    runs = tmp_path / "runs"
    record(runs / "good", (10, 50))
    record(runs / "no_rows", ())
    (record(runs / "no_table", (1,)) / "metrics.csv").unlink()
    (record(runs / "no_config", (1,)) / "config.yaml").unlink()
    (record(runs / "empty", (1,)) / "metrics.csv").write_bytes(b"")
    (record(runs / "bytes", (1,)) / "metrics.csv").write_bytes(b"\xff\xfe\n\x00\n")
    (record(runs / "ragged", (1,)) / "metrics.csv").write_text("round,comm_rounds,test_accuracy\n0,0,1\n1,2,3,4\n")
    (record(runs / "no_x", (1,)) / "metrics.csv").write_text("round,test_accuracy\n0,1\n")
    (record(runs / "short", (1,)) / "metrics.csv").write_text("round,test_accuracy,comm_rounds\n0,1\n")
    (record(runs / "no_yaml", (1,)) / "config.yaml").write_text("seed: [1\n")
    (record(runs / "no_dict", (1,)) / "config.yaml").write_text("- 1\n")
    record(runs / "other", (1, 2), metric="distance")
    code, csv, _, err = command(runs, runs / "good")
    assert (code, list(csv["runs"])) == (0, [1])
    said = {Path(line.split(": ")[1]).name: line.split("skipped: ")[1] for line in err.splitlines()}
    assert err.count("\n") == len(said) == 11
    assert said["no_rows"] == said["empty"] == "metrics.csv has no rows"
    assert said["no_table"] == "no metrics.csv"
    assert said["no_config"] == "no config.yaml"
    assert said["no_x"] == "metrics.csv has no column comm_rounds"
    assert said["short"] == "metrics.csv has rows without comm_rounds"
    assert said["other"] == "has no metric test_accuracy, but distance, train_loss"


def test_nothing_to_compare(tmp_path, command):
    (record(tmp_path / "runs" / "0", (1,)) / "metrics.csv").unlink()
    (tmp_path / "empty").mkdir()
    code, csv, _, err = command(tmp_path / "runs", tmp_path / "empty")
    assert (code, csv) == (2, None)
    empty, skipped, last = err.splitlines()
    assert skipped.endswith("0: skipped: no metrics.csv")
    assert empty.endswith("empty: skipped: no run in it")
    assert last.startswith("fedopt: no run to compare in ")


def test_a_diverged_run_is_not_left_out_of_the_mean(tmp_path, command):
    record(tmp_path / "runs" / "0", (4, 2), 0, metric="distance")
    record(tmp_path / "runs" / "1", (4, "inf"), 1, metric="distance", status="diverged")
    _, csv, out, _ = command(tmp_path / "runs", "--target", 3)
    (row,) = csv.to_dict("records")
    assert np.isnan(row["final_distance_mean"])
    assert (row["best_distance_mean"], row["reached"]) == (3, 1)  # of 2 and 4
    assert "1 diverged, 1 finished" in out


def curve(*runs):
    return [list(part) for part in compare.curve([compare.read(run, "round") for run in runs], "distance")]


def test_curve_on_the_union_of_x(tmp_path):
    tens = record(tmp_path / "0", (0, 10, 40), metric="distance")  # in rounds 0, 10, 20
    fives = record(tmp_path / "1", (2, 1, 10), metric="distance", every=5)  # in rounds 0, 5, 10
    cost, mean, std = curve(tens, fives)
    assert cost == [0, 5, 10]  # fives has finished: tens alone is no mean of both
    assert mean == [1, 3, 10]  # of 0, 5, 10 and 2, 1, 10
    assert std == pytest.approx([2**0.5, 8**0.5, 0])
    assert curve(tens) == [[0, 10, 20], [0, 10, 40], [0, 0, 0]]
    table = (fives / "metrics.csv").read_text().splitlines()
    (fives / "metrics.csv").write_text("\n".join([table[0], *table[2:]]) + "\n")  # in rounds 5, 10
    assert curve(tens, fives)[:2] == [[5, 10], [3, 10]]


def test_curve_with_a_run_on_its_way(tmp_path):
    tens = record(tmp_path / "0", (0, 10, 40), metric="distance")
    running = record(tmp_path / "1", (2, 1, 10), metric="distance", every=5, status="running")
    cost, mean, std = curve(tens, running)
    assert (cost, mean) == ([0, 5, 10, 20], [1, 3, 10, 40])
    assert std == pytest.approx([2**0.5, 8**0.5, 0, 0])
    alone = record(tmp_path / "2", (0, 6), metric="distance", status="running")
    assert curve(alone, running)[:2] == [[0, 5, 10], [1, 2, 8]]


def test_picture(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    run = compare.read(record(tmp_path / "0", (100, 1), metric="distance"), "bytes")
    compare.draw(tmp_path / "a.png", {"FedMSA, algo.K=5": [run], "FedAvg": [run]}, "distance", "bytes", 2.0)
    monkeypatch.undo()
    (figure,) = kept
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("bytes communicated", "distance to the solution")
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedMSA, algo.K=5", "FedAvg"]
    assert list(axes.lines[0].get_xdata()) == [0, 1500]
    assert list(axes.lines[2].get_ydata()) == [2, 2]  # the target


def test_better_and_reached():
    """By what a metric says of itself, whatever its name."""
    auc, nll, nan = Metric("auc", "AUC", better="higher"), Metric("nll", "loss"), float("nan")
    assert (auc.best([1, 2]), nll.best([1, 2])) == (2, 1)
    assert nll.best([nan, 2]) == nll.best([2, float("-inf")]) == 2
    assert np.isnan(nll.best([nan]))
    assert (auc.reached(2, 2), auc.reached(1.9, 2)) == (True, False)
    assert (nll.reached(2, 2), nll.reached(2.1, 2)) == (True, False)
    assert not nll.reached(nan, 2)
    assert (auc.worst, nll.worst) == (-np.inf, np.inf)
    assert (Metric("a", "A", "%").title, nll.title) == ("A (%)", "loss")


def test_a_users_metric_is_taken_as_it_says(tmp_path, command):
    """No name decides: the best AUC is the largest, and it is the default since its problem names it first."""
    auc = Metric("auc", "area under the curve", better="higher")
    for seed, values in enumerate([(0.5, 0.9, 0.7), (0.5, 0.6, 0.8)]):
        folder = record(tmp_path / "runs" / str(seed), values, seed, metric="auc")
        (folder / "run.json").write_text(json.dumps({"metrics": [asdict(auc), asdict(TRAIN_LOSS)]}))
    _, csv, _, err = command(tmp_path / "runs", "--target", 0.8)
    (row,) = csv.to_dict("records")
    assert err == ""
    assert row["best_auc_mean"] == pytest.approx(0.85)
    assert row["reached"] == 2


def test_other_budgets_and_precisions_are_other_runs(tmp_path, command):
    for seed in (0, 1):
        for rounds in (5, 50):
            record(tmp_path / f"{seed}-{rounds}", (1, rounds), seed, budget={"rounds": rounds})
        record(
            tmp_path / f"{seed}-f64", (1, 7), seed, budget={"rounds": 5}, hardware={"dtype": "float64", "threads": seed}
        )
    _, csv, _, _ = command(tmp_path)
    assert sorted(csv["final_test_accuracy_mean"]) == [5, 7, 50]
    assert set(csv["seeds"]) == {2}
    assert {"budget.rounds", "hardware.dtype"} <= set(csv.columns)
    assert "hardware.threads" not in csv.columns
