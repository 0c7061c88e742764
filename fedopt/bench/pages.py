"""The benchmark's results as pages, tables, figures and one interactive HTML file, made from the table of all runs."""

import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader

from fedopt.analysis import print_table, write_table
from fedopt.bench.effects import results
from fedopt.bench.rank import BEFORE, BEHIND, OPEN, SAME, SEARCH
from fedopt.bench.space import Point
from fedopt.bench.suite import CURRENCIES, VERSION, Entries, Task
from fedopt.config import CONF, class_path, command_line, options
from fedopt.console import counted, markdown_cell, printable
from fedopt.drawing import GREY, MARKERS, OKABE_ITO, Line, Page, Section, describe, draw_lines, look, pictures, styled
from fedopt.errors import UserError
from fedopt.files import write_atomically

PHASE = "phase"  # a board of many small tasks, whose pages have no figures
DOCS = CONF.parent / "docs"
UNTUNED = 0.5  # place of the default values on the axis of a tuning curve, which is logarithmic
TICKS: dict[float, str] = {UNTUNED: "0"} | {k: str(k) for k in (1, 2, 4, 8, 16, 32, 48)}
COLOURS = dict(zip((BEFORE, BEHIND, SAME, OPEN), (*OKABE_ITO[:3], GREY), strict=True))  # of verdicts
FAR = 16  # the largest ratio on the axis of a figure of effects; longer intervals end there
RATIOS = {1 / FAR: "1/16", 1 / 4: "1/4", 1: "1", 4: "4", FAR: "16"}
# Marker of matplotlib -> its name in plotly, and a character for the legend
SYMBOLS = dict(zip(MARKERS, zip(
    ["circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-left", "triangle-right", "cross", "pentagon",
     "diamond-tall", "star"], "●■▲◆▼◀▶✚⬟♦★", strict=True), strict=True))  # fmt: skip


def write_pages(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries, place: Path) -> None:
    """Compare the methods on the chosen tasks, print a table, and write pages, CSV files, figures and an interactive file.

    Args:
        table: The rows of all runs.
        chosen: The tasks.
        entries: All entries.
        place: The output folder.

    Raises:
        UserError: See `compared`, or plotly is not installed.
    """
    table = compared(table, chosen, entries)
    found = results(table, chosen, entries)
    for name, rows in found.items():
        write_table(place / f"{name}.csv", rows)
    found["claims"] = found["claims"][found["claims"]["tasks"] > 0].sort_values("ratio")
    boards = {name: [task for task in chosen if task.board == name] for name in dict.fromkeys(t.board for t in chosen)}
    best = {task.name: _may_be_best(found["places"], task.name) for task in chosen}
    shown = [{"task": name, **{key: ", ".join(of) for key, of in row.items()}} for name, row in best.items()]
    print_table(pd.DataFrame(shown), [], "methods that may be best, by cost")
    _draw_effects(found["claims"], place / "effects.svg")
    for name, here in {**boards, **{task.name: [task] for task in chosen if task.board != PHASE}}.items():
        _draw_curves(found["curves"], here, place / f"curves_{name.replace(' ', '_')}.svg")
    _interactive(found, boards).write(place / "interactive.html")
    ended = table.drop_duplicates(["task", "method", "kind", "point", "seed"], keep="last")
    shares = {task.name: _reach(found["reach"], task) for task in chosen}
    point = ["task", "method", "point"]
    sampled = ended[ended["kind"] == "pool"].drop_duplicates(point).astype({"task": str, "method": str})
    words = sampled.set_index(point)["words"].sort_index()
    links = {name: _link(name, entries, place) for name in table["method"].unique()}
    null = DOCS / "bench" / VERSION / "null.csv"
    values = {"version": VERSION, "search": SEARCH, "currencies": CURRENCIES, "chosen": chosen, "entries": entries}
    values |= {"found": found, "boards": boards, "best": best, "shares": shares, "links": links, "words": words}
    values |= {"runs": len(ended), "pools": _pools(ended), "null": pd.read_csv(null) if null.is_file() else None}
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True)
    code = {"code": lambda words: printable(" ".join(words)).replace("`", "'"), "command": command_line}
    templates.filters |= {"cell": markdown_cell, "point": _point, **code}
    for page, task in {"index": None, **{task.name: task for task in chosen}}.items():
        text = templates.get_template(f"{'task' if task else 'index'}.md.jinja").render(task=task, **values)
        write_atomically(place / f"{page}.md", f"{text.rstrip()}\n".encode())


def _point(words: str) -> Point:
    """Return a configuration from the overrides in a table of runs, which are separated by blanks. Values may contain blanks."""
    return dict(word.partition("=")[::2] for word in re.split(r" (?=\S+=)", words) if word)


