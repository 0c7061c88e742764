"""The benchmark from its command, on a toy in which the order of methods is known."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.cases import few
from support.command import ROOT, code_of

from fedopt.analysis.runs import Recorded
from fedopt.bench.pages import NAMES
from fedopt.bench.rank import LEVEL
from fedopt.bench.suite import CURRENCIES, Task, reached, tasks
from fedopt.commands import bench
from fedopt.config.composed import compose
from fedopt.config.words import key_of
from fedopt.errors import UserError
from fedopt.metrics import Metric
from fedopt.running.assemble import assemble
from fedopt.running.loop import begin, loop

TOY = """
version: toy
board: minimisation
title: a toy <img src=x>
words: [problem=quadratic_minimisation, partitioner.clients=3, participation.cohort=null, preset=none]
metric: distance
relative: true
targets: [0.5, 0.1]
budget: {comm_rounds: 30, bytes: 10000, oracle_calls: 300}
methods: [fedavg, twin, slow]
claims:
  - {says: a step of some size is better, one: fedavg, other: slow, by: [comm_rounds, bytes, oracle_calls]}
  - {says: one name is better, one: fedavg, other: twin, by: [comm_rounds, bytes, oracle_calls]}
twin: [problem.heterogeneity=0]
smoke: true
"""
TWIN = "# @package _global_\ndefaults:\n  - fedavg\n  - _self_\n"
SLOW = TWIN + "algo:\n  eta: 1.0e-8\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in {"bench/toy": TOY, "algo/twin": TWIN, "algo/slow": SLOW}.items():
        path = tmp_path / "my" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "my"


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fedopt-bench", *words])
    return code_of(bench.main)


def recorded(values, **costs):
    table = pd.DataFrame({"round": range(len(values)), "distance": values, **costs})
    return Recorded(None, {}, [], "", {"distance": Metric("distance", "distance")}, "finished", "comm_rounds", table)


def test_a_target_is_reached_when_it_is_kept():
    """By two successive evaluations, at the second, within the budget; shares of the start's value."""
    budget = dict.fromkeys(CURRENCIES, 10.0)
    task = Task("1", "", "", [], "distance", [0.5, 0.1], budget, [], {}, [], [], relative=True, smoke=False, name="t")
    values = [4.0, 1.9, 2.5, 1.9, 1.8, 0.3, math.nan, 0.3, 0.3, 0.3]
    run = recorded(values, comm_rounds=np.arange(10))
    assert reached(task, run, "comm_rounds") == [0.4, 0.8]
    late = recorded(values, comm_rounds=2 * np.arange(10))
    assert reached(task, late, "comm_rounds") == [0.8, math.inf]


@pytest.mark.full
def test_a_toy_whose_order_is_known(monkeypatch, capsys, folder, tmp_path):
    words = ["--smoke", "--config-dir", str(folder), "--out", str(tmp_path / "out")]
    assert command(monkeypatch, "run", "toy", *words) == 0
    capsys.readouterr()
    runs = sorted(path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("summary.json"))
    assert command(monkeypatch, "run", "toy", *words) == 0  # again: nothing is left to do
    assert runs == sorted(path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("summary.json"))
    pages = tmp_path / "out" / "smoke" / "pages"
    for currency in CURRENCIES:
        table = pd.read_csv(pages / f"scores_minimisation_{currency}.csv").set_index("method")
        assert table.loc["fedavg", "score"] == table.loc["twin", "score"] > table.loc["slow", "score"] == 0
        assert table["rank"].to_dict() == {"fedavg": 1, "twin": 1, "slow": 3}
        claims = pd.read_csv(pages / f"claims_{currency}.csv")
        assert claims["answer"].tolist() == ["not told apart"] * 2
        assert claims["p"].tolist() == [2 / 2**3, 1.0]  # three seeds, all of one sign
    seeds = [
        {path.parent.name for path in (tmp_path / "out").rglob(f"{inside}/*/summary.json")}
        for inside in ("trial*", "reports/*/*-trial*")
    ]
    assert all(seeds)
    assert not seeds[0] & seeds[1]  # of trials and of reports
    hits = pd.read_csv(pages / "hits.csv")
    counts = hits.groupby(["kind", "method", "currency"]).size().groupby("kind").unique().map(list).to_dict()
    assert counts == {"report": [3 * 2], "twin": [2 * 2], "default": [2], "tuned": [2]}
    page, index = (pages / "toy.md").read_text(), (pages / "index.md").read_text()
    assert "# toy: a toy &lt;img src=x>" in page
    for name in NAMES.values():  # a table each
        assert f"| by {name} | certainty | score | band |" in index
        assert f"| by {name} | certainty | report | twin | default | tuned |" in page
    assert index.count(" | 0.000 | 0.000 to 0.000 | 1 | 3 in 100% |") == 3
    assert index.count("| fedavg | from memory |") == page.count("| fedavg | from memory |") == 3
    assert page.count("| slow | 0/3 | 0/3 |") == 3
    for name in [*re.findall(r"\]\((\w+\.(?:svg|md))\)", page + index)]:
        assert (pages / name).is_file(), name


