"""The benchmark's statistics, on tables in which all is known."""

import itertools
import math
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.command import ROOT

from fedopt.bench import pages, rank, release
from fedopt.bench.rank import Pool, chances, curves, hits, pairs, pools_of, reach, seen, spent, worth
from fedopt.bench.release import COLUMNS, NAMES, TABLE, read_table, released, with_newer
from fedopt.bench.suite import CURRENCIES, LIMITS, VERSION, Task
from fedopt.errors import UserError

TARGETS = [0.5, 0.1, 0.01]


def task(name="t", entries=(), relative=True):
    told = {"board": "", "title": "", "words": [], "metric": "distance", "targets": TARGETS, "entries": [*entries]}
    told |= {"budget": dict.fromkeys(LIMITS, 100.0), "smoothness": {"Lx": 1.0, "Ly": 1.0}, "relative": relative}
    return Task(**told, name=name)


def curve(rate, rounds=100, start=4.0):
    """A run that falls by a rate a round, evaluated after each."""
    step = np.arange(rounds + 1)
    spent = dict.fromkeys(("comm_rounds", "client_visits", "bytes_up", "grad", "hvp"), step)
    return pd.DataFrame({"step": step, **spent, "bytes_down": 0, "jvp": 0, "value": start * np.exp(-rate * step)})


def pool(name, rates, reported=(), seeds=2, of_report=4, noise=0.0, seed=0):
    """The runs of an entry whose points fall by these rates, with noise in the rate of each run."""
    rng, parts = np.random.default_rng(seed), []
    for kind, points, count, from_seed in (
        ("pool", range(len(rates)), seeds, 1000),
        ("report", reported, of_report, 0),
    ):
        for point in points:
            for s in range(count):
                rate = rates[point] * math.exp(noise * rng.standard_normal())
                parts.append(curve(rate).assign(method=name, kind=kind, point=point + 1, seed=from_seed + s))
    parts += [curve(0.0).assign(method=name, kind="pool", point=0, seed=1000 + s) for s in range(seeds)]
    return pd.concat(parts, ignore_index=True).assign(status="finished")


def test_what_has_been_spent():
    """Sums of columns, which are powers of two here; a product of both kinds counts twice in calls_2."""
    names = ["comm_rounds", "client_visits", "bytes_up", "bytes_down", "grad", "hvp", "jvp"]
    table = pd.DataFrame({name: [2**k] for k, name in enumerate(names)})
    sums = {"comm_rounds": 1, "bytes": 4 + 8, "client_visits": 2, "calls": 16 + 32 + 64, "calls_2": 16 + 64 + 128}
    assert {currency: float(spent(table, currency)[0]) for currency in CURRENCIES} == sums
    asked = {"comm_rounds": 1.0, "bytes": 2.0, "client_visits": 3.0, "example_calls": 4.0}
    limits = {currency: replace(task(), budget=asked).limit(currency) for currency in CURRENCIES}
    assert limits == {"comm_rounds": 1.0, "bytes": 2.0, "client_visits": 3.0, "calls": 4.0, "calls_2": 4.0}


def test_a_target_is_reached_when_it_is_kept():
    """By two successive evaluations, at the first, within the budget; as shares of the start's value."""
    table = curve(0.0, 9).assign(method="m", kind="pool", point=1, seed=0)
    table["value"] = [4.0, 1.9, 2.5, 1.9, 1.8, 0.3, math.nan, 0.3, 0.3, 0.01]
    found = hits(task(), table).set_index("currency")[[0, 1, 2]]
    assert found.loc["comm_rounds"].tolist() == [0.03, 0.07, math.inf]
    assert found.loc["calls"].tolist() == [0.06, 0.14, math.inf]  # gradients and products
    assert found.loc["calls_2"].tolist() == [0.09, 0.21, math.inf]  # products as two
    late = table.assign(comm_rounds=table["comm_rounds"] * 20)
    assert hits(task(), late).set_index("currency").loc["comm_rounds", [0, 1, 2]].tolist() == [0.6, math.inf, math.inf]


def test_larger_values_may_be_better():
    table = curve(0.0, 4).assign(method="m", kind="pool", point=1, seed=0, value=[0.0, 60.0, 70.0, 85.0, 90.0])
    rising = Task(**{**vars(task(relative=False)), "targets": [50.0, 80.0, 99.0]})
    assert hits(rising, table).loc[0, [0, 1, 2]].tolist() == [0.01, 0.03, math.inf]


