"""fedopt-compare on run folders made by hand."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import yaml
from matplotlib.scale import SymmetricalLogTransform
from matplotlib.text import Text
from support.cases import few
from support.command import ROOT, code_of
from support.records import FEDAVG, FEDMSA, MCO, record

import fedopt
from fedopt.analysis import comparison, groups, lines, stats, sweeps, tables, unequal
from fedopt.analysis.runs import read as read_run
from fedopt.commands import compare
from fedopt.config.tuned import Tuned
from fedopt.console import as_number, order
from fedopt.drawing import figures, run
from fedopt.drawing.styles import read_style
from fedopt.errors import UserError
from fedopt.metrics import COSTS, TEST_ACCURACY, TRAIN_LOSS, Metric


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs fedopt-compare; gives the exit code, compare.csv as a table (None without one), stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedopt-compare", *map(str, arguments), "--out", str(tmp_path / "out")])
        code = code_of(compare.main)
        csv = tmp_path / "out" / "compare.csv"
        return code, pd.read_csv(csv) if csv.exists() else None, *capsys.readouterr()

    return run


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


def test_equal_values_have_no_deviation():
    """Not even by the rounding of a sum."""
    assert stats.moments([0.1] * 3) == (0.1, 0)
    assert stats.moments([0.1, 0.3]) == pytest.approx((0.2, 0.02**0.5))


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


def test_who_ends_worse_than_they_began_is_said(tmp_path, command):
    for seed, values in enumerate(((10, 80, 5), (10, 80, 90), (10, 20, 9))):
        record(tmp_path / "runs" / str(seed), values, seed)
    assert command(tmp_path / "runs")[3] == (
        "note: FedMSA: 2 of 3 runs end with a worse test_accuracy than they began with; try smaller steps\n"
    )


def test_runs_that_lack_a_loss_of_the_first_are_compared(tmp_path, command):
    """By a column that all have."""
    record(tmp_path / "runs" / "a", (10, 12), 0, metric="distance")
    record(tmp_path / "runs" / "b", (10, 12), 1)
    code, csv, _, _ = command(tmp_path / "runs", "--metric", "train_loss")
    assert (code, csv["runs"][0]) == (0, 2)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([2, 2, 21], "1 of 1 runs end with a train_loss of more than 10 times"),
        ([2, 1, 2.1], "FedMSA: train_loss ends on seed 0 at 2.1, more than twice its best, 1; try smaller steps"),
        ([2, 1, 1.9], ""),
        ([2, 0, 1.9], ""),
        ([2, -2, 1.9], ""),
        ([2, "nan", 1.9], ""),
        ([2, 1, "nan"], ""),
    ],
)
def test_a_loss_that_ends_far_above_its_best_is_said(losses, said, tmp_path, command):
    """In one line of a group, also where the metric that is compared does not show it, and of what can be divided."""
    for seed in (0, 1):
        folder = record(tmp_path / "runs" / str(seed), (10, 12, 12), seed)
        table = pd.read_csv(folder / "metrics.csv").assign(train_loss=losses if seed == 0 else [2, 2, 2])
        table.to_csv(folder / "metrics.csv", index=False)
    err = command(tmp_path / "runs")[3]
    assert said.replace("1 of 1", "1 of 2") in err
    assert err.count("\n") == bool(said)


def test_the_metric_that_is_compared_comes_before_other_losses(tmp_path, command):
    """With the values of the run that is worst; what is better when higher is no loss."""
    for seed, values in enumerate([(8, 1, 5), (8, 1, 3)]):
        record(tmp_path / "runs" / str(seed), values, seed, metric="gap")
    assert "gap ends on seed 0 at 5, more than twice its best, 1" in command(tmp_path / "runs")[3]
    record(tmp_path / "high" / "0", (1, 9, 4))
    assert command(tmp_path / "high")[3] == ""


def test_default_metric(tmp_path):
    """The one that the first run's problem names first."""
    folders = [record(tmp_path / metric, (1, 2), metric=metric) for metric in ("distance", "test_accuracy")]
    assert comparison.compared(folders).metric == "distance"
    assert comparison.compared(folders[::-1]).metric == "test_accuracy"


def test_groups_by_what_differs(tmp_path):
    def keys(*configs):
        runs = []
        for j, config in enumerate(configs):
            folder = record(tmp_path / f"{len(list(tmp_path.iterdir()))}", (1, 2), seed=j, **config)
            runs.append(read_run(folder, "round"))
        return groups.default_keys(runs)

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
        (["--metric", "test_acuracy"], "--metric=test_acuracy: no run has this metric, did you mean test_accuracy?"),
        (["--metric", "acc"], "no run has this metric, did you mean test_accuracy?; there are test_accuracy"),
        (["--x", "hours"], "invalid choice: 'hours'"),
        (["--target", "high"], "--target: invalid number value: 'high'"),
        (["nowhere"], "nowhere: there is no such folder"),
        (["--names", "fedmas"], "--names=fedmas: must be OLD=NEW, where OLD is one of FedMSA"),
        (["--columns", "to_target"], "--columns=to_target needs --target"),
        (
            ["--columns", "finl"],
            "runs, seeds, status, spent, final, test, best, test_at_best, to_target, reached, did you mean",
        ),
        (["--decimals", "-1"], "--decimals: invalid choice: -1 (choose from 0, 1,"),
        (["--at", "-1"], "--at=-1: the first evaluation of"),
        (["--format", "png,gif"], "png, pdf, svg"),
        (["--table", "latx"], "csv, latex, markdown, did you mean latex?"),
        (["--smooth", "0"], "odd number"),
        (["--smooth", "4"], "odd number"),
        (["--target", "nan"], "finite number"),
        (["--at", "inf"], "finite number"),
        (["--at", "many"], "--at: invalid number value: 'many'"),
        (["--ylim", "5,1"], "ylim=['5', '1']: must have the lower end first"),
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


def test_an_unfinished_row_is_not_read(tmp_path, command):
    folder = record(tmp_path / "runs" / "0", (10, 50, 97), status="running")
    whole = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(whole[:-2])  # 9 in place of 97
    code, csv, out, err = command(tmp_path / "runs")
    assert (code, csv["final_test_accuracy_mean"][0]) == (0, 50)
    assert "not finished: FedMSA (1 of 1 interrupted): the table has their values so far" in err
    assert "1 interrupted" in out
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
    record(runs / "other", (1, 2), 1, metric="distance")
    code, csv, _, err = command(runs, runs / "good")
    assert (code, list(csv["runs"])) == (0, [1])
    one, other = err.splitlines()
    assert one.startswith("note: 10 folders skipped: ")
    for folders, why in [
        (("empty", "no_rows"), "metrics.csv has no rows"),
        (("no_table",), "no metrics.csv"),
        (("no_config",), "no config.yaml"),
        (("no_x",), "metrics.csv lacks the column comm_rounds"),
        (("short",), "metrics.csv has rows without a number for comm_rounds"),
    ]:
        assert f"{', '.join(str(runs / folder) for folder in folders)} ({why})" in one
    assert other.endswith(
        "1 folder skipped: " + f"{runs / 'other'} (has no metric test_accuracy, only distance, train_loss)"
    )


def test_a_hundred_skipped_folders_take_one_line(tmp_path, command):
    record(tmp_path / "good", (1, 2))
    for j in range(100):
        record(tmp_path / "bad" / f"{j:02}", ())
    err = command(tmp_path)[3]
    assert err.count("\n") == 1
    assert "100 folders skipped: " in err
    assert "(metrics.csv" in err


def test_nothing_to_compare(tmp_path, command):
    (record(tmp_path / "runs" / "0", (1,)) / "metrics.csv").unlink()
    (tmp_path / "empty").mkdir()
    code, csv, _, err = command(tmp_path / "runs", tmp_path / "empty")
    assert (code, csv) == (2, None)
    skipped, last = err.splitlines()
    assert "2 folders skipped" in skipped
    assert f"{tmp_path / 'runs' / '0'} (no metrics.csv)" in skipped
    assert f"{tmp_path / 'empty'} (no run in it)" in skipped
    assert last.startswith("fedopt: no run to compare in ")


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


def curve(*runs, log=False, **options):
    read = [read_run(run, "round") for run in runs]
    return [list(part) for part in lines.line_of(read, "distance", figures.named_scale(log), **options)]


def test_curve_on_the_union_of_x(tmp_path):
    tens = record(tmp_path / "0", (0, 10, 40), metric="distance")  # in rounds 0, 10, 20
    fives = record(tmp_path / "1", (2, 1, 10), metric="distance", every=5)  # in rounds 0, 5, 10
    cost, mean, low, high = curve(tens, fives)
    assert cost == [0, 5, 10]  # fives has finished: tens alone is no mean of both
    assert mean == [1, 3, 10]  # of 0, 5, 10 and 2, 1, 10
    assert np.subtract(high, mean) == pytest.approx([2**0.5, 8**0.5, 0])
    assert np.subtract(mean, low) == pytest.approx([2**0.5, 8**0.5, 0])
    assert curve(tens) == [[0, 10, 20], *[[0, 10, 40]] * 3]
    table = (fives / "metrics.csv").read_text().splitlines()
    (fives / "metrics.csv").write_text("\n".join([table[0], *table[2:]]) + "\n")  # in rounds 5, 10
    assert curve(tens, fives)[:2] == [[5, 10], [3, 10]]


def test_runs_that_end_elsewhere(tmp_path, command):
    """The table's last values are then not those at the end of the line, which is said."""
    for seed, values in enumerate([(0, 10), (0, 10, 40)]):
        record(tmp_path / "runs" / str(seed), values, seed)
    of_one = "runs of FedMSA end between 20 communication rounds and 40 communication rounds"
    assert of_one in command(tmp_path / "runs")[-1]
    assert command(tmp_path / "runs", "--x", "seconds")[-1] == ""
    for seed, values in enumerate([(0, 10), (0, 10, 40, 50)]):
        record(tmp_path / "runs" / f"b{seed}", values, seed, algo=FEDAVG)
    of_two = "runs of FedAvg end between 20 communication rounds and 60 communication rounds"
    err = command(tmp_path / "runs")[-1]
    assert of_one in err
    assert of_two in err


