"""Results over tasks, beside textbooks, independent code and pools with a known truth."""

import math
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.command import ROOT

from fedopt.bench.effects import claims, oriented, over_tasks, profiles, results
from fedopt.bench.rank import AGAIN, PAIR, Pool
from fedopt.bench.suite import LIMITS, Claim, Task

# Thirteen trials of a vaccine (Colditz and others, 1994): ill and healthy with it, and ill and healthy without it
BCG = """4 119 11 128, 6 300 29 274, 3 228 11 209, 62 13536 248 12619, 33 5036 47 5761, 180 1361 372 1079, 8 2537 10 619,
505 87886 499 87892, 29 7470 45 7232, 17 1699 65 1600, 186 50448 141 27197, 5 2493 3 2338, 27 16886 29 17825"""


def test_random_effects_of_a_textbook():
    """The restricted likelihood and the intervals of Hartung and Knapp, as metafor prints them for dat.bcg."""
    a, b, c, d = np.array([trial.split() for trial in BCG.split(",")], float).T
    effects, variances = np.log(a / (a + b) / (c / (c + d))), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)
    found = over_tasks(effects, np.sqrt(variances))
    assert found.sd**2 == pytest.approx(0.3132, abs=1e-4)
    assert found[:3] == pytest.approx((-0.7145, -1.1084, -0.3206), abs=1e-4)
    error = (found.high - found.mean) / stats.t.ppf(0.975, 12)
    assert found.new_high - found.mean == pytest.approx(stats.t.ppf(0.975, 12) * math.hypot(effects.std(ddof=1), error))


def test_random_effects_at_the_ends():
    """No variance over tasks; one task; none."""
    same = over_tasks(np.full(5, 0.3), np.full(5, 0.1))
    assert (same.mean, same.sd) == pytest.approx((0.3, 0))
    assert same.high - 0.3 == pytest.approx(stats.t.ppf(0.975, 4) * 0.1 / math.sqrt(5))
    one = over_tasks(np.array([0.3]), np.array([0.1]))
    assert one[:3] == pytest.approx((0.3, 0.3 - 0.196, 0.3 + 0.196), abs=1e-3)
    assert math.isnan(one.new_low)
    assert np.isnan(over_tasks(np.array([]), np.array([]))).all()


def a_pair(task, one, other, ratio, verdict="not resolved", error=0.1, misses=(0.1, 0.2)):
    ends = {"ratio": ratio, "low": ratio / 1.2, "high": ratio * 1.2, "misses_one": misses[0], "misses_other": misses[1]}
    named = {"task": task, "currency": "bytes", "one": one, "other": other, "effect": math.log(ratio), "error": error}
    return {**named, **ends, "seen": 0.8, "verdict": verdict}


def test_a_claim_over_tasks():
    """On four tasks of five; on one of them the other method is cheaper, and stands first in the table."""
    rows = [a_pair(f"m{k}", "a", "b", ratio, "before") for k, ratio in enumerate([0.4, 0.5, 0.6])]
    rows += [a_pair("m3", "b", "a", 0.9, "alike"), a_pair("b1", "a", "b", 0.1, "before"), a_pair("m0", "a", "c", 0.1)]
    table = pd.DataFrame(rows)
    told = [Claim("g", "needs fewer bytes", "a", "b", ["bytes", "calls"], ["m*"])]
    over, by_task = claims(told, table)
    row, none = over.to_dict("records")
    assert (row["tasks"], row["better"], row["before"], row["behind"], row["alike"]) == (4, 3, 3, 0, 1)
    effects = np.log([0.4, 0.5, 0.6, 1 / 0.9])
    expected = over_tasks(effects, np.full(4, 0.1))
    assert row["ratio"] == pytest.approx(math.exp(expected.mean))
    assert row["least"] == pytest.approx(math.exp(over_tasks(effects[:3], np.full(3, 0.1)).mean))
    assert row["most"] == pytest.approx(math.exp(over_tasks(effects[1:], np.full(3, 0.1)).mean))
    assert row["seen"] == pytest.approx((3 * 0.8 + 0.2) / 4)
    assert row["misses_one"] == pytest.approx((3 * 0.1 + 0.2) / 4)
    assert (none["tasks"], none["verdict"]) == (0, "not resolved")
    assert by_task["task"].tolist() == ["m0", "m1", "m2", "m3"]
    turned = by_task.iloc[3]
    assert turned[["one", "other", "verdict"]].tolist() == ["a", "b", "alike"]
    assert turned[["ratio", "low", "high"]].tolist() == pytest.approx([1 / 0.9, 1 / (0.9 * 1.2), 1.2 / 0.9])


def test_a_claim_that_is_turned_round():
    rows = pd.DataFrame([a_pair("m", "b", "a", 0.5, "before")])
    own = oriented(rows, "a", "b").iloc[0]
    assert (own["one"], own["verdict"], own["seen"]) == ("a", "behind", pytest.approx(0.2))
    assert own["effect"] == pytest.approx(math.log(2))


def same_points(*costs):
    return Pool(np.broadcast_to(np.array(costs, float), (20, 2, len(costs))), np.zeros((20, 2)))


