"""fedopt compare on run folders made by hand: its table, and what goes wrong."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from support.command import ROOT
from support.records import FEDAVG, FEDMSA, MCO, named, record

import fedopt
from fedopt.analysis import sweeps
from fedopt.errors import UserError
from fedopt.metrics import COSTS, TEST_ACCURACY, TRAIN_LOSS, Metric


@pytest.mark.pictures
def test_means_and_deviations_over_seeds(tmp_path, command):
    for seed, values in enumerate([(10, 95, 80), (20, 60, 90), (30, 70, 100)]):
        record(tmp_path / "runs" / "deep" / f"m{seed}", values, seed)
    record(tmp_path / "runs" / "a0", (10, 20, 40), algo=FEDAVG)
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
    assert f"{COSTS[x].label} to 85" in out


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
    """The one that the first run's problem names first."""
    folders = [record(tmp_path / metric, (1, 2), metric=metric) for metric in ("distance", "test_accuracy")]
    assert fedopt.compare(folders).metric == "distance"
    assert fedopt.compare(folders[::-1]).metric == "test_accuracy"


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
        (["--metric", "test_acuracy"], "--metric=test_acuracy: no run has this metric, did you mean test_accuracy?"),
        (["--metric", "acc"], "no run has this metric, did you mean test_accuracy?; choose from test_accuracy"),
        (["--x", "hours"], "invalid choice: 'hours'"),
        (["--target", "high"], "--target: invalid number value: 'high'"),
        (["nowhere"], "nowhere: there is no such folder"),
        (["--names", "fedmas"], "--names=fedmas: must be OLD=NEW, where OLD is one of FedMSA"),
        (["--columns", "to_target"], "status, spent, final, best (to_target needs --target)"),
        (
            ["--columns", "finl"],
            "runs, seeds, status, spent, final, test, best, test_at_best, to_target, reached, did you mean",
        ),
        (["--decimals", "-1"], "--decimals: invalid choice: -1 (choose from 0, 1,"),
        (["--at", "-1"], "--at=-1: the first evaluation of"),
        (["--format", "png,gif"], "png, pdf, svg"),
        (["--table", "latx"], "csv, latex, markdown, did you mean latex?"),
        (["--target", "nan"], "finite number"),
        (["--at", "inf"], "finite number"),
        (["--at", "many"], "--at: invalid number value: 'many'"),
        (["--ylim", "5,1"], "ylim=['5', '1']: must begin with the smaller number"),
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
    with pytest.raises(UserError, match="no such folder"):
        command(tmp_path / "nowhere")


@pytest.mark.full
def test_a_terminal_without_unicode(tmp_path):
    record(tmp_path / "runs" / "0", (1, 2))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-c", "from fedopt import __main__; __main__.compare()", "runs"]
    result = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_diverged_run_is_not_left_out_of_the_mean(tmp_path, command):
    record(tmp_path / "runs" / "0", (4, 2), 0, metric="distance")
    record(tmp_path / "runs" / "1", (4, "inf"), 1, metric="distance", status="diverged")
    _, csv, out, _ = command(tmp_path / "runs", "--target", 3)
    (row,) = csv.to_dict("records")
    assert np.isnan(row["final_distance_mean"])
    assert (row["best_distance_mean"], row["reached"]) == (3, 1)  # of 2 and 4
    assert "1 diverged, 1 finished" in out


def test_the_evaluation_that_diverged_is_no_best_one_and_reaches_no_target(tmp_path, command):
    """Though its value is finite: another metric was not. What --at leaves out does not matter."""
    record(tmp_path / "runs", (4, 3, 1), metric="distance", status="diverged")
    for more, best in (([], 3), (["--at", "20"], 3)):
        _, csv, *_ = command(tmp_path / "runs", "--target", 2, *more)
        (row,) = csv.to_dict("records")
        assert (row["best_distance_mean"], row["reached"]) == (best, 0)