def test_a_score_is_the_area_under_the_curve():
    """On log budget: a goal that is reached at a tenth of the budget is worth half."""
    assert worth([0.1, math.inf, 0.001, 1.0]) == pytest.approx([0.5, 0, 1, 0])
    costs = np.array([0.02, 0.3, math.inf, 0.5])
    budgets = np.geomspace(0.01, 1, 201)
    shares = [(costs <= budget).mean() for budget in budgets]
    area = np.trapezoid(shares, np.log(budgets)) / math.log(100)
    assert worth(costs).mean() == pytest.approx(area, abs=0.01)


def pool_of(points=9, targets=3, seed=0, seeds=2):
    """A pool of random points, some of which miss; several scores are equal."""
    rng = np.random.default_rng(seed)
    costs = np.sort(np.round(rng.uniform(0.02, 1.4, (points, seeds, targets)), 1), axis=2)
    return Pool(
        np.where(costs <= 1, np.maximum(costs, 0.02), math.inf), rng.permutation(points * seeds).reshape(points, seeds)
    )


def searched(pool, size, choose, find):
    """The mean of what all searches of ``size`` points find. choose: (point, seed) -> key of the best; find: (point, seed)."""
    n, seeds = pool.costs.shape[:2]
    tries = [(0, *some) for some in itertools.combinations(range(1, n), size - 1)]
    return np.mean([find(max(own, key=lambda p: choose(p, s)), s) for own in tries for s in range(seeds)], axis=0)


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_expectations_are_those_of_all_searches(size):
    """Each subset is as likely as any other; it selects on one seed, and is judged on the other."""
    pool = pool_of()
    found = searched(pool, size, lambda p, s: (pool.scores[p, s], pool.ends[p, s]), lambda p, s: pool.values[p, 1 - s])
    np.testing.assert_allclose(pool.expected(size).mean(axis=0), found, atol=1e-12)
    assert chances(8, size).sum() == pytest.approx(1)


def test_equal_points_and_the_theory_point():
    """Of equal points the first one counts, which is the theory point; a search of one point is the theory point."""
    costs = np.full((5, 2, 1), 0.1)
    costs[:, 1, 0] = [0.2, 0.3, 0.3, 0.3, 0.3]
    pool = Pool(costs, np.zeros((5, 2)))
    assert pool.expected(4)[0] == pytest.approx([worth(0.2), 1])
    assert pool.expected(1).mean(axis=0) == pytest.approx([(worth(0.1) + worth(0.2)) / 2, 1])


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_leaving_a_point_out(size):
    pool = pool_of()
    expected = [
        Pool(np.delete(pool.costs, k, 0), np.delete(pool.ends, k, 0)).expected(size).mean(axis=0) for k in range(1, 9)
    ]
    np.testing.assert_allclose(pool.without(size), expected, atol=1e-12)


def test_the_cheapest_point_of_a_search():
    pool = pool_of(seed=1)
    share, cost = pool.cheapest(3)
    for target in range(3):
        own = pool.costs[..., target]
        found = [min(own[p, s] for p in (0, *two)) for two in itertools.combinations(range(1, 9), 2) for s in range(2)]
        reached = [one for one in found if one < math.inf]
        assert share[target] == pytest.approx(len(reached) / len(found))
        expected = math.exp(np.mean(np.log(reached))) if share[target] >= 0.5 else math.nan
        assert cost[target] == pytest.approx(expected, nan_ok=True)
    assert np.isnan(cost).any()
    assert not np.isnan(cost).all()


def test_reach_rates_have_exact_binomial_ends():
    """No point of 511 reaches a target: at most 1 - .025^(1/511) of the points do. The theory point reaches the other one."""
    costs = np.full((512, 2, 2), math.inf)
    costs[0, :, 0] = 0.5
    rows = reach({"m": Pool(costs, np.zeros((512, 2)))}, [0.5, 0.1])
    assert rows[["reach", "low", "high"]].to_numpy() == pytest.approx(
        np.array([[1, 1, 1], [0, 0, 1 - 0.025 ** (11 / 511)]])
    )
    assert rows["cost"].tolist() == pytest.approx([0.5, math.nan], nan_ok=True)
    costs[1:103, :, 1] = 0.3  # a fifth of them
    ends = stats.binomtest(102, 511).proportion_ci(0.95)
    row = reach({"m": Pool(costs, np.zeros((512, 2)))}, [0.5, 0.1]).loc[1]
    assert row["reach"] == pytest.approx(1 - math.comb(409, 11) / math.comb(511, 11))
    assert row[["low", "high"]].tolist() == pytest.approx([1 - (1 - end) ** 11 for end in (ends.low, ends.high)])


