"""The figures of published experiments, drawn from runs made by hand and from kept tables."""

import math

import numpy as np
import pandas as pd
import pytest
from support.command import ROOT
from support.experiments import FEDMSA
from support.records import record

from fedopt.analysis.runs import read as read_run
from fedopt.config.build import build
from fedopt.drawing import figures
from fedopt.errors import UserError
from fedopt.papers import published
from fedopt.papers.figure import curves, draw, draw_curves, draw_points


def test_curves(tmp_path, made):
    runs = {
        label: [read_run(record(tmp_path / f"{label}{s}", (s + 1, 4), s, metric="distance"), "round") for s in (0, 1)]
        for label in "ABC"
    }
    node = {**FEDMSA, "lines": {label: [] for label in "ABC"}, "y": ["distance", "train_loss"], "x": "round"}
    node |= {"panels": {"left": ["A", "C"], "right": ["B", "C"]}, "transform": "square"}
    node["constants"] = {"published": 3.0}
    described = build(published.Published, {**node, "scale": "log"}, "experiment")
    draw_curves([tmp_path / "a.png"], described, curves(described, runs))
    (figure,) = made
    assert [axes.get_title() for axes in figure.axes] == ["left", "left", "right", "right"]
    first, last = figure.axes[0], figure.axes[-1]
    assert (first.get_yscale(), first.get_xlabel(), last.get_xlabel()) == ("log", "", "rounds")
    assert first.get_ylabel().replace("\n", " ") == "distance to the solution, squared"
    drawn = {line.get_label(): list(line.get_ydata()) for line in first.lines}
    assert drawn["A"] == pytest.approx([2, 16])  # geometric means of 1, 4 and 16, 16
    assert drawn["3, published"] == [3, 3]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "C", "3, published", "B"]
    assert "geometric mean of 2 seeds" in figure.get_supxlabel()
    assert figure.legends[0].get_title().get_text().startswith(described.paper)


def test_a_line_says_that_a_run_diverged(tmp_path, made):
    runs = {
        "A": [read_run(record(tmp_path / f"a{s}", (1, 2), s, metric="distance"), "round") for s in (0, 1)],
        "B": [
            read_run(record(tmp_path / "b0", (1, 3, 2), 0, metric="distance"), "round"),
            read_run(record(tmp_path / "b1", (1, 9), 1, metric="distance", status="diverged"), "round"),
        ],
    }
    node = {**FEDMSA, "lines": {"A": [], "B": []}, "y": "distance", "x": "round", "scale": "linear"}
    described = build(published.Published, node, "experiment")
    draw_curves([tmp_path / "a.png"], described, curves(described, runs))
    (axes,) = made[0].axes
    (end,) = [line for line in axes.lines if line.get_marker() == "X" and len(line.get_xdata())]
    line = next(line for line in axes.lines if line.get_label() == "B")
    top = axes.get_ylim()[1]
    assert top < 6 == line.get_ydata()[-1]  # the diverged line does not set the limits
    assert (end.get_color(), *end.get_xydata()[0]) == (line.get_color(), 10, top)
    assert "the first of the line's runs diverges here" in [text.get_text() for text in made[0].legends[0].get_texts()]
    made[0].draw_without_rendering()
    assert (
        axes.get_position().height * made[0].get_figheight() > 0.6 * figures.HEIGHT
    )  # the legend took no room from it


@pytest.mark.parametrize(("y_from", "bottom"), [(1.5, 1.5), (50, None)])
def test_panels(y_from, bottom, tmp_path, made):
    """Lines are called, and look, as what tells them apart in their panels. An axis does not begin above all values."""
    labels = [f"{method}, q = {q}" for q in (1, 2, 3) for method in "AB"]
    runs = {label: [read_run(record(tmp_path / label, (1, 4), 0, metric="distance"), "round")] for label in labels}
    panels = {f"q = {q}": [f"A, q = {q}", f"B, q = {q}"] for q in (1, 2, 3)}
    node = {**FEDMSA, "lines": {label: [] for label in labels}, "panels": panels, "x": "round", "y_from": y_from}
    node["y_label"] = "a label that is much longer than the axis that it belongs to"
    described = build(published.Published, node, "experiment")
    draw_curves([tmp_path / "a.png"], described, curves(described, runs))
    (figure,) = made
    assert [axes.get_title() for axes in figure.axes] == list(panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "B"]
    assert len({tuple(line.get_color() for line in axes.lines) for axes in figure.axes}) == 1
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low < high
        assert low == bottom or bottom is None
        heights = [text.get_window_extent().height for text in (axes.yaxis.label, axes)]
        assert heights[0] <= heights[1]


def test_no_picture_of_nothing(tmp_path, experiment, command):
    """A figure of which no run has ended is not drawn."""
    experiment("one", lines={"A": ["problem.x0=-1e38", "algo.alpha=1e300"]})
    assert command("test/one").code == 1
    assert not (tmp_path / "outputs/reproduce/test/one/figure.png").exists()