@pytest.mark.pictures
def test_equal_spends(tmp_path, command, drawn):
    """Unequal spends are said; --at compares at one x, and draws all there is."""
    record(tmp_path / "runs" / "a", (10, 20, 50), 0)  # to 40 exchanges
    record(tmp_path / "runs" / "b", (10, 30, 40, 90, 60), 0, algo=FEDAVG)  # to 80
    err = command(tmp_path / "runs")[-1]
    assert err.startswith("note: unequal costs on Mco: ")
    assert err.count("\n") == 1
    for fact in ("FedMSA ends at 40 communication rounds", "FedAvg ends at 80 communication rounds", "--at 40"):
        assert fact in err
    assert command(tmp_path / "runs", "--group-by", "algo", "--x", "bytes")[-1].count("unequal costs") == 1
    _, csv, out, err = command(tmp_path / "runs", "--at", 45)
    assert err == "note: --at=45: runs of FedMSA end earlier; the table has their last values\n"
    _, csv, out, err = command(tmp_path / "runs", "--at", 40)
    assert err == ""
    assert csv["final_test_accuracy_mean"].tolist() == [40, 50]
    assert csv["best_test_accuracy_mean"].tolist() == [40, 50]
    assert (csv["spent_comm_rounds_mean"].tolist(), csv["at"].tolist()) == ([40, 40], [40, 40])
    assert "at 40 communication rounds: test accuracy (%)" in out
    assert drawn[-1].axes[0].lines[0].get_xdata().max() == 80
    record(tmp_path / "runs" / "c", (10, 20, 30, 40), 1, algo=FEDAVG, every=18)  # at 36, not 40
    record(tmp_path / "runs" / "d", (10, 20, 30, 40), 2, algo=FEDAVG, every=15)  # at 30
    err = command(tmp_path / "runs", "--at", 40)[-1]
    assert "FedAvg ends at 35.33 communication rounds, FedMSA ends at 40 communication rounds" in err


def test_problems_are_not_pooled(tmp_path, command):
    """Nor tested against each other, nor is one the best of both."""
    for seed in range(3):
        for target, value in (("Mco", 90), ("Other", 50)):
            for algo in (FEDMSA, FEDAVG):
                name = f"{target}-{algo['_target_'].rpartition('.')[2]}{seed}"
                better = value + seed * (1 + (algo is FEDMSA)) + (algo is FEDMSA)
                record(tmp_path / "runs" / name, (1, better), seed, algo=algo, problem={**MCO, "_target_": target})
    _, csv, _, err = command(tmp_path / "runs", "--group-by", "algo", "--table", "csv,markdown")
    assert err == "note: --group-by=algo: the runs are also grouped by problem, in which they differ\n"
    assert csv["runs"].tolist() == [3] * 4
    tested = pd.read_csv(tmp_path / "out" / "compare_tests.csv")
    assert tested["pair"].tolist() == ["FedAvg, Mco - FedMSA, Mco", "FedAvg, Other - FedMSA, Other"]
    rows = (tmp_path / "out" / "compare.md").read_text().splitlines()[2:]
    assert [("**" in row) for row in rows] == [False, True]


def test_a_target_that_few_runs_reach(tmp_path, command):
    """The mean is over those alone, which the table says."""
    for seed, last in enumerate((90, 70, 95)):
        record(tmp_path / "runs" / str(seed), (1, 2, last), seed)
    assert "40 ± 0 (2 of 3)" in command(tmp_path / "runs", "--target", "80")[2]


def test_curves_as_drawn(tmp_path, command):
    for seed, value in enumerate((90, 92)):
        record(tmp_path / "runs" / str(seed), (10, value), seed)
    command(tmp_path / "runs")
    drawn = pd.read_csv(tmp_path / "out" / "compare_curves.csv")
    assert list(drawn.columns) == ["line", "comm_rounds", "test_accuracy", "low", "high", "band"]
    assert drawn.iloc[1].tolist() == ["FedMSA", 20, 91, pytest.approx(91 - 2**0.5), pytest.approx(91 + 2**0.5), "std"]


def validated(folder, rows, seed=0, **config):
    """A run with the metrics val_accuracy and test_accuracy. rows: their values at each evaluation."""
    record(folder, [f"{val},{test}" for val, test in rows], seed, "val_accuracy,test_accuracy", **config)
    names = (replace(TEST_ACCURACY, name="val_accuracy", label="validation accuracy"), TEST_ACCURACY, TRAIN_LOSS)
    (folder / "run.json").write_text(json.dumps({"metrics": [asdict(metric) for metric in names]}))


def test_validation_selects_and_the_test_number_is_next_to_it(tmp_path, command):
    """The test accuracy at the last evaluation, and where the validation accuracy is best, not the best one."""
    for seed, rows in enumerate([[(10, 20), (80, 61), (70, 90)], [(10, 20), (60, 75), (90, 71)]]):
        validated(tmp_path / "runs" / f"a{seed}", rows, seed)
        validated(tmp_path / "runs" / f"b{seed}", [(5, 5), (40, 50), (40, 60)], seed, algo=FEDAVG)
    _, csv, out, err = command(tmp_path / "runs")
    assert err.count("selected by val_accuracy, on validation rows") == 1
    row = csv.set_index("algo").loc["FedMSA"]
    assert (row["final_val_accuracy_mean"], row["final_test_accuracy_mean"]) == (80, 80.5)
    assert (row["best_val_accuracy_mean"], row["test_accuracy_at_best_mean"]) == (85, 66)
    assert csv.set_index("algo").loc["FedAvg", "test_accuracy_at_best_mean"] == 50  # of equal ones the first
    assert "80 ± 13" in out
    command(tmp_path / "runs", "--table", "markdown", "--columns", "final,test,best,test_at_best", "--decimals", "0")
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "| **80 ± 14** | 80 ± 13 | **85 ± 7** | 66 ± 7 |" in text  # nothing is best by test rows
    assert "selected on" not in command(tmp_path / "runs", "--metric", "test_accuracy")[3]


