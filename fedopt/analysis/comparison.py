"""Comparison of groups of runs, with its tables, figure and page. This module does not import torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.scale import LogScale

from fedopt.analysis.grouped import GroupedRuns
from fedopt.analysis.groups import (
    default_keys,
    departures,
    first_metric,
    known_keys,
    labels_of,
    legend_labels,
    with_metric,
)
from fedopt.analysis.lines import explained, is_log, lines_of
from fedopt.analysis.page import all_runs, sections
from fedopt.analysis.runs import ABSENT, PROBLEM, Recorded, by_problem, problem_name
from fedopt.analysis.summary import COLUMNS, shown_table, tests_shown, write_shown
from fedopt.analysis.unequal import unequal, with_status
from fedopt.config.build import build
from fedopt.console import html_text, note, order
from fedopt.drawing import Page, PlotStyle, Table, figures
from fedopt.errors import UserError
from fedopt.metrics import selected, validates

TABLES = ("csv", "latex", "markdown")


class Comparison(GroupedRuns):
    """Groups of runs, with their table, paired tests, figure and page.

    The constructor takes the arguments of `GroupedRuns`.
    """

    def __repr__(self) -> str:
        return shown_table(self).cells.to_string(index=False)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks. Labels are shown as plain text."""
        shown = shown_table(self)
        cells = shown.cells.rename(columns=html_text).map(html_text)
        cells = cells.where(~shown.bold.to_numpy(), "<b>" + cells + "</b>")
        with pd.option_context("display.max_colwidth", None):
            return cells.to_html(index=False, escape=False)

    def report(self) -> Page:
        """Return an HTML page about the groups, as `fedopt report` makes it.

        The method `write(PATH)` of the page writes a file. In a notebook the page displays itself.
        """
        runs = [run for members in self.groups.values() for run in members]
        return Page("Comparison", [all_runs(runs), *sections(self)])

    def explained(self, how: PlotStyle) -> str:
        """Return the caption of the comparison's figure, which says what its lines and bands are.

        Args:
            how: The options of the figure.
        """
        lines, problems = list(self.groups.values()), by_problem(self.groups).values()
        logs = {is_log(groups, self.metric, how.logy) for groups in problems}
        each_seed_once = all(len({run.keys.get("seed") for run in runs}) == len(runs) for runs in lines)
        return explained({len(runs) for runs in lines}, logs, "seed" if each_seed_once else "run", self.x, how)

    def draw(self, *paths: str | Path, ax: Axes | Sequence[Axes] | None = None, **how_drawn: Any) -> Any:
        """Draw a figure with one picture per problem, and write it to files. Each group is a line (the mean over its runs) with
        a band.

        Args:
            paths: The files to write; their endings choose the formats. Without paths, nothing is written.
            ax: matplotlib axes to draw on, or a list with one axes per problem; their current style is kept, and no file is
                written. None: a new figure is made.
            how_drawn: Options of the figure by name; the names are the fields of `PlotStyle`.

        Returns:
            The points drawn, as a DataFrame. If ``ax`` is given, the axes instead.

        Raises:
            UserError: A field, a limit, a file's ending or a size is not allowed, or the number of axes in ``ax`` is not the
                number of problems.
        """
        how, count = build(PlotStyle, how_drawn), len(by_problem(self.groups))
        if unknown := [str(path) for path in paths if Path(path).suffix[1:] not in figures.FORMATS]:
            raise UserError(f"{unknown[0]}: the name of a picture must end in .{', .'.join(figures.FORMATS)}")
        if ax is not None:
            all_axes = [*np.ravel(np.array(ax, dtype=object))]
            if count != len(all_axes):
                raise UserError(f"ax: the runs are on {count} problems; give a list of {count} axes")
            for axes in all_axes:
                axes.autoscale()  # earlier lines may have fixed the limits
            _draw_on(all_axes, self, how)
            for axes in all_axes:
                axes.set_title(how.title or axes.get_title())
                if how.legend != "none":
                    axes.legend()
            return ax
        texts: Any = {"title": how.title, "note": self.explained(how) if how.caption else "", "place": how.legend}
        font = {"font.size": how.font} if how.font else {}
        size: Any = {"width": how.width, "height": how.height, "grows": how.height is None}
        with figures.pictures([*map(Path, paths)], count, 1, **size, **texts, settings=font) as all_axes:
            return _draw_on(all_axes, self, how)

    def write(
        self,
        folder: str | Path,
        formats: Sequence[str] = ("csv",),
        columns: Sequence[str] = (),
        decimals: int | None = None,
    ) -> list[Path]:
        """Write the table of the groups, and the table of the paired tests if there are any, into a folder.

        The files are named compare and compare_tests, with the ending .csv, .tex or .md.

        Args:
            folder: The folder. It is created if it does not exist.
            formats: A list of csv, latex and markdown. The CSV has all columns and digits.
            columns: A list of runs, seeds, status, spent, final, best, to_target and reached. Empty: the columns that are
                informative for these runs.
            decimals: The number of decimals of the metric, 0 to 15. None: as many as give the standard deviation two
                significant digits.

        Returns:
            The paths of the written files.

        Raises:
            UserError: A format, a column or the number of decimals is not allowed, or a column needs a target and there is
                none.
        """
        for given, allowed, name in ((formats, TABLES, "formats"), (columns, COLUMNS, "columns")):
            if isinstance(given, str) or not {*given} <= {*allowed}:
                raise UserError(f"{name}={given}: must be a list of {', '.join(allowed)}")
        # Short names as in the table of a paper: K for algo.K
        head = ", ".join("method" if key == "algo" else key.rpartition(".")[2] for key in self.by)
        shown = shown_table(self, columns, decimals, first=head)
        if len(by_problem(self.groups)) > 1:
            bold = self._across(shown.bold, False).eq(other=True)
            shown = shown._replace(cells=self._across(shown.cells, ABSENT), bold=bold)
        base, tested = Path(folder) / "compare", self.paired
        written = [write_shown(base, name, self.table, shown) for name in formats]
        if len(tested):
            # Headings without the name of the metric, which is in the caption
            short = Table("", tests_shown(tested).rename(columns=lambda name: str(name).partition(" of ")[0]))
            written += [write_shown(base.with_name("compare_tests"), name, tested, short) for name in formats]
        return written

    def _across(self, table: pd.DataFrame, missing: str | bool) -> pd.DataFrame:
        """Return a table with one row per method, whose columns are the columns of ``table`` repeated for each problem.

        Args:
            table: A table with one row per group. Its first column has the labels.
            missing: The value of the cells of a method that did not run on a problem.
        """
        legend, columns = legend_labels(self.groups), []
        values = table.iloc[:, 1:].set_axis([*legend.values()])
        for problem, runs in by_problem(self.groups).items():
            of_problem = values[[label in runs for label in self.groups]]
            columns.append(of_problem.add_prefix(f"{problem_name(problem)}: "))
        joined = pd.concat(columns, axis=1).astype(object)
        return joined.where(joined.notna(), missing).rename_axis("method").reset_index()