@pytest.mark.parametrize(("each", "said"), [(20, False), (30, True)])
def test_evaluations_at_other_intervals_are_said(each, said, tmp_path, command):
    """Where they are far apart: the rounds of an algorithm may have several exchanges."""
    record(tmp_path / "runs" / "a", (10, 20, 50, 60), eval={"every": 5})
    record(tmp_path / "runs" / "b", (10, 20, 50), algo=FEDAVG, every=each, eval={"every": 5})
    err = command(tmp_path / "runs")[-1]
    rarely = f"FedAvg is evaluated every {2 * each} communication rounds"
    often = "FedMSA is evaluated every 20 communication rounds"
    assert (rarely in err, often in err) == (said, said)
    assert "evaluated" not in command(tmp_path / "runs", "--x", "seconds")[-1]


@pytest.mark.parametrize("old", ["fednest", "algo=fednest"])
def test_a_method_by_its_word_on_the_command_line(old, tmp_path, command):
    for algo in ("fednest", "fedmsa"):
        named(tmp_path / "runs" / algo, algo, 1, 2)
    _, csv, _, err = command(tmp_path / "runs", "--names", f"{old}=N")
    assert (set(csv["label"]), err) == ({"N", "fedmsa"}, "")


@pytest.mark.pictures
def test_another_label_of_the_metric(tmp_path, command, drawn):
    record(tmp_path / "runs" / "0", (10, 90))
    assert "final acc. [%]" in command(tmp_path / "runs", "--label", "acc. [%]")[2]
    assert drawn[0].axes[0].get_ylabel() == "acc. [%]"


@pytest.mark.pictures
def test_problems_have_pictures_of_their_own(tmp_path, command, drawn):
    """With a scale of its own."""
    record(tmp_path / "runs" / "a", (1e-3, 1), metric="distance")
    record(tmp_path / "runs" / "b", (5, 6), metric="distance", problem={"_target_": "fedopt.problems.saddle.Saddle"})
    command(tmp_path / "runs", "--title", "both", "--target", 2)
    one, other = drawn[0].axes
    assert [one.get_title(), other.get_title()] == ["Mco", "Saddle"]
    assert [one.get_yscale(), other.get_yscale()] == ["log", "linear"]
    assert [list(axes.lines[0].get_ydata()) for axes in (one, other)] == [pytest.approx([1e-3, 1]), [5, 6]]
    assert all(axes.lines[1].get_label() == "target 2" for axes in (one, other))
    assert drawn[0].legends[0].get_title().get_text() == "both"


def test_pairs_that_differ_by_the_same_have_no_p(tmp_path, command):
    for name, values in {"a": (80, 90, 85), "b": (80, 90, 85), "c": (70, 82, 76)}.items():
        for seed, value in enumerate(values):
            named(tmp_path / "runs" / f"{name}{seed}", name, 1, value, seed=seed)
    out = command(tmp_path / "runs", "--table", "csv")[2]
    tested = pd.read_csv(tmp_path / "out" / "compare_tests.csv", index_col="pair")
    assert tested["p"].isna().tolist() == [True, False, False]
    p = scipy.stats.ttest_rel((80, 90, 85), (70, 82, 76)).pvalue
    assert tested["p (Holm)"].iloc[1:].tolist() == pytest.approx([2 * p, 2 * p])
    assert re.search(r"a - b +0\.00? +3 +- +-", out)


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
    assert err == "note: --at=45: runs of FedMSA end earlier, and have their last values in the table\n"
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
    assert err == "note: --group-by=algo: the runs differ in problem, by which they are grouped too\n"
    assert csv["runs"].tolist() == [3] * 4
    tested = pd.read_csv(tmp_path / "out" / "compare_tests.csv")
    assert tested["pair"].tolist() == ["FedAvg, Mco - FedMSA, Mco", "FedAvg, Other - FedMSA, Other"]
    rows = (tmp_path / "out" / "compare.md").read_text().splitlines()[2:]
    assert [("**" in row) for row in rows] == [False, True]


@pytest.mark.pictures
def test_runs_left_out(tmp_path, command, drawn):
    for seed, status in enumerate(["finished", "finished", "interrupted"]):
        record(tmp_path / "runs" / f"seed={seed}", (10, 90), seed, status=status)
    _, csv, _, err = command(tmp_path / "runs")
    assert "not finished: FedMSA (1 of 3 interrupted)" in err
    assert drawn[0].legends[0].get_texts()[0].get_text() == "FedMSA (1 of 3 interrupted)"
    _, csv, _, err = command(tmp_path / "runs", "--exclude", "*=2", "--exclude", "nothing")
    assert csv["runs"][0] == 2
    assert err.splitlines() == [
        "note: --exclude=*=2: 1 of 3 folders left out",
        "note: --exclude=nothing: 0 of 2 folders left out",
    ]


def test_curve_with_a_run_on_its_way(tmp_path):
    tens = record(tmp_path / "0", (0, 10, 40), metric="distance")
    running = record(tmp_path / "1", (2, 1, 10), metric="distance", every=5, status="running")
    cost, mean, _, high = curve(tens, running)
    assert (cost, mean) == ([0, 5, 10, 20], [1, 3, 10, 40])
    assert np.subtract(high, mean) == pytest.approx([2**0.5, 8**0.5, 0, 0])
    alone = record(tmp_path / "2", (0, 6), metric="distance", status="running")
    assert curve(alone, running)[:2] == [[0, 5, 10], [1, 2, 8]]


def test_geometric_means_on_a_logarithmic_axis(tmp_path):
    """Of 1 and 100: 10, and a deviation of the logarithm of log(100) / sqrt(2)."""
    runs = [record(tmp_path / str(j), (value, 1), metric="distance") for j, value in enumerate((1, 100))]
    _, mean, low, high = curve(*runs, log=True)
    assert mean == pytest.approx([10, 1])
    factor = 100 ** (2**-0.5)
    assert (low[0], high[0]) == (pytest.approx(10 / factor), pytest.approx(10 * factor))
    assert (low[1], high[1]) == (pytest.approx(1), pytest.approx(1))
    reached = record(tmp_path / "2", (4, 0), metric="distance")
    assert curve(reached, log=True)[1] == [pytest.approx(4), pytest.approx(np.nan, nan_ok=True)]


def test_smoothing(tmp_path):
    """Centred means, which begin and end where the run does; what is not finite stays so."""
    run = record(tmp_path / "0", (0, 4, 14, "inf", 2), metric="distance")
    assert curve(run, smooth=3)[1] == pytest.approx([0, 6, 9, np.nan, 2], nan_ok=True)
    powers = record(tmp_path / "1", (1, 10, 10_000), metric="distance")
    assert curve(powers, smooth=3, log=True)[1] == pytest.approx([1, 10 ** (5 / 3), 10_000])