def test_runs_that_lack_rows_for_validation_are_named(tmp_path, command):
    record(tmp_path / "runs" / "a", (10, 50))
    validated(tmp_path / "runs" / "b", [(10, 20), (80, 61)], algo=FEDAVG)
    _, csv, _, err = command(tmp_path / "runs")
    assert csv["final_val_accuracy_mean"].tolist() == [80]
    assert "no metric val_accuracy" in err
    assert command(tmp_path / "runs", "--columns", "test", "--metric", "test_accuracy")[0] == 2


def test_the_last_values_of_a_group(tmp_path, command, capsys):
    """A group in which a run diverged or failed has no mean: for fedopt compare, the end of a sweep, pages and tests alike."""
    for name, status in (("finished", "finished"), ("diverged", "diverged"), ("failed", "failed")):
        for seed in range(3):
            folder = tmp_path / "runs" / f"{name}{seed}"
            named(folder, name, 9, 5 + seed, seed=seed, metric="distance", status=status if seed else "finished")
            card = json.loads((folder / "run.json").read_text()) | {"overrides": [f"algo={name}", f"seed={seed}"]}
            (folder / "run.json").write_text(json.dumps(card))
            summary = {"status": status if seed else "finished"}
            summary |= {} if summary["status"] == "failed" else {"final": {"distance": 5.0 + seed}}
            (folder / "summary.json").write_text(json.dumps(summary))
    means = command(tmp_path / "runs")[1].set_index("label")["final_distance_mean"]
    assert list(means[["finished", "diverged", "failed"]].fillna(-1)) == [6, -1, -1]
    capsys.readouterr()
    sweeps.report(tmp_path / "runs")
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["finished"].endswith("6.0 ± 1.0")
    assert all(rows[lost].rstrip().endswith(" -") for lost in ("diverged", "failed"))
    _, section = fedopt.compare([tmp_path / "runs"]).report().sections
    (table, tested), _ = section.views["distance"]
    assert list(table.cells["final distance to the solution"]) == ["-", "-", "6.0 ± 1.0"]
    assert list(tested.cells["p"]) == ["-"] * 3
    at = fedopt.compare([tmp_path / "runs"], at=0).table  # before they diverged
    assert list(at["final_distance_mean"]) == [9, 9, 9]


def test_a_metric_that_is_no_goal(tmp_path, command, capsys):
    """No value of it is the best, none is bold, no run ends with a worse one, and no target is reached."""
    weight = Metric("weight", "weight of a class", better="neither")
    for seed in (0, 1):
        for K in (1, 2):
            values = (K, K + seed + K / 10)
            folder = record(tmp_path / "runs" / f"{seed}-{K}", values, seed, metric="weight", algo=FEDMSA | {"K": K})
            (folder / "run.json").write_text(json.dumps({"metrics": [asdict(weight)]}))
    code, csv, _, err = command(tmp_path / "runs", "--table", "csv,latex")
    assert (code, err) == (0, "")
    assert "final_weight_mean" in csv
    assert "best_weight_mean" not in csv
    assert "textbf" not in (tmp_path / "out" / "compare.tex").read_text()
    for asked, said in (
        ("--columns=best", "runs, seeds, status, spent, final ("),
        ("--target=2", "weight cannot be optimised"),
    ):
        code, _, _, err = command(tmp_path / "runs", *asked.split("="))
        assert code == 2
        assert said in err


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


def test_the_table_says_what_clients_reach_alone(tmp_path, command):
    """A line per value; none for other metrics than those of models on rows."""
    for i, alone in enumerate((2.1, 2.1, 3)):
        file = record(tmp_path / "runs" / str(i), (4, 3, 2), i, metric="test_rmse") / "metrics.csv"
        pd.read_csv(file).assign(alone_rmse=alone).to_csv(file, index=False)
    out = command(tmp_path / "runs")[2]
    assert "each client alone: alone_rmse 2.4 on its test rows\n" in out
    assert "alone" not in command(tmp_path / "runs", "--metric", "train_loss")[2]


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
    assert np.isnan(Metric("weight", "weight", better="neither").best([1, 2]))
    assert (Metric("a", "A", "%").title, nll.title) == ("A (%)", "loss")


def test_runs_that_lack_a_loss_of_the_first_are_compared(tmp_path, command):
    """By a column that all have."""
    record(tmp_path / "runs" / "a", (10, 12), 0, metric="distance")
    record(tmp_path / "runs" / "b", (10, 12), 1)
    code, csv, _, _ = command(tmp_path / "runs", "--metric", "train_loss")
    assert (code, csv["runs"][0]) == (0, 2)
