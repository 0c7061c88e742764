"""Lines of several runs: means on the union of their costs."""

import numpy as np
import pytest
from matplotlib.scale import SymmetricalLogTransform
from support.records import record

import fedopt
from fedopt.analysis import lines
from fedopt.analysis.runs import read as read_run
from fedopt.drawing import PlotStyle, figures
from fedopt.metrics import Metric


def curve(*runs, log=False, **options):
    read, how = [read_run(run, "round") for run in runs], PlotStyle(**options)
    return [list(part) for part in lines.line_of(read, "distance", figures.named_scale(log), how=how)]


def test_curve_on_the_union_of_x(tmp_path):
    tens = record(tmp_path / "0", (0, 10, 40), metric="distance")  # in rounds 0, 10, 20
    fives = record(tmp_path / "1", (2, 1, 10), metric="distance", every=5)  # in rounds 0, 5, 10
    cost, mean, low, high = curve(tens, fives)
    assert cost == [0, 5, 10]  # fives has finished: tens alone is no mean of both
    assert mean == [1, 3, 10]  # of 0, 5, 10 and 2, 1, 10
    assert np.subtract(high, mean) == pytest.approx([2**0.5, 8**0.5, 0])
    assert np.subtract(mean, low) == pytest.approx([2**0.5, 8**0.5, 0])
    assert curve(tens) == [[0, 10, 20], *[[0, 10, 40]] * 3]
    table = (fives / "metrics.csv").read_text().splitlines()
    (fives / "metrics.csv").write_text("\n".join([table[0], *table[2:]]) + "\n")  # in rounds 5, 10
    assert curve(tens, fives)[:2] == [[5, 10], [3, 10]]


def test_curve_with_a_run_on_its_way(tmp_path):
    tens = record(tmp_path / "0", (0, 10, 40), metric="distance")
    running = record(tmp_path / "1", (2, 1, 10), metric="distance", every=5, status="running")
    cost, mean, _, high = curve(tens, running)
    assert (cost, mean) == ([0, 5, 10, 20], [1, 3, 10, 40])
    assert np.subtract(high, mean) == pytest.approx([2**0.5, 8**0.5, 0, 0])
    alone = record(tmp_path / "2", (0, 6), metric="distance", status="running")
    assert curve(alone, running)[:2] == [[0, 5, 10], [1, 2, 8]]


def test_geometric_means_on_a_logarithmic_axis(tmp_path):
    """Of 1 and 100: 10, and a deviation of the logarithm of log(100) / sqrt(2)."""
    runs = [record(tmp_path / str(j), (value, 1), metric="distance") for j, value in enumerate((1, 100))]
    _, mean, low, high = curve(*runs, log=True)
    assert mean == pytest.approx([10, 1])
    factor = 100 ** (2**-0.5)
    assert (low[0], high[0]) == (pytest.approx(10 / factor), pytest.approx(10 * factor))
    assert (low[1], high[1]) == (pytest.approx(1), pytest.approx(1))
    reached = record(tmp_path / "2", (4, 0), metric="distance")
    assert curve(reached, log=True)[1] == [pytest.approx(4), pytest.approx(np.nan, nan_ok=True)]


def test_lines_are_straight_on_the_axes(tmp_path, drawn):
    """On logarithmic ones and around 0: seeds on one line are on it between evaluations too, in rounds 5, 10, 15 as in 20."""
    fives = record(tmp_path / "0", (100, 10, 1, 0.1, 0.01), metric="distance", every=5)
    twenties = record(tmp_path / "1", (100, 0.01), metric="distance", every=20)
    assert curve(fives, twenties, log=True)[1] == pytest.approx([100, 10, 1, 0.1, 0.01])
    symlog = SymmetricalLogTransform(10, 1e-3, 1)
    below = symlog.inverted().transform(np.linspace(symlog.transform(100), symlog.transform(-1e-3), 5))
    for every, values in ((5, below), (20, below[[0, -1]])):
        record(tmp_path / "runs" / str(every), values, every, metric="distance", every=every)
    points = fedopt.compare([tmp_path / "runs"]).draw()
    assert points["distance"].to_numpy() == pytest.approx(below)


@pytest.mark.parametrize(
    ("values", "scale"),
    [([100, 1, -4e-6, -5e-6], "symlog"), ([100, 1, 1e-3], "log"), ([100, -1, -90], "linear"), ([3, 2, 1], "linear")],
)
def test_small_values_below_0_leave_the_axis_logarithmic(values, scale):
    """As of a suboptimality that noise takes below 0."""
    axes = figures.Figure().subplots()
    axes.set_yscale(figures.scale_of(Metric("gap", "gap"), np.array(values)))
    assert axes.get_yscale() == scale
    if scale == "symlog":
        assert axes.yaxis.get_transform().linthresh == pytest.approx(1e-5)
