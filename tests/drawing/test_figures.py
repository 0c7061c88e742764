"""Figures that are written in several formats, and the rules that all pictures keep."""

import numpy as np
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from fedopt.drawing import figures
from fedopt.drawing.figures import Line


def test_a_figure_is_laid_out_once_for_all_formats(monkeypatch, tmp_path):
    laid, execute = [], ConstrainedLayoutEngine.execute
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *given: laid.append(execute(*given)))
    paths = [tmp_path / f"figure.{form}" for form in figures.FORMATS]
    with figures.pictures(paths, 2, title="two") as axes:
        for axis in axes:
            axis.plot([0, 1], [0, 1])
    assert len(laid) == 1
    assert all(path.exists() for path in paths)


def picture(tmp_path, lines, scale="linear", count=1, **more):
    """The axes of a figure that has these lines in each of its pictures."""
    with figures.pictures([tmp_path / "figure.png"], count) as axes:
        for axis in axes:
            axis.set_yscale(scale)
            figures.draw_lines(axis, lines, **more)
            figures.describe(axis, "comm_rounds", "loss")
    return axes


def method(j, of=1.0):
    x = np.arange(20.0)
    return Line(x, of * (30 - x + j), of * (29 - x + j), of * (31 - x + j))


@pytest.mark.parametrize("n", [3, 11, 30])
def test_four_lines_are_strong_and_no_two_look_alike(n, tmp_path):
    (axis,) = picture(tmp_path, {f"method {j}": method(j) for j in range(n)})
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axis.lines]
    assert len({*looks}) == n
    assert sum(colour != figures.GREY for colour, _, _ in looks) == min(n, 4)
    assert len(axis.collections) == min(n, 4)  # bands


@pytest.mark.parametrize(("n", "count"), [(8, 1), (11, 3), (40, 1)])
def test_a_legend_is_outside_and_lower_than_the_picture(n, count, tmp_path):
    axes = picture(tmp_path, {f"a method with quite a long name {j}": method(j) for j in range(n)}, count=count)
    figure = axes[0].figure
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.height <= axes[0].get_window_extent().height
    assert not any(box.overlaps(axis.get_tightbbox()) for axis in axes)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_letters_are_8_points_high_on_a_page(count, tmp_path):
    """A page is 7.6 inches wide; what is wider is shown smaller."""
    axes = picture(tmp_path, {"a": method(0), "b": method(1)}, count=count)
    figure = axes[0].figure
    shown = min(1, 7.6 / figure.get_figwidth())
    sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()}
    assert min(sizes) * shown >= 8 - 1e-9, sizes


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_one_run_that_diverges_does_not_set_the_limits(scale, tmp_path):
    lines = {"good": method(0), "other": method(3)}
    before = picture(tmp_path, lines, scale)[0].get_ylim()
    x = np.arange(10.0)
    mean = 30 * 10**x
    lines["bad"] = Line(x, mean, mean / 10, mean * 1e6)
    low, high = picture(tmp_path, lines, scale, diverged=["bad"])[0].get_ylim()
    of = np.log if scale == "log" else np.array
    assert low <= before[0]
    assert of(high) - of(before[1]) <= 0.6 * (of(before[1]) - of(before[0]))


def test_a_wide_band_leaves_the_means_half_of_the_height(tmp_path):
    x, mean = np.arange(20.0), np.linspace(10, 0, 20)
    wide = {"a": Line(x, mean, mean - 1e4, mean + 1e4), "b": Line(x, mean + 1, mean, mean + 2)}
    low, high = picture(tmp_path, wide)[0].get_ylim()
    assert high - low <= 2 * 11 * 1.15


def test_all_values_count_where_all_diverge(tmp_path):
    x, mean = np.arange(4.0), np.array([1.0, 10, 100, 1000])
    (axis,) = picture(tmp_path, {"a": Line(x, mean)}, "log", diverged=["a"])
    assert axis.get_ylim()[1] >= 1000


def test_pictures_with_one_axis_share_limits(tmp_path):
    with figures.pictures([tmp_path / "figure.png"], 2, shared={"sharey": "row"}) as axes:
        for axis, size in zip(axes, (1, 10), strict=True):
            figures.draw_lines(axis, {"a": method(0, size)})
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_ylim()[1] > 300
