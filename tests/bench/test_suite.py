"""The benchmark from its command, on a toy in which the order of methods is known."""

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

from fedopt.bench import Entries, tasks
from fedopt.bench.pages import PHASE
from fedopt.bench.rank import FIRM
from fedopt.bench.release import COLUMNS, TABLE, read_table, rounded
from fedopt.bench.space import overrides_of
from fedopt.bench.suite import CURRENCIES
from fedopt.commands import bench
from fedopt.config import CONF, certainty
from fedopt.config.composed import compose
from fedopt.errors import UserError
from fedopt.running.assemble import assemble
from fedopt.running.loop import begin, loop

TOY = """
board: minimisation
title: a toy <img src=x>
words: [problem=quadratic_minimisation, partitioner.clients=3, participation.cohort=null, algo.B=null, preset=none]
metric: distance
relative: true
targets: [0.5, 0.1]
budget: {comm_rounds: 10, bytes: 1000, client_visits: 30, example_calls: 1000}
smoothness: {Lx: 1, Ly: 1}
entries: [toy sgd, twin, slow]
'null': [toy sgd]
twins: [[toy sgd, twin]]
smoke: true
points: 14
"""
ENTRIES = """
entries:
  toy sgd: {algo: fedavg, ranges: {algo.eta: 'log(0.01,1)', algo.gamma: 'log(0.1,10)'}}
  twin: {like: toy sgd}
  slow: {algo: fedavg, ranges: {algo.eta: 'log(1.0e-7,1.0e-6)'}}
claims:
  - {key: t, says: takes larger steps, one: toy sgd, other: slow, by: [comm_rounds, calls]}
"""
TEMPLATES = ROOT / "fedopt" / "templates"
WORDS = ["toy", "--smoke"]
ALL = tasks([])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("bench") / "my")


def written(place):
    for name, text in {"toy": TOY, "entries/toy": ENTRIES}.items():
        path = place / "bench" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fedopt-bench", *map(str, words)])
    return code_of(bench.main)


@pytest.fixture(scope="module")
def done(folder):
    """The folder of the toy's runs."""
    with pytest.MonkeyPatch.context() as patch:
        assert command(patch, "run", *WORDS, "--config-dir", folder, "--out", folder.parent / "out") == 0
    return folder.parent / "out"


def options_of(folder, out):
    return ["--config-dir", folder, "--out", out]


@pytest.mark.full
def test_a_toy_whose_order_is_known(done):
    pages = done / "smoke" / "pages"
    for currency in ("comm_rounds", "calls"):
        table = pd.read_csv(pages / f"scores_minimisation_{currency}.csv").set_index("method")
        assert table.loc["slow", "score"] == 0 < table.loc[["toy sgd", "twin"], "score"].min()
        assert table.loc["slow", "rank"] == 2  # the second name of a method has none
        assert table.loc["slow", "holds"] > FIRM
    claims, nulls = (pd.read_csv(pages / f"{name}.csv") for name in ("claims", "nulls"))
    assert {*claims["answer"]} == {"not told apart"}  # few points say little, among so many claims
    assert (claims["high"] < 1).all()
    assert (claims["cheaper"] == 1).all()
    assert {*nulls["answer"]} == {"not told apart"}
    assert nulls["currency"].tolist() == [*CURRENCIES]
    page, index = (pages / "toy.md").read_text(), (pages / "index.md").read_text()
    assert "# toy: a toy &lt;img src=x>" in page
    for name in (currency.label for currency in CURRENCIES.values()):  # a table each
        assert f"| by {name} | score | band |" in index
        assert f"| by {name} | certainty | score | band |" in page
    assert page.count("| slow | 0% | 0% |") == len(CURRENCIES)
    for name in [*re.findall(r"\]\((\w+\.(?:svg|md))\)", page + index)]:
        assert (pages / name).is_file(), name


@pytest.mark.full
def test_what_is_kept(done):
    """All evaluations, one row each: those of 14 points and the defaults, of reports on other seeds; and no folder of a run."""
    out = done / "smoke"
    table = read_table(out / TABLE)
    assert [*table] == COLUMNS
    assert table["value"].dtype == np.float32
    pool, report = (table[table["kind"] == kind] for kind in ("pool", "report"))
    assert {*pool["point"]} == {*range(15)}
    assert not {*pool["seed"]} & {*report["seed"]}
    assert 0 in {*report["point"]}  # the defaults
    assert {*table.loc[table["status"] == "stopped", "method"]} <= {"toy sgd", "twin"}
    assert not [*out.rglob("summary.json")]
    assert table["cpu"].notna().all()


