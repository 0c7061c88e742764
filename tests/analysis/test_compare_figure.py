"""The figure of a comparison: sizes, legend, caption, looks and limits."""

import json
import time

import pandas as pd
import pytest
import scipy.stats
from matplotlib.text import Text
from support.cases import few
from support.records import FEDMSA, named, record, two_problems

from fedopt.analysis import Comparison, lines
from fedopt.analysis.runs import read as read_run
from fedopt.drawing import figures, run
from fedopt.metrics import Metric


def caption(figure):
    """What stands below the axes."""
    return figure.get_supxlabel().replace("\n", " ")


NAMES = ["a", "FedNest", "a method with a name that is much longer than others have, as users write them" * 2]


SIZES = {"usual": [], "narrow": ["--width", "2"], "wide": ["--width", "10", "--height", "8"]}


@pytest.mark.pictures
def test_another_label_of_the_metric(tmp_path, command, drawn):
    record(tmp_path / "runs" / "0", (10, 90))
    assert "final acc. [%]" in command(tmp_path / "runs", "--label", "acc. [%]")[2]
    assert drawn[0].axes[0].get_ylabel() == "acc. [%]"


@pytest.mark.pictures
def test_problems_have_pictures_of_their_own(tmp_path, command, drawn):
    """With a scale of its own."""
    record(tmp_path / "runs" / "a", (1e-3, 1), metric="distance")
    record(tmp_path / "runs" / "b", (5, 6), metric="distance", problem={"_target_": "fedopt.problems.saddle.Saddle"})
    command(tmp_path / "runs", "--title", "both", "--target", 2)
    one, other = drawn[0].axes
    assert [one.get_title(), other.get_title()] == ["Mco", "Saddle"]
    assert [one.get_yscale(), other.get_yscale()] == ["log", "linear"]
    assert [list(axes.lines[0].get_ydata()) for axes in (one, other)] == [pytest.approx([1e-3, 1]), [5, 6]]
    assert all(axes.lines[1].get_label() == "target 2" for axes in (one, other))
    assert drawn[0].legends[0].get_title().get_text() == "both"


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("lines", "name", "size"),
    few([(14, NAMES[2], "usual"), (2, NAMES[2], "narrow"), (6, NAMES[1], "narrow"), (14, NAMES[2], "wide"),
         (2, NAMES[0], "usual"), (14, NAMES[0], "wide")], lambda case: case[0] < 14),
)  # fmt: skip
def test_nothing_overlaps_or_is_cut_off(lines, name, size, tmp_path, command, drawn):
    """Methods stand in rows above the axes, and what is drawn below. One seed, values that are not numbers."""
    for j in range(lines):
        values = (1, 2, 3) if j else (1, float("nan"), float("nan"))
        record(tmp_path / "runs" / str(j), values, algo={**FEDMSA, "rule": f"{name} {j}"})
    code, _, _, err = command(tmp_path / "runs", *SIZES[size], "--title", "A title of a picture")
    assert code == 0, err
    (figure,) = drawn
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    area, below = axes.get_window_extent(), figure._supxlabel
    assert legend.get_window_extent().y0 >= area.y1 - 1
    assert below.get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0 + 1
    assert min(area.width, area.height) > 60
    read = figure.get_tightbbox()
    assert read.x0 >= -0.02
    assert read.y0 >= -0.02
    assert read.x1 <= figure.get_figwidth() + 0.02
    assert read.y1 <= figure.get_figheight() + 0.02
    rows = {round(text.get_window_extent().y0) for text in legend.get_texts()}
    if name == "a":
        assert len(rows) == 1  # of fourteen lines the legend names those that have colours


@pytest.mark.pictures
def test_methods_are_read_row_by_row(tmp_path, command, drawn):
    for j in range(5):
        record(tmp_path / "runs" / str(j), (1, 2, 3), algo={**FEDMSA, "rule": f"no. {j}"})
    command(tmp_path / "runs")
    drawn[0].draw_without_rendering()
    extents = [(text.get_window_extent(), text.get_text()) for text in drawn[0].legends[0].get_texts()]
    read = [text[-1] for box, text in sorted(extents, key=lambda pair: (-round(pair[0].y0 / 5), pair[0].x0))]
    assert read == ["0", "1", "2", "3", "4"]
    assert len({round(box.x0) for box, _ in extents}) > 1