@pytest.mark.full
def test_what_is_missing_is_an_error_and_no_miss(monkeypatch, capsys, folder, tmp_path):
    """A report without its run; a task that has no twin and no claim, whose method was entered on another one."""
    words = ["--smoke", "--config-dir", str(folder), "--out", str(tmp_path / "out")]
    bare = re.sub(r"claims:\n(  - .*\n)*twin: .*\n", "", TOY).replace("[fedavg, twin, slow]", "[fedavg]")
    (folder / "bench" / "bare.yaml").write_text(bare)
    assert command(monkeypatch, "run", "bare", *words) == 0
    (folder / "bench" / "bare.yaml").write_text(bare.replace("[fedavg]", "[slow]"))
    assert command(monkeypatch, "run", "bare", *words) == 0  # fedavg is still there
    assert {"fedavg", "slow"} == {*pd.read_csv(tmp_path / "out" / "smoke" / "pages" / "hits.csv")["method"]}
    assert "nan" not in (tmp_path / "out" / "smoke" / "pages" / "bare.md").read_text()
    capsys.readouterr()
    lost = next((tmp_path / "out" / "smoke" / "bare" / "reports" / "report").glob("slow*/seed1"))
    shutil.rmtree(lost)
    assert command(monkeypatch, "rank", *words) == 2  # of all that was run
    assert f"{lost}: this run has not ended; resume it with fedopt-bench run bare" in capsys.readouterr().err
    assert command(monkeypatch, "run", "bare", *words) == 0


@pytest.fixture(scope="module")
def bench_run(tmp_path_factory):
    """A config folder, and the folder of a benchmark of one method."""
    place = tmp_path_factory.mktemp("bench")
    (place / "my" / "bench").mkdir(parents=True)
    toy = re.sub(r"claims:\n(  - .*\n)*twin: .*\n", "", TOY).replace("[fedavg, twin, slow]", "[fedavg]")
    (place / "my" / "bench" / "toy.yaml").write_text(toy)
    with pytest.MonkeyPatch.context() as patch:
        assert (
            command(patch, "run", "toy", "--smoke", "--config-dir", str(place / "my"), "--out", str(place / "out")) == 0
        )
    return place


@pytest.mark.full
@pytest.mark.parametrize("name", ["metrics.csv", "config.yaml", "run.json", "checkpoint.safetensors", "summary.json"])
@pytest.mark.parametrize("how", ["gone", *(pytest.param(how, marks=pytest.mark.slow) for how in ("cut", "null"))])
def test_a_damaged_run_is_no_miss(name, how, monkeypatch, capsys, bench_run, tmp_path):
    """Of the trials and of the reports; a checkpoint may be removed to save room."""
    for run in ("fedavg/trial001/seed1000000", "reports/report/fedavg-trial*/seed1"):
        out = Path(shutil.copytree(bench_run / "out", tmp_path / run.replace("/", "_").replace("*", "")))
        (path,) = (out / "smoke" / "toy").glob(f"{run}/{name}")
        whole = path.read_bytes()
        path.write_bytes({"gone": b"", "cut": whole[: len(whole) // 2], "null": b"null"}[how])
        if how == "gone":
            path.unlink()
        capsys.readouterr()
        code = command(monkeypatch, "rank", "toy", "--smoke", "--config-dir", str(bench_run / "my"), "--out", str(out))
        err = capsys.readouterr().err
        if (name, how) == ("checkpoint.safetensors", "gone"):
            assert code == 0
        else:
            assert (code, err.count("\n")) == (2, 1), err
            assert str(path.parents[1]) in err or "fedopt-bench run toy" in err
            assert "delete" in err or "fedopt-bench run toy" in err


@pytest.mark.full
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("targets: [0.5, 0.1]", "targets: [0.5, 0.2]", "values of targets"),
        ("version: toy", "version: '2.0'", "values of version"),
        ("bytes: 10000", "bytes: 20000", "values of budget"),
        (
            "smoke: true",
            "claims: [{says: x, one: fedavg, other: fedavg, by: [bytes]}]\nsmoke: true",
            "values of claims",
        ),
    ],
)
def test_a_task_that_changed_after_its_runs(old, new, said, monkeypatch, capsys, bench_run, tmp_path):
    shutil.copytree(bench_run / "my", tmp_path / "my")
    path = tmp_path / "my" / "bench" / "toy.yaml"
    path.write_text(path.read_text().replace(old, new))
    for verb in ("rank", "run"):
        words = [verb, "toy", "--smoke", "--config-dir", str(tmp_path / "my"), "--out", str(bench_run / "out")]
        assert command(monkeypatch, *words) == 2
        err = capsys.readouterr().err
        assert f"task.json: the runs here began with different {said} than bench/toy.yaml has now" in err
        assert err.count("\n") == 1


def test_each_board_says_who_takes_no_part():
    """A method of a board is in each of its tasks, or the task says why not; claims leave room for Holm's correction."""
    every = tasks([])
    for task in every:
        others = {method for other in every if other.board == task.board for method in other.methods}
        assert others == {*task.methods, *task.refuses} & others, task.name
        assert not {*task.methods} & {*task.refuses}
    for currency in CURRENCIES:
        claims = [claim for task in every for claim in task.claims if currency in claim.by]
        assert len(claims) * 2 / 2**10 < LEVEL


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "tox"], "toy"),
        (["rank", "toy"], "fedopt-bench run"),
        (["enter", "nobody", "toy"], "nobody"),
        ([], "required"),
    ],
)
def test_mistakes(monkeypatch, capsys, folder, tmp_path, words, line):
    more = ["--config-dir", str(folder), "--out", str(tmp_path / "out")] if words else []
    assert command(monkeypatch, *words, *more) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def test_a_task_has_all_currencies(folder):
    path = folder / "bench" / "toy.yaml"
    path.write_text(TOY.replace("bytes: 10000, ", ""))
    with pytest.raises(UserError, match="comm_rounds, bytes, oracle_calls"):
        tasks(["toy"], [str(folder)])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("toy", ("board: minimisation", "board: x/../../../outside")),
        ("toy", ("board: minimisation", "board: ..")),
        ("...", ("", "")),
        ("toy", ("methods: [fedavg", "methods: [../fedavg")),
        ("toy", ("twin: [", "refuses: {'<b>': why}\ntwin: [")),
    ],
)
def test_a_task_is_written_nowhere_else(name, change, folder):
    (folder / "bench" / f"{name}.yaml").write_text(TOY.replace(*change))
    with pytest.raises(UserError, match="name"):
        tasks([], [str(folder)])