@pytest.mark.full
def test_a_row_is_given_again_by_its_config(folder, done):
    table, entries = read_table(done / "smoke" / TABLE), Entries([str(folder)])
    row = table[(table["method"] == "twin") & (table["kind"] == "report")].iloc[-1]
    (task,) = tasks(["toy"], [str(folder)])
    point = entries.points(task, entries["twin"])[row["point"]]
    assert " ".join(overrides_of(point)) == row["words"]
    e = assemble(compose([*task.command(entries["twin"], point), f"seed={row['seed']}"], [str(folder)]))
    values = {m.row["round"]: m.row["distance"] for m in loop(e, *begin(e)) if m.row}
    assert rounded(pd.Series([values[row["step"]]]))[0] == row["value"]


@pytest.mark.full
def test_again_nothing_is_run(monkeypatch, folder, done):
    files = {path: path.stat().st_mtime_ns for path in (done / "smoke" / "toy").glob("*.parquet")}
    assert command(monkeypatch, "run", *WORDS, *options_of(folder, done)) == 0
    assert files == {path: path.stat().st_mtime_ns for path in (done / "smoke" / "toy").glob("*.parquet")}


@pytest.mark.full
def test_rank_from_the_table_alone(monkeypatch, folder, done, tmp_path):
    """In a place without runs; the pages are the same."""
    (tmp_path / "out" / "smoke").mkdir(parents=True)
    shutil.copy(done / "smoke" / TABLE, tmp_path / "out" / "smoke")
    assert command(monkeypatch, "rank", *WORDS, *options_of(folder, tmp_path / "out")) == 0
    for name in ("scores_minimisation_bytes.csv", "claims.csv", "toy.md"):
        here, there = (place / "pages" / name for place in (tmp_path / "out" / "smoke", done / "smoke"))
        assert here.read_bytes() == there.read_bytes()


@pytest.mark.full
def test_a_newcomer_is_run_alone(monkeypatch, folder, done, tmp_path):
    """What `fedopt new` begins. The scores of the others stay what they are."""
    monkeypatch.chdir(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "fedopt", "new", "algo", "my_sgd"], check=True, env=env)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "out" / "smoke").mkdir(parents=True)
    shutil.copy(done / "smoke" / TABLE, tmp_path / "out" / "smoke")
    more = ["--config-dir", "myconf", *options_of(folder, tmp_path / "out")]
    assert command(monkeypatch, "enter", "my_sgd", *WORDS, *more) == 0
    assert [path.stem for path in (tmp_path / "out" / "smoke" / "toy").iterdir()] == ["my_sgd"]
    name = "scores_minimisation_bytes.csv"
    before, after = (
        pd.read_csv(place / "smoke" / "pages" / name).set_index("method") for place in (done, tmp_path / "out")
    )
    assert {*after.index} == {*before.index, "my_sgd"}
    columns = ["score", "low", "high"]
    pd.testing.assert_frame_equal(after.loc[before.index, columns], before[columns])


@pytest.mark.full
@pytest.mark.parametrize(
    ("old", "new"),
    [("targets: [0.5, 0.1]", "targets: [0.5, 0.2]"), ("bytes: 1000", "bytes: 5000"), ("Lx: 1", "Lx: 2")],
)
def test_a_task_that_changed_after_its_runs(old, new, monkeypatch, capsys, folder, done, tmp_path):
    mine = written(tmp_path / "my")
    (mine / "bench" / "toy.yaml").write_text(TOY.replace(old, new))
    for verb, said in (
        ("rank", "the rules in its files have changed since the runs of"),
        ("run", "have changed since its runs"),
    ):
        assert command(monkeypatch, verb, *WORDS, *options_of(mine, done)) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize("how", ["cut", "null"])
