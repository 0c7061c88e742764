"""Every method is tried where docs/choosing.md recommends it."""

import re
import runpy
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.command import fedopt

from fedopt.commands import list_
from fedopt.config.composed import compose
from fedopt.config.files import CHECKED, EXPERIMENTAL, certainty, content, experimental, options, setting_of
from fedopt.federation import Memory
from fedopt.running.assemble import assemble
from fedopt.testing.harness import iterate

SOURCE = content(Path(__file__).parents[2] / "docs" / "choosing.yaml")
KEPT = pd.read_csv(Path(__file__).parents[2] / "docs" / "results" / "choosing.csv")
TAKE = SOURCE["columns"].index("method")
SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "docs"))


@cache
def members(page):
    """Return the table of the methods on a page, as on the site."""
    return [*SCRIPT["family"](page)]


def recommended():
    """What each row tries its methods on, what falls there, and each method."""
    for number, row in enumerate(SOURCE["rows"]):
        for algo in re.findall(r"`(\w+)`", row["row"][TAKE]):
            for overrides, falls in row["tried"].items():
                problem = overrides.split()[0].partition("=")[2]
                yield pytest.param(algo, overrides.split(), falls, id=f"{number}-{algo}-{problem}")


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(("algo", "overrides", "falls"), [*recommended()])
def test_recommended_methods_beat_doing_nothing(algo, overrides, falls, seed):
    """On a small problem of the row, as a user starts it: its metrics fall from those of the start, which doing nothing keeps."""
    e = assemble(compose([f"algo={algo}", f"seed={seed}", *overrides, "hardware.dtype=float64", "hardware.threads=1"]))
    first, *_, last = iterate(e, SOURCE["rounds"])
    before, after = (e.original.evaluate(*e.algorithm.output(state)) for state in (first, last))
    kept = KEPT[(KEPT["algo"] == algo) & (KEPT["overrides"] == " ".join(overrides)) & (KEPT["seed"] == seed)].set_index(
        "metric"
    )
    for metric, share in falls.items():
        assert after[metric] < share * before[metric]
        assert kept["end"][metric] == pytest.approx(after[metric], rel=1e-3), "scripts/choosing writes it"


def test_each_row_answers_all_questions():
    for row in SOURCE["rows"]:
        assert len(row["row"]) == len(SOURCE["columns"])
        assert row["tried"]
        assert {*re.findall(r"`(\w+)`", " ".join(row["row"][TAKE:]))} <= {*options("algo")}


@pytest.mark.parametrize("row", SOURCE["rows"], ids=lambda row: row["row"][TAKE])
def test_no_experimental_method_is_recommended_where_a_checked_one_fits(row):
    """Where none fits, the row says why."""
    unchecked = {bool(experimental(algo)) for algo in re.findall(r"`(\w+)`", row["row"][TAKE])}
    assert unchecked == {"experimental" in row}


# The benchmark

PLACES = pd.read_csv(Path(__file__).parents[2] / "docs" / "results" / "benchmark.csv", keep_default_na=False)


@cache
def spent():
    """method -> its costs per round, the last two of which are products with second derivatives."""
    return {algo: cost for rows in SCRIPT["costs"]().values() for algo, *cost in rows}


def allowed(algo, row):
    """Return whether a row's clients can run a method, and whether the row may recommend it."""
    told, (who, clients, *_) = SOURCE["matrix"].get(algo), row["row"]
    if told is None or (experimental(algo) and "experimental" not in row):
        return False
    in_cohort = told["clients"] == "cohort" and (not told["keeps"] or "clients keep" in clients)
    products = "no second derivatives" in clients and {*spent()[algo][-2:]} != {"0"}
    return (who != "a cohort" or in_cohort) and not products


MEASURED = [row for row in SOURCE["rows"] if "tasks" in row]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["row"][TAKE])
def test_no_recommended_method_is_behind_one_that_the_row_allows(row):
    first = re.findall(r"`(\w+)`", row["row"][TAKE])[0]
    own = PLACES[PLACES["task"].isin(row["tasks"]) & (PLACES["method"] == row.get("entries", {}).get(first, first))]
    before = {name for names in own["behind"] if names for name in names.split(", ")}
    assert {name for name in before if allowed(name, row)} == set()
    shown = SCRIPT["evidence"](row, first)
    assert shown == "not measured" if own.empty else all(f"`{task}`" in shown for task in own["task"])


def test_a_method_that_is_behind_is_found():
    """SAGDA keeps nothing and is experimental; a row of a cohort without second derivatives allows neither it nor FedMSA."""
    row = {"row": ["a cohort", "non-IID clients; no second derivatives"], "tasks": ["b1_few"]}
    assert [allowed(algo, row) for algo in ("sagda", "fedmsa", "codasca", "first_order", "local_eg")] == [False] * 3 + [
        True
    ] * 2
    assert allowed("codasca", {"row": ["a cohort", "clients keep a control variate"]})


