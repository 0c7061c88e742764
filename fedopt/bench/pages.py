"""The benchmark's results as pages, tables, figures and one interactive HTML file, made from the table of all runs."""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader

from fedopt.analysis import print_table, write_table
from fedopt.bench.effects import SEARCH, results
from fedopt.bench.suite import CURRENCIES, Entries, Task
from fedopt.config import CONF, certainty, class_path, command_line
from fedopt.console import markdown_cell, printable
from fedopt.drawing import Line, Page, Section, describe, draw_lines, look, pictures, styled
from fedopt.errors import UserError
from fedopt.files import write_atomically

PHASE = "phase"  # a board of many small tasks, whose pages have no figures
DOCS = CONF.parent / "docs"
UNTUNED = 0.5  # place of the default values on the axis of a tuning curve, which is logarithmic
TICKS = {UNTUNED: "0", **{k: str(k) for k in (1, 2, 4, 8, 16, 32, 48)}}
GREY = "#999999"
COLOURS = {"before": "#0072B2", "behind": "#D55E00", "alike": "#009E73", "not resolved": GREY}  # of verdicts
FAR = 16.0  # the largest ratio on the axis of a figure of effects; longer intervals end there
WITHDRAWN = {"fedgda_gt", "sagda"}  # entries of version 2.0 that were searched over keys that their papers do not have
# Marker of matplotlib -> its name in plotly, and a character for the legend
SYMBOLS = {"o": ("circle", "●"), "s": ("square", "■"), "^": ("triangle-up", "▲"), "D": ("diamond", "◆"), "v": ("triangle-down", "▼"),
           "<": ("triangle-left", "◀"), ">": ("triangle-right", "▶"), "P": ("cross", "✚"), "p": ("pentagon", "⬟"),
           "d": ("diamond-tall", "♦"), "*": ("star", "★")}  # fmt: skip
Tables = Mapping[str, pd.DataFrame]  # the results by name, see `effects.results`