def test_a_straight_line_stays_one_when_evaluations_are_not_spaced_evenly(tmp_path):
    run = record(tmp_path / "0", (0, 10, 20, 30, 40, 50, 60), metric="distance")  # in rounds 0, 10, ...
    lines = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("\n".join([*lines[:3], *lines[5:]]) + "\n")  # in rounds 0, 10, 40, 50, 60
    x, mean, *_ = curve(run, smooth=3)
    assert x == pytest.approx(mean)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn."""
    kept, save = [], figures.Figure.savefig

    def saved(figure, *arguments, **options):
        kept.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(figures.Figure, "savefig", saved)
    return kept


def caption(figure):
    """What stands below the axes."""
    return figure.get_supxlabel().replace("\n", " ")


NAMES = ["a", "FedNest", "a method with a name that is much longer than others have, as users write them" * 2]


SIZES = {"usual": [], "narrow": ["--width", "2"], "wide": ["--width", "10", "--height", "8"], "slide": ["--slides"]}


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("lines", "name", "size"),
    few([(14, NAMES[2], "usual"), (2, NAMES[2], "narrow"), (6, NAMES[1], "narrow"), (14, NAMES[2], "wide"),
         (6, NAMES[1], "slide"), (2, NAMES[0], "usual"), (14, NAMES[0], "wide")], lambda case: case[0] < 14),
)  # fmt: skip
def test_nothing_overlaps_or_is_cut_off(lines, name, size, tmp_path, command, drawn):
    """Methods stand in rows above the axes, and what is drawn below. One seed, values that are not numbers."""
    for j in range(lines):
        values = (1, 2, 3) if j else (1, float("nan"), float("nan"))
        record(tmp_path / "runs" / str(j), values, algo={**FEDMSA, "rule": f"{name} {j}"})
    code, _, _, err = command(tmp_path / "runs", *SIZES[size], "--title", "A title of a picture")
    assert code == 0, err
    (figure,) = drawn
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    area, below = axes.get_window_extent(), figure._supxlabel
    assert legend.get_window_extent().y0 >= area.y1 - 1
    assert below.get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0 + 1
    assert min(area.width, area.height) > 60
    read = figure.get_tightbbox()
    assert read.x0 >= -0.02
    assert read.y0 >= -0.02
    assert read.x1 <= figure.get_figwidth() + 0.02
    assert read.y1 <= figure.get_figheight() + 0.02
    rows = {round(text.get_window_extent().y0) for text in legend.get_texts()}
    if name == "a":
        assert len(rows) == 1  # of fourteen lines the legend names those that have colours


@pytest.mark.pictures
def test_methods_are_read_row_by_row(tmp_path, command, drawn):
    for j in range(5):
        record(tmp_path / "runs" / str(j), (1, 2, 3), algo={**FEDMSA, "rule": f"no. {j}"})
    command(tmp_path / "runs")
    drawn[0].draw_without_rendering()
    extents = [(text.get_window_extent(), text.get_text()) for text in drawn[0].legends[0].get_texts()]
    read = [text[-1] for box, text in sorted(extents, key=lambda pair: (-round(pair[0].y0 / 5), pair[0].x0))]
    assert read == ["0", "1", "2", "3", "4"]
    assert len({round(box.x0) for box, _ in extents}) > 1


@pytest.mark.pictures
def test_sizes_of_a_picture(tmp_path, command, drawn):
    """Inches of all of it, points, and slides of 16:9."""
    record(tmp_path / "runs" / "0", (1, 2, 3))
    command(tmp_path / "runs")
    command(tmp_path / "runs", "--width", "5", "--height", "3", "--font", "11")
    command(tmp_path / "runs", "--slides")
    usual, chosen, slide = drawn
    assert tuple(chosen.get_size_inches()) == (5, 3)
    sizes = [figure.axes[0].xaxis.label.get_fontsize() for figure in drawn]
    assert sizes == [8, 11, figures.SLIDES["font.size"]]
    assert slide.get_figwidth() / slide.get_figheight() == pytest.approx(16 / 9)
    assert slide.axes[0].lines[0].get_linewidth() > 2 * usual.axes[0].lines[0].get_linewidth()
    for options in (["--width", "0"], ["--height", "1e9"], ["--font", "nan"], ["--width", "1", "--font", "40"]):
        code, _, _, err = command(tmp_path / "runs", *options)
        assert (code, err.count("\n")) == (2, 1)
    assert "a figure of 1 x" in err


@pytest.mark.pictures
def test_the_caption_can_be_left_out(tmp_path, command, drawn):
    record(tmp_path / "runs" / "0", (1, 2, 3))
    assert "figure: lines: 1 seed" in command(tmp_path / "runs", "--no-caption")[2]
    assert caption(drawn[0]) == ""


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("band", "reach"),
    [("std", 10), ("sem", 10 / 3**0.5), ("ci", scipy.stats.t.ppf(0.975, 2) * 10 / 3**0.5), ("minmax", 10)],
)
def test_bands(band, reach, tmp_path, command, drawn):
    """Of 40, 50 and 60, whose deviation is 10. The caption and the points say which."""
    for seed, value in enumerate((40, 50, 60)):
        record(tmp_path / "runs" / str(seed), (value, value), seed)
    command(tmp_path / "runs", "--band", band)
    points = pd.read_csv(tmp_path / "out" / "compare_curves.csv")
    assert list(points["low"]) == pytest.approx([50 - reach] * 2)
    assert list(points["high"]) == pytest.approx([50 + reach] * 2)
    assert set(points["band"]) == {band}
    assert f"bands: {lines.BANDS[band]}" in caption(drawn[0])
    assert len({*lines.BANDS.values()}) == 4


@pytest.mark.pictures
def test_a_style_file(tmp_path, command, drawn):
    style = tmp_path / "a.mplstyle"
    style.write_text(
        "# a comment\naxes.prop_cycle: cycler('color', ['ff0000', \"#00ff00\"])\nfont.size : 10 # points\n"
        'figure.figsize: 5, 4\naxes.facecolor: "#eeeeee"\naxes.spines.top: False\nlines.linewidth: 3\ntext.usetex: False\n'
    )
    for j in range(3):
        record(tmp_path / "runs" / str(j), (1, 2, 3), algo={**FEDMSA, "K": j})
    before = dict(matplotlib.rcParams)
    assert command(tmp_path / "runs", "--style", style)[0] == 0
    (axes,) = drawn[0].axes
    assert [line.get_color() for line in axes.lines] == ["#ff0000", "#00ff00", figures.GREY]
    assert axes.lines[0].get_linestyle() != axes.lines[2].get_linestyle()
    assert (axes.xaxis.label.get_fontsize(), axes.lines[0].get_linewidth()) == (10, 3)
    assert tuple(drawn[0].get_size_inches()) == (5, 4)
    command(tmp_path / "runs", "--style", style, "--font", "7", "--width", "4")
    assert (drawn[1].axes[0].xaxis.label.get_fontsize(), drawn[1].get_figwidth()) == (7, 4)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("text.usetex: True", "text.usetex"),
        (r"text.latex.preamble: \input{/etc/passwd}", "text.latex.preamble"),
        ("figure.hooks: os:system", "figure.hooks"),
        ("path.effects: [withStroke]", "path.effects"),
        ("savefig.directory: /", "savefig.directory"),
        ("backend: pgf", "backend"),
        ("pgf.preamble: a", "pgf.preamble"),
        ("mathtext.rm: :file=/dev/zero", "mathtext.rm"),
        ("keymap.save: s", "keymap.save"),
        ("axes.prop_cycle: cycler('color', [__import__('os').getcwd()])", "must be cycler('color'"),
        ("axes.prop_cycle: cycler('c', ['r']) * cycler('lw', [1, 2])", "must be cycler('color'"),
        ("axes.prop_cycle: ().__class__", "must be cycler('color'"),
        ("grid.linestyle: (0, (1e-9, 1e-9))", "grid.linestyle"),
        ("lines.dashed_pattern: 0, 0", "lines.dashed_pattern"),
        ("savefig.dpi: 1e9", "savefig.dpi"),
        ("font.size: nan", "font.size"),
        ("axes.facecolor: no colour", "color"),
        ("axes.nokey: 1", "axes.nokey"),
        ("words without a key", "KEY: VALUE"),
        (b"\0\1", "zero bytes"),
        (None, "No such file"),
        (" " * 70_000, "too large"),
        (b"\xff\x01", "UTF-8"),
    ],
)
def test_style_files_that_are_not_taken(line, said, tmp_path, command, drawn):
    """One line, which names the file and the place; somebody may have sent it."""
    record(tmp_path / "runs" / "0", (1, 2))
    style = tmp_path / "a.mplstyle"
    if line is not None:
        style.write_bytes(line if isinstance(line, bytes) else f"font.size: 8\n\n{line}\n".encode())
    code, csv, _, err = command(tmp_path / "runs", "--style", style)
    assert (code, csv, err.count("\n")) == (2, None, 1)
    assert said in err
    assert str(style) in err
    assert ("line 3" in err) == (isinstance(line, str) and "large" not in said)
    assert not drawn


def test_a_style_that_is_no_file(tmp_path, command):
    record(tmp_path / "runs" / "0", (1, 2))
    os.mkfifo(tmp_path / "pipe")
    for style in (tmp_path, tmp_path / "pipe", "/dev/zero", "http://127.0.0.1:9/a.mplstyle"):
        code, _, _, err = command(tmp_path / "runs", "--style", style)
        assert (code, err.count("\n")) == (2, 1)


def test_the_styles_that_matplotlib_brings(tmp_path):
    """Nearly all are read; classic and fast also set how things are rendered."""
    folder = Path(matplotlib.get_data_path()) / "stylelib"
    taken = 0
    for file in folder.glob("*.mplstyle"):
        with suppress(UserError):
            taken += bool(read_style(file))
    assert taken >= len([*folder.glob("*.mplstyle")]) - 2


@pytest.mark.pictures
def test_picture(tmp_path, drawn):
    run = read_run(record(tmp_path / "0", (100, 1), metric="distance"), "bytes")
    two = {"FedMSA, algo.K=5": [run], "FedAvg": [run]}
    comparison.Comparison([], two, "distance", "bytes", 2.0).draw(tmp_path / "a.png")
    (figure,) = drawn
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("communication", "distance to the solution")
    assert axes.xaxis.get_major_formatter()(1500) == "1.5 kB"
    assert axes.get_yscale() == "log"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"FedMSA, algo.K=5", "FedAvg", "target 2"}
    assert list(axes.lines[0].get_xdata()) == [0, 1500]
    assert list(axes.lines[2].get_ydata()) == [2, 2]  # the target
    assert figure.get_size_inches()[0] == figures.WIDTH
    assert len({tuple(figures.look(j).values()) for j in range(100)}) == 100


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_numbers_are_whole_at_every_width(width, monkeypatch, capsys):
    """Beside each other where they fit, else one under the other; heads are broken between words."""
    number, label = "(4.72 ± 0.73)e-05", "fedmsa, algo.K=5, partitioner.alpha=0.1"
    heads = [
        "algo, algo.K",
        "runs",
        "status",
        "final distance to the solution",
        "best distance to the solution",
        "rounds to 0.1",
    ]
    table = pd.DataFrame([[label, "3", "2 finished, 1 diverged", number, number, "120 ± 3"]] * 2, columns=heads)
    monkeypatch.setattr("fedopt.console.say.PIPED", width)
    tables.print_table(table, right=heads[3:], caption="tested by nothing")
    shown = capsys.readouterr().out
    assert shown.count(number) == 4
    assert shown.count("120 ± 3") == 2
    assert "…" not in shown
    assert "tested by nothing" in " ".join(shown.split())
    assert "solution" in shown
    if width >= 60:
        assert max(map(len, shown.splitlines())) <= width


@pytest.mark.pictures
@pytest.mark.parametrize("size", few([10_000, 500_000], lambda size: size < 500_000, pytest.mark.slow))
def test_a_label_of_half_a_megabyte(size, tmp_path, command, drawn):
    """It is cut before it comes into a picture."""
    for seed, label in enumerate(("x" * size, "many words " * (size // 10))):
        folder = record(
            tmp_path / "runs" / str(seed), [70, 80], seed, algo={"_target_": "a.B", "K": label[: size // 5]}
        )
        card = json.loads((folder / "run.json").read_text())
        card["metrics"][0]["label"] = label
        (folder / "run.json").write_text(json.dumps(card))
    started = time.process_time()
    assert command(tmp_path / "runs", "--group-by", "algo.K", "--title", "y" * size)[0] == 0
    assert time.process_time() - started < 30
    assert max(drawn[0].get_size_inches()) < 20
    assert max(len(text.get_text()) for text in drawn[0].findobj(Text)) < 2000


@pytest.mark.parametrize(
    ("values", "scale"),
    [([100, 1, -4e-6, -5e-6], "symlog"), ([100, 1, 1e-3], "log"), ([100, -1, -90], "linear"), ([3, 2, 1], "linear")],
)
def test_small_values_below_0_leave_the_axis_logarithmic(values, scale):
    """As of a suboptimality that noise takes below 0."""
    _, ((axes,),) = figures.grid(1, 1)
    axes.set_yscale(figures.scale_of(Metric("gap", "gap"), np.array(values)))
    assert axes.get_yscale() == scale
    if scale == "symlog":
        assert axes.yaxis.get_transform().linthresh == pytest.approx(1e-5)


@pytest.mark.pictures
@pytest.mark.parametrize(("n", "rows", "columns"), [(1, 1, 1), (3, 1, 3), (4, 2, 2), (5, 2, 3)])
def test_metrics_of_a_run_leave_no_more_than_one_place_empty(n, rows, columns, tmp_path, drawn):
    described = [Metric(f"m{j}", f"metric {j}") for j in range(n)]
    table = pd.DataFrame({"comm_rounds": [0, 2], **{metric.name: [1, 2] for metric in described}})
    table.to_csv(tmp_path / "metrics.csv", index=False)
    run.metrics(tmp_path / "metrics.png", tmp_path / "metrics.csv", described)
    layout = drawn[0].axes[0].get_gridspec()
    assert (layout.nrows, layout.ncols, len(drawn[0].axes)) == (rows, columns, n)


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([(90, 80), (92, 85)], "lines: mean of 2 seeds; bands: ± one standard deviation"),
        ([(1000, 10), (1000, 1)], "lines: geometric mean of 2 seeds; bands: ± one standard deviation of the logarithm"),
        ([(90, 80)], "lines: 1 seed"),
    ],
)
def test_the_legend_says_what_is_drawn(values, said, tmp_path, command, drawn):
    for seed, of in enumerate(values):
        record(tmp_path / "runs" / str(seed), of, seed, metric="distance")
    command(tmp_path / "runs")
    assert caption(drawn[0]) == f"{said}; x: trips from the server to clients and back"
    command(tmp_path / "runs", "--no-logy", "--smooth", 3, "--title", "T", "--ylim=-1,5")
    (axes,) = drawn[1].axes
    assert (axes.get_yscale(), axes.get_ylim()) == ("linear", (-1, 5))
    assert drawn[1].legends[0].get_title().get_text() == "T"
    assert "means of 3 evaluations, centred" in caption(drawn[1])


# Names that were chosen, and what may be pooled


def named(folder, choice, *values, seed=0, tuned="", beside=(), defaults=False, **config):
    """A run whose card says which options were chosen; FedNest and LFedNest are of one class."""
    record(folder, values, seed, **config)
    card = json.loads((folder / "run.json").read_text())
    card["chosen"] = {"algo": choice, "problem": "mco", "dataset": "None"}
    if tuned:
        keys = () if defaults else ("algo.K",)
        card["tuned"] = asdict(Tuned(tuned, f"{choice} on mco", keys, tuple(beside), defaults=defaults))
    (folder / "run.json").write_text(json.dumps(card))


def test_tuned_values_of_another_model_are_said(tmp_path, command):
    """By what a run's card says of them, where it has some."""
    beside = ("dataset=digits", "problem.widths=[9]")
    for algo, tuned in (("fednest", "fednest/mco"), ("fedmsa", "fedmsa/mco"), ("fedavg", "")):
        for seed in (1, 2):
            others = (*beside, f"dataset.split_seed={seed}")
            named(tmp_path / "runs" / f"{algo}{seed}", algo, 1, 2, seed=seed, tuned=tuned, beside=others)
    words = "dataset=digits problem.widths=[9] dataset.split_seed=1 dataset.split_seed=2"
    line = f"note: the tuned values of fedmsa, fednest were found without {words}, and may be"
    assert command(tmp_path / "runs")[-1].count("were found without") == 1
    assert line in command(tmp_path / "runs")[-1]