def test_profiles():
    """Two targets on one task: a is cheaper for the first one, and b alone reaches the second one."""
    by_task = {
        "t": {"a": same_points(0.1, math.inf), "b": same_points(0.2, 0.5), "never": same_points(*[math.inf] * 2)}
    }
    budget = profiles(by_task).pivot(index="at", columns="method", values="share")
    assert budget.loc[budget.index > 0.11, "a"].to_numpy() == pytest.approx(0.5)
    assert budget.loc[budget.index < 0.19, "b"].eq(0).all()
    assert budget.iloc[-1].to_dict() == pytest.approx({"a": 0.5, "b": 1, "never": 0})


def made_up(tasks=("m1", "m2")):
    """Runs of two entries and a control on two tasks, of which the first one has a second scramble."""
    rng, parts, step = np.random.default_rng(3), [], np.arange(0, 60, 2)
    for task in tasks:
        for method, rate in {"quick": 0.4, "slow": 0.1, "quick + one key": 0.3}.items():
            for kind, points, seeds in (("pool", 201, 2), ("null", 201, 2), ("report", 6, 3)):
                if kind == "null" and method != "quick":
                    continue
                rates = rate * np.exp(rng.normal(0, 0.5, points))
                for point in range(int(kind == "null"), points):
                    for seed in range(seeds):
                        value = np.exp(-rates[point] * step)
                        named = {"task": task, "method": method, "kind": kind, "point": point, "seed": seed}
                        parts.append(pd.DataFrame({"step": step, "value": value}).assign(**named))
    table = pd.concat(parts, ignore_index=True)
    spent = dict.fromkeys(("comm_rounds", "client_visits", "bytes_up", "grad", "hvp"), table["step"])
    return table.assign(**spent, bytes_down=table["step"] % 2, jvp=0)


def test_all_tables_of_the_page():
    told = {"board": "games", "title": "", "words": [], "metric": "m", "smoothness": {"Lx": 1.0, "Ly": 1.0}}
    told |= {"budget": dict.fromkeys(LIMITS, 60.0), "entries": ["quick", "slow", "quick + one key"], "relative": True}
    chosen = [Task(**told, targets=[0.5, 0.1, 0.01], name=name, null=["quick"]) for name in ("m1", "m2")]

    class Known(dict):
        claims = (Claim("a", "is cheaper", "quick", "slow", ["comm_rounds"]),)

    forms = {"quick": "paper", "slow": "paper", "quick + one key": "control"}
    entries = Known({name: SimpleNamespace(form=form) for name, form in forms.items()})
    found = results(made_up(), chosen, entries)
    assert [*found["pairs"]] == ["task", "currency", *PAIR]
    assert len(found["pairs"]) == 2 * 5 * 3
    assert {*found["nulls"]["one"], *found["nulls"]["other"]} == {"quick", f"quick{AGAIN}"}
    places = found["places"]
    own = places[(places["task"] == "m1") & (places["currency"] == "comm_rounds")].set_index("method")
    assert own["may_be_best"].to_dict() == {"quick": True, "slow": False, "quick + one key": None}
    assert own.loc["slow", "behind"] == "quick"
    assert own["score"].is_monotonic_decreasing
    assert own[["defaults", "score", "low", "high", "reach"]].notna().all(axis=None)
    row = found["claims"].iloc[0]
    assert (row["verdict"], row["tasks"], row["before"]) == ("before", 2, 2)
    assert {*found["profiles"]["board"]} == {"games"}
    curves = found["curves"]
    assert curves.groupby(["task", "currency", "method"])["points"].max().eq(48).all()


def test_the_null_test_itself():
    """A short form of scripts/bench_null: simultaneous intervals cover, and verdicts are not wrong, in about 95 % of tasks."""
    loader = SourceFileLoader("bench_null", str(ROOT / "scripts" / "bench_null"))
    null = module_from_spec(spec_from_loader("bench_null", loader))
    loader.exec_module(null)
    null.LARGE = 8000
    rows = [row for like in [*null.kept().values()][:3] for row in null.of_task(like, 96, 6)]
    table = null.summary(rows, 96).set_index("case")
    tasks = table.loc["all pairs of a task at once"]
    least = stats.binom.ppf(0.001, 18, 0.95) / 18
    assert tasks["resamplings"] == 18
    assert tasks["coverage"] >= least
    assert tasks["wrong"] <= 1 - least
    assert table.loc["tuning curve, all sizes at once", "coverage"] >= stats.binom.ppf(0.001, 162, 0.95) / 162
    assert table.loc["reach rate of a target", "coverage"] >= 0.9
    assert table.loc["equal methods", ["before", "behind"]].sum() == 0
    assert table.loc["3 times apart", "before"] > 0
    assert table.loc["3 times apart", "behind"] == 0


def test_the_table_of_the_null_test():
    """What the page says of it: all levels are held at each size of the pools."""
    table = pd.read_csv(ROOT / "docs" / "bench" / "2.1" / "null.csv")
    assert {*table["points"]} == {48, 96, 512}
    of_tasks = table[table["case"].str.startswith(("all pairs", "tuning curve", "reach"))]
    assert (of_tasks["coverage"] >= 0.93).all()
    assert (table["wrong"].dropna() <= 0.05).all()
    assert (table["resamplings"] >= 200).all()
