"""The benchmark's statistics, on toys in which all is known."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from fedopt.analysis.stats import profile, sign_flip
from fedopt.bench.rank import BUDGETS, log_ratios, pairs, scores, solved, worth

SEEDS = range(10)


def hits(costs, tasks=("t",), noise=0.0, seed=0):
    """costs: by method, of each target."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "task": task,
            "method": method,
            "seed": s,
            "target": target,
            "cost": cost * math.exp(noise * rng.standard_normal()),
        }
        for task in tasks
        for method, of_targets in costs.items()
        for s in SEEDS
        for target, cost in enumerate(of_targets)
    )


TOY = hits({"good": [0.02, 0.1], "twin": [0.02, 0.1], "bad": [0.5, math.inf]}, noise=0.05)


def test_the_share_solved_is_counted():
    shares = solved(hits({"a": [0.1, math.inf], "b": [0.01, 1.0]}))
    assert shares.loc[1.0].to_dict() == {"a": 0.5, "b": 1.0}
    assert shares["a"].iloc[0] == 0


def test_a_score_is_the_area_under_the_curve():
    """On log budget, by the trapezoidal rule; a goal that is reached at a tenth of the budget is worth half."""
    assert worth(pd.Series([0.1, math.inf, 0.001, 1.0])).tolist() == pytest.approx([0.5, 0, 1, 0])
    curve = solved(TOY)
    areas = np.trapezoid(curve.to_numpy(), np.log(BUDGETS), axis=0) / math.log(100)
    table = scores(TOY, samples=2).set_index("method")["score"]
    assert table[curve.columns].to_numpy() == pytest.approx(areas, abs=0.01)


def test_scores_order_a_toy_and_do_not_tell_twins_apart():
    table = scores(TOY, samples=200).set_index("method")
    assert table["rank"].to_dict()["bad"] == 3
    assert table.loc["bad", "rank holds"] == 1
    assert table.loc["bad", "high"] < table.loc["good", "low"]
    assert table.loc["good", "low"] < table.loc["twin", "score"] < table.loc["good", "high"]


def test_another_method_changes_no_score():
    more = pd.concat([TOY, hits({"new": [0.011, 0.011]})])
    one, other = (scores(rows, samples=100).set_index("method")["score"] for rows in (TOY, more))
    assert other[one.index].equals(one)


@pytest.mark.full
@pytest.mark.parametrize("seeds", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 10))])
def test_bands_cover(seeds):
    """Of 200 toys whose score is known, the band of 90 % holds it in about as many, with few seeds too."""
    truth = worth(pd.concat([hits({"a": [0.1, 0.4]}, noise=0.8, seed=s) for s in range(200)])["cost"]).mean()
    held = 0
    for s in range(200):
        toy = hits({"a": [0.1, 0.4]}, noise=0.8, seed=1000 + s)
        row = scores(toy[toy["seed"] < seeds], samples=200).iloc[0]
        held += row["low"] <= truth <= row["high"]
    assert 168 <= held <= 192


def test_sign_flips_by_hand():
    assert sign_flip(np.ones(3)) == 2 / 8
    assert sign_flip(np.arange(1, 11)) == 2 / 2**10
    differences = np.array([0.3, -0.1, 0.7, 0.2])
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product((1, -1), repeat=4)]
    assert sign_flip(differences) == np.mean([total >= abs(differences.sum()) - 1e-12 for total in sums])


def test_pairs():
    claims = [("t", "good", "bad"), ("t", "good", "twin")]
    table = pairs(TOY, TOY, claims, 2)
    assert table["answer"].tolist() == ["held", "not told apart"]
    assert table.loc[0, "cheaper"] == "10/10"
    assert table.loc[0, "chance"] == f"{0.05 ** (1 / 10):.2f} to 1.00"  # of Clopper and Pearson
    expected = math.sqrt((0.02 / 0.5) * (0.1 / 1.0))  # the missed target at the whole budget
    assert table.loc[0, "ratio"] == pytest.approx(expected, rel=0.1)


def test_the_correction_is_over_all_that_was_registered():
    """Ten seeds of one sign have p = 2/1024, which 25 claims leave below 5 % and 26 do not."""
    tables = [pairs(TOY, TOY, [("t", "good", "bad")], registered) for registered in (25, 26)]
    assert [table.loc[0, "answer"] for table in tables] == ["held", "not told apart"]


def test_who_takes_no_part_has_a_score_and_no_rank():
    more = pd.concat([TOY, hits({"good": [0.1], "bad": [0.2]}, tasks=["u"])])
    table = scores(more, samples=50).set_index("method")
    assert table["rank"].dropna().to_dict() == {"good": 1, "bad": 2}
    assert table.loc["twin", "score"] == scores(TOY, samples=50).set_index("method").loc["twin", "score"]
    assert table["tasks"].to_dict() == {"good": 2, "bad": 2, "twin": 1}
    assert profile(more)["twin"].iloc[-1] == 1.0  # on the task that it is on, it is about as good as the best


def test_further_seeds_must_agree():
    """What ten seeds tell apart is told apart only where the further ones have the same sign."""
    turned = TOY.replace({"method": {"good": "bad", "bad": "good"}})
    assert pairs(TOY, turned, [("t", "good", "bad")], 1)["answer"].tolist() == ["not told apart"]


def test_missed_by_both_tells_nothing():
    assert log_ratios(hits({"a": [math.inf], "b": [math.inf]}), "t", "a", "b").tolist() == [0.0] * 10


def test_a_profile_is_relative_to_who_is_there():
    shares = profile(hits({"a": [0.1, 0.1], "b": [0.2, 0.05], "never": [math.inf, math.inf]}))
    assert shares.iloc[0].to_dict() == {"a": 0.5, "b": 0.5, "never": 0.0}
    assert shares.iloc[-1].to_dict() == {"a": 1.0, "b": 1.0, "never": 0.0}
    assert shares.loc[:, "a"].searchsorted(1.0) == np.searchsorted(shares.index, 2.0)