@pytest.mark.pictures
def test_who_takes_part_is_in_labels_and_notes(tmp_path, command, drawn):
    """FedNest's tuned values for the saddle ask all 100 clients for the anchor, where LFedNest asks 10: of its four exchanges with
    10 clients each none has an anchor, and FedNest's eight have three.
    """
    for algo in ("fednest", "lfednest", "fedavg_s"):
        words = (
            f"algo={algo} problem=saddle participation.cohort=10 budget.comm_rounds=16 output_dir={tmp_path}/{algo}/0"
        )
        fedopt.run(words)
    _, csv, _, err = command(tmp_path / "fednest", tmp_path / "lfednest")
    assert list(csv["label"]) == ["fednest, algo.anchor=all", "lfednest, algo.anchor=cohort"]
    assert "note: the groups differ in algo.anchor as well" in err
    assert (
        "lfednest, algo.anchor=cohort asks 10 clients in a communication round, fednest, algo.anchor=all asks 43.8"
        in err
    )
    shown = ["FedNest, algo.anchor=all", "LFedNest, algo.anchor=cohort"]
    assert [text.get_text() for text in drawn[-1].legends[0].get_texts()] == shown
    assert (
        "differ in algo.anchor as well" in command(tmp_path / "fednest", tmp_path / "lfednest", "--group-by", "algo")[3]
    )
    _, csv, _, err = command(tmp_path / "fednest", tmp_path / "fedavg_s")
    assert list(csv["label"]) == ["fedavg_s", "fednest, algo.T=3, algo.anchor=all"]
    assert "differ in algo.T, algo.anchor as well" in err


@pytest.mark.pictures
def test_long_labels_keep_who_takes_part(tmp_path, command, drawn):
    """Other keys go; a limit that a budget lacks is in no label."""
    for algo, K, keys in (("fednest", 10, ["algo.anchor", "budget.comm_rounds"]), ("fedmsa", 1, ["budget.rounds"])):
        budget = {"comm_rounds": 200 if algo == "fednest" else None, "rounds": None if algo == "fednest" else 1000}
        config = {"algo": {**FEDMSA, "K": K, "anchor": algo, "radius": K / 7}, "budget": budget}
        named(tmp_path / algo, algo, 1, 2, tuned=f"{algo}/mco" * (K > 1), **config)
        card = json.loads((tmp_path / algo / "run.json").read_text())
        (tmp_path / algo / "run.json").write_text(json.dumps(card | {"departures": keys}))
    for number in (0, 1):
        named(tmp_path / str(number), "fednest", 1, 2, algo={**FEDMSA, "K": 1, "anchor": "x" * 40, "radius": number})
    command(*(tmp_path / name for name in ("fednest", "fedmsa", "0", "1")))
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert any("anchor=fednest" in label and "budget.comm_rounds=200" in label for label in labels)
    assert not any("null" in label for label in labels)


def test_a_cohort_of_one_method_alone_is_in_its_label(tmp_path, command):
    for algo, cohort in (("fednest", 10), ("lfednest", None)):
        named(tmp_path / algo, algo, 1, 2, participation={"cohort": cohort})
        card = json.loads((tmp_path / algo / "run.json").read_text())
        keys = ["participation.cohort"] if cohort else []
        (tmp_path / algo / "run.json").write_text(json.dumps(card | {"departures": keys}))
    _, csv, _, err = command(tmp_path / "fednest", tmp_path / "lfednest")
    assert list(csv["label"]) == ["fednest, participation.cohort=10", "lfednest, participation.cohort=null"]
    assert "the groups differ in participation.cohort as well" in err


@pytest.mark.pictures
@pytest.mark.parametrize("band", few(["std", "sem", "ci", "minmax"], lambda band: band == "std"))
def test_percentages_have_the_ends_of_percentages(band, tmp_path, command, drawn):
    """Also bands; what is no percentage, or has values beyond, and --ylim, are left alone."""
    for seed, values in enumerate([(0, 99), (8, 1)]):
        record(tmp_path / "runs" / f"a{seed}", values, seed)
        record(tmp_path / "other" / f"a{seed}", values, seed, metric="gap")
        record(tmp_path / "beyond" / f"a{seed}", [2 * value for value in values], seed)
    command(tmp_path / "runs", "--band", band, "--label", "accuracy")
    command(tmp_path / "other", "--metric", "gap", "--no-logy")
    command(tmp_path / "runs", "--ylim=-50,200")
    command(tmp_path / "beyond")
    axes = [figure.axes[0] for figure in drawn]
    low, high = axes[0].get_ylim()
    assert 0 <= low < high <= 100
    edges = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert 0 <= min(edges) < max(edges) <= 100
    assert axes[0].get_ylabel() == "accuracy (%)"
    assert axes[1].get_ylim()[0] < -10
    assert axes[1].get_ylim()[1] > 70
    assert axes[2].get_ylim() == (-50, 200)
    assert axes[3].get_ylim()[1] > 150


@pytest.mark.parametrize("group", ["algo", "problem"])
def test_a_config_without_a_group(group, tmp_path, command):
    """Of a folder that somebody sent."""
    named(tmp_path / "runs" / "0", "fednest", 1, 2, tuned="fednest/mco")
    path = tmp_path / "runs" / "0" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if key != group}))
    assert command(tmp_path / "runs")[0] == 0


@pytest.mark.pictures
def test_groups_go_by_the_names_that_were_chosen(tmp_path, command, drawn):
    for algo, inner, value in (("fednest", "svrg", 90), ("lfednest", "sgd", 70)):
        for seed in range(3):
            named(
                tmp_path / "runs" / f"{algo}{seed}", algo, 1, value + seed, seed=seed, algo={**FEDMSA, "inner": inner}
            )
    for arguments in ([], ["--group-by", "algo"]):
        _, csv, _, err = command(tmp_path / "runs", *arguments)
        assert err == ""
        assert list(csv["algo"]) == list(csv["label"]) == ["fednest", "lfednest"]
        assert list(csv["final_test_accuracy_mean"]) == [91, 71]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["FedNest", "LFedNest"]
    assert "dataset" not in csv  # the config has none


def test_labels_have_no_empty_values(tmp_path, command):
    named(tmp_path / "runs" / "a", "fedmsa", 1, 2)
    named(tmp_path / "runs" / "b", "fedavg", 1, 3, algo=FEDAVG)
    _, csv, _, _ = command(tmp_path / "runs", "--group-by", "algo,algo.K")
    assert list(csv["label"]) == ["fedavg", "fedmsa, algo.K=5"]


