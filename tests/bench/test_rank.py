"""The benchmark's statistics, on tables in which all is known."""

import itertools
import math
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedopt.bench import release
from fedopt.bench.rank import BUDGETS, FIRM, Searches, best_of, board, chances, claims, first, hits, spent, worth
from fedopt.bench.release import COLUMNS, NAMES, TABLE, read_table, released
from fedopt.bench.suite import CURRENCIES, LIMITS, Task
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


def searches(*pools):
    of = task(entries=dict.fromkeys(pd.concat(pools)["method"]))
    table = pd.concat(pools, ignore_index=True)
    reached = hits(of, table)
    return of, table, Searches(of, table, reached[reached["currency"] == "comm_rounds"])


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
    shares = [(costs <= budget).mean() for budget in BUDGETS]
    area = np.trapezoid(shares, np.log(BUDGETS)) / math.log(100)
    assert worth(costs).mean() == pytest.approx(area, abs=0.01)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_chances_are_those_of_all_draws(size):
    """Each subset is as likely as any other; ties go to the better end."""
    scores, ends = np.array([0.2, 0.9, 0.5, 0.5, 0.0, 0.0, 0.7]), np.array([1, 2, 7, 3, 5, 6, 4])
    best = [max(draw, key=lambda n: (scores[n], ends[n])) for draw in itertools.combinations(range(7), size)]
    expected = np.bincount(best, minlength=7) / len(best)
    np.testing.assert_allclose(chances(scores, ends, size), expected, atol=1e-12)


def test_searches_choose_by_the_pool_and_are_judged_on_other_seeds():
    """A point that was lucky in the pool costs what its report says; one without a report what its runs of the pool say."""
    rates = [0.02, 0.05, 0.1, *[1e-4] * 21]
    own = pool("a", rates, reported=(2,))
    own.loc[(own["kind"] == "report") & (own["step"] > 0), "value"] = 4.0  # the best one fails where it is judged
    _, _, drawn = searches(own)
    assert drawn.chance["a"].sum() == pytest.approx(1)
    assert drawn.chance["a"][2] == pytest.approx(12 / 24)  # it is in half of the searches
    scores = drawn.scores("a")
    none = math.comb(21, 12) / math.comb(24, 12)  # of the three good points
    assert (scores == 0).mean() == pytest.approx(0.5 + none, abs=0.03)
    second = worth([math.ceil(-math.log(goal) / 0.05) / 100 for goal in TARGETS]).mean()
    assert scores.max() == pytest.approx(second, abs=0.02)


def test_two_names_of_one_method_are_not_told_apart_and_ten_times_is():
    rng = np.random.default_rng(3)
    a, b, slow = (np.exp(rng.normal(-3, 1, 60)) for _ in range(3))
    pools = [pool("a", a, range(60)), pool("b", b, range(60), seed=1), pool("slow", slow / 100, range(60), seed=2)]
    _, _, drawn = searches(*pools)
    pairs = [("t", "a", "b"), ("t", "a", "slow"), ("t", "slow", "a")]
    table = claims(pairs, {"t": drawn}, 3)
    assert table["answer"].tolist() == ["not told apart", "held", "did not hold"]
    assert table["ratio"][1] * table["ratio"][2] == pytest.approx(1, rel=1e-9)
    assert table["low"][1] < table["ratio"][1] < table["high"][1] < 1
    assert (table["p (Holm)"] >= table["p"]).all()
    assert claims(pairs[1:2], {"t": drawn}, 10_000)["answer"].tolist() == ["not told apart"]  # one of very many
    ranked = board({"t": drawn}).set_index("method")
    assert ranked.loc["slow", "rank"] == 3
    assert ranked.loc["slow", "holds"] > FIRM > ranked.loc["a", "holds"]
    name, share = first(drawn)
    assert name in ("a", "b")
    assert share < FIRM


def test_ratios_with_and_without_misses():
    """One reaches all targets in a third of the time; the other misses the last one."""
    _, _, drawn = searches(pool("fast", [0.12] * 12, range(12)), pool("slow", [0.04] * 12, range(12)))
    censored, common, misses = drawn.ratios("fast", "slow")
    rounds = {rate: [math.ceil(-math.log(goal) / rate) for goal in TARGETS] for rate in (0.12, 0.04)}
    both = [math.log(f / s) for f, s in zip(rounds[0.12], rounds[0.04], strict=True) if s <= 100]
    assert common == pytest.approx(np.full(4000, np.mean(both)), abs=0.05)
    assert censored == pytest.approx(np.full(4000, np.mean([*both, math.log(rounds[0.12][2] / 100)])), abs=0.05)
    assert misses == (0, pytest.approx(1 / 3))


def test_a_board_weighs_tasks_alike_and_ranks_who_takes_part_in_all():
    of, table, one = searches(pool("a", [0.1] * 12, range(12)), pool("b", [0.05] * 12, range(12)))
    _, _, other = searches(pool("a", [0.01] * 12, range(12)))
    ranked = board({"one": one, "other": other}).set_index("method")
    assert pd.isna(ranked.loc["b", "rank"])
    assert ranked.loc["a", "rank"] == 1
    assert ranked.loc["a", "score"] == pytest.approx((one.scores("a").mean() + other.scores("a").mean()) / 2)
    reached = hits(of, table)
    curves = best_of(of, table, reached[reached["currency"] == "comm_rounds"], [1, 4])
    assert curves.groupby("method")["score"].nunique().tolist() == [1, 1]  # all points are alike


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


def test_results_are_not_taken_from_elsewhere_without_a_word(capsys, tmp_path):
    """Where a folder has none, a note says whose they are."""
    released(tmp_path)
    assert f"{tmp_path}: has no {TABLE}, so the results that come with fedopt are ranked" in capsys.readouterr().err
