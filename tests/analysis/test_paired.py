"""Statistics of a comparison: deviations, paired tests and Holm's correction."""

import itertools
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from support.records import FEDAVG, FEDMSA, SADDLE, named, record

import fedopt
from fedopt.analysis import stats, sweeps
from fedopt.analysis.runs import read as read_run


def test_equal_values_have_no_deviation():
    """Not even by the rounding of a sum."""
    assert stats.moments([0.1] * 3) == (0.1, 0)
    assert stats.moments([0.1, 0.3]) == pytest.approx((0.2, 0.02**0.5))


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


def test_paired_tests(tmp_path, command):
    """Differences 8, 9, 13: t = 10 / (sqrt(7) / sqrt(3)) with 2 degrees of freedom; p = 1 - t / sqrt(t^2 + 2) there."""
    for seed, (a, b) in enumerate([(90, 82), (92, 83), (94, 81)]):
        named(tmp_path / "runs" / f"a{seed}", "fedmsa", 1, a, seed=seed)
        named(tmp_path / "runs" / f"b{seed}", "fedavg", 1, b, seed=seed, algo=FEDAVG)
    named(tmp_path / "runs" / "more", "fedavg", 1, 10, seed=7, algo=FEDAVG)  # a seed that fedmsa does not have
    _, _, out, err = command(tmp_path / "runs", "--table", "csv,latex")
    assert (
        "fedavg - fedmsa: tested, with 3 pairs of runs with equal seed; the test leaves out 1 run without a partner"
        in err
    )
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
    assert ("separate them with --group-by algo,algo.B" in err) is ("B" in keys[0])
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
    rows = pd.DataFrame({"status": "finished", "dataset.split_seed": [0, 1, 2], "data": ["0", "1", "2"]})
    shown = sweeps.finals_of(rows, [("loss", 1.0), ("loss", 2.0), ("loss", 3.0)], ["dataset.split_seed", "data"])
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
    assert (
        "fedmsa: tested, with 3 pairs of runs with equal dataset.split_seed; the test leaves out 3 runs without" in err
    )
    for j in (2, 3):
        shutil.rmtree(tmp_path / "runs" / f"fedavg{j}")
    err = command(tmp_path / "runs")[3]
    assert (
        "fedmsa: not tested, with 1 pair of runs with equal dataset.split_seed; the test leaves out 5 runs without"
        in err
    )


def test_holm():
    """The smallest times 4, the next times 3, none smaller than one before it, none above 1."""
    assert stats.holm(np.array([0.9, 0.01, 0.02, 0.021])) == pytest.approx([0.9, 0.04, 0.06, 0.06])
    assert stats.holm(np.array([0.8, 0.9])) == pytest.approx([1, 1])
    assert stats.holm(np.array([])).size == 0


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