@pytest.mark.pictures
def test_sizes_of_a_picture(tmp_path, command, drawn):
    """Inches of all of it, and points."""
    record(tmp_path / "runs" / "0", (1, 2, 3))
    command(tmp_path / "runs")
    command(tmp_path / "runs", "--width", "5", "--height", "3", "--font", "11")
    assert tuple(drawn[1].get_size_inches()) == (5, 3)
    assert [figure.axes[0].xaxis.label.get_fontsize() for figure in drawn] == [8, 11]
    for options in (["--width", "0"], ["--height", "1e9"], ["--font", "nan"], ["--width", "1", "--font", "40"]):
        code, _, _, err = command(tmp_path / "runs", *options)
        assert (code, err.count("\n")) == (2, 1)
    assert "no space for the axes in 1 x" in err


@pytest.mark.pictures
def test_the_caption_can_be_left_out(tmp_path, command, drawn):
    record(tmp_path / "runs" / "0", (1, 2, 3))
    assert "figure: lines: 1 seed" in command(tmp_path / "runs", "--no-caption")[2]
    assert caption(drawn[0]) == ""


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("band", "reach"),
    [("std", 10), ("sem", 10 / 3**0.5), ("ci", scipy.stats.t.ppf(0.975, 2) * 10 / 3**0.5), ("minmax", 10)],
)
def test_bands(band, reach, tmp_path, command, drawn):
    """Of 40, 50 and 60, whose deviation is 10. The caption and the points say which."""
    for seed, value in enumerate((40, 50, 60)):
        record(tmp_path / "runs" / str(seed), (value, value), seed)
    command(tmp_path / "runs", "--band", band)
    points = pd.read_csv(tmp_path / "out" / "compare_curves.csv")
    assert list(points["low"]) == pytest.approx([50 - reach] * 2)
    assert list(points["high"]) == pytest.approx([50 + reach] * 2)
    assert set(points["band"]) == {band}
    assert f"bands: {lines.BANDS[band]}" in caption(drawn[0])
    assert len({*lines.BANDS.values()}) == 4


@pytest.mark.pictures
def test_picture(tmp_path, drawn):
    run = read_run(record(tmp_path / "0", (100, 1), metric="distance"), "bytes")
    two = {"FedMSA, algo.K=5": [run], "FedAvg": [run]}
    Comparison([], two, "distance", "bytes", 2.0).draw(tmp_path / "a.png")
    (figure,) = drawn
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("communication", "distance to the solution")
    assert axes.xaxis.get_major_formatter()(1500) == "1.5 kB"
    assert axes.get_yscale() == "log"
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"FedMSA, algo.K=5", "FedAvg", "target 2"}
    assert list(axes.lines[0].get_xdata()) == [0, 1500]
    assert list(axes.lines[2].get_ydata()) == [2, 2]  # the target
    assert figure.get_size_inches()[0] == figures.WIDTH
    assert len({tuple(figures.look(j).values()) for j in range(100)}) == 100


