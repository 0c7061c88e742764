"""Measures: expressions on run folders made by hand, and what of them is on the axes of a figure."""

import math

import numpy as np
import pytest
from support.cases import few
from support.experiments import values
from support.records import record

from fedopt.papers.measure import Measure
from fedopt.papers.seed_runs import Unmeasurable


def test_words(tmp_path):
    a = record(tmp_path / "a", (10, 85, 91, 80, 84))  # in rounds 0, 10, 20, 30, 40
    b = record(tmp_path / "b", (4, 1, 2), metric="distance", status="diverged")
    c = record(tmp_path / "c", (4, 1, "nan"), metric="distance", status="diverged")
    of = values({"A": a, "B": b, "C": c})
    assert of("final('A')") == 84
    assert of("final('B', 'distance')") == 2
    assert of("final('C', 'distance')") == math.inf
    assert of("best('C', 'distance')") == 1
    assert of("best('A') - best('B', 'distance')") == 90
    assert of("at('A', 29.9)") == 91
    assert of("at('A', 40, x='comm_rounds')") == 91
    assert of("first('A', 85)") == 10
    assert (of("first('A', 99)"), of("first('A', 99, or_end=True)")) == (math.inf, 40)
    assert of("first('A', 90, x='bytes')") == 20 * 150
    assert (of("first('A', 85, n=2)"), of("first('A', 50, n=3)"), of("first('A', 86, n=4)")) == (20, 20, math.inf)
    assert of("first('B', 1, metric='distance')") == 10
    assert of("first('A', 99) >= 5 * first('A', 90)") == 1
    assert of("smooth('A', 2)") == 82
    assert of("smooth('A')") == 85
    assert of("noise('A', 4)") == pytest.approx(np.std([6, -11, 4], ddof=1))
    assert of("smooth('A', 2, until=20)") == 88
    assert of("rate('B', 0, 20, 'distance')") == pytest.approx(np.log10(2 / 4) / 20)
    for measure in ("smooth('A', until=-1)", "at('A', -1)", "noise('A', 3, until=-1)", "noise('A', 2)"):
        with pytest.raises(Unmeasurable, match=r"A has (no evaluation|fewer than three evaluations)"):
            of(measure)
    with pytest.raises(Unmeasurable, match="fewer than two"):
        of("rate('B', 15, 20, 'distance')")
    assert of("first_mean_square('B', 7.5, metric='distance')") == 20
    assert of("mean_square('B', 2, 'distance')") == pytest.approx((1 + 4) / 2)
    assert of("per_round('A', 'comm_rounds')") == 2
    assert (of("diverged('A')"), of("diverged('B')")) == (0, 1)
    assert of("abs(min(1, -3)) + log10(100)") == 5


def test_points_and_their_slope(tmp_path):
    runs = {f"n={n}": record(tmp_path / str(n), (16, 8 / n), metric="distance") for n in (1, 2, 4)}
    points = {"s": {n: f"n={n}" for n in (1, 2, 4)}}
    for point, slope in (("x * final(line)", 0), ("final(line)", -1)):
        fitted = values(runs, "distance", points=points, point={"s": Measure.parse(point, "line", "x")})
        assert fitted("fit('s')") == pytest.approx(slope)
        assert fitted("2 * fit('s') - final('n=4')") == pytest.approx(2 * slope - 2)
    assert Measure.parse("fit('s') / final('A')").lines(points) == ["n=1", "n=2", "n=4", "A"]


NO_MEASURES = [
    ("final('FedMS')", "final() of FedMS: the figure has no such line, did you mean FedMSA?"),
    ("finl('FedMSA')", "there is no finl(), did you mean final?"),
    ("first('FedMSA')", "missing a required argument: 'value'"),
    ("final(FedMSA)", "'FedMSA' is not defined"),
    ("final('FedMSA'", "cannot be evaluated"),
    ("fit('FedMSA')", "fit() of FedMSA: the figure has no such series"),
    ("__import__('os')", "there is no __import__()"),
    ("(1).real.bit_length()", "cannot be evaluated"),
    ("+".join(["1"] * 3000), "cannot be evaluated"),
    ("'%09999999999d' % 1 == 0", "Operator"),
    ("final('FedMSA', 'a' * 10 ** 9)", "operands must be numbers"),
    ("f'{1:>9999999999}'", "cannot be evaluated"),
    ("line * 10 ** 9", "'line' is not defined"),
    ("final('FedMSA') + x", "'x' is not defined"),
    ("max(final('FedMSA'), 'b')", "operands must be numbers"),
    ("[1] * 10 ** 10", "cannot be evaluated"),
    ("1 << 10 ** 10", "Operator"),
    ("final('FedMSA').real", "cannot be evaluated"),
    ("9 ** 9 ** 9", "math range error"),
    ("1 / (2 - 2)", "division by zero"),
    ("(lambda: 1)()", "cannot be evaluated"),
    ("final('FedMSA') and 1", "cannot be evaluated"),
]


@pytest.mark.parametrize(
    ("measure", "said"),
    few(NO_MEASURES, lambda case: NO_MEASURES.index(case) % 5 == 0),
)
def test_measures_that_could_never_work(measure, said, experiment, command):
    experiment("one", claims=[{"says": "it", "measure": measure, "at_least": 0}])
    result = command("test/one")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("fedopt: experiment/test/one.yaml: claim 'it': ")
    assert said in result.err
    assert result.err.count("\n") == 1