def write_pages(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries, place: Path) -> None:
    """Compare the methods on the chosen tasks, print tables, and write pages, CSV files, figures and an interactive file.

    Args:
        table: The rows of all runs.
        chosen: The tasks.
        entries: All entries.
        place: The output folder.

    Raises:
        UserError: The rules of a task have changed since its runs, or plotly is not installed.
    """
    table = table[table["task"].isin([task.name for task in chosen])]
    _refuse_other_rules(table, chosen, entries)
    found = results(table, chosen, entries)
    for name, rows in found.items():
        write_table(place / f"{name}.csv", rows)
    names = [name for name in table["method"].unique() if _is_ranked(name, entries)]
    found |= {name: rows[rows["method"].isin(names)] for name, rows in found.items() if "method" in rows}
    version = str(table["bench_version"].iloc[0])
    if version == "2.0":
        found["claims"] = found["claims"][~found["claims"][["one", "other"]].isin(WITHDRAWN).any(axis=1)]
    boards = {name: [task for task in chosen if task.board == name] for name in dict.fromkeys(t.board for t in chosen)}
    best = pd.DataFrame([_best(task, found["places"]) for task in chosen])
    print_table(
        best.map(lambda cell: cell if isinstance(cell, str) else ", ".join(cell)), [], "methods that may be best"
    )
    _draw_effects(found["claims"].sort_values("ratio"), place / "effects.svg")
    for name, here in {**boards, **{task.name: [task] for task in chosen if task.board != PHASE}}.items():
        _draw_curves(found["curves"], here, place / f"curves_{name.replace(' ', '_')}.svg")
    _interactive(found, boards, version).write(place / "interactive.html")
    shared = {"version": version, "search": SEARCH, "currencies": CURRENCIES, "found": found}
    shared |= {"links": {name: _link(name, entries, place) for name in names}}
    shares = {task.name: _reach(found["reach"], task) for task in chosen}
    for task in chosen:
        commands = _commands(task, found["places"], entries)
        reach = shares[task.name].reset_index()
        _fill("task", place / f"{task.name}.md", task=task, commands=commands, reach=reach, **shared)
    middle = {task.name: shares[task.name].iloc[:, (len(task.targets) - 1) // 2] for task in chosen}
    reach = {
        board: pd.concat([middle[t.name].rename(f"{t.name} ({middle[t.name].name})") for t in here], axis=1)
        .fillna("-")
        .reset_index()
        for board, here in boards.items()
    }
    ended = table.drop_duplicates(["task", "method", "kind", "point", "seed"], keep="last")
    of = {
        "boards": boards,
        "titles": {task.name: task.title for task in chosen},
        "best": best,
        "chosen": chosen,
        "reach": reach,
        "runs": len(ended),
        "pools": _pools(ended),
    }
    docs = os.path.relpath(DOCS, place) if DOCS.is_dir() else ""
    null = pd.read_csv(place / "null.csv") if (place / "null.csv").is_file() else None
    _fill("index", place / "index.md", **of, **shared, docs=docs, null=null)


def _refuse_other_rules(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries) -> None:
    """Raise UserError if the rules of a task have changed since its runs."""
    by_name = {task.name: task for task in chosen}
    for task, name, digest in table[["task", "method", "task_digest"]].drop_duplicates().itertuples(index=False):
        if name in entries and digest != entries.digest(by_name[task], entries[name]):
            why = f"the rules in its files have changed since the runs of {name}"
            raise UserError(f"{task}: {why}; restore the files, or run the task again")


def _fill(name: str, path: Path, **values: Any) -> None:
    """Write a page. name: the template, without extension. path: the file. values: the variables of the template."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": markdown_cell, "code": lambda words: printable(" ".join(words)).replace("`", "'")}
    write_atomically(path, (environment.get_template(f"{name}.md.jinja").render(**values).rstrip() + "\n").encode())


def _is_ranked(name: str, entries: Entries) -> bool:
    """Return whether an entry is compared with others: it is neither a reference on pooled data nor a control."""
    return (
        name in entries
        and not entries[name].reference
        and getattr(entries[name], "form", "paper") != "control"
        and not getattr(entries[name], "shift", 0)
    )


def _link(name: str, entries: Entries, place: Path) -> str:
    """Return the name of an entry as Markdown, with a link to the page of its algorithm if there is one."""
    module = class_path("algo", entries[name].algo, entries.folders).split(".")[-2]
    page = DOCS / "algorithms" / f"{module}.md"
    return f"[{name}]({os.path.relpath(page, place)})" if page.is_file() else name


def _best(task: Task, places: pd.DataFrame) -> dict[str, Any]:
    """Return the task's name, and the names of the methods that may be best in each currency, the highest score first.

    A method may be best if no compared method is before it. Methods that reach no target are left out.
    """
    row: dict[str, Any] = {"task": task.name}
    for currency, of in CURRENCIES.items():
        on = places[(places["task"] == task.name) & (places["currency"] == currency)]
        names = {*on["method"]}
        free = on["behind"].fillna("").map(lambda text: names.isdisjoint(text.split(", ")))
        row[of.short] = on["method"][free & (on["score"] > 0)].tolist()
    return row


def _commands(task: Task, places: pd.DataFrame, entries: Entries) -> dict[str, str]:
    """Return method -> the command that runs it with the best sampled configuration by communication rounds."""
    on = places[(places["task"] == task.name) & (places["currency"] == "comm_rounds")]
    words = {
        name: task.command(entries[name], entries.points(task, entries[name])[best])
        for name, best in zip(on["method"], on["best"], strict=True)
    }
    return {name: command_line(its, entries.folders) for name, its in words.items()}


def _reach(reach: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return the share of searches that reach each target of a task by communication rounds, [methods, targets]."""
    on = reach[(reach["task"] == task.name) & (reach["currency"] == "comm_rounds")]
    wide = on.pivot(index="method", columns="target", values="reach")[task.targets].sort_values(
        task.targets, ascending=False
    )
    return wide.map("{:.0%}".format).rename(columns="{:g}".format)


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
            words = f"{claim['one']} / {claim['other']}, {CURRENCIES[claim['currency']].short}, {claim['tasks']} tasks"
            axis.text(0.01, y + 0.22, words, transform=axis.get_yaxis_transform(), fontsize=7, va="bottom")
        axis.axvspan(0.8, 1.25, color="#dddddd", zorder=0)
        axis.set(xscale="log", xlim=(1 / FAR, FAR), ylim=(-0.5, len(claims)), yticks=[])
        axis.set_xticks(ticks := [1 / 16, 1 / 4, 1, 4, 16], [f"{tick:g}" for tick in ticks])
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
        lines = {str(name): Line(*tuned.loc[[name]].to_numpy().T) for name in order}
        draw_lines(axis, lines)
        for j, name in enumerate(order):
            dot = means.loc[[name]].query("points == 0")["score"]
            axis.plot(np.full(len(dot), UNTUNED), dot, **look(j) | {"linestyle": "none"})
        axis.set_xticks([*TICKS], TICKS.values())
        axis.minorticks_off()
        describe(
            axis, "configurations tried (0: default values)", "expected score", here[0].name if len(here) == 1 else ""
        )


# The interactive file


def _interactive(found: Tables, boards: Mapping[str, Sequence[Task]], version: str) -> Page:
    """Return the interactive page: tuning curves, and the share of targets reached against the fraction of the budget."""
    titles = {task.name: f"{task.name}: {task.title}" for here in boards.values() for task in here}
    of_task = {task.name: board for board, here in boards.items() for task in here}
    curves = found["curves"].assign(target="all (score)", title="expected score")
    if "reach_by_points" in found:
        by_target = found["reach_by_points"].rename(columns={"share": "score"})
        names = by_target["target"].map("{:g}".format)
        curves = pd.concat(
            [curves, by_target.assign(target=names, title="share of searches that reach it", low=np.nan, high=np.nan)]
        )
    curves = curves.assign(board=curves["task"].map(of_task), task=curves["task"].map(titles))
    profiles = found["profiles"].rename(columns={"at": "points", "share": "score"})
    profiles = profiles[profiles["kind"] == "data"].assign(low=np.nan, high=np.nan, title="share of targets reached")
    order = curves.groupby(["board", "method"])["score"].mean().sort_values(ascending=False).index
    tuning = _chart(curves, ["board", "task", "currency", "target"], "configurations tried (0: default values)", order)
    share = _chart(profiles, ["board", "currency"], "fraction of the budget", order)
    facts = [
        "The expected score, or the share of tuning runs that reach a target, against the number of configurations that a tuning run tries. Dots at 0: default values. Press a method to hide it."
    ]
    parts = [Section("Tuning curves", facts, chart=tuning)]
    facts = [
        f"The share of pairs of task and target that a tuning run of {SEARCH} configurations reaches within a fraction of the budget."
    ]
    return Page(f"fedopt benchmark {version}", [*parts, Section("Targets reached", facts, chart=share)])


def _chart(rows: pd.DataFrame, menus: Sequence[str], x: str, order: pd.MultiIndex) -> dict[str, Any]:
    """Return the chart of a section, with a menu for each of some columns. order: board and method of each line."""
    rows = pd.concat([rows[rows["currency"] == name].assign(currency=of.label) for name, of in CURRENCIES.items()])
    chart: dict[str, Any] = {
        "menus": [*menus],
        "xs": {"points": x},
        "ys": {},
        "logs": {},
        "targets": {},
        "curves": {},
        "lines": [],
    }
    places = {board: [name for of, name in order if of == board] for board in rows["board"].unique()}
    for board, names in places.items():
        with styled():
            looks = [look(j) for j in range(len(names))]
        for style, name in zip(looks, names, strict=True):
            symbol, letter = SYMBOLS.get(style["marker"], ("x", "✖"))
            line = {"board": board, "name": name, "label": f"{letter} {name}", "lost": False, "symbol": symbol}
            chart["lines"].append(line | {"colour": style["color"], "dash": style["linestyle"]})
    for key, on in rows.groupby([*menus], sort=False):
        name, own = "|".join(key), dict([*on.groupby("method")])
        here = [own.get(line["name"]) if line["board"] == key[0] else None for line in chart["lines"]]
        lines = [_points(of, line["colour"] != GREY) for of, line in zip(here, chart["lines"], strict=True)]
        chart["curves"][name], chart["ys"][name], chart["logs"][name] = {"points": lines}, on["title"].iloc[0], False
    return chart


def _points(rows: pd.DataFrame | None, band: bool) -> list[list[float | None]] | None:
    """Return [x, y, low, high] of a line, with a gap after the dot of the default values; None without rows.

    band: whether the line has low and high.
    """
    if rows is None:
        return None
    values = rows[["points", "score", *(["low", "high"] if band else [])]].sort_values("points").round(4)
    if (values["points"] == 0).any():
        values.loc[-1] = [0.0] + [np.nan] * (len(values.columns) - 1)
        values = values.sort_values("points", kind="stable")
    return [[None if np.isnan(value) else value for value in values[name]] for name in values]