@pytest.mark.pictures
@pytest.mark.parametrize("size", few([10_000, 500_000], lambda size: size < 500_000, pytest.mark.slow))
def test_a_label_of_half_a_megabyte(size, tmp_path, command, drawn):
    """It is cut before it comes into a picture."""
    for seed, label in enumerate(("x" * size, "many words " * (size // 10))):
        folder = record(
            tmp_path / "runs" / str(seed), [70, 80], seed, algo={"_target_": "a.B", "K": label[: size // 5]}
        )
        card = json.loads((folder / "run.json").read_text())
        card["metrics"][0]["label"] = label
        (folder / "run.json").write_text(json.dumps(card))
    started = time.process_time()
    assert command(tmp_path / "runs", "--group-by", "algo.K", "--title", "y" * size)[0] == 0
    assert time.process_time() - started < 30
    assert max(drawn[0].get_size_inches()) < 20
    assert max(len(text.get_text()) for text in drawn[0].findobj(Text)) < 2000


@pytest.mark.pictures
@pytest.mark.parametrize(("n", "rows", "columns"), [(1, 1, 1), (3, 1, 3), (4, 2, 2), (5, 2, 3)])
def test_metrics_of_a_run_leave_no_more_than_one_place_empty(n, rows, columns, tmp_path, drawn):
    described = [Metric(f"m{j}", f"metric {j}") for j in range(n)]
    table = pd.DataFrame({"comm_rounds": [0, 2], **{metric.name: [1, 2] for metric in described}})
    table.to_csv(tmp_path / "metrics.csv", index=False)
    run.metrics(tmp_path / "metrics.png", tmp_path / "metrics.csv", described)
    layout = drawn[0].axes[0].get_gridspec()
    assert (layout.nrows, layout.ncols, len(drawn[0].axes)) == (rows, columns, n)


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([(90, 80), (92, 85)], "lines: mean of 2 seeds; bands: ± one standard deviation"),
        ([(1000, 10), (1000, 1)], "lines: geometric mean of 2 seeds; bands: ± one standard deviation of the logarithm"),
        ([(90, 80)], "lines: 1 seed"),
    ],
)
def test_the_legend_says_what_is_drawn(values, said, tmp_path, command, drawn):
    for seed, of in enumerate(values):
        record(tmp_path / "runs" / str(seed), of, seed, metric="distance")
    command(tmp_path / "runs")
    assert caption(drawn[0]) == f"{said}; x: communication rounds between the server and the clients"
    command(tmp_path / "runs", "--no-logy", "--title", "T", "--ylim=-1,5")
    (axes,) = drawn[1].axes
    assert (axes.get_yscale(), axes.get_ylim()) == ("linear", (-1, 5))
    assert drawn[1].legends[0].get_title().get_text() == "T"


@pytest.mark.pictures
@pytest.mark.parametrize("band", few(["std", "sem", "ci", "minmax"], lambda band: band == "std"))
def test_percentages_have_the_ends_of_percentages(band, tmp_path, command, drawn):
    """Also bands; what is no percentage, or has values beyond, and --ylim, are left alone."""
    for seed, values in enumerate([(0, 99), (8, 1)]):
        record(tmp_path / "runs" / f"a{seed}", values, seed)
        record(tmp_path / "other" / f"a{seed}", values, seed, metric="gap")
        record(tmp_path / "beyond" / f"a{seed}", [2 * value for value in values], seed)
    command(tmp_path / "runs", "--band", band, "--label", "accuracy")
    command(tmp_path / "other", "--metric", "gap", "--no-logy")
    command(tmp_path / "runs", "--ylim=-50,200")
    command(tmp_path / "beyond")
    axes = [figure.axes[0] for figure in drawn]
    low, high = axes[0].get_ylim()
    assert 0 <= low < high <= 100
    edges = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert 0 <= min(edges) < max(edges) <= 100
    assert axes[0].get_ylabel() == "accuracy (%)"
    assert axes[1].get_ylim()[0] < -10
    assert axes[1].get_ylim()[1] > 70
    assert axes[2].get_ylim() == (-50, 200)
    assert axes[3].get_ylim()[1] > 150


@pytest.mark.pictures
def test_limits(tmp_path, command, drawn):
    record(tmp_path / "runs" / "a", (1, 2, 300), metric="distance")
    command(tmp_path / "runs", "--xlim", "5,20", "--ylim", "1,10")
    axes = drawn[-1].axes[0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((5, 20), (1, 10))
    result = command(tmp_path / "runs", "--ylim", "0,20")
    assert "--ylim: a logarithmic axis must begin above 0; use --no-logy" in result[-1]


@pytest.mark.full
@pytest.mark.pictures
def test_a_legend_leaves_room_for_the_lines(tmp_path, command, drawn):
    """Also one of many long labels, and one of two columns."""
    for j in range(14):
        record(tmp_path / "runs" / str(j), (1, 2, 3), algo={**FEDMSA, "rule": f"{'a long word ' * 8}{j}"})
    command(tmp_path / "runs")
    record(tmp_path / "few" / "a", (1, 2, 3))
    figure = drawn[-1]
    figure.draw_without_rendering()
    assert figure.axes[0].get_window_extent().height > 100  # dots, of 2.3 inches at 100
    assert not figure.legends[0].get_window_extent().overlaps(figure.axes[0].get_window_extent())


def test_a_method_has_one_look_on_all_problems(tmp_path, command, drawn):
    """The legend names the method, the title the problem."""
    two_problems(tmp_path / "runs", {"fedmsa": (90, 60), "codasca": (80, 70), "fednest": (70, 80)})
    assert command(tmp_path / "runs")[0] == 0
    looks = [{line.get_label(): (line.get_color(), line.get_marker()) for line in axes.lines} for axes in drawn[0].axes]
    assert looks[0] == looks[1]
    assert {*looks[0]} == {"FedMSA", "CODASCA", "FedNest"}
    assert len({*looks[0].values()}) == 3
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [*looks[0]]


def test_the_best_of_many_methods_have_colours(tmp_path, command, drawn):
    for j, final in enumerate((50, 90, 40, 80, 70, 60)):
        named(tmp_path / "runs" / str(j), f"m{j}", 1, final, algo={**FEDMSA, "_target_": f"a.M{j}"})
    command(tmp_path / "runs")
    coloured = [line.get_label() for line in drawn[0].axes[0].lines if line.get_color() != figures.GREY]
    assert coloured == ["m1", "m3", "m4", "m5"]


@pytest.mark.pictures
def test_colours_stay_with_names(tmp_path, command, drawn):
    """In the order of --names, also where some have no line."""
    for algo in ("a", "b", "c"):
        for K in (1, 5):
            named(tmp_path / "runs" / f"{algo}{K}", algo, 1, 2, algo={**FEDMSA, "K": K})
    names = ["--names", "c=C", "--names", "gone=G", "--names", "b=B"]
    _, _, _, err = command(tmp_path / "runs", "--group-by", "algo,algo.K", *names)
    assert "--names=gone=G: no line has this name; choose from a, algo.K=1" in err
    lines = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines}
    colours = figures.OKABE_ITO
    assert lines["C, algo.K=1"] == (colours[0], "-")
    assert lines["C, algo.K=5"] == (colours[1], "-")
    assert lines["B, algo.K=1"] == (colours[2], "-")
    assert len(set(lines.values())) == 6
    command(tmp_path / "runs" / "b1", *names)
    assert drawn[1].axes[0].lines[0].get_color() == colours[2]
    assert len({line.get_marker() for line in drawn[0].axes[0].lines}) > 3


@pytest.mark.pictures
@pytest.mark.parametrize("place", ["inside", "none"])
def test_legends_elsewhere(place, tmp_path, command, drawn):
    record(tmp_path / "runs" / "0", (10, 90))
    out = command(tmp_path / "runs", "--legend", place)[2]
    assert "figure: lines: 1 seed" in out
    assert (drawn[0].axes[0].get_legend() is not None) == (place == "inside")
    assert not drawn[0].legends
    assert caption(drawn[0]).startswith("lines: 1 seed")
    command(tmp_path / "runs", "--legend", place, "--no-caption")
    assert drawn[1].get_size_inches()[1] == figures.HEIGHT


ROOTS = r"$\sqrt{x}$" * 12


NATURAL = r"mean of $\frac{1}{M} \sum_{i=1}^M \Vert \nabla f_i(x, y^\star(x)) \Vert^2$ of all clients"


@pytest.mark.pictures
@pytest.mark.parametrize(("label", "more"), [(ROOTS, ()), (ROOTS, ("--height", 1.2)), (NATURAL, ("--height", 1.2))])
def test_labels_with_formulas_are_broken_between_them(label, more, tmp_path, command, drawn):
    """And not within one, which is set smaller where it does not fit."""
    record(tmp_path / "runs" / "0", (1, 2), metric="gap")
    assert command(tmp_path / "runs", "--label", label, *more)[0] == 0
    drawn[0].draw_without_rendering()
    text = drawn[0].axes[0].yaxis.label
    assert "".join(text.get_text().split()) == "".join(label.split())
    assert all(line.count("$") % 2 == 0 for line in text.get_text().splitlines())
    assert text.get_window_extent().height <= 0.66 * drawn[0].bbox.height