def _draw_on(all_axes: Sequence[Axes], c: GroupedRuns, how: PlotStyle) -> pd.DataFrame:
    """Draw the picture of each problem on its axes, without a legend. Return the points drawn as a table, one row per point.

    Args:
        all_axes: One axes per problem.
        c: The comparison.
        how: The options of the figure.

    Raises:
        UserError: A logarithmic axis would begin at 0 or below.
    """
    problems, legend, points = by_problem(c.groups), legend_labels(c.groups), []
    drawn = [lines_of(groups, c.metric, "", how) for groups in problems.values()]
    if how.ylim and how.ylim[0] <= 0 and any(isinstance(of.scale, LogScale) for of in drawn):
        raise UserError("--ylim: a logarithmic axis must begin above 0; use --no-logy for a linear one")
    for axes, problem, of in zip(all_axes, problems, drawn, strict=True):
        shown = {label: with_status(legend[label], c.groups[label]) for label in of.lines}
        slots = {shown[label]: c.slots.get(label, [*c.groups].index(label)) for label in of.lines}
        axes.set_yscale(of.scale)
        diverged = [shown[label] for label in of.lines if any(run.status == "diverged" for run in c.groups[label])]
        figures.draw_lines(axes, {shown[label]: line for label, line in of.drawn.items()}, slots, diverged=diverged)
        for label, line in of.drawn.items():
            cells = dict(zip((c.x, c.metric, "low", "high"), line, strict=True))
            points.append(pd.DataFrame({"line": label, **cells, "band": how.band}))
        title = problem_name(problem) if len(problems) > 1 else ""
        described = problems[problem][next(iter(of.lines))][0].metric(c.metric)
        figures.describe(axes, c.x, described.title, title)
        if c.target is not None:
            axes.axhline(c.target, color="grey", linestyle=":", label=f"target {c.target:g}")
        if c.at is not None:
            thin = 0.7 * axes.lines[0].get_linewidth()
            axes.axvline(c.at, color="grey", linestyle="--", linewidth=thin, label="where the table compares")
        axes.set_xlim(how.xlim)
        axes.set_ylim(how.ylim or figures.within(axes, of.share))
    return pd.concat(points)