@pytest.mark.full
def test_points(tmp_path, experiment, command, made):
    lines = {f"K = {K}": f"algo.K={K}" for K in (1, 2)}
    point = {"points": {"s": {K: f"K = {K}" for K in (1, 2)}}, "point": "per_round(line, 'grad_calls')"}
    claim = {"says": "slope", "measure": "fit('s')", "at_least": 0}
    experiment("one", lines=lines, **point, x_label="K", y_label="calls", scale="log", claims=[claim])
    assert command("test/one").code == 0
    table = pd.read_csv(tmp_path / "outputs/reproduce/test/one/curves.csv")
    assert list(table.columns) == ["series", "x", "seed", "y"]
    assert (len(table), list(table["x"].unique())) == (4, [1, 2])
    y = table.groupby("x")["y"].mean()
    (row,) = pd.read_csv(tmp_path / "outputs/reproduce/test/one/claims.csv").to_dict("records")
    assert row["mean"] == pytest.approx(math.log(y[2] / y[1]) / math.log(2))
    (axes,) = made[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("K", "calls", "log")


@pytest.mark.parametrize(
    ("metric", "values", "scale"),
    [("distance", (100, 1), "log"), ("distance", (4, 1), "linear"), ("test_accuracy", (0.1, 90), "linear")],
)
def test_values_that_span_decades_are_drawn_on_a_logarithmic_axis(metric, values, scale, tmp_path, made):
    runs = {"A": [read_run(record(tmp_path / "a", values, metric=metric), "round")]}
    node = {**FEDMSA, "lines": {"A": []}, "x": "round", "y": metric}
    for said, expected in (("auto", scale), ("linear", "linear"), ("log", "log")):
        described = build(published.Published, {**node, "scale": said}, "experiment")
        draw_curves([tmp_path / "a.png"], described, curves(described, runs))
        assert made[-1].axes[0].get_yscale() == expected


def test_points_without_a_value(tmp_path, experiment, command):
    """Nothing can be drawn on a logarithmic scale then."""
    point = {"points": {"s": {1: "FedMSA"}}, "point": "first(line, 0)", "scale": "log", "seeds": 1}
    experiment("one", **point)
    assert command("test/one").code == 0
    assert math.isinf(pd.read_csv(tmp_path / "outputs/reproduce/test/one/curves.csv")["y"][0])


def test_panels_of_points(tmp_path, made):
    """Each has its axes and labels, and its own series."""
    described = published.load("fedmsa/theorem31")
    draw_points([tmp_path / "a.png"], described, pd.read_csv(ROOT / "docs/results/fedmsa/theorem31/curves.csv"))
    left, right = made[0].axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("local steps K", "clients M")
    assert [left.get_legend_handles_labels()[1], right.get_legend_handles_labels()[1]] == list(
        described.panels.values()
    )
    with pytest.raises(UserError, match="Q: the figure has no such series"):
        build(published.Published, {**FEDMSA, "lines": {"A": []}, "points": {"s": {1: "A"}}, "point": "final(line)",
                                    "panels": {"p": ["s", "Q"]}}).check_labels()  # fmt: skip


@pytest.mark.full
def test_few_points_stand_beside_each_other(tmp_path, made):
    """With bars, where lines and bands would lie on each other; legends name methods in their order, and marks last."""
    described = published.load("zohfl/fig2_delayed")
    draw_curves([tmp_path / "a.png"], described, pd.read_csv(ROOT / "docs/results/zohfl/fig2_delayed/curves.csv"))
    described = published.load("fednest/fig2a")
    draw_curves([tmp_path / "a.png"], described, pd.read_csv(ROOT / "docs/results/fednest/fig2a/curves.csv"))
    few, many = made
    assert few.axes[0].get_gridspec().get_geometry() == (4, 3)
    marked = [line for line in few.axes[0].lines if line.get_label().startswith("tau")]
    assert len({tuple(line.get_xdata()) for line in marked}) == 3
    assert "bars: " in few.get_supxlabel()
    assert [text.get_text() for text in few.legends[0].get_texts()] == ["tau = 5", "tau = 20", "tau = 50"]
    assert len({axes.get_ylim() for axes in few.axes[:3]}) == 1
    entries = {text.get_text() for text in many.legends[0].get_texts()}
    assert {"FedNest, iid", "FedNest, non-iid", "LFedNest, iid", "LFedNest, non-iid", "penalty"} < entries
    assert "FedNest" not in entries
    for figure in made:
        assert all(axes.get_ylim()[1] <= 100 for axes in figure.axes)


def test_labels_that_are_no_formula(tmp_path, experiment, command):
    """Dollars, and scripts that the font lacks."""
    texts = {"title": r"$\frac{$", "x_label": "$ 5", "y_label": "$\\alpha$ 中文", "lines": {r"a $\nope{$ b": []}}
    experiment("one", seeds=1, **texts)
    result = command("test/one")
    assert (result.code, result.err) == (0, "")
    assert (tmp_path / "outputs/reproduce/test/one/figure.png").exists()


def test_a_point_of_which_a_seed_has_no_value_is_left_out(tmp_path, made):
    """As a mean over the other seeds would be that of the survivors."""
    described = published.load("fedmsa/theorem31")
    table = pd.read_csv(ROOT / "docs/results/fedmsa/theorem31/curves.csv")
    lost = (table["series"] == "homogeneous clients") & (table["x"] == 1) & (table["seed"] == 0)
    draw([tmp_path / "a.png"], described, table.assign(y=table["y"].where(~lost, np.inf)))
    x = made[0].axes[0].containers[list(described.points).index("homogeneous clients")].lines[0].get_xdata()
    assert sorted(x) == sorted(set(table[table["series"] == "homogeneous clients"]["x"]) - {1})
    draw([tmp_path / "b.png"], described, table.assign(y=table["y"].where(table["seed"] > 0, np.inf)))
    assert not (tmp_path / "b.png").exists()