def many(apart=1.0, points=512, seed=0):
    """A pool of lognormal costs."""
    rng = np.random.default_rng(seed)
    costs = 0.2 * apart * np.exp(0.3 * rng.standard_normal((points, 1, 1))) * np.array([[[1.0, 1.5], [1.02, 1.52]]])
    return Pool(np.where(costs <= 1, costs, math.inf), np.zeros((points, 2)))


def test_verdicts_on_pairs():
    pools = {
        "a": many(),
        "again": many(seed=1),
        "slow": many(2.0, seed=2),
        "none": Pool(np.full((512, 2, 2), math.inf), np.zeros((512, 2))),
    }
    rows = pairs(pools).set_index(["one", "other"])
    assert len(rows) == 6
    assert rows.loc[("a", "slow"), "verdict"] == "before"
    assert rows.loc[("a", "slow"), "ratio"] == pytest.approx(0.5, rel=0.15)
    twins = rows[[{*names} == {"a", "again"} for names in rows.index]].iloc[0]
    assert twins["verdict"] == "alike"
    assert twins["low"] < 1 < twins["high"]
    assert rows.loc[("a", "none"), "verdict"] == "before"
    assert math.isnan(rows.loc[("a", "none"), "ratio"])  # no ratio over misses
    assert rows.loc[("a", "none"), ["misses_one", "misses_other", "seen"]].tolist() == pytest.approx([0, 1, 1])
    assert (rows["seen"] > 0.49).all()
    none = pairs(dict.fromkeys(("x", "y"), pools["none"])).iloc[0]
    assert none["verdict"] == "not resolved"  # two that reach nothing are not alike
    assert none["seen"] == pytest.approx(0.5)


def test_a_ratio_is_that_of_mean_log_costs():
    """All points cost the same: 0.1 and 0.4 for one target, and the other misses the second one."""
    same = [
        Pool(np.broadcast_to(costs, (512, 2, 3)), np.zeros((512, 2)))
        for costs in ([0.1, 0.5, np.inf], [0.4, np.inf, np.inf])
    ]
    row = pairs({"a": same[0], "b": same[1]}).iloc[0]
    assert row["effect"] == pytest.approx((math.log(0.1 / 0.4) + math.log(0.5 / 1)) / 2)  # nobody reaches the third
    assert row["ratio"] == pytest.approx(math.exp(row["effect"]))
    assert row["verdict"] == "before"


def test_how_often_a_single_search_shows_it(monkeypatch):
    monkeypatch.setattr(rank, "SEARCH", 3)
    one, other = pool_of(), pool_of(seed=1)
    found = [
        [
            [
                max((0, *two), key=lambda p: (pool.scores[p, s], pool.ends[p, s]))
                for two in itertools.combinations(range(1, 9), 2)
            ]
            for s in range(2)
        ]
        for pool in (one, other)
    ]
    share = np.mean(
        [
            [np.sign(one.scores[p, 1 - s] - other.scores[q, 1 - s]) for p in found[0][s] for q in found[1][s]]
            for s in range(2)
        ]
    )
    assert seen(one, other) == pytest.approx((1 + share) / 2)
    assert seen(other, one) == pytest.approx((1 - share) / 2)


def test_tuning_curves():
    pool = replace(many(points=48), others={("pool", 0): np.array([[0.1, math.inf], [0.1, math.inf]])})
    rows = curves({"m": pool, "small": many(points=8)})
    assert rows.groupby("method")["points"].max().to_dict() == {"m": 48, "small": 8}
    own = rows[rows["method"] == "m"].set_index("points")
    assert own.loc[0, "score"] == pytest.approx(worth(0.1) / 2)
    assert own.loc[12, "score"] == pytest.approx(pool.expected(12)[:, :2].mean())
    rest = own.drop(index=0)
    assert ((rest["low"] <= rest["score"]) & (rest["score"] <= rest["high"])).all()
    assert rest["score"].is_monotonic_increasing


def test_pools_are_read_from_a_table():
    """The defaults and the runs of a report are no points of the pool; a second scramble is a method of its own."""
    of, runs = task(), pool("m", [0.1, 0.05, 0.02], reported=(1,))
    null = pool("m", [0.1, 0.03]).query("point > 0").assign(kind="null")
    pools = pools_of(of, pd.concat([runs, null]))["comm_rounds"]
    assert {name: len(own.costs) for name, own in pools.items()} == {"m": 3, "m (second scramble)": 2}
    own = pools["m"]
    assert own.best == 1
    assert own.score_of("pool", 0) == 0
    assert own.score_of("report", 2) == pytest.approx(own.scores[1].mean())
    assert math.isnan(own.score_of("report", 1))