def compared(
    runs: Sequence[Recorded],
    *,
    metric: str | None = None,
    target: float | None = None,
    group_by: str | None = None,
    names: Sequence[str] = (),
    at: float | None = None,
    label: str | None = None,
) -> Comparison:
    """Group runs by the config keys in which they differ, and return the groups with their table, tests and figure.

    Warnings on stderr name whatever makes the comparison unequal, such as different costs.

    Args:
        runs: At least one run, all read with the same cost axis.
        metric: The metric to compare. None: the first metric that a run's problem declares and metrics.csv has. A validation
            metric is preferred, and a note names it.
        target: A value of the metric; the table then has the cost to reach it. None: the table has no such column.
        group_by: The config keys to group by, separated by commas. None: the keys in which the runs differ.
        names: New names of lines, each as 'OLD=NEW'. OLD is a label or a part of a label.
        at: The cost at which the groups are compared; later evaluations are ignored. None: all evaluations are used.
        label: A new label for the metric, with its unit. None: its usual label.

    Raises:
        UserError: No run has the metric or a key, a run has no evaluation up to ``at``, or a name is not allowed.
    """
    asked, metric = metric, metric or first_metric(runs) or next(iter(runs[0].metrics))
    runs = with_metric(runs, metric)
    if label is not None:
        runs = [run.called(metric, label) for run in runs]
    by = default_keys(runs) if group_by is None else known_keys(group_by, runs)
    if several := [key for key in PROBLEM if key not in by and len({run.group([key]) for run in runs}) > 1]:
        note(f"--group-by={','.join(by)}: the runs are also grouped by {' and '.join(several)}, in which they differ")
        by = [*by, *several]
    members: dict[tuple[str, ...], list[Recorded]] = {}
    for run in sorted(runs, key=lambda run: [order(value) for value in run.group(by)]):
        members.setdefault(run.group(by), []).append(run)
    slots = labels_of(by, list(members), names, departures(runs) if group_by is None else None)
    lines = dict(sorted(zip(slots, members, strict=True), key=lambda line: slots[line[0]]))  # label -> group
    groups = {label: members[group] for label, group in lines.items()}
    comparison = Comparison(by, groups, metric, runs[0].x, target, at, slots)
    _ = comparison.table  # so that errors in the table are reported first
    comparison = replace(comparison, slots=_slots(comparison, named=bool(names)))
    if asked is None and validates(metric):
        note(selected(metric))
    for line in unequal(by, groups, metric, at):
        note(line)
    return comparison


def _slots(c: Comparison, named: bool) -> dict[str, int]:
    """Return a mapping from the label of each line to the index of its colour. A method has the same index on all problems.

    If there are more methods than coloured lines, the methods with the best last values get the first indices, ordered by
    their mean rank over the problems.

    Args:
        c: The comparison, whose ``slots`` are the indices by label.
        named: Whether the user has renamed lines. Then the order of the new names is kept.
    """
    legend = legend_labels(c.groups)
    if named:
        return {label: min(c.slots[other] for other in legend if legend[other] == legend[label]) for label in legend}
    methods = [*dict.fromkeys(legend.values())]
    if len(methods) > figures.STRONG:
        problems = [problem_name(runs[0].problem) for runs in c.groups.values()]
        ends = c.described.sign * c.table[f"final_{c.metric}_mean"]
        ranks = ends.groupby(problems).rank(method="first", na_option="bottom")
        methods = [*ranks.groupby([*legend.values()], sort=False).mean().sort_values(kind="stable").index]
    return {label: methods.index(method) for label, method in legend.items()}
