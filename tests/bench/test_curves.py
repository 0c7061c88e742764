"""Trials that are computed together: their table, trials that fail or diverge, and the values of standalone runs."""

import errno
import gzip
import os
import re
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from support.command import code_of

from fedopt.bench import curves
from fedopt.bench.trials import FIRST_SEED
from fedopt.commands import tune as command
from fedopt.errors import UserError
from fedopt.results import RunFolder
from fedopt.running import together

WORDS = [
    "algo=fedavg",
    "problem=quadratic_minimisation",
    "algo.eta=log(0.01,0.3)",
    "--budget",
    "rounds=4",
    "--seeds",
    "2",
]
WORDS += ["--metric", "distance", "--trials", "6", "--sampler", "sobol"]


def tune(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fedopt-tune", *words])
    return code_of(command.main)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    with pytest.MonkeyPatch.context() as patch:
        assert tune(patch, *WORDS, "--out", str(folder)) == 0
    return folder


@pytest.fixture
def search(searched, tmp_path):
    return shutil.copytree(searched, tmp_path / "search")


def best_of(search):
    (place,) = [path for path in (search / "fedavg").glob("trial*") if path.name != "trial000"]
    return place


def test_the_table_has_the_curves_of_all_trials(searched):
    """They equal those of standalone runs, metrics to 1e-10. Only the defaults and the best trial have folders."""
    table = pd.read_csv(searched / "fedavg" / "curves.csv.gz")
    assert {*table["trial"]} == {*range(1, 7)}
    best = best_of(searched)
    for seed in (FIRST_SEED, FIRST_SEED + 1):
        alone = pd.read_csv(best / f"seed{seed}" / "metrics.csv").drop(columns="train_seconds")
        mine = table[(table["trial"] == int(best.name[-3:])) & (table["seed"] == seed)]
        pd.testing.assert_frame_equal(mine[alone.columns].reset_index(drop=True), alone, rtol=1e-10)


def test_finished_trials_are_not_run_again(monkeypatch, searched, search):
    (search / "trials.csv").unlink()
    shutil.rmtree(best_of(search))
    monkeypatch.setattr(together, "at_once", None)
    assert tune(monkeypatch, *WORDS, "--out", str(search)) == 0
    assert (search / "trials.csv").read_bytes() == (searched / "trials.csv").read_bytes()


@pytest.mark.parametrize("part", ["seed", "batch"])
def test_what_the_table_lacks_is_run_again(part, monkeypatch, searched, search):
    """A search that was killed after a seed, or before its first batch."""
    path = search / "fedavg" / "curves.csv.gz"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    kept = table[table["seed"] == str(FIRST_SEED)]
    path.unlink()
    if part == "seed":
        path.write_bytes(gzip.compress(kept.to_csv(index=False).encode()))
    shutil.rmtree(best_of(search))
    assert tune(monkeypatch, *WORDS, "--out", str(search)) == 0
    assert (search / "trials.csv").read_bytes() == (searched / "trials.csv").read_bytes()
    again = pd.read_csv(path, dtype=str, keep_default_na=False)
    pd.testing.assert_frame_equal(again.drop(columns="train_seconds"), table.drop(columns="train_seconds"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "other columns", "header twice"])
def test_a_damaged_table_is_one_line(damage, monkeypatch, capsys, searched, search):
    """It names the file; without the file its trials are run again."""
    path = search / "fedavg" / "curves.csv.gz"
    content = path.read_bytes()
    flipped = bytes([*content[:200], content[200] ^ 8, *content[201:]])
    damaged = {"cut": content[:-9], "flipped": flipped, "text": b"trial,seed\n", "header twice": 2 * content}
    path.write_bytes(damaged.get(damage) or gzip.compress(b"a,b\n1,2\n"))
    capsys.readouterr()
    assert tune(monkeypatch, *WORDS, "--out", str(search)) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fedopt: {path}: cannot be read (")
    assert err.endswith("); delete it, and repeat the command\n")
    path.unlink()
    assert tune(monkeypatch, *WORDS, "--out", str(search)) == 0
    assert (search / "trials.csv").read_bytes() == (searched / "trials.csv").read_bytes()


def test_a_trial_is_added_without_reading_the_others(monkeypatch, tmp_path):
    """The table stays one CSV file, also if its first trial failed before it had metrics."""
    path = tmp_path / "curves.csv.gz"
    about = {"seed": "5", "algo.eta": "0.1", "error": "", "alone": ""}
    finished = [{**about, "status": "finished", "round": str(k), "loss": "0.5"} for k in range(2)]
    curves.add_rows(path, [{"trial": "3", **about, "status": "failed"}])
    curves.add_rows(path, [{"trial": "2", **row} for row in finished])
    monkeypatch.setattr(curves, "read_rows", None)
    before = path.read_bytes()
    curves.add_rows(path, [{"trial": "0", **row} for row in finished])
    curves.add_rows(path, [{"trial": "1", **about, "status": "failed"}])
    assert path.read_bytes().startswith(before)
    monkeypatch.undo()
    rows = curves.read_rows(path)
    assert [row["trial"] for row in rows] == ["0", "0", "1", "2", "2", "3"]
    assert [row["loss"] for row in rows] == ["0.5", "0.5", "", "0.5", "0.5", ""]
    assert len(pd.read_csv(path)) == 6


MINE = """
from dataclasses import dataclass
from fedopt.algorithms.fedavg import FedAvg


class Mine(FedAvg):
    def step(self, state, problem, fed):
        if self.momentum > 0.1:
            raise ValueError("too large")
        return super().step(state, problem, fed)
"""


def test_a_trial_that_raises_has_failed_and_the_others_go_on(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_of_curves.py").write_text(MINE)
    (tmp_path / "my" / "algo").mkdir(parents=True)
    head = "_target_: mine_of_curves.Mine\neta: 0.05\ngamma: 1\nmomentum: 0\ntau: 1\nB: null\nmu: 0\n"
    (tmp_path / "my" / "algo" / "mine.yaml").write_text(head)
    words = ["algo=mine", WORDS[1], "algo.momentum=log(0.01,0.3)", *WORDS[3:], "--config-dir", "my", "--out", "out"]
    assert tune(monkeypatch, *words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    table = pd.read_csv(tmp_path / "out" / "trials.csv")
    assert ((table["status"] == "failed") == (table["algo.momentum"] > 0.1)).all()
    assert 0 < table["status"].eq("failed").sum() < 6
    lines = re.findall(r"^\[.*trials 1 to 6.*", out, re.MULTILINE)
    assert len(lines) == 2
    assert all(
        re.search(r"\d finished, \d failed|\d failed, \d finished", line) and "too large" in line for line in lines
    )
    assert tune(monkeypatch, *words) == 0
    assert pd.read_csv(tmp_path / "out" / "trials.csv").equals(table)


def test_trials_that_diverge_have_no_value(monkeypatch, capsys, tmp_path):
    words = [word.replace("log(0.01,0.3)", "log(0.1,1e9)") for word in WORDS]
    assert tune(monkeypatch, *words, "eval.diverged=10", "eval.every=1", "--out", str(tmp_path)) == 0
    table = pd.read_csv(tmp_path / "trials.csv")
    assert (table["status"].eq("diverged") == np.isinf(table["loss"])).all()
    assert 0 < table["status"].eq("diverged").sum() < 7
    assert capsys.readouterr().err == ""


def test_if_all_trials_diverge_one_line_says_so(monkeypatch, capsys, tmp_path):
    """Nothing is run again when the command is repeated."""
    words = [*WORDS, "algo.gamma=1e9", "eval.diverged=10", "eval.every=1", "--out", str(tmp_path)]
    none = "fedopt: fedavg on quadratic_minimisation: none of 7 trials has a value (diverged); try smaller step sizes"
    for _ in range(2):
        assert tune(monkeypatch, *words) == 1
        out, err = capsys.readouterr()
        assert err == f"{none} or a longer budget\n"
    assert "[" not in out
    assert len({(row["trial"], row["seed"]) for row in curves.read_rows(tmp_path / "fedavg" / "curves.csv.gz")}) == 12


def test_a_full_disk_is_one_line_and_loses_no_trial(monkeypatch, capsys, searched, tmp_path):
    """The trials with the first seed are kept; the repeated command runs the others."""
    write, calls = curves.write_atomically, []

    def full(path, content):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(curves, "write_atomically", full)
        assert tune(patch, *WORDS, "--out", str(tmp_path)) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "No space left on device" in err
    assert "1 run did not finish; repeat the command to resume" in err
    seeds = [row["seed"] for row in curves.read_rows(tmp_path / "fedavg" / "curves.csv.gz")]
    assert {*seeds} == {str(FIRST_SEED)}
    assert tune(monkeypatch, *WORDS, "--out", str(tmp_path)) == 0
    assert (tmp_path / "trials.csv").read_bytes() == (searched / "trials.csv").read_bytes()


def test_trials_that_ran_alone_are_counted_and_kept_as_they_end(monkeypatch, capsys, tmp_path):
    """With a reason. A search that is stopped between them has those that ended."""
    monkeypatch.setattr(together, "_cannot", lambda e: "no reason")
    add, calls = curves.add_rows, []

    def stopped(path, rows):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append({(row["trial"], row["seed"]) for row in rows})
        add(path, rows)

    with monkeypatch.context() as patch:
        patch.setattr(curves, "add_rows", stopped)
        assert tune(patch, *WORDS, "--out", str(tmp_path)) == 130
    assert [len(call) for call in calls] == [1, 1, 1]
    assert len({(row["trial"], row["seed"]) for row in curves.read_rows(tmp_path / "fedavg" / "curves.csv.gz")}) == 3
    assert tune(monkeypatch, *WORDS, "--out", str(tmp_path)) == 0
    line = "fedavg on quadratic_minimisation: 0 of 6 trials were computed together; 6 ran alone: no reason\n"
    assert line in capsys.readouterr().out


def test_a_value_that_differs_alone_is_reported(monkeypatch, capsys, search):
    """The value of the standalone run counts, and another trial may be the best then."""
    first = best_of(search)
    for seed in (FIRST_SEED, FIRST_SEED + 1):
        folder = RunFolder(first / f"seed{seed}")
        summary = folder.summary()
        worse = summary["final"] | {"distance": 1e3}
        folder.write_json("summary.json", summary | {"final": worse})
        rows = pd.read_csv(folder.metrics, dtype=str)
        rows.loc[rows.index[-1], "distance"] = "1000"
        rows.to_csv(folder.metrics, index=False)
        folder.checkpoint.unlink()
    capsys.readouterr()
    assert tune(monkeypatch, *WORDS, "--out", str(search)) == 0
    out = capsys.readouterr().out
    number = int(first.name[-3:])
    (line,) = re.findall(rf"^fedavg on quadratic_minimisation: (trial {number} has .*)", out, re.MULTILINE)
    assert line.startswith(f"trial {number} has the value 1000 alone, ")
    places = {path.name for path in (search / "fedavg").glob("trial*")}
    assert len(places) == 3
    table = pd.read_csv(search / "trials.csv")
    assert f"trial{int(table.loc[table['loss'].idxmin(), 'trial']):03d}" in places
    assert table.loc[number, "loss"] == 1000


@pytest.mark.parametrize("content", [b"trial,seed\n", gzip.compress(b"trial,seed\n")[:5]], ids=["text", "cut"])
def test_no_rows_are_added_to_a_damaged_table(content, tmp_path):
    path = tmp_path / "curves.csv.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"curves\.csv\.gz: cannot be read .*; delete it, and repeat the command"):
        curves.add_rows(path, [{"trial": "1", "seed": "0", "status": "finished"}])
    assert path.read_bytes() == content