def test_a_damaged_table_is_an_error(how, monkeypatch, capsys, folder, done, tmp_path):
    out = Path(shutil.copytree(done, tmp_path / "out"))
    path = out / "smoke" / "toy" / "twin.parquet"
    path.write_bytes({"cut": path.read_bytes()[:100], "null": b"null"}[how])
    assert command(monkeypatch, "run", *WORDS, *options_of(folder, out)) == 2
    err = capsys.readouterr().err
    assert f"{path}: cannot be read as a table of runs" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "tox"], "toy"),
        (["rank", "toy"], "fedopt bench run"),
        (["enter", "nobody", "toy"], "nobody"),
        ([], "required"),
    ],
)
def test_mistakes(monkeypatch, capsys, folder, tmp_path, words, line):
    more = ["--config-dir", folder] if words else []
    more += ["--out", tmp_path / "out"] if words else []
    assert command(monkeypatch, *words, *more) == 2
    (said,) = [said for said in capsys.readouterr().err.splitlines() if not said.startswith("note: ")]
    assert line in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("bytes: 1000, ", ""), "its budget must have comm_rounds, bytes"),
        (("Lx: 1, ", ""), "its smoothness Lx and Ly"),
        (("one: toy sgd", "one: nobody"), "two entries of the task"),
        (("board: minimisation", "board: x/../../../outside"), "cannot be a name"),
        (("entries: [toy sgd", "entries: [../toy"), "cannot be a name"),
    ],
)
def test_broken_tasks(change, said, tmp_path):
    mine = written(tmp_path / "my")
    (mine / "bench" / "toy.yaml").write_text(TOY.replace(*change))
    with pytest.raises(UserError, match=said):
        tasks(["toy"], [str(mine)])


def test_ranges_follow_the_task_and_not_the_defaults(folder):
    """Steps lie within 3.5 decades around 1 / (K L), and a shifted box half a decade higher; every key that is searched is
    written in the file."""
    (task,) = tasks(["m1_k10_d5_n0"])
    entries = Entries([str(folder)])
    for name, shift in (("local_sgda", 0.0), ("local_sgda shifted", 0.5)):
        points = entries.points(task, entries[name])
        assert points[0] == {}
        assert len(points) == task.points + 1
        relative = [float(p["algo.eta_x"]) * float(p["algo.tau"]) * task.smoothness["Lx"] for p in points[1:]]
        decades = np.log10(relative) - shift
        assert -1.76 < decades.min() < -1.5
        assert 1.5 < decades.max() < 1.76
        assert {p["algo.tau"] for p in points[1:]} == {"1", "5", "20"}
    first, second = (entries.cube(task, entries[name]) for name in ("toy sgd", "twin"))
    assert not np.allclose(first, second)  # each entry has a scramble of its own
    with pytest.raises(UserError, match="neither a role"):
        entries._range("no role", task, entries["local_sgda"])


def test_each_board_says_who_takes_no_part():
    """A method of a board is in each of its tasks, or the task says why not. At most twelve take part."""
    entries = Entries()
    for task in ALL:
        others = {name for other in ALL if other.board == task.board for name in other.entries}
        if task.board == PHASE:
            continue  # it has no ranks over tasks
        absent = others - {*task.entries} - {*task.refuses}
        there = {entries[name].algo for name in task.entries}
        assert {entries[name].algo for name in absent} <= there, task.name  # in another form
        assert not {*task.entries} & {*task.refuses}
        assert len(task.entries) <= 12


def test_entries_say_how_certain_they_are():
    entries = Entries()
    for task in ALL:
        for name in task.entries:
            assert certainty(entries[name].algo), name
            assert (CONF / "algo" / f"{entries[name].algo}.yaml").exists()


@pytest.mark.parametrize("task", few(ALL, lambda task: task.smoke, pytest.mark.slow), ids=lambda task: task.name)
def test_entries_fit_their_tasks(task):
    """Every entry composes on its task, with the last point of its pool too, and the metric is one of the problem's."""
    if task.data and not task.file.exists():
        pytest.skip(f"{task.file} is not there")
    entries = Entries()
    for name in task.entries:
        entry = entries[name]
        for point in (entries.points(task, entry)[n] for n in (0, -1)):
            e = assemble(compose(task.command(entry, point, twin=not entry.reference)))
            assert task.metric in [metric.name for metric in e.problem.metrics]


@pytest.mark.slow
def test_the_smallest_form(monkeypatch, tmp_path):
    """Three tasks, in minutes."""
    assert command(monkeypatch, "run", "--smoke", "--jobs", "2", "--out", tmp_path) == 0
    pages = tmp_path / "smoke" / "pages"
    assert {path.stem for path in pages.glob("*.md")} == {"index", *(task.name for task in ALL if task.smoke)}