def keeps(state):
    """Return whether clients keep a part of a state."""
    parts = state if isinstance(state, tuple) else ()
    return state.rows(np.arange(1)).numel() > 0 if isinstance(state, Memory) else any(map(keeps, parts))


@pytest.mark.parametrize("algo", SOURCE["matrix"])
def test_the_matrix_is_that_of_the_code(algo):
    told, problem = SOURCE["matrix"][algo], SCRIPT["BILLED"][SCRIPT["billed_classes"]()[algo]]
    e = assemble(
        compose([f"algo={algo}", *problem.split(), "partitioner.clients=4", "participation.cohort=null", "preset=none"])
    )
    *_, last = iterate(e, 1)
    kept = algo != "drfa" and keeps(last)  # DRFA's server keeps the clients' weights
    assert bool(told["keeps"]) == kept
    assert bool(told["uneven"]) == hasattr(e.algorithm, "uneven")
    assert (told["clients"] == "everyone") == getattr(e.algorithm, "everyone", False)
    assert ("all" in told["clients"]) == (getattr(e.algorithm, "anchor", "") == "all")


@pytest.mark.parametrize("algo", options("algo"))
def test_each_method_says_how_certain_it_is(algo):
    assert certainty(algo) in (*CHECKED, *EXPERIMENTAL)


def test_the_readme_counts_them():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    unchecked = sum(bool(experimental(algo)) for algo in options("algo"))
    checked, problems = len(options("algo")) - unchecked, sum(not setting_of(name) for name in options("problem"))
    assert f"{problems} problems, {checked} checked methods and {unchecked} experimental ones" in readme


def test_lists_have_checked_methods_first(capsys):
    """Also of a class, where they say where the equations are from."""
    list_.show_list(["algorithms"])
    lines = capsys.readouterr().out.splitlines()
    (head,) = [k for k, line in enumerate(lines) if re.fullmatch(r"bilevel: \d+, \d+ of them experimental", line)]
    number, unchecked = map(int, re.findall(r"\d+", lines[head]))
    marked = ["(experimental)" in line for line in lines[head + 1 : head + 1 + number]]
    assert marked == [False] * (number - unchecked) + [True] * unchecked
    list_.show_list(["algorithms", "bilevel"])
    out = " ".join(capsys.readouterr().out.split())
    assert "[Tarzanagh et al. 2023]; compared with the paper's text" in out
    assert out.index(" soba ") < out.index(" simfbo ")


@pytest.mark.parametrize(
    ("algo", "line"),
    [
        ("simfbo", "SimFBO is experimental: its equations are unverified (reconstructed without the paper's text)"),
        ("br_fedbi", "BR-FedBi is experimental: its equations are unverified (reconstructed from others' notes)"),
        ("fednest", "fednest on quadratic_bilevel"),
    ],
)
def test_a_run_says_it_first(algo, line, monkeypatch, capsys, tmp_path):
    words = [f"algo={algo}", "problem=quadratic_bilevel", "problem.examples=40", "budget.rounds=1", "preset=none"]
    for more in (["output_dir=run"], ["-m", "seed=0,1", "output_dir=sweep"]):
        monkeypatch.chdir(tmp_path)
        done = fedopt(monkeypatch, capsys, *words, *more)
        assert done.code == 0
        head = " ".join((done.out if "-m" in more else done.err).split())  # a sweep's is on stdout
        assert (head.startswith(line), head.count("is experimental")) == (True, "is experimental" in line)


@pytest.mark.parametrize(
    ("algo", "label"),
    [
        ("fedrep", "compared with public code, which has momentum 0.5, weight decay 1e-4, and trains all heads"),
        ("per_fedavg_hvp", "compared with public code by other authors"),
        ("per_fedavg", "compared with public code (of pFedMe), which adapts on test batches"),
        ("fedavg", "compared with public code (FedProx's)"),
        ("fedprox", "compared with public code"),
        ("scaffold", "compared with public code by other authors (FedTorch, FLGo)"),
        ("fedadam", "compared with public code (Flower), which has v_0 = 0"),
        ("fedyogi", "compared with public code (Flower), which has v_0 = 0"),
        ("fedadagrad", "unverified"),
        ("fgdro", "reviews of arXiv 2410.06369"),
        ("fgdro_kl", "[Guo & Yang 2024]"),
        ("drfa", "compared with public code, which trains on uniform cohorts"),
        ("ditto", "compared with public code, which samples clients by size and averages them with equal weights"),
    ],
)
def test_what_a_method_was_compared_with(algo, label, capsys):
    """The page of the method says it in full, `fedopt list algorithms minimisation` without the details."""
    assert any(f"| `algo={algo}` |" in line and label in line for line in members(SCRIPT["page_of"](algo)))
    list_.show_list(["algorithms", "minimisation"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (line,) = [" ".join(words) for words in lines if words[:1] == [algo]]
    assert line.endswith(certainty(algo))
    assert certainty(algo) in label or not label.startswith("compared")