def all_of(words):
    e = assemble(compose(words))
    return [*loop(e, *begin(e))]


@pytest.mark.parametrize(
    "task", few(tasks([]), lambda task: task.name == "m1", pytest.mark.slow), ids=lambda task: task.name
)
def test_methods_fit_their_tasks(task):
    """Every method of a task composes on it, and the metric is one of the problem's; pairs are of its methods."""
    assert {name for claim in task.claims for name in (claim.one, claim.other)} <= {*task.methods}
    for method in task.methods:
        words = {key_of(word): word for word in (f"algo={method}", *task.words, *task.twin)}
        composed = compose([*words.values()])
        e = assemble(composed)
        assert task.metric in [metric.name for metric in e.problem.metrics]
    for method in {*task.refuses} - {"sagda"}:  # which runs with all clients too
        with pytest.raises(UserError):
            all_of([f"algo={method}", *task.words])


@pytest.mark.slow
def test_your_algorithm_is_entered_by_one_command(monkeypatch, capsys, folder, tmp_path):
    """The skeleton that `fedopt new` begins; the scores of the others stay what they are."""
    monkeypatch.chdir(tmp_path)
    words = ["--smoke", "--config-dir", str(folder), "--out", str(tmp_path / "out")]
    assert command(monkeypatch, "run", "toy", *words) == 0
    before = pd.read_csv(tmp_path / "out" / "smoke" / "pages" / "scores_minimisation_bytes.csv").set_index("method")
    subprocess.run(
        [sys.executable, "-m", "fedopt", "new", "algo", "my_sgd"],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(tmp_path)
    assert command(monkeypatch, "enter", "my_sgd", "toy", *words, "--config-dir", "myconf") == 0
    after = pd.read_csv(tmp_path / "out" / "smoke" / "pages" / "scores_minimisation_bytes.csv").set_index("method")
    assert {*after.index} == {*before.index, "my_sgd"}
    columns = ["score", "low", "high"]
    pd.testing.assert_frame_equal(after.loc[before.index, columns], before[columns])


@pytest.mark.slow
def test_the_smallest_form(monkeypatch, tmp_path):
    """Three tasks, in minutes."""
    assert command(monkeypatch, "run", "--smoke", "--jobs", "2", "--out", str(tmp_path)) == 0
    pages = tmp_path / "smoke" / "pages"
    assert {path.stem for path in pages.glob("*.md")} == {"index", "b1", "m1", "c1"}
    hits = pd.read_csv(pages / "hits.csv")
    reached = np.isfinite(hits[hits["kind"] == "report"].groupby("task")["cost"].min())
    assert reached.all()
    assert len(reached) == 3