def test_a_config_and_seed_count_once(tmp_path, command):
    for copy in range(3):
        record(tmp_path / "runs" / str(copy), (1, 80), seed=0, hardware={"threads": copy})
    record(tmp_path / "runs" / "begun", (1,), seed=0, status="interrupted")
    record(tmp_path / "runs" / "other", (1, 90), seed=1)
    _, csv, _, err = command(tmp_path / "runs")
    assert (csv["runs"][0], csv["seeds"][0], csv["final_test_accuracy_mean"][0]) == (2, 2, 85)
    assert csv["status"][0] == "2 finished"
    assert (err.count("\n"), "3 of 5 runs left out" in err) == (1, True)
    for folder in ("failed", "failed again"):
        record(tmp_path / "runs" / folder, (1, 80), seed=0, status="failed")
    assert "5 of 7 runs left out" in command(tmp_path / "runs")[3]


def test_runs_that_should_be_copies_and_are_not_all_count(tmp_path, command):
    for name, last in (("one", 80), ("copy", 80), ("other code", 81)):
        record(tmp_path / "runs" / name, (1, 70, last))
    record(tmp_path / "runs" / "begun", (1, 70), status="interrupted")
    record(tmp_path / "runs" / "failed", (1, 71), status="failed")
    _, csv, _, err = command(tmp_path / "runs")
    assert (csv["runs"][0], csv["seeds"][0]) == (2, 1)
    left_out, unlike = err.splitlines()
    assert "3 of 5 runs left out" in left_out
    assert "gave" in unlike
    assert "other code" in unlike


def test_one_config_on_other_data_is_another_group(tmp_path, command):
    """Labelled by the data, unless something else tells the groups apart; what an older run does not note is not compared."""
    for data in ("ab" * 16, "cd" * 16):
        for seed in (0, 1):
            noted(record(tmp_path / "runs" / f"{data}{seed}", (1, 80), seed), data)
    record(tmp_path / "old" / "run", (1, 80), 2)
    _, csv, _, err = command(tmp_path / "runs")
    assert list(csv["label"]) == ["data=abababab", "data=cdcdcdcd"]
    assert list(csv["runs"]) == [2, 2]
    assert "left out" not in err
    assert "differ" in command(tmp_path / "runs", "--group-by", "algo")[3]
    _, csv, _, err = command(tmp_path / "old", tmp_path / "runs", "--exclude", "cd*")
    assert list(csv["runs"]) == [3]
    assert "data" not in err
    noted(record(tmp_path / "two" / "a", (1, 80)), "ab" * 16)
    noted(record(tmp_path / "two" / "b", (1, 80), algo=FEDAVG), "cd" * 16)
    _, csv, _, err = command(tmp_path / "two")
    assert set(csv["label"]) == {"FedMSA", "FedAvg"}
    assert "the groups differ in data as well" in err


def noted(folder, data):
    """A run that notes the digest of its data."""
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**card, "data": data}))


def test_keys_that_differ_besides_the_data_set_are_named(tmp_path, command):
    for name, alpha in (("mnist", 0.1), ("fashion", 5)):
        config = {"dataset": {"_target_": f"x.{name}", "path": name}, "partitioner": {"alpha": alpha}}
        record(tmp_path / "runs" / name, (1, 80), **config)
    assert command(tmp_path / "runs", "--group-by", "dataset")[3] == (
        "note: the groups differ in partitioner.alpha as well\n"
    )
    assert command(tmp_path / "runs", "--group-by", "dataset,partitioner.alpha")[3] == ""


def test_when_one_looks_is_no_property_of_a_method(tmp_path, command):
    for seed, every in enumerate((1, 10)):
        record(tmp_path / "runs" / str(seed), (1, 80), seed, eval={"every": every})
    record(tmp_path / "runs" / "again", (1, 2, 80), 0, every=5, eval={"every": 5})
    _, csv, _, err = command(tmp_path / "runs")
    assert list(csv["runs"]) == [2]
    assert err.startswith("note: 1 of 3 runs left out")


def test_labels_have_few_digits_and_the_order_of_the_names(tmp_path, command):
    for alpha in (0.002706822739555228, 0.01, 0.08765318047105343):
        record(tmp_path / "runs" / str(alpha), (1, 80), algo={**FEDMSA, "alpha": alpha})
    _, csv, _, _ = command(tmp_path / "runs")
    assert list(csv["label"]) == ["algo.alpha=0.002707", "algo.alpha=0.01", "algo.alpha=0.08765"]
    names = ["algo.alpha=0.08765=large", "algo.alpha=0.002706822739555228=tuned"]
    _, csv, _, err = command(tmp_path / "runs", *(word for name in names for word in ("--names", name)))
    assert list(csv["label"]) == ["large", "tuned", "algo.alpha=0.01"]
    assert "no line has this name" not in err


def test_a_target_that_few_runs_reach(tmp_path, command):
    """The mean is over those alone, which the table says."""
    for seed, last in enumerate((90, 70, 95)):
        record(tmp_path / "runs" / str(seed), (1, 2, last), seed)
    assert "40 ± 0 (2 of 3)" in command(tmp_path / "runs", "--target", "80")[2]


@pytest.mark.pictures
def test_limits_and_logarithm_of_x(tmp_path, command, drawn):
    record(tmp_path / "runs" / "a", (1, 2, 3))
    command(tmp_path / "runs", "--xlim", "5,20", "--logx")
    axes = drawn[-1].axes[0]
    assert (axes.get_xscale(), axes.get_xlim()) == ("log", (5, 20))
    result = command(tmp_path / "runs", "--xlim", "0,20", "--logx")
    assert "--xlim: a logarithmic axis must begin above 0; use --no-logx" in result[-1]


@pytest.mark.full
@pytest.mark.pictures
def test_a_legend_leaves_room_for_the_lines(tmp_path, command, drawn):
    """Also one of many long labels, and one of two columns."""
    for j in range(14):
        record(tmp_path / "runs" / str(j), (1, 2, 3), algo={**FEDMSA, "rule": f"{'a long word ' * 8}{j}"})
    command(tmp_path / "runs")
    record(tmp_path / "few" / "a", (1, 2, 3))
    figure = drawn[-1]
    figure.draw_without_rendering()
    assert figure.axes[0].get_window_extent().height > 100  # dots, of 2.3 inches at 100
    assert not figure.legends[0].get_window_extent().overlaps(figure.axes[0].get_window_extent())


def test_pooled_runs_are_named(tmp_path, command):
    for seed in (0, 1):
        for rounds in (5, 50):
            dtype = {"dtype": "float64"} if rounds == 5 else {"dtype": "float32"}
            record(tmp_path / "runs" / f"{seed}-{rounds}", (1, rounds), seed, budget={"rounds": rounds}, hardware=dtype)
    _, csv, _, err = command(tmp_path / "runs", "--group-by", "algo")
    assert csv["runs"][0] == 4
    assert err.count("\n") == 1
    assert "hardware.dtype, budget.rounds" in err
    again = "algo,hardware.dtype,budget.rounds"
    assert f"--group-by {again} to separate them" in err
    assert command(tmp_path / "runs", "--group-by", again)[3] == ""


def test_unequal_tuning_is_said(tmp_path, command):
    named(tmp_path / "runs" / "a", "fednest", 1, 2, tuned="fednest/mco")
    named(tmp_path / "runs" / "b", "fedmsa", 1, 3)
    err = command(tmp_path / "runs")[3]
    assert err.count("\n") == 1
    assert "mco: fednest ran with tuned values, fedmsa without" in err
    named(tmp_path / "same" / "a", "fednest", 1, 2)
    named(tmp_path / "same" / "b", "fedmsa", 1, 3)
    assert command(tmp_path / "same")[3] == ""
    named(tmp_path / "searched" / "a", "fednest", 1, 2, tuned="fednest/mco")
    named(tmp_path / "searched" / "b", "fedmsa", 1, 3, tuned="fedmsa/mco", defaults=True)
    assert command(tmp_path / "searched")[3] == ""


def test_unlike_batches_are_said(tmp_path, command):
    for choice, B in (("fednest", 32), ("fedmsa", 8), ("fedavg", None), ("scaffold", 8)):
        named(tmp_path / "runs" / choice, choice, 1, 2, algo={**FEDMSA, "B": B})
    said = (
        "note: different batch sizes on mco: 8 (fedmsa, scaffold); 32 (fednest); all (fedavg); set algo.B=N for all\n"
    )
    assert command(tmp_path / "runs")[3] == said
    assert command(tmp_path / "runs", "--group-by", "algo,algo.B")[3] == ""
    assert command(tmp_path / "runs" / "fedmsa", tmp_path / "runs" / "scaffold")[3] == ""


def test_unlike_weights_of_clients_are_said(tmp_path, command):
    """Groups are those that count clients alike; older runs, which do not say, are left out."""
    seen = {"fedavg": [0.4, 0.35, 0.25], "ditto": [0.4, 0.35, 0.25], "scaffold": None}
    for choice, weights in {**seen, "old": ()}.items():
        folder = tmp_path / "runs" / choice
        named(folder, choice, 1, 2)
        card = json.loads((folder / "run.json").read_text())
        card |= {} if weights == () else {"effective_weights": weights}
        (folder / "run.json").write_text(json.dumps(card))
    said = command(tmp_path / "runs")[3]
    assert said.startswith("note: these solve differently weighted problems on mco: ditto, fedavg; scaffold; ")
    assert "effective_weights in run.json" in said
    assert "participation.sampling=by_weight" in said
    assert command(tmp_path / "runs" / "fedavg", tmp_path / "runs" / "ditto", tmp_path / "runs" / "old")[3] == ""


# For a paper