def compared(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries) -> pd.DataFrame:
    """Return the rows of the chosen tasks.

    Raises:
        UserError: The rules of a task have changed since its runs.
    """
    by_name = {task.name: task for task in chosen}
    table = table[table["task"].isin(by_name)]
    for task, name, digest in table[["task", "method", "task_digest"]].drop_duplicates().itertuples(index=False):
        if name in entries and digest != entries.digest(by_name[task], entries[name]):
            why = f"the rules in its files have changed since the runs of {name}"
            raise UserError(f"{task}: {why}; restore the files, or run the task again")
    return table


def _link(name: str, entries: Entries, place: Path) -> str:
    """Return the name of an entry as Markdown, with a link to the page of its algorithm if there is one."""
    algo = entries[name].algo if name in entries else name
    known = algo in options("algo", entries.folders)
    module = class_path("algo", algo, entries.folders).split(".")[-2] if known else ""
    page = DOCS / "algorithms" / f"{module}.md"
    return f"[{markdown_cell(name)}]({os.path.relpath(page, place)})" if page.is_file() else markdown_cell(name)


def _may_be_best(places: pd.DataFrame, task: str) -> dict[str, list[str]]:
    """Return, for each currency (unit of cost), the methods that may be best on a task and have a positive score.

    Args:
        places: The ranking, with the columns task, currency, method, score and may_be_best.
        task: The name of the task.

    Returns:
        Short name of the currency -> the methods, in the order of ``places``.
    """
    good = places[(places["task"] == task) & (places["score"] > 0) & places["may_be_best"].eq(True)]
    return {of.short: good.loc[good["currency"] == name, "method"].tolist() for name, of in CURRENCIES.items()}


