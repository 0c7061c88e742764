"""The comparison of runs: groups of them, a table, paired tests and a picture. Nothing here imports torch."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat
from pydantic.dataclasses import dataclass as validated

from fedopt.analysis.groups import default_keys, first_metric, known_keys, labels_of, legend_labels, order, with_metric
from fedopt.analysis.lines import curve, draw_line, explained
from fedopt.analysis.runs import ABSENT, PROBLEM, Recorded, by_problem, usable
from fedopt.analysis.stats import tests
from fedopt.analysis.summary import COLUMNS, shown_table, tests_shown, write_shown
from fedopt.analysis.tables import moments
from fedopt.analysis.unequal import unequal, with_status
from fedopt.config.build import build
from fedopt.console.say import note
from fedopt.console.texts import html_text
from fedopt.drawing import figures
from fedopt.drawing.page import Page
from fedopt.drawing.styles import read_style
from fedopt.errors import UserError
from fedopt.metrics import COSTS
from fedopt.results.folder import OVER

TABLES = ("csv", "latex", "markdown")


def odd(number: int) -> int:
    if number < 1 or number % 2 == 0:
        raise ValueError(f"{number} is not an odd number, such as 1, 3, 5, with as many before as after")
    return number


def _rising(limits: tuple[float, float]) -> tuple[float, float]:
    if not limits[0] < limits[1]:
        raise ValueError("the lower end comes first")
    return limits


Limits = Annotated[tuple[FiniteFloat, FiniteFloat], AfterValidator(_rising)]
Inches = Annotated[float, Field(ge=1, le=20)]
Points = Annotated[float, Field(ge=4, le=60)]


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Look:
    """Of the picture. smooth: a value is the centred mean of so many evaluations; logy: None leaves the y scale to the values.

    xlim, ylim: the ends of the axes; logx: a logarithmic x axis, which leaves out what has x = 0; legend: of figures.LEGENDS;
    caption: whether the picture says below what is drawn; band: of curves.BANDS.
    width, height: inches of all of the picture; font: points; style: a matplotlib style file; slides: 16:9, in large letters.
    """

    smooth: Annotated[int, AfterValidator(odd)] = 1
    xlim: Limits | None = None
    ylim: Limits | None = None
    logx: bool = False
    logy: bool | None = None
    title: str = ""
    legend: Literal["above", "below", "inside", "none"] = "above"
    caption: bool = True
    band: Literal["std", "sem", "ci", "minmax"] = "std"
    width: Inches | None = None
    height: Inches | None = None
    font: Points | None = None
    style: Path | None = None
    slides: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Of matplotlib. Raises UserError for a style file that is none."""
        settings = {**(figures.SLIDES if self.slides else {}), **(read_style(self.style) if self.style else {})}
        return settings | ({"font.size": self.font} if self.font else {})


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs in groups. by: the keys that tell the groups apart; groups: their runs, by label.

    at: the x up to which the table and the tests go, None for all of it; slots: the place of a label in the order of colours, by
    default that of the groups.
    """

    by: Sequence[str]
    groups: Mapping[str, list[Recorded]]
    metric: str
    x: str
    target: float | None
    at: float | None = None
    slots: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return shown_table(self)[0].to_string(index=False)

    def _repr_html_(self) -> str:
        """For notebooks. Labels have no markup."""
        shown, best = shown_table(self)
        cells = shown.rename(columns=html_text).map(html_text)
        cells = cells.where(~best.to_numpy(), "<b>" + cells + "</b>")
        with pd.option_context("display.max_colwidth", None):
            return cells.to_html(index=False, escape=False)

    def report(self) -> Page:
        """The page of results that `fedopt-report` makes, of these groups: `write(PATH)` it, or let a notebook show it."""
        from fedopt.analysis.page import sections

        return Page("Comparison", sections(self))

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each group. Raises UserError for an `at` before a run's first row, and for a target of no goal."""
        rows = []
        for label, runs in self.groups.items():
            keys = dict(zip(self.by, runs[0].group(self.by), strict=True))
            ends = [run.until(self.at) for run in runs]
            rows.append(keys | {"label": label} | summary(ends, self.metric, self.x, self.target))
        return pd.DataFrame(rows) if self.at is None else pd.DataFrame(rows).assign(at=self.at)

    @cached_property
    def paired(self) -> pd.DataFrame:
        """Paired tests of the groups over their seeds (`fedopt.analysis.stats`)."""
        groups = {label: [run.until(self.at) for run in runs] for label, runs in self.groups.items()}
        return tests(groups, self.metric)

    def logarithmic(self, how: Look) -> dict[tuple[str, ...], bool]:
        """For each problem, which has a picture of its own, whether its y axis is logarithmic."""
        logs = {}
        for problem, groups in by_problem(self.groups).items():
            described = next(iter(groups.values()))[0].metric(self.metric)
            spans = figures.spans_decades(described, self._values(groups))
            logs[problem] = spans if how.logy is None else how.logy
        return logs

    def _values(self, groups: Mapping[str, Sequence[Recorded]]) -> np.ndarray:
        return np.concatenate([run.values(self.metric) for runs in groups.values() for run in runs])

    def explained(self, how: Look) -> str:
        """What is drawn, in words for a caption."""
        lines, logs = list(self.groups.values()), set(self.logarithmic(how).values())
        each_seed_once = all(len({run.keys.get("seed") for run in runs}) == len(runs) for runs in lines)
        members = {len(runs) for runs in lines}, logs, "seed" if each_seed_once else "run"
        text = explained(*members, how.smooth, how.band, self.x)
        if max(members[0]) > 1 and any(run.status not in OVER for runs in lines for run in runs):
            text += "; runs that have not finished count as far as they have got"
        return text

    def draw(self, *paths: str | Path, ax: figures.plt.Axes | None = None, **how_drawn: Any) -> Any:
        """Write a figure with a line and a band for each group, in the formats of the paths' endings; returns the points drawn.
        Each problem has its picture in it. Or draw on matplotlib's axes `ax`, and return these; the figure is not written.

        how_drawn: the fields of `Look`. Raises UserError for others, for limits, endings and sizes that cannot be, and for a style
        file that is none.
        """
        how = build(Look, how_drawn)
        if unknown := [str(path) for path in paths if Path(path).suffix[1:] not in figures.FORMATS]:
            raise UserError(f"{unknown[0]}: a picture's name ends in .{', .'.join(figures.FORMATS)}")
        settings, problems = how.settings, list(by_problem(self.groups))
        if ax is not None:
            return self._draw_beside(ax, problems, how)
        width, height = figures.SLIDE if how.slides else settings.get("figure.figsize", (None, None))
        height = how.height or height
        columns = math.ceil(len(problems) ** 0.5) if how.slides else 1
        with figures.styled(settings):
            figure, axes = figures.grid(-(-len(problems) // columns), columns, how.width or width, height)
            for empty in axes.flat[len(problems) :]:
                empty.remove()
            points = self.draw_on(dict(zip(problems, axes.flat, strict=False)), how)
            note = self.explained(how) * how.caption
            figures.save(figure, *map(Path, paths), title=how.title, note=note, place=how.legend, grows=height is None)
        return points

    def _draw_beside(self, ax: figures.plt.Axes, problems: Sequence[tuple[str, ...]], how: Look) -> figures.plt.Axes:
        """On axes that may have lines already, in the style that they have."""
        if len(problems) > 1:
            raise UserError(
                f"ax: the runs are on {len(problems)} problems, which have a picture each; compare those of one"
            )
        ax.autoscale()  # earlier lines may have fixed the limits
        self.draw_on({problems[0]: ax}, how)
        if how.title:
            ax.set_title(how.title)
        if how.legend != "none":
            ax.legend()
        return ax

    def draw_on(self, pictures: Mapping[tuple[str, ...], figures.plt.Axes], how: Look) -> pd.DataFrame:
        """Draw on matplotlib's axes, without a legend; returns the points drawn. pictures: the axes of each problem of
        `recorded.by_problem`. Raises UserError for limits that cannot be."""
        logs, lines, legend = self.logarithmic(how), [], legend_labels(self.groups)
        for axis, begins, limits in (("x", how.logx, how.xlim), ("y", any(logs.values()), how.ylim)):
            if begins and limits and limits[0] <= 0:
                raise UserError(f"--{axis}lim: a logarithmic axis begins above 0; --no-log{axis} makes it linear")
        for problem, groups in by_problem(self.groups).items():
            axes, described = pictures[problem], next(iter(groups.values()))[0].metric(self.metric)
            share = figures.is_share(described.title, self._values(groups))
            for label, runs in groups.items():
                j = list(self.groups).index(label)
                slot = self.slots.get(label, j)
                points = curve(runs, self.metric, logs[problem], how.smooth, how.band)
                if share:
                    points = (*points[:2], *np.clip(points[2:], 0, 100))
                style = figures.look(slot) | figures.marks(slot, j, len(self.groups))
                draw_line(axes, with_status(legend[label], runs), points, style)
                cells = dict(zip((self.x, self.metric, "low", "high"), points, strict=True))
                lines.append(pd.DataFrame({"line": label, **cells, "band": how.band}))
            parts = ", ".join(part for part in problem if part not in (ABSENT, "none"))
            figures.describe(axes, self.x, described.title, parts * (len(logs) > 1))
            thin = 0.7 * axes.lines[0].get_linewidth()
            if self.target is not None:
                axes.axhline(self.target, color="grey", linestyle=":", label=f"target {self.target:g}")
            if self.at is not None:
                axes.axvline(self.at, color="grey", linestyle="--", linewidth=thin, label="where the table compares")
            if how.logx:
                axes.set_xscale("log")
            if how.logy is None:
                figures.scale_y(axes, described, self._values(groups))
            else:
                axes.set_yscale("log" if how.logy else "linear")
            axes.set_xlim(how.xlim)
            axes.set_ylim(how.ylim or figures.within(axes, share))
        return pd.concat(lines)

    def write(
        self,
        folder: str | Path,
        formats: Sequence[str] = ("csv",),
        columns: Sequence[str] = (),
        decimals: int | None = None,
    ) -> list[Path]:
        """Write the table and the tests into a folder, as compare.csv, .tex or .md and compare_tests; returns the paths.

        formats: of csv, latex and markdown; columns: of runs, seeds, status, spent, final, best, to_target and reached, none for
        the usual ones; decimals: of the metric, None for as many as its deviation has digits for, at most 15. The CSV has all
        columns and digits. Raises UserError for others.
        """
        for given, allowed, name in ((formats, TABLES, "formats"), (columns, COLUMNS, "columns")):
            if wrong := [given] if isinstance(given, str) else [word for word in given if word not in allowed]:
                raise UserError(f"{name}={wrong[0]}: must be a list of {', '.join(allowed)}")
        shown, best = shown_table(self, columns, decimals)
        # As a paper's table has it: algo.K is K
        head = ", ".join("method" if key == "algo" else key.rpartition(".")[2] for key in self.by)
        shown = shown.rename(columns={shown.columns[0]: head})
        best = best.rename(columns={best.columns[0]: head})
        base, tested = Path(folder) / "compare", self.paired
        base.parent.mkdir(parents=True, exist_ok=True)
        written = [write_shown(base, name, self.table, shown, best) for name in formats]
        if len(tested):
            # Heads without what the difference is of, which a caption says
            short = tests_shown(tested).rename(columns=lambda name: str(name).partition(" of ")[0])
            written += [write_shown(base.with_name("compare_tests"), name, tested, short) for name in formats]
        return written


def compared(
    paths: Sequence[Path],
    metric: str | None = None,
    x: str = "comm_rounds",
    target: float | None = None,
    group_by: str | None = None,
    names: Sequence[str] = (),
    at: float | None = None,
    exclude: Sequence[str] = (),
    label: str | None = None,
    runs: Sequence[Recorded] = (),
) -> Comparison:
    """The runs in some folders by groups. names: 'OLD=NEW' of labels or their parts; at: the x up to which the table goes;
    exclude: as of `recorded.usable`; label: another one of the metric, with its unit; runs: in place of paths, ones that were read.

    Raises UserError when there is no run to compare.
    """
    if x not in COSTS:
        raise UserError(f"x={x}: must be one of {', '.join(COSTS)}")
    runs = runs or usable(paths, x, exclude)
    metric = metric or first_metric(runs) or next(iter(runs[0].metrics))
    runs = with_metric(runs, metric)
    if label is not None:
        runs = [run.called(metric, label) for run in runs]
    by = default_keys(runs) if group_by is None else known_keys(group_by, runs)
    if several := [key for key in PROBLEM if key not in by and len({run.group([key]) for run in runs}) > 1]:
        note(
            f"--group-by={','.join(by)}: the runs have more than one {' and '.join(several)}, which are told apart too"
        )
        by = [*by, *several]
    members: dict[tuple[str, ...], list[Recorded]] = {}
    for run in sorted(runs, key=lambda run: [order(value) for value in run.group(by)]):
        members.setdefault(run.group(by), []).append(run)
    slots = labels_of(by, list(members), names)
    lines = dict(sorted(zip(slots, members, strict=True), key=lambda line: slots[line[0]]))  # label -> group
    groups = {label: members[group] for label, group in lines.items()}
    comparison = Comparison(by, groups, metric, x, target, at, slots)
    _ = comparison.table  # whose mistakes come first
    for line in unequal(by, groups, metric, at):
        note(line)
    return comparison


def summary(runs: Sequence[Recorded], metric: str, x: str, target: float | None) -> dict[str, Any]:
    """A row of compare.csv. Standard deviations are over runs, with n - 1; a final value not finite makes nan."""
    described, statuses = runs[0].metric(metric), Counter(run.status for run in runs)
    row = {
        "runs": len(runs),
        "seeds": len({run.keys.get("seed") for run in runs}),
        "status": ", ".join(f"{n} {status}" for status, n in sorted(statuses.items())),
        **_moments(f"spent_{x}", [run.cost()[-1] for run in runs]),
        **_moments(f"final_{metric}", [run.values(metric)[-1] for run in runs]),
    }
    if described.better != "neither":
        row |= _moments(f"best_{metric}", [described.best(run.values(metric)) for run in runs])
    if target is not None:
        hits = [[described.reached(value, target) for value in run.values(metric)] for run in runs]
        costs = [run.cost()[hit][0] for run, hit in zip(runs, hits, strict=True) if any(hit)]
        row |= {"target": target, "reached": len(costs), **_moments(f"{x}_to_target", costs)}
    return row


def _moments(name: str, values: Sequence[float]) -> dict[str, float]:
    return dict(zip((f"{name}_mean", f"{name}_std"), moments(values), strict=True))
