"""The benchmark from its command, on a toy in which the order of methods is known."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.cases import few
from support.command import ROOT, code_of

from fedopt.bench import Entries, Pools, curves, tasks, write_table
from fedopt.bench.pool import NULL, POOL, REPORT, _Pool
from fedopt.bench.release import COLUMNS, NAMES, TABLE, read_table, rounded
from fedopt.bench.space import overrides_of, roles
from fedopt.bench.suite import CURRENCIES
from fedopt.commands import bench
from fedopt.config import CONF, certainty, options
from fedopt.config.composed import compose
from fedopt.errors import UserError
from fedopt.jobs import Local
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
    places = pd.read_csv(pages / "places.csv").set_index(["currency", "method"])
    for currency in CURRENCIES:
        scores = places.loc[currency]["score"]
        assert scores["slow"] == 0 < scores[["toy sgd", "twin"]].min()
    pairs, nulls = (pd.read_csv(pages / f"{name}.csv") for name in ("pairs", "nulls"))
    assert {*nulls["verdict"]} == {"not resolved"}  # few points say little
    assert {*nulls["one"], *nulls["other"]} == {"toy sgd", "toy sgd (second scramble)", "twin"}
    assert {*pairs[pairs["other"] == "slow"]["one"]} == {"toy sgd", "twin"}
    page, index = (pages / "toy.md").read_text(), (pages / "index.md").read_text()
    assert "# toy: a toy &lt;img src=x>" in page
    best, table = places.loc[("comm_rounds", "toy sgd"), "best"], read_table(done / "smoke" / TABLE)
    runs = table[(table["method"] == "toy sgd") & (table["kind"] == POOL) & (table["point"] == best)]
    assert f" {runs['words'].iloc[0]} --config-dir" in page
    for name in [*re.findall(r"\]\((\w+\.(?:svg|md))\)", page + index)]:
        assert (pages / name).is_file(), name


@pytest.mark.full
def test_what_is_kept(done):
    """All evaluations, one row each: of the defaults, the theory point and 14 others, of a second scramble, and of reports on
    other seeds; and no other file."""
    out = done / "smoke"
    table = read_table(out / TABLE)
    assert [*table] == COLUMNS
    assert table["value"].dtype == np.float32
    pool, null, report = (table[table["kind"] == kind] for kind in (POOL, NULL, REPORT))
    assert {*pool["point"]} == {*range(16)}
    assert {*null["point"]} == {*range(1, 16)}
    assert {*null["method"]} == {"toy sgd"}
    assert not {*pool["seed"]} & {*report["seed"]}
    assert {0, 1} < {*report["point"]}
    counts = table[table["status"] == "finished"].groupby(["method", "kind", "point", "seed"], observed=True)[
        "comm_rounds"
    ]
    assert {*counts.max()} == {20}  # twice the budget
    assert {path.name for path in (out / "toy").iterdir()} == {
        f"{name}.parquet" for name in ("toy sgd", "twin", "slow")
    }
    assert table["cpu"].notna().all()


def test_a_metric_may_be_nan_and_a_failed_run_has_no_metrics(folder, tmp_path):
    entries, (task,) = Entries([folder]), tasks(["toy"], [folder])
    pools = Pools(tmp_path, entries, "abc")
    of = tmp_path / "toy" / f"slow {entries.digest(task, entries['slow'])} abc" / POOL / curves.TABLE
    first, counts = {"trial": "0", "seed": "1"}, {"round": "3", "comm_rounds": "3"}
    rows = [first | counts | {"status": "diverged", "distance": text} for text in ("0.5", "nan", "inf")]
    curves.add_rows(of, [*rows, {"trial": "1", "seed": "1", "status": "failed"}])
    table = _Pool(pools, task, entries["slow"]).table()
    np.testing.assert_array_equal(table["value"], [0.5, np.nan, np.inf, np.nan])
    assert table["step"].tolist() == [3, 3, 3, 0]


@pytest.mark.full
@pytest.mark.parametrize("kind", [POOL, NULL, REPORT])
def test_a_row_is_given_again_by_its_config(kind, folder, done):
    """A run by itself has the value of the run that was computed together with others."""
    table, entries = read_table(done / "smoke" / TABLE), Entries([str(folder)])
    row = table[(table["method"] == "toy sgd") & (table["kind"] == kind)].iloc[-1]
    (task,) = tasks(["toy"], [str(folder)])
    point = entries.points(task, entries["toy sgd"], int(kind == NULL))[row["point"]]
    assert " ".join(overrides_of(point)) == row["words"]
    e = assemble(compose([*task.command(entries["toy sgd"], point), f"seed={row['seed']}"], [str(folder)]))
    values = {m.row["round"]: m.row["distance"] for m in loop(e, *begin(e)) if m.row}
    assert rounded(pd.Series([values[row["step"]]]))[0] == row["value"]


@pytest.mark.full
def test_a_killed_run_goes_on(folder, done, tmp_path, monkeypatch):
    """Killed between two pools; the table is the same, and what was kept is not run again."""
    computed, add = [], curves.add_rows

    def killed(path, rows):
        if len(computed) == 3:
            raise KeyboardInterrupt
        computed.append(path)
        add(path, rows)

    more = [*WORDS, *options_of(folder, tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr("fedopt.bench.curves.add_rows", killed)
        assert command(patch, "run", *more) == 130
    begun = {path: path.read_bytes() for path in tmp_path.rglob("curves.csv.gz")}
    assert begun
    assert command(monkeypatch, "run", *more) == 0
    assert (tmp_path / "smoke" / TABLE).read_bytes() == (done / "smoke" / TABLE).read_bytes()


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
    for name in ("places.csv", "claims.csv", "toy.md"):
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
    places = (place / "smoke" / "pages" / "places.csv" for place in (done, tmp_path / "out"))
    before, after = (pd.read_csv(path).set_index(["currency", "method"]) for path in places)
    assert {*after.index.get_level_values("method")} == {"toy sgd", "twin", "slow", "my_sgd"}
    columns = ["score", "defaults"]
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
        ("run", "its runs have other rules than bench/toy.yaml"),
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
        (("bytes: 1000, ", ""), "budget must have exactly the keys comm_rounds, bytes"),
        (("Lx: 1, ", ""), "smoothness must have the keys Lx and Ly"),
        (("board: minimisation", "board: x/../../../outside"), "cannot be a name"),
        (("entries: [toy sgd", "entries: [../toy"), "cannot be a name"),
    ],
)
def test_broken_tasks(change, said, tmp_path):
    mine = written(tmp_path / "my")
    (mine / "bench" / "toy.yaml").write_text(TOY.replace(*change))
    with pytest.raises(UserError, match=said):
        tasks(["toy"], [str(mine)])


@pytest.mark.parametrize(
    ("change", "said"),
    [(("one: toy sgd", "one: nobody"), "must be entries"), (("[comm_rounds", "[rounds"), "a list of comm")],
)
def test_broken_claims(change, said, tmp_path):
    mine = written(tmp_path / "my")
    (mine / "bench" / "entries" / "toy.yaml").write_text(ENTRIES.replace(*change))
    with pytest.raises(UserError, match=said):
        Entries([str(mine)])


def test_ranges_follow_the_task_and_not_the_defaults(folder):
    """Local steps lie within two decades around 1 / (K L), and server steps within one around 1."""
    (task,) = tasks(["m1_k10_d5_n0"])
    entries = Entries([str(folder)])
    points = entries.points(task, entries["local_sgda + server steps"])
    assert points[0] == {}
    assert len(points) == task.points + 2
    local = [float(p["algo.eta_x"]) * float(p["algo.tau"]) * task.smoothness["Lx"] for p in points[1:]]
    for values, decades in ((local, 2), ([float(p["algo.gamma_x"]) for p in points[1:]], 1)):
        ends = np.log10(values).min(), np.log10(values).max()
        np.testing.assert_allclose(ends, (-decades / 2, decades / 2), atol=0.02)
    assert {p["algo.tau"] for p in points[1:]} == {"1", "5", "20"}
    (toy,) = tasks(["toy"], [str(folder)])
    pools = [entries.points(toy, entries["toy sgd"], scramble) for scramble in (0, 1)]
    pools.append(entries.points(toy, entries["twin"]))
    assert len({str(pool[:2]) for pool in pools}) == 1  # the defaults and the theory point
    assert len({str(pool[2:]) for pool in pools}) == 3
    with pytest.raises(UserError, match=r"'no role' must be .* may follow"):
        entries._point(task, replace(entries["local_sgda"], ranges={"algo.tau": "no role"}), np.array([0.5]))


THEORY = {"momentum": 0.1, "probability": 0.2, "steps": 5, "length": 5, "server": 1.0, "storm": 0.54}


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_the_theory_point_has_one_rule(task):
    """Steps 1 / (K L), server steps of 1, momentum 0.1, 5 local steps, a Neumann series of length 5 and scale 1."""
    entries, L = Entries(), {"L": max(task.smoothness.values()), **task.smoothness}
    sizes = {"x": 1 / L["Lx"], "y": 1 / L["Ly"], "both": 1 / L["L"], "scale": L["Ly"], **THEORY}
    for name in task.entries:
        entry, values = entries[name], dict(L)
        for key, text in entries.points(task, entry)[1].items():
            role, *factors = entry.ranges[key].split(" ")
            values[key], expected = float(text), sizes.get(role)
            for sign, factor in zip(factors[::2], factors[1::2], strict=True):
                by = float(values.get(factor, factor))
                expected = expected and (expected * by if sign == "*" else expected / by)
            assert expected is None or values[key] == pytest.approx(expected, rel=2e-3), (name, key)


def test_entries_say_where_their_keys_are_from():
    """Entries of form paper search no server step that their paper does not have."""
    entries = Entries()
    for name in {name for task in ALL for name in task.entries}:
        entry = entries[name]
        assert entry.place, name
        assert (entry.form == "paper") == ("not in" not in entry.place and "no paper" not in entry.place), name
        assert ("server steps" in name) <= (entry.form == "general"), name


def test_what_is_registered():
    """Each claim of the design is tested somewhere, and the digest covers it, the entry, and the task."""
    entries = Entries()
    tested = {claim.key for task in ALL for claim in entries.claims_on(task)}
    assert tested == {claim.key for claim in entries.claims} == {*"aefghiknop", "e2", "g2", "o0"}
    assert {claim.key for claim in entries.claims if claim.withdrawn} == {"e", "e2", "g", "o", "o0"}
    (task,) = tasks(["m1_k10_d5_n0"])
    entry, digests = entries["fedgda_gt"], set()
    digests.add(entries.digest(task, entry))
    for other in (replace(task, points=60), replace(task, null=[]), replace(task, twins=[]), replace(task, entries=[])):
        digests.add(entries.digest(other, entry))
    digests.add(entries.digest(task, replace(entry, words=["algo.K=1"])))
    entries.claims.pop(1)
    digests.add(entries.digest(task, entry))
    assert len(digests) == 7
    assert entries.digest(replace(task, title="another"), entry) in digests


def test_half_of_the_tasks_have_minibatches():
    sampled = [task for task in ALL if not any(word in task.words for word in ("algo.B=null",))]
    assert len(sampled) >= len(ALL) / 2


@pytest.mark.parametrize(("found", "said"), [("0" * 40 + "+changes", "00+changes"), (None, "is not a git checkout")])
def test_a_run_needs_a_commit(found, said, monkeypatch, capsys, folder, tmp_path):
    """Or --unregistered. The smallest form needs none."""
    monkeypatch.setattr("fedopt.results.commit", lambda: found)
    assert command(monkeypatch, "run", "toy", *options_of(folder, tmp_path)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "--unregistered" in err
    assert err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_runs_of_another_commit_are_not_mixed(folder, tmp_path):
    (task,), entries = tasks(["toy"], [str(folder)]), Entries([str(folder)])
    entry = entries["slow"]
    row = dict.fromkeys(COLUMNS, 0) | dict.fromkeys(NAMES, "") | {"value": np.float32(0)}
    row |= {"method": "slow", "commit": "abc", "task_digest": entries.digest(task, entry)}
    write_table(Pools(tmp_path, entries, "abc").kept(task, "slow"), pd.DataFrame([row]))
    Pools(tmp_path, entries, "abc").run(task, ["slow"], Local())
    with pytest.raises(UserError, match="another commit than abd"):
        Pools(tmp_path, entries, "abd").run(task, ["slow"], Local())


def test_any_algorithm_with_tuned_keys_can_enter():
    """Also if its step sizes come before the number of local steps, by which they are divided."""
    (task,), entries = tasks(["m_pl"]), Entries()
    for algo in filter(roles, options("algo", ())):
        entries.enter(algo)
        assert len(entries.points(replace(task, points=2), entries[algo])) == 4, algo
    first = {key: float(text) for key, text in entries.points(task, entries["fed_norm_sgda"])[1].items()}
    assert first["algo.eta_y"] == pytest.approx(1 / task.smoothness["Ly"] / first["algo.tau"], rel=1e-3)


def test_the_list_names_each_task(monkeypatch, capsys):
    assert command(monkeypatch, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [task.name for task in ALL]


def test_a_method_that_takes_no_part_has_a_reason():
    """A method of a board is in each of its tasks, or the task says why not. At most twelve take part."""
    entries = Entries()
    for task in ALL:
        others = {name for other in ALL if other.board == task.board for name in other.entries}
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
        for point in (entries.points(task, entry)[n] for n in (0, 1, -1)):
            e = assemble(compose(task.command(entry, point)))
            assert task.metric in [metric.name for metric in e.problem.metrics]


@pytest.mark.slow
def test_the_smallest_form(monkeypatch, tmp_path):
    """Three tasks, in minutes."""
    assert command(monkeypatch, "run", "--smoke", "--jobs", "2", "--out", tmp_path) == 0
    pages = tmp_path / "smoke" / "pages"
    assert {path.stem for path in pages.glob("*.md")} == {"index", *(task.name for task in ALL if task.smoke)}