def _reach(reach: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return the share of searches that reach each target of a task by communication rounds, [methods, targets]."""
    on = reach[(reach["task"] == task.name) & (reach["currency"] == "comm_rounds")]
    wide = on.pivot(index="method", columns="target", values="reach")[task.targets]
    return wide.sort_values([*wide.columns], ascending=False).map("{:.0%}".format).rename(columns="{:g}".format)


def _pools(ended: pd.DataFrame) -> pd.DataFrame:
    """Return the number of runs of each kind by task, the share of sampled runs that diverged or failed, and the digests."""
    ended = ended.astype({"task": str, "kind": str})
    wide = ended.groupby(["task", "kind"]).size().unstack(fill_value=0).astype(str)
    lost = ended[ended["kind"] == "pool"].assign(lost=lambda rows: rows["status"].isin(["diverged", "failed"]))
    wide["diverged"] = lost.groupby("task")["lost"].mean().map("{:.0%}".format)
    digests = ended.astype({"task_digest": str}).groupby("task")["task_digest"].unique()
    wide["hash of the rules"] = digests.map(lambda of: sha256(" ".join(sorted(of)).encode()).hexdigest()[:8])
    return wide.rename_axis(columns=None).reset_index()


# Figures


def _draw_effects(claims: pd.DataFrame, path: Path) -> None:
    """Draw a row per claim: the ratio of costs, its interval (thick), and the interval for a new task (thin)."""
    with pictures([path], 1, height=0.5 + 0.36 * max(len(claims), 1)) as (axis,):
        for y, claim in enumerate(reversed(claims.to_dict("records"))):
            colour = COLOURS[claim["verdict"]]
            for ends, width in ((("new_low", "new_high"), 0.8), (("low", "high"), 2.4)):
                axis.plot(np.clip([claim[end] for end in ends], 1 / FAR, FAR), [y, y], color=colour, linewidth=width)
            axis.plot(claim["ratio"], y, "o", color=colour)
            by, tasks = CURRENCIES[claim["currency"]].short, counted(claim["tasks"], "task")
            words = f"{claim['one']} / {claim['other']}, {by}, {tasks}"
            axis.text(0.01, y + 0.22, words, transform=axis.get_yaxis_transform(), fontsize=7, va="bottom")
        axis.axvspan(0.8, 1.25, color="#dddddd", zorder=0)
        axis.set(xscale="log", xlim=(1 / FAR, FAR), ylim=(-0.5, len(claims)), yticks=[])
        axis.set_xticks([*RATIOS], RATIOS.values())
        axis.minorticks_off()
        describe(axis, "cost of the first / cost of the second", "")


def _draw_curves(curves: pd.DataFrame, here: Sequence[Task], path: Path) -> None:
    """Draw the expected score by communication rounds after k configurations, and dots for the default values.

    The score is the mean over the tasks. Methods that do not take part in all of them are left out.
    """
    on = curves[curves["task"].isin([task.name for task in here]) & (curves["currency"] == "comm_rounds")]
    on = on[on.groupby("method")["task"].transform("nunique") == len(here)]
    means = on.groupby(["method", "points"])[["score", "low", "high"]].mean().reset_index("points")
    order = means.groupby(level=0)["score"].max().sort_values(ascending=False).index
    with pictures([path], 1) as (axis,):
        axis.set_xscale("log")
        tuned = means[means["points"] > 0]
        defaults = means.loc[means["points"] == 0, "score"]
        draw_lines(axis, {str(name): Line(*tuned.loc[[name]].to_numpy().T) for name in order})
        for j, name in enumerate(order):
            axis.plot(UNTUNED, defaults[name], **look(j) | {"linestyle": "none"})
        axis.set_xticks([*TICKS], TICKS.values())
        axis.minorticks_off()
        describe(axis, "configurations tried (0: default values)", "expected score")


# The interactive file


def _interactive(found: Mapping[str, pd.DataFrame], boards: Mapping[str, Sequence[Task]]) -> Page:
    """Return the interactive page: tuning curves, and the share of targets reached against the fraction of the budget."""
    curves = found["curves"].assign(target="all (score)", title="expected score")
    by_target = found["reach_by_points"].rename(columns={"share": "score"})
    by_target["title"], by_target["target"] = "share of searches that reach it", by_target["target"].map("{:g}".format)
    curves = pd.concat([curves, by_target])
    board_of = {task.name: board for board, here in boards.items() for task in here}
    titles = {task.name: f"{task.name}: {task.title}" for here in boards.values() for task in here}
    curves = curves.assign(board=curves["task"].map(board_of), task=curves["task"].map(titles))
    data = found["profiles"].rename(columns={"at": "points", "share": "score"})
    order = curves.groupby(["board", "method"])["score"].mean().sort_values(ascending=False).index
    tuning = _chart(curves, ["board", "task", "currency", "target"], "configurations tried (0: default values)", order)
    data["title"] = "share of targets reached"
    budget = _chart(data, ["board", "currency"], "fraction of the budget", order)
    searched = "What a search finds, by the number of configurations that it tries. Press a method to hide it."
    reached = f"The targets of all tasks that a search of {SEARCH} configurations reaches."
    sections = [Section("Tuning curves", [searched], chart=tuning), Section("Targets reached", [reached], chart=budget)]
    return Page(f"fedopt benchmark {VERSION}", sections)


def _chart(rows: pd.DataFrame, menus: list[str], x: str, order: "pd.Index[Any]") -> dict[str, Any]:
    """Return the interactive chart of the curves of a table, as described in `Section`.

    Args:
        rows: One row per point of a line, with the columns of the menus, method, points (x), score (y), low, high and title.
        menus: The columns that have a menu. The chart shows the rows with the chosen values.
        x: The label of the x axis.
        order: The board and the method of each line, in the order of the legend.
    """
    rows = pd.concat([rows[rows["currency"] == name].assign(currency=of.label) for name, of in CURRENCIES.items()])
    lines = []
    with styled():
        for board, names in order.to_frame(index=False).groupby("board")["method"]:
            for style, name in zip(map(look, range(len(names))), names, strict=True):
                symbol, letter = SYMBOLS.get(style["marker"], ("x", "✖"))
                line = {"board": board, "name": name, "label": f"{letter} {name}", "symbol": symbol, "lost": False}
                lines.append(line | {"colour": style["color"], "dash": style["linestyle"]})
    curves, ys = {}, {}
    for key, on in rows.groupby(menus, sort=False):
        own, name = dict([*on.groupby("method")]), "|".join(map(str, key))
        mine = [own.get(line["name"]) if line["board"] == key[0] else None for line in lines]
        points = [None if of is None else _points(of, line["colour"]) for of, line in zip(mine, lines, strict=True)]
        curves[name], ys[name] = {"points": points}, on["title"].iloc[0]
    return {"menus": menus, "xs": {"points": x}, "ys": ys, "logs": {}, "targets": {}, "lines": lines, "curves": curves}


def _points(rows: pd.DataFrame, colour: str) -> list[list[float | None]]:
    """Return [x, y, low, high] of a line, or [x, y] of a grey one, with a gap after the dot of the default values."""
    columns = ["points", "score"] if colour == GREY or "low" not in rows else ["points", "score", "low", "high"]
    values = rows[columns].sort_values("points").round(4).to_numpy()
    if values[0, 0] == 0:
        values = np.insert(values, 1, np.nan, axis=0)
    return [[None if np.isnan(value) else value for value in column] for column in values.T.tolist()]
