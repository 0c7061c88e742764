"""The results of the benchmark: hits, scores and claims in each currency, as tables, pictures and pages."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment

from fedopt.analysis import Recorded, latex, markdown, median_line, print_table, profile, write_table
from fedopt.bench.outcome import draw_best, mark_trials
from fedopt.bench.rank import BUDGETS, pairs, scores, solved, worth
from fedopt.bench.space import words_of
from fedopt.bench.suite import CURRENCIES, Result, Suite, Task, rows, tasks
from fedopt.bench.trials import FIRST_SEED, STAGES
from fedopt.config import Folders, certainty, display_name
from fedopt.console import markdown_cell, printable
from fedopt.drawing import figures
from fedopt.files import read_json, write_atomically

SHARES = BUDGETS[::4]  # at which curves of a metric are drawn
NAMES = {"comm_rounds": "communication rounds", "bytes": "bytes", "oracle_calls": "oracle calls"}
CARD = {"commit": str | None, "versions": dict[str, Any], "machine": dict[str, Any]}  # of run.json
DIGITS = {"score": 3, "ratio": 3, "p": 4, "further": 3, "p (Holm)": 4}


def write_pages(suite: Suite, chosen: Sequence[Task], place: Path) -> None:
    """Rank the methods on the chosen tasks, and print the tables. Write pages, CSV, LaTeX and pictures.

    Args:
        suite: The runs.
        chosen: The tasks.
        place: The folder to write into.

    Raises:
        UserError: A run of a task has not ended, a method lacks trials, or a task's file was changed after its runs began.
    """
    results = {task.name: suite.results(task) for task in chosen}
    hits = pd.concat([suite.hits(task, results[task.name]) for task in chosen], ignore_index=True)
    write_table(place / "hits.csv", hits)
    by_kind = dict([*hits.groupby("kind")])
    reported, further, every = by_kind["report"], by_kind.get("further", hits[:0]), tasks([], suite.folders)
    boards: dict[str, list[str]] = {}
    for board in dict.fromkeys(task.board for task in chosen):
        here = [task.name for task in chosen if task.board == board]
        of_all = sum(task.board == board for task in every)
        part = f" ({len(here)} of {of_all} tasks)" if len(here) < of_all else ""
        heading = f"{board.capitalize()}: {', '.join(here)}{part}"
        boards[heading] = []
        for currency, on in _of_currencies(reported[reported["task"].isin(here)]):
            ranked, name = scores(on), f"scores_{board.replace(' ', '_')}_{currency}"
            write_table(place / f"{name}.csv", ranked)
            shown = _ranked(ranked, currency, suite.folders)
            boards[heading].append(_table(place / f"{name}.tex", shown, f"{heading}, by {NAMES[currency]}"))
    claimed, claims = [(task.name, claim) for task in chosen for claim in task.claims], []
    for (currency, first), (_, later) in zip(_of_currencies(reported), _of_currencies(further), strict=True):
        if by := [(name, claim) for name, claim in claimed if currency in claim.by]:
            in_all = max(sum(currency in claim.by for task in every for claim in task.claims), len(by))
            judged = pairs(first, later, [(name, claim.one, claim.other) for name, claim in by], in_all)
            judged.insert(1, "claim", [f"{claim.one} {claim.says}" for _, claim in by])
            write_table(place / f"claims_{currency}.csv", judged)
            shown = judged.drop(columns=["one", "other"]).rename(columns={"claim": f"by {NAMES[currency]}"})
            claims.append(_table(place / f"claims_{currency}.tex", shown, f"claims by {NAMES[currency]}"))
    draw_goals(place, reported, {task.name: task.board for task in chosen}, suite.folders)
    for task in chosen:
        _page(suite, task, results[task.name], hits[hits["task"] == task.name], place)
    tables = {"boards": boards, "claimed": claimed, "claims": claims, "firsts": _firsts(hits)}
    _fill("index", place / "index.md", suite=suite, tasks=chosen, date=date.today(), **tables)


def _of_currencies(hits: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    return ((currency, hits[hits["currency"] == currency]) for currency in CURRENCIES)


def _fill(name: str, path: Path, **values: Any) -> None:
    """Write a page from a template. name: of the template, without ending. path: the file to write. values: the template's
    variables.
    """
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"cell": markdown_cell, "code": _code}
    template = environment.from_string(files("fedopt.bench").joinpath(f"{name}.md.jinja").read_text(encoding="utf-8"))
    write_atomically(path, template.render(names=NAMES, **values).encode())


def _table(path: Path, table: pd.DataFrame, caption: str) -> str:
    """Print a table, write it to `path` as LaTeX, and return it as Markdown. Known number columns are rounded by `DIGITS`."""
    shown = table.assign(**{c: table[c].map(f"{{:.{n}f}}".format) for c, n in DIGITS.items() if c in table}).astype(str)
    print_table(shown, [*table.columns[1:]], caption)
    write_atomically(path, latex(shown).encode())
    return markdown(shown)


def _ranked(table: pd.DataFrame, currency: str, folders: Folders) -> pd.DataFrame:
    """Return the scores of a board by one currency as a table to show, with bands and ranks as text."""
    ranks = zip(table["rank"], table["rank holds"], strict=True)
    return pd.DataFrame(
        {
            f"by {NAMES[currency]}": table["method"],
            "certainty": [certainty(method, folders) for method in table["method"]],
            "score": table["score"],
            "band": [f"{low:.3f} to {high:.3f}" for low, high in zip(table["low"], table["high"], strict=True)],
            "tasks": table["tasks"],
            "rank": ["-" if pd.isna(rank) else f"{rank} in {holds:.0%}" for rank, holds in ranks],
        }
    )


def _firsts(hits: pd.DataFrame) -> str:
    """Return a Markdown table with the best method of each task by each currency.

    A cell is 'a → b' if a is best with the defaults and b with tuned values. Ties are joined by =; 'none': no method reached
    a target.
    """
    worths, by = hits.assign(worth=worth(hits["cost"])), ["task", "currency", "kind"]
    table = worths.pivot_table(index=by, columns="method", values="worth", sort=False)
    best = table.eq(table.max(axis=1), axis=0) & (table > 0)
    first = best.apply(lambda row: " = ".join(row.index[row]) or "none", axis=1).unstack()
    changes = first["default"].where(first["default"] == first["tuned"], first["default"] + " → " + first["tuned"])
    shown = changes.unstack()[[*CURRENCIES]].rename(columns=NAMES)
    return markdown(shown.reset_index())


def _page(suite: Suite, task: Task, results: Sequence[Result], hits: pd.DataFrame, place: Path) -> None:
    """Write the page of a task: rules, curves, the scores and targets each method reached, trials, and the control with equal
    clients.
    """
    order = [result.search.algo for result in results]
    kinds = [kind for kind in ("report", "twin", "default", "tuned") if kind in {*hits["kind"]}]
    by, worths = ["currency", "method"], hits.assign(worth=worth(hits["cost"]))
    values = worths.pivot_table(index=by, columns="kind", values="worth")[kinds].map("{:.3f}".format)
    values.insert(0, "certainty", [certainty(method, suite.folders) for _, method in values.index])
    goals = hits[hits["kind"] == "report"].groupby([*by, "target"])["cost"].agg(_reached).unstack()
    best = [
        {"currency": currency, "method": result.search.algo, "trial": trial.number}
        | {"at an edge": ", ".join(result.search.edges(trial)) or "-"}
        | {"values": " ".join(words_of(trial.point)) or "the defaults"}
        for result in results
        for currency, trial in result.best.items()
    ]
    ran: dict[str, None] = {}
    for result in results:
        card = read_json(result.search.place(STAGES[0], 0, FIRST_SEED) / "run.json", CARD)
        versions, machine = card.get("versions", {}), card.get("machine", {})
        ran[f"commit {card.get('commit')}, torch {versions.get('torch')}, {machine.get('platform')}"] = None
    _draw_task(suite, task, results, place)
    _draw_trials(suite, task, results, place)
    targets = {number: f"{target:g}" for number, target in enumerate(task.targets)}
    tables = {"scores": values, "goals": goals.rename(columns=targets), "trials": pd.DataFrame(best).set_index(by)}
    shown = {name: _by_currency(table, order) for name, table in tables.items()}
    _fill("task", place / f"{task.name}.md", task=task, ran=ran, **shown)


def _code(words: Sequence[str]) -> str:
    """Join words with blanks, safe to put between backticks in Markdown: backticks become quotes."""
    return printable(" ".join(words)).replace("`", "'")


def _by_currency(table: pd.DataFrame, methods: list[str]) -> list[str]:
    """Return one Markdown table per currency. table: indexed by currency and method. methods: the order of the rows."""
    of_each = {currency: table.xs(currency).reindex(methods) for currency in CURRENCIES}
    return [markdown(rows.rename_axis(f"by {NAMES[c]}").reset_index()) for c, rows in of_each.items()]


def _reached(costs: pd.Series) -> str:
    finite = costs[np.isfinite(costs)]
    return f"{len(finite)}/{len(costs)}" + (f" at {finite.median():.1%}" if len(finite) else "")


def draw_goals(place: Path, reported: pd.DataFrame, boards: Mapping[str, str], folders: Folders = ()) -> None:
    """Draw solved.svg and profile.svg, with a row per board and a column per currency.

    Args:
        place: The folder of the pictures.
        reported: The hits of kind report.
        boards: task -> board.
        folders: The user's config folders, in addition to fedopt's.
    """
    methods = [*dict.fromkeys(reported["method"])]
    names = {method: display_name(str(method), folders) for method in methods}
    slots = {names[method]: j for j, method in enumerate(methods)}
    parts = [(board, currency) for board in dict.fromkeys(boards.values()) for currency in CURRENCIES]
    figure_of = {"solved": ("share of the budget", solved), "profile": ("ratio to the least median cost", profile)}
    for file, (x, curves) in figure_of.items():
        with _by_currencies(place / f"{file}.svg", len(parts)) as axes:
            for axis, (board, currency) in zip(axes, parts, strict=True):
                on = (reported["currency"] == currency) & (reported["task"].map(boards) == board)
                shares = curves(reported[on])
                lines = {names[m]: figures.Line(shares.index.to_numpy(), shares[m].to_numpy()) for m in shares}
                figures.draw_lines(axis, lines, slots)
                figures.describe(axis, x, "share of goals reached", f"{board}: {NAMES[currency]}")
                axis.set(xscale="log", ylim=(-0.02, 1.02))


def _by_currencies(path: Path, count: int) -> Any:
    """Return a context manager that yields the axes of `count` pictures, one column per currency, and writes them to `path`."""
    return figures.pictures([path], count, len(CURRENCIES), 2.6 * len(CURRENCIES))


def _draw_task(suite: Suite, task: Task, results: Sequence[Result], place: Path) -> None:
    """Draw the metric of a task as a function of the share of the budget spent, with a panel per currency."""
    metric = results[0].search.metric
    title = f"{metric.title}, over that at the start" if task.relative else metric.title
    with _by_currencies(place / f"{task.name}.svg", len(CURRENCIES)) as axes:
        for axis, currency in zip(axes, CURRENCIES, strict=True):
            lines, drawn = {}, []
            for result in results:
                reports = [it for it in suite.reports(task, result, currency) if it.kind == "report"]
                runs = [run for report in reports if (run := rows(report.folder)) is not None]
                values = np.array([_at_shares(run, task, currency) for run in runs])
                lines[display_name(result.search.algo, suite.folders)] = median_line(SHARES, values)
                drawn.append(values)
            figures.draw_lines(axis, lines)
            figures.describe(axis, "share of the budget", title, NAMES[currency])
            axis.set_xscale("log")
            if figures.spans_decades(metric, np.concatenate(drawn)):
                axis.set_yscale("log")
                axis.set_ylim(bottom=max(axis.get_ylim()[0], task.targets[-1] / 3))
            for target in task.targets:
                axis.axhline(target, color="grey", linewidth=0.4, zorder=0)


def _at_shares(run: Recorded, task: Task, currency: str) -> np.ndarray:
    """Return the metric's last value by the time each of `SHARES` of the budget was spent, [shares].

    Values that are not finite become infinitely bad. If the task is relative, values are divided by the first one.
    """
    values = run.values(task.metric) / (run.values(task.metric)[0] if task.relative else 1.0)
    places = np.searchsorted(run.cost(currency) / task.budget[currency], SHARES, side="right") - 1
    return np.nan_to_num(values[places], nan=run.metric(task.metric).worst)


def _draw_trials(suite: Suite, task: Task, results: Sequence[Result], place: Path) -> None:
    """Draw the last value of each trial, one column of markers per method, and beside it the best of k trials."""
    searches, metric = [result.search for result in results], results[0].search.metric
    names = [display_name(search.algo, suite.folders) for search in searches]
    shared, width = {"width_ratios": [2, 1]}, 2.6 * len(CURRENCIES)
    with figures.pictures([place / f"{task.name}_trials.svg"], 2, 2, width, shared=shared) as (strip, curve):
        for j, search in enumerate(searches):
            losses = [trial.loss for trial in search.done]
            mark_trials(strip, j + np.linspace(-0.25, 0.25, len(losses)), losses, search.metric.sign)
        draw_best(curve, {name: search.done for name, search in zip(names, searches, strict=True)}, metric)
        figures.describe(strip, "", metric.title)
        curve.set_xticks(range(1, max(len(search.done) for search in searches) + 1, 3))
        strip.set_xticks(range(len(results)), names, rotation=20)
        values = np.array([search.metric.sign * trial.loss for search in searches for trial in search.done])
        for axis in (strip, curve) if figures.spans_decades(metric, values) else ():
            axis.set_yscale("log")
            axis.set_ylim(bottom=max(axis.get_ylim()[0], 1e-10 * axis.get_ylim()[1]))  # ten decades at most