@pytest.mark.pictures
def two_problems(tmp_path, finals):
    """Runs of methods on two problems. finals: method -> its last values on them."""
    saddle = {"_target_": "fedopt.problems.saddle.Saddle"}
    for method, values in finals.items():
        for problem, value in zip((None, saddle), values, strict=True):
            path = tmp_path / "runs" / f"{method}{bool(problem)}"
            named(
                path,
                method,
                1,
                value,
                algo={**FEDMSA, "_target_": f"a.{method}"},
                **({"problem": saddle} if problem else {}),
            )
            card = json.loads((path / "run.json").read_text())
            card["chosen"]["problem"] = "saddle" if problem else "mco"
            (path / "run.json").write_text(json.dumps(card))


def test_a_method_has_one_look_on_all_problems(tmp_path, command, drawn):
    """The legend names the method, the title the problem."""
    two_problems(tmp_path, {"fedmsa": (90, 60), "codasca": (80, 70), "fednest": (70, 80)})
    assert command(tmp_path / "runs")[0] == 0
    looks = [{line.get_label(): (line.get_color(), line.get_marker()) for line in axes.lines} for axes in drawn[0].axes]
    assert looks[0] == looks[1]
    assert {*looks[0]} == {"FedMSA", "CODASCA", "FedNest"}
    assert len({*looks[0].values()}) == 3
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [*looks[0]]


def test_a_table_of_two_problems_has_a_row_per_method(tmp_path, command):
    two_problems(tmp_path, {"fedmsa": (90, 60), "codasca": (80, 70)})
    assert command(tmp_path / "runs", "--table", "latex,csv", "--columns", "final")[0] == 0
    tex = (tmp_path / "out" / "compare.tex").read_text()
    rows = [line.split(" & ") for line in tex.splitlines() if line.startswith(("FedMSA", "CODASCA"))]
    assert "mco: final" in tex
    assert "saddle: final" in tex
    assert {row[0]: ["textbf" in cell for cell in row[1:]] for row in rows} == {
        "FedMSA": [True, False],
        "CODASCA": [False, True],
    }


def test_the_best_of_many_methods_have_colours(tmp_path, command, drawn):
    for j, final in enumerate((50, 90, 40, 80, 70, 60)):
        named(tmp_path / "runs" / str(j), f"m{j}", 1, final, algo={**FEDMSA, "_target_": f"a.M{j}"})
    command(tmp_path / "runs")
    coloured = [line.get_label() for line in drawn[0].axes[0].lines if line.get_color() != figures.GREY]
    assert coloured == ["m1", "m3", "m4", "m5"]


def test_a_label_names_a_key_only_where_its_method_differs_in_it(tmp_path, command):
    for K in (1, 5):
        named(tmp_path / "runs" / f"a{K}", "fedmsa", 1, 90 + K, algo={**FEDMSA, "K": K})
    named(tmp_path / "runs" / "b", "codasca", 1, 80, algo={**FEDMSA, "_target_": "a.Codasca"})
    assert sorted(command(tmp_path / "runs")[1]["label"]) == ["codasca", "fedmsa, algo.K=1", "fedmsa, algo.K=5"]


def test_files_for_a_paper(tmp_path, command):
    for seed in (0, 1):
        named(tmp_path / "runs" / f"a{seed}", "fedmsa", 1, 90 + seed, seed=seed)
        named(tmp_path / "runs" / f"b{seed}", "fedavg", 1, 80 + 5 * seed, seed=seed, algo=FEDAVG)
    names = [
        "--names",
        "fedmsa=FedMSA (ours, K=5) 100% | _",
        "--format",
        "pdf,svg,png",
        "--table",
        "latex,markdown,csv",
    ]
    code, csv, out, err = command(tmp_path / "runs", *names, "--x", "grad_calls", "--target", 90)
    assert (code, err) == (0, "")
    assert set(csv["label"]) == {"FedMSA (ours, K=5) 100% | _", "fedavg"}
    assert csv["grad_calls_to_target_mean"].dropna().tolist() == [70]  # 7 a round
    made = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert made["compare.pdf"].startswith(b"%PDF")
    assert b"<svg" in made["compare.svg"]
    assert made["compare.png"].startswith(b"\x89PNG")
    assert all(name in out for name in made)
    tex = made["compare.tex"].decode()
    assert tex.startswith("\\begin{tabular}{lrrrrr}\n\\toprule\n")
    assert r"FedMSA (ours, K=5) 100\% | \_ & 2 & \textbf{90.50 $\pm$ 0.71} & \textbf{90.50 $\pm$ 0.71} & " in tex
    head, rule, first, second = made["compare.md"].decode().splitlines()
    assert head.startswith("| method | seeds | final test accuracy (%) |")
    assert first.startswith(r"| FedMSA (ours, K=5) 100% \| \_ | 2 |") or second.startswith(r"| FedMSA (ours")
    assert {line.replace(r"\|", "").count("|") for line in (head, rule, first, second)} == {7}


def test_columns_and_bold_ties(tmp_path, command):
    for name, values in {"a": (90.1, 90.9), "b": (90.102, 90.902), "c": (80, 80.1)}.items():
        for seed, value in enumerate(values):
            named(tmp_path / "runs" / f"{name}{seed}", name, 1, value, seed=seed)
    command(tmp_path / "runs", "--table", "markdown", "--columns", "best,seeds")
    head, _, *rows = (tmp_path / "out" / "compare.md").read_text().splitlines()
    assert head == "| method | best test accuracy (%) | seeds |"
    assert [row.count("**") for row in rows] == [2, 2, 0]


@pytest.mark.parametrize(
    ("decimals", "cells", "bold"), [("1", ["90.5 ± 0.6", "80.0"], [2, 2, 0]), ("0", ["91 ± 1", "80"], [2, 2, 0])]
)
def test_decimals(decimals, cells, bold, tmp_path, command):
    for name, values in {"a": (90.11, 90.95), "b": (90.13, 90.95), "c": (80.04,)}.items():
        for seed, value in enumerate(values):
            named(tmp_path / "runs" / f"{name}{seed}", name, 1, value, seed=seed)
    _, csv, _, _ = command(tmp_path / "runs", "--table", "markdown,csv", "--decimals", decimals)
    _, _, *rows = (tmp_path / "out" / "compare.md").read_text().splitlines()
    assert [row.count("**") // 2 for row in rows] == bold
    assert cells[0] in rows[0]
    assert f"| {cells[1]} |" in rows[2]
    assert csv["final_test_accuracy_mean"].tolist() == pytest.approx([90.53, 90.54, 80.04])  # all digits


@pytest.mark.pictures
def test_colours_stay_with_names(tmp_path, command, drawn):
    """In the order of --names, also where some have no line."""
    for algo in ("a", "b", "c"):
        for K in (1, 5):
            named(tmp_path / "runs" / f"{algo}{K}", algo, 1, 2, algo={**FEDMSA, "K": K})
    names = ["--names", "c=C", "--names", "gone=G", "--names", "b=B"]
    _, _, _, err = command(tmp_path / "runs", "--group-by", "algo,algo.K", *names)
    assert "--names=gone=G: no line has this name; there are a, algo.K=1" in err
    lines = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines}
    colours = figures.OKABE_ITO
    assert lines["C, algo.K=1"] == (colours[0], "-")
    assert lines["C, algo.K=5"] == (colours[1], "-")
    assert lines["B, algo.K=1"] == (colours[2], "-")
    assert len(set(lines.values())) == 6
    command(tmp_path / "runs" / "b1", *names)
    assert drawn[1].axes[0].lines[0].get_color() == colours[2]
    assert len({line.get_marker() for line in drawn[0].axes[0].lines}) > 3


@pytest.mark.pictures
@pytest.mark.parametrize("place", ["inside", "none"])
def test_legends_elsewhere(place, tmp_path, command, drawn):
    record(tmp_path / "runs" / "0", (10, 90))
    out = command(tmp_path / "runs", "--legend", place)[2]
    assert "figure: lines: 1 seed" in out
    assert (drawn[0].axes[0].get_legend() is not None) == (place == "inside")
    assert not drawn[0].legends
    assert caption(drawn[0]).startswith("lines: 1 seed")
    command(tmp_path / "runs", "--legend", place, "--no-caption")
    assert drawn[1].get_size_inches()[1] == figures.HEIGHT


@pytest.mark.pictures
def test_a_legend_below(tmp_path, command, drawn):
    """Has the caption, and the title stands above."""
    record(tmp_path / "runs" / "0", (10, 90))
    command(tmp_path / "runs", "--legend", "below", "--title", "T")
    drawn[0].draw_without_rendering()
    (legend,), (axes,) = drawn[0].legends, drawn[0].axes
    assert legend.get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0
    assert legend.get_title().get_text().startswith("lines: 1 seed")
    assert (drawn[0].get_suptitle(), drawn[0].get_supxlabel()) == ("T", "")


def test_curves_as_drawn(tmp_path, command):
    for seed, value in enumerate((90, 92)):
        record(tmp_path / "runs" / str(seed), (10, value), seed)
    command(tmp_path / "runs")
    drawn = pd.read_csv(tmp_path / "out" / "compare_curves.csv")
    assert list(drawn.columns) == ["line", "comm_rounds", "test_accuracy", "low", "high", "band"]
    assert drawn.iloc[1].tolist() == ["FedMSA", 20, 91, pytest.approx(91 - 2**0.5), pytest.approx(91 + 2**0.5), "std"]


def test_paired_tests(tmp_path, command):
    """Differences 8, 9, 13: t = 10 / (sqrt(7) / sqrt(3)) with 2 degrees of freedom; p = 1 - t / sqrt(t^2 + 2) there."""
    for seed, (a, b) in enumerate([(90, 82), (92, 83), (94, 81)]):
        named(tmp_path / "runs" / f"a{seed}", "fedmsa", 1, a, seed=seed)
        named(tmp_path / "runs" / f"b{seed}", "fedavg", 1, b, seed=seed, algo=FEDAVG)
    named(tmp_path / "runs" / "more", "fedavg", 1, 10, seed=7, algo=FEDAVG)  # a seed that fedmsa does not have
    _, _, out, err = command(tmp_path / "runs", "--table", "csv,latex")
    assert "fedavg - fedmsa: tested, with 3 pairs of equal seed; 1 run without a partner in the table only" in err
    tested = pd.read_csv(tmp_path / "out" / "compare_tests.csv")
    difference = "difference of test accuracy (percentage points)"
    assert list(tested.columns) == ["pair", difference, "pairs", "p", "p (Holm)", "paired by"]
    text = (tmp_path / "out" / "compare_tests.tex").read_text()
    assert "pair & difference & pairs & p & p (Holm)" in text
    assert "fedavg -- fedmsa & $-$10.0 & 3 & " in text
    t = 10 / (7 / 3) ** 0.5
    (row,) = [re.split(" {2,}", line) for line in out.splitlines() if line.startswith("fedavg - fedmsa")]
    _, difference, seeds, p, _ = row
    assert (float(difference), int(seeds)) == (-10, 3)
    assert float(p) == pytest.approx(1 - t / (t**2 + 2) ** 0.5, rel=5e-3)
    assert "last values, paired by seed (3); two-sided paired t-test" in out