def test_every_currency_is_counted():
    table = pool("a", [0.1] * 3)
    assert {*hits(task(), table)["currency"]} == {*CURRENCIES}


# Tables that somebody has sent


def sent(path, **columns):
    """Write a table of four runs, with other columns than `write_table` would write."""
    table = pd.concat([curve(0.1, 1)] * 2).assign(**dict.fromkeys(NAMES, "one"), threads=1, point=1, seed=range(4))
    table = table.assign(**columns)
    table[[name for name in COLUMNS if name in table]].to_parquet(path, index=False)
    return path


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"step": 0.5}, "Float value 0.500000 was truncated"),
        ({"seed": [[1, 2]] * 4}, "Unsupported cast from list"),
        ({"seed": pd.Series([1, None, 2, 3], dtype="Int64").to_numpy(object)}, "column seed has empty cells"),
        ({"method": "<script>"}, "column method has '<script>'"),
    ],
)
def test_a_table_of_other_columns_is_refused(columns, said, tmp_path):
    assert len(read_table(sent(tmp_path / TABLE))) == 4
    with pytest.raises(UserError, match=f"{TABLE}: cannot be read as a table of runs .*{said}"):
        read_table(sent(tmp_path / TABLE, **columns))


def test_a_table_that_is_none_or_too_large_is_refused(monkeypatch, tmp_path):
    """Also a link, which could show another file, and a pipe, which would never end."""
    path = sent(tmp_path / TABLE)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no Parquet")
    monkeypatch.setattr(release, "MOST_ROWS", 3)
    for name, why in (
        (TABLE, "more than 3 rows"),
        ("link", "is a symbolic link"),
        ("pipe", "regular"),
        ("text", "Parquet"),
    ):
        with pytest.raises(UserError, match=why):
            read_table(tmp_path / name)


def test_a_table_that_unpacks_to_much_is_refused_unread(monkeypatch, tmp_path):
    """By what its card says of the columns' sizes."""
    path, rows = tmp_path / TABLE, 20_000
    one = pd.concat([curve(0.1, 0)] * rows).assign(**dict.fromkeys(NAMES, "one"), threads=1, point=1, seed=0)
    one.assign(value=np.arange(rows) / 4)[COLUMNS].to_parquet(path, index=False, compression="zstd")
    assert len(read_table(path)) == rows
    monkeypatch.setattr(release, "LARGEST", 8 * rows)
    assert path.stat().st_size < 8 * rows
    with pytest.raises(UserError, match="or 160,000 bytes unpacked"):
        read_table(path)


@pytest.mark.skipif(not (ROOT / "docs" / "bench" / VERSION / TABLE).exists(), reason="needs released results")
def test_results_are_not_taken_from_elsewhere_without_a_word(capsys, tmp_path):
    """Where a folder has none, a note says whose they are."""
    released(tmp_path)
    assert f"{tmp_path}: has no {TABLE}; the results that come with fedopt are ranked" in capsys.readouterr().err


def test_newer_runs_replace_those_of_the_same_method_and_version():
    def one(version, method):
        return pd.DataFrame({"bench_version": [version], "task": ["t"], "method": [method]})

    def methods(*tables):
        return with_newer(*tables)["method"].tolist()

    assert methods(one("2.1", "a"), one("2.1", "b")) == ["a", "b"]
    assert methods(one("2.1", "a"), one("2.1", "a")) == ["a"]
    assert methods(one("2.0", "a"), one("2.1", "b")) == methods(one("2.1", "b")[:0], one("2.1", "b")) == ["b"]
    assert methods(one("2.0", "a"), one("2.1", "b")[:0]) == ["a"]


@pytest.mark.parametrize(
    ("words", "point"),
    [
        ("", {}),
        ("algo.eta=0.1 algo.tau=5", {"algo.eta": "0.1", "algo.tau": "5"}),
        ("algo.tau=2 epochs algo.steps=[1, 2]", {"algo.tau": "2 epochs", "algo.steps": "[1, 2]"}),
        ("no override", {"no override": ""}),  # of a table that somebody else has made
    ],
)
def test_a_configuration_is_read_from_a_table(words, point):
    assert pages._point(words) == point