def swept(folder, keys, values, **of_algo):
    """Runs of two methods, fedmsa and fedavg. keys: of each pair of values, such as seed=0, split_seed=1."""
    for j, (its, pair) in enumerate(zip(keys, values, strict=True)):
        config = {"seed": its.get("seed", 0), "dataset": {"split_seed": its.get("split_seed", 0)}}
        for name, value in zip(("fedmsa", "fedavg"), pair, strict=True):
            algo = {**(FEDAVG if name == "fedavg" else FEDMSA), "B": its.get("B", 32), **of_algo}
            named(folder / f"{name}{j}", name, 1, value, algo=algo, **config)


ENDS = [(90, 82), (92, 83), (94, 81), (90, 91), (95, 88), (91, 85)]


@pytest.mark.parametrize(
    ("keys", "by"),
    [
        ([{"seed": j} for j in range(6)], "seed"),
        ([{"split_seed": j} for j in range(6)], "dataset.split_seed"),
        ([{"seed": j % 2, "split_seed": j // 2} for j in range(6)], "seed and dataset.split_seed"),
        ([{"split_seed": j % 3, "B": 1 + j // 3} for j in range(6)], "algo.B and dataset.split_seed"),
    ],
)
def test_runs_are_paired_by_all_that_differs_within_groups(tmp_path, command, keys, by):
    """One p, whatever the key of the replicates; seeds of data splits are no groups of their own."""
    swept(tmp_path / "runs", keys, ENDS)
    _, csv, out, err = command(tmp_path / "runs", *(["--group-by", "algo"] if "B" in keys[0] else []))
    assert list(csv["runs"]) == [6, 6]
    assert f"last values, paired by {by} (6); two-sided" in " ".join(out.split())
    assert ("use --group-by algo,algo.B to separate them" in err) is ("B" in keys[0])
    (row,) = pd.read_csv(tmp_path / "out" / "compare_tests.csv").to_dict("records")
    p = scipy.stats.ttest_rel(*zip(*ENDS, strict=True)).pvalue
    assert (row["pairs"], row["paired by"], row["p"]) == (6, by, pytest.approx(p, rel=1e-6))
    paired = fedopt.compare([tmp_path / "runs"], group_by="algo").paired
    assert (paired["pairs"][0], paired["p"][0]) == (6, pytest.approx(p, rel=1e-6))


def test_data_of_several_splits_do_not_tell_groups_apart(tmp_path, command):
    """Each split has a digest of its own."""
    swept(tmp_path / "runs", [{"split_seed": j} for j in range(6)], ENDS)
    for card in (tmp_path / "runs").glob("*/run.json"):
        card.write_text(json.dumps({**json.loads(card.read_text()), "data": f"digest{card.parent.name[-1]}"}))
    _, csv, _, err = command(tmp_path / "runs")
    assert (list(csv["algo"]), list(csv["runs"])) == (["fedavg", "fedmsa"], [6, 6])
    assert "differ in" not in err
    rows = [{"run": str(j), "status": "finished", "dataset.split_seed": j, "data": str(j)} for j in range(3)]
    shown = sweeps.finals_of(rows, ["loss"] * 3, {"0": 1.0, "1": 2.0, "2": 3.0}, ["dataset.split_seed", "data"])
    assert (list(shown["runs"]), list(shown["final loss"])) == (["3"], ["2.0 ± 1.0"])


def test_a_key_to_group_by_does_not_pair(tmp_path, command):
    swept(tmp_path / "runs", [{"seed": j // 2, "split_seed": j % 2} for j in range(6)], ENDS)
    _, csv, _, _ = command(tmp_path / "runs", "--group-by", "algo,dataset.split_seed")
    assert list(csv["runs"]) == [3, 3, 3, 3]
    tested = pd.read_csv(tmp_path / "out" / "compare_tests.csv").set_index("pair")
    assert {*tested["paired by"]} == {"seed"}
    p = scipy.stats.ttest_rel([90, 94, 95], [82, 81, 88]).pvalue
    assert tested.loc["fedavg, dataset.split_seed=0 - fedmsa, dataset.split_seed=0", "p"] == pytest.approx(p, rel=1e-6)


def test_runs_without_a_partner_are_counted(tmp_path, command):
    swept(tmp_path / "runs", [{"split_seed": j} for j in range(6)], ENDS)
    for folder in ("fedavg0", "fedavg1", "fedmsa5"):
        shutil.rmtree(tmp_path / "runs" / folder)
    err = command(tmp_path / "runs")[3]
    assert "fedavg - fedmsa: tested, with 3 pairs of equal dataset.split_seed; 3 runs without a partner" in err
    for j in (2, 3):
        shutil.rmtree(tmp_path / "runs" / f"fedavg{j}")
    err = command(tmp_path / "runs")[3]
    assert "fedavg - fedmsa: not tested, with 1 pair of equal dataset.split_seed; 5 runs without a partner" in err


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
    assert err.count("selected on val_accuracy, over rows that are not for testing") == 1
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
    assert "has no metric val_accuracy, only test_accuracy, train_loss" in err
    assert command(tmp_path / "runs", "--columns", "test", "--metric", "test_accuracy")[0] == 2


def test_holm():
    """The smallest times 4, the next times 3, none smaller than one before it, none above 1."""
    assert stats.holm(np.array([0.9, 0.01, 0.02, 0.021])) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    assert stats.holm(np.array([0.8, 0.9])) == pytest.approx([1, 1])
    assert stats.holm(np.array([])).size == 0


SADDLE = {"_target_": "fedopt.problems.saddle.Saddle"}


def test_each_problem_is_tested_by_itself(tmp_path, command):
    """Its scale, and the family of Holm's correction, do not depend on what else is in the folder."""
    values = {"fedavg": (1, 2, 4, 9), "fedmsa": (2, 3, 9, 30), "lfednest": (5, 6, 7, 10)}
    for name, its in values.items():
        for seed, value in enumerate(its):
            named(tmp_path / "alone" / f"{name}{seed}", name, 50, value, seed=seed, metric="distance")
            named(tmp_path / "both" / f"{name}{seed}", name, 50, value, seed=seed, metric="distance")
            folder = tmp_path / "both" / f"other {name}{seed}"
            named(folder, name, 500, 500 + value / (1 + seed), seed=seed, metric="distance", problem=SADDLE)
            card = json.loads((folder / "run.json").read_text())
            card["chosen"]["problem"] = "saddle"
            (folder / "run.json").write_text(json.dumps(card))
    tested = {}
    for folder in ("alone", "both"):
        command(tmp_path / folder)
        tested[folder] = pd.read_csv(tmp_path / "out" / "compare_tests.csv")
    pairs = list(itertools.combinations(values, 2))
    p = np.array([scipy.stats.ttest_rel(*(np.log(values[name]) for name in pair)).pvalue for pair in pairs])
    of_mco = tested["both"][tested["both"]["pair"].str.contains(" / ")]
    assert list(of_mco["pair"]) == [f"{one}, mco / {other}, mco" for one, other in pairs]
    assert list(tested["both"]["pair"])[3] == "fedavg, saddle - fedmsa, saddle"
    for table in (tested["alone"], of_mco):
        assert table["p"].to_numpy() == pytest.approx(p, rel=1e-6)
        assert table["p (Holm)"].to_numpy() == pytest.approx(stats.holm(p), rel=1e-6)
    assert tested["both"].columns[1] == "difference or ratio of distance to the solution"


def test_a_zero_that_changes_the_scale_is_said(tmp_path, command):
    """Of the axis and of the tests; below 0 too, and only where the other values span decades."""
    for seed, last in enumerate((0, 0.1, 0.2)):
        named(tmp_path / "zero" / f"a{seed}", "fedmsa", 100, 10, last, seed=seed, metric="distance")
        named(tmp_path / "zero" / f"b{seed}", "fedavg", 100, 20, 3 + seed, seed=seed, metric="distance")
        named(tmp_path / "near" / f"a{seed}", "fedmsa", 3, 2, last, seed=seed)
        named(tmp_path / "near" / f"b{seed}", "fedavg", 3, 2, 1 + seed, seed=seed)
        named(tmp_path / "below" / f"a{seed}", "fedmsa", 100, -1e-3 * (seed + 1), 1e-2, seed=seed, metric="distance")
    assert command(tmp_path / "zero")[3].splitlines() == [
        "note: mco: distance is 0 in fedmsa, seed 0, so the y axis is linear, with arithmetic means; the others span decades",
        "note: mco: the last distance is 0 in fedmsa, seed 0, so differences are tested, not ratios; the others span decades",
    ]
    assert "decades" not in command(tmp_path / "near")[3]
    assert (
        "mco: distance is -0.001 in fedmsa, seed 0, so the y axis is linear around 0" in command(tmp_path / "below")[3]
    )


@pytest.mark.parametrize("unit", [1e-200, 1e-15, 1e-9, 1, 1e12, 1e200])
def test_small_and_large_values_are_tested_alike(unit, tmp_path):
    """Whatever their unit; differences that are equal but for rounding have no p."""
    one, other, shifted = (90.1, 92.3, 94.7, 91.2), (82.4, 83.9, 81.5, 84.4), (90.4, 92.6, 95.0, 91.5)
    groups = {}
    for label, values in {"a": one, "b": other, "c": shifted}.items():
        folders = [record(tmp_path / label / str(s), (1, v * unit), s, metric="gap") for s, v in enumerate(values)]
        groups[label] = [read_run(folder, "round") for folder in folders]
    p = stats.tests(groups, "gap").set_index("pair")["p"]
    assert p["a - b"] == pytest.approx(scipy.stats.ttest_rel(one, other).pvalue, rel=1e-6)
    assert np.isnan(p["a - c"])


def test_the_last_values_of_a_group(tmp_path, command, capsys):
    """A group in which a run diverged or failed has no mean: for fedopt-compare, the end of a sweep, pages and tests alike."""
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
    _, section = comparison.compared([tmp_path / "runs"]).report().sections
    (table, tested), _ = section.views["distance"]
    assert list(table.cells.iloc[:, -1]) == ["-", "-", "3.516 to 8.484"]  # 6 ± 4.303 / sqrt(3)
    assert list(tested.cells["p"]) == ["-"] * 3
    at = comparison.compared([tmp_path / "runs"], at=0).table  # before they diverged
    assert list(at["final_distance_mean"]) == [9, 9, 9]


def test_lines_are_straight_on_the_axes(tmp_path, drawn):
    """On logarithmic ones and around 0: seeds on one line are on it between evaluations too, in rounds 5, 10, 15 as in 20."""
    fives = record(tmp_path / "0", (100, 10, 1, 0.1, 0.01), metric="distance", every=5)
    twenties = record(tmp_path / "1", (100, 0.01), metric="distance", every=20)
    assert curve(fives, twenties, log=True)[1] == pytest.approx([100, 10, 1, 0.1, 0.01])
    powers = record(tmp_path / "2", (9, 0.1, 0.05, 0.025), metric="distance")  # 1 / x in rounds 10, 20, 40
    lines_ = (powers / "metrics.csv").read_text().splitlines()
    (powers / "metrics.csv").write_text("\n".join([*lines_[:4], lines_[4].replace("30,60", "40,80")]) + "\n")
    ends = record(tmp_path / "3", (9, 0.1, 0.025), metric="distance")
    lines_ = (ends / "metrics.csv").read_text().splitlines()
    (ends / "metrics.csv").write_text("\n".join([*lines_[:3], lines_[3].replace("20,40", "40,80")]) + "\n")
    x, mean, *_ = curve(powers, ends, log=True, logx=True)
    assert (x, mean) == (pytest.approx([0, 10, 20, 40]), pytest.approx([9, 0.1, 0.05, 0.025]))
    symlog = SymmetricalLogTransform(10, 1e-3, 1)
    below = symlog.inverted().transform(np.linspace(symlog.transform(100), symlog.transform(-1e-3), 5))
    for every, values in ((5, below), (20, below[[0, -1]])):
        record(tmp_path / "runs" / str(every), values, every, metric="distance", every=every)
    points = comparison.compared([tmp_path / "runs"]).draw()
    assert points["distance"].to_numpy() == pytest.approx(below)


@pytest.mark.parametrize("odd", [".", "1.2.3", "1..2", "-.", "--", "1e", "٣", "1_0"])
def test_texts_that_are_nearly_numbers(odd, tmp_path, command):
    """Such as a path: they are sorted after the numbers."""
    for K in (odd, 10, 9):
        record(tmp_path / "runs" / f"of {K}", (1, 2), algo={**FEDMSA, "K": K})
    _, csv, _, _ = command(tmp_path / "runs", "--group-by", "algo.K")
    assert list(csv["algo.K"].astype(str).str.lstrip("'")) == ["9", "10", odd]


def test_order_of_texts():
    ordered = ["-inf", "-2", "-1e-3", ".5", "1", "1e5", "inf", "", "1.2.3", "-", ".", "a2", "a10", "nan"]
    assert sorted(sorted(ordered), key=order) == ordered
    assert [as_number(text) for text in ("1e-3", "+2.", "INF", "1.2.3", ".", "--", "٣", "")] == [
        0.001, 2, np.inf, None, None, None, None, None
    ]  # fmt: skip


ROOTS = r"$\sqrt{x}$" * 12
NATURAL = r"mean of $\frac{1}{M} \sum_{i=1}^M \Vert \nabla f_i(x, y^\star(x)) \Vert^2$ of all clients"


@pytest.mark.pictures
@pytest.mark.parametrize(("label", "more"), [(ROOTS, ()), (ROOTS, ("--height", 1.2)), (NATURAL, ("--height", 1.2))])
def test_labels_with_formulas_are_broken_between_them(label, more, tmp_path, command, drawn):
    """And not within one, which is set smaller where it does not fit."""
    record(tmp_path / "runs" / "0", (1, 2), metric="gap")
    assert command(tmp_path / "runs", "--label", label, *more)[0] == 0
    drawn[0].draw_without_rendering()
    text = drawn[0].axes[0].yaxis.label
    assert "".join(text.get_text().split()) == "".join(label.split())
    assert all(line.count("$") % 2 == 0 for line in text.get_text().splitlines())
    assert text.get_window_extent().height <= 0.66 * drawn[0].bbox.height


def test_no_test_without_pairs(tmp_path, command):
    named(tmp_path / "runs" / "a", "fedmsa", 1, 90)
    named(tmp_path / "runs" / "b", "fedavg", 1, 80, algo=FEDAVG)
    assert "t-test" not in command(tmp_path / "runs")[2]
    runs = {label: [read_run(tmp_path / "runs" / folder, "round")] for label, folder in (("A", "a"), ("B", "b"))}
    assert stats.tests(runs, "test_accuracy").empty
    ratios = {}
    for label, values in {"A": (1, 10, 100), "B": (4, 10, 300)}.items():
        folders = [record(tmp_path / label / str(s), (1000, v), s, metric="distance") for s, v in enumerate(values)]
        ratios[label] = [read_run(folder, "round") for folder in folders]
    (row,) = stats.tests(ratios, "distance").to_dict("records")
    assert row["pair"] == "A / B"
    assert row["ratio of distance to the solution"] == pytest.approx((1 / 12) ** (1 / 3))


def test_numbers_for_people(tmp_path):
    table = pd.DataFrame(
        {"a": [91.97999999999966, 1e-12 / 3, 123456789.0, np.nan, np.inf], "b": [1, None, "x", 2.0, 3]}
    )
    tables.write_table(tmp_path / "t.csv", table)
    cells = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    assert [a for a, _ in cells] == ["91.98", "3.333333e-13", "123456789", "", "inf"]
    assert [b for _, b in cells] == ["1", "", "x", "2", "3"]
    assert tables.in_bytes(2.5e6, 1e5) == "2.50 ± 0.10 MB"
    assert tables.in_bytes(12, float("nan")) == "12 B"
    assert tables.unit_of_bytes([6.2e4, 1.7e6, float("nan")]) == "kB"
    assert tables.unit_of_bytes([6.2e4, 1.7e9]) == "MB"
    assert tables.in_bytes(6.2e4, 1e3, "MB") == "0.0620 ± 0.0010 MB"
    assert tables.alike([90.0, 83.95, 75.2], 4) == ["90.00", "83.95", "75.20"]
    assert tables.alike([-0.1, 0.0275], 3) == ["-0.100", "0.0275"]
    assert tables.alike([12.5, 3e-9, 1500], 3) == ["12.5", "3.00e-09", "1.50e+03"]
    small = [tables.plus_minus(0.001021, 9.4e-5), tables.plus_minus(0.0008, 2e-4), tables.plus_minus(4e-24, 1.3e-24)]
    assert small == ["0.001021 ± 0.000094", "0.00080 ± 0.00020", "(4.0 ± 1.3)e-24"]
    assert r"(4.0 $\pm$ 1.3) $\times 10^{-24}$" in tables.latex(pd.DataFrame({"a": small}))
    plain = tables.latex(pd.DataFrame({"a": ["eta=1e-05"], "b": ["-1.73e-05"], "c": ["2e+06 ± 3e-07"]}))
    assert r"eta=1e-05 & $-1.73 \times 10^{-5}$ & $2 \times 10^{6}$ $\pm$ $3 \times 10^{-7}$" in plain
    assert tables.plus_minus(123456.7, 0.00001) == "1.235e+05 ± 1e-05"
    assert [tables.plus_minus(-0.004, 3.4), tables.plus_minus(-0.004, 3.4, 1)] == ["0.0 ± 3.4"] * 2
    mathematics = tables.latex(pd.DataFrame({"a_b": ["50 %"], r"to $x^\star_1$": ["c"]}))
    assert r"a\_b & to $x^\star_1$ \\" in mathematics
    assert r"50 \%" in mathematics
    assert r"5 \$ \textasciitilde" in tables.latex(pd.DataFrame({"a": ["5 $ ~"]}))


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
    for asked in ("--columns=best", "--target=2"):
        code, _, _, err = command(tmp_path / "runs", *asked.split("="))
        assert code == 2
        assert "weight cannot be a goal, since neither larger nor smaller values are better" in err


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


def test_the_table_says_what_clients_reach_alone(tmp_path, command):
    """A line per value; none for other metrics than those of models on rows."""
    for i, alone in enumerate((2.1, 2.1, 3)):
        file = record(tmp_path / "runs" / str(i), (4, 3, 2), i, metric="test_rmse") / "metrics.csv"
        pd.read_csv(file).assign(alone_rmse=alone).to_csv(file, index=False)
    out = command(tmp_path / "runs")[2]
    assert "each client alone: alone_rmse 2.4, on its test rows\n" in out
    assert "alone" not in command(tmp_path / "runs", "--metric", "train_loss")[2]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["algo.eta_y", "algo.eta_x", "algo.alpha"], " (algo.eta_y, algo.eta_x)"),
        (["algo.alpha", "algo.beta", "budget.rounds"], " (algo.alpha, algo.beta)"),
        (["algo.mine"], ""),
    ],
)
def test_advice_names_the_keys_of_step_sizes(keys, said):
    assert unequal.step_keys(keys) == said
