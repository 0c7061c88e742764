"""The benchmark's results as pages, tables and figures, made from the table of all runs."""

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment

from fedopt.analysis import markdown, print_table, write_table
from fedopt.bench.rank import (
    BAND,
    FIRM,
    SEARCH,
    Searches,
    band,
    best_of,
    board,
    claims,
    first,
    goals_of,
    searches_of,
    worth,
)
from fedopt.bench.suite import CURRENCIES, VERSION, Entries, Task, tasks
from fedopt.config import certainty
from fedopt.console import markdown_cell, printable
from fedopt.decimals import exact
from fedopt.drawing import Line, figures
from fedopt.errors import UserError
from fedopt.files import write_atomically

SIZES = (1, 2, 4, 6, 8, 12, 16, 24)  # k of a best-of-k curve
PHASE = "phase"  # a board of many small tasks: they have a row in the table of first places, but no pages and no ranks
# Runs of a selected configuration, its runs with equal clients, and the index of a method's defaults
REPORT, TWIN, DEFAULTS = "report", "twin", 0
WITHDRAWN = {"fedgda_gt", "sagda"}  # entries of version 2.0 whose results depend on the server's step size

SearchesBy = Mapping[str, Searches]  # keys are currencies or tasks
Judged = Mapping[str, SearchesBy]  # task -> currency -> tuning runs
Pair = tuple[str, str, str, str]  # task, one method, another one, and the text of a claim about them


def write_pages(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries, place: Path) -> None:
    """Rank the methods on the chosen tasks, print the tables, and write pages, tables as CSV, and figures.

    Args:
        table: The rows of all runs.
        chosen: The tasks.
        entries: All entries.
        place: The output folder.

    Raises:
        UserError: The rules of a task have changed since its runs.
    """
    table = table[table["task"].isin([task.name for task in chosen])]
    _refuse_other_rules(table, chosen, entries)
    parts = {task.name: table[table["task"] == task.name] for task in chosen}
    judged = {task.name: searches_of(task, parts[task.name]) for task in chosen}
    references = [name for name in table["method"].unique() if name in entries and entries[name].reference]
    firsts = pd.DataFrame([_firsts(task, judged[task.name], _unranked([task], references)) for task in chosen])
    print_table(firsts, [], "who is first on each task")
    nulls, answers = _answers(judged, chosen, tasks([], entries.folders))
    shown = [task for task in chosen if task.board != PHASE]
    boards, tables = _write_boards(shown, judged, parts, references, place)
    for task in shown:
        page = _of_task(task, parts[task.name], judged[task.name], entries, references)
        _fill("task", place / f"{task.name}.md", task=task, **page)
    for name, rows in {"claims": answers, "nulls": nulls, "firsts": firsts, **tables}.items():
        write_table(place / f"{name}.csv", rows)
    runs = len(table.drop_duplicates(["task", "method", "kind", "point", "seed"]))
    texts = {"firsts": markdown(firsts), "claims": _shown(answers), "nulls": _shown(nulls)}
    _fill("index", place / "index.md", runs=runs, shown=shown, boards=boards, **texts)


def _refuse_other_rules(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries) -> None:
    """Raise UserError if the rules of a task have changed since its runs."""
    by_name = {task.name: task for task in chosen}
    for task, name, digest in table[["task", "method", "task_digest"]].drop_duplicates().itertuples(index=False):
        if name in entries and digest != entries.digest(by_name[task], entries[name]):
            why = f"the rules in its files have changed since the runs of {name}"
            raise UserError(f"{task}: {why}; restore the files, or run the task again")


def _write_boards(
    shown: Sequence[Task], judged: Judged, parts: Mapping[str, pd.DataFrame], references: Sequence[str], place: Path
) -> tuple[list[dict[str, Any]], dict[str, pd.DataFrame]]:
    """Print the scores of all boards and write their figures.

    Returns:
        What the page of all results shows about each board, and file name -> table.
    """
    boards = list[dict[str, Any]]()
    tables = dict[str, pd.DataFrame]()
    curves = list[pd.DataFrame]()
    for name in dict.fromkeys(task.board for task in shown):
        here = [task for task in shown if task.board == name]
        unranked = _unranked(here, references)
        suffix = name.replace(" ", "_")
        curves.append(_best_of(here, judged, parts, unranked, place / f"best_of_{suffix}.svg"))
        of_board = []
        for currency in CURRENCIES:
            ranked = board({task.name: judged[task.name][currency] for task in here}, unranked)
            ranked = ranked[_has_currency(currency, ranked["method"], references)]
            tables[f"scores_{suffix}_{currency}"] = ranked
            of_board.append(_board(ranked, currency, name))
        title = f"{name.capitalize()}: {', '.join(task.name for task in here)}"
        boards.append({"name": title, "tables": of_board, "picture": f"best_of_{suffix}.svg"})
    if curves:
        tables["best_of"] = pd.concat(curves, ignore_index=True)
    return boards, tables


def _fill(name: str, path: Path, **values: Any) -> None:
    """Write a page. name: the template, without extension. path: the file. values: the variables of the template."""
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"cell": markdown_cell, "code": lambda words: printable(" ".join(words)).replace("`", "'")}
    template = environment.from_string(files("fedopt.bench").joinpath(f"{name}.md.jinja").read_text(encoding="utf-8"))
    rules = {"version": VERSION, "search": SEARCH, "band": BAND, "firm": FIRM}
    write_atomically(path, template.render(**rules, **values).encode())


# Methods without a rank or without a currency


def _unranked(here: Sequence[Task], references: Sequence[str]) -> list[str]:
    """Return the methods without a rank on the tasks ``here``.

    They are references, and second methods of pairs that are a null control on every task.
    """
    return [*references, *set.intersection(*({pair[1] for pair in task.null} for task in here))]


def _has_currency(currency: str, methods: pd.Series, references: Sequence[str]) -> pd.Series:
    """Return for each method whether a currency applies: references on pooled data only have numbers of calls."""
    return ~methods.isin([] if currency.startswith("calls") else [*references])


# Numbers as texts


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """Format the numbers of a table with three digits, and missing numbers as a dash."""
    return table.map(lambda v: "-" if pd.isna(v) else f"{v:.3g}" if isinstance(v, float) else str(v))


def _band(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


def _in_order(text: str, share: float) -> str:
    """Return a text with the fraction of tuning runs in which it holds, rounded down: it never looks as if it reached a limit."""
    return f"{text} in {math.floor(exact(100 * share))}%"


# The page of all results


def _firsts(task: Task, searches_by_currency: SearchesBy, unranked: Sequence[str]) -> dict[str, str]:
    """Return currency -> the first method on a task, or that there is no order."""
    row = {"task": task.name}
    for currency, searches in searches_by_currency.items():
        name, share = first(searches, unranked)
        said = name if name == "none" else _in_order(name, share)
        row[CURRENCIES[currency].short] = f"no order ({said})" if share < FIRM else said
    return row


def _answers(judged: Judged, chosen: Sequence[Task], every: Sequence[Task]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the results of `claims` for the null controls and for the registered claims, one row per pair and currency.

    A null control is a pair of entries that are the same method: its ratio shows the noise of tuning.

    Args:
        judged: The tuning runs.
        chosen: The tasks of the page.
        every: All tasks with registered claims.
    """
    nulls, answers = list[pd.DataFrame](), list[pd.DataFrame]()
    for currency in CURRENCIES:
        searches = {task.name: judged[task.name][currency] for task in chosen}
        pairs = [(task.name, one, other, f"{one}, {other}") for task in chosen for one, other in task.null]
        nulls.append(_pairs(pairs, searches, currency))
        ratios = nulls[-1].set_index("task")["ratio"]
        sizes = ratios.map(math.log).abs()
        noise = dict[Any, float](sizes.groupby(level=0).max())  # the largest |log ratio| of a task's null controls
        told = [(task, claim) for task in chosen for claim in task.claims if currency in claim.by]
        pairs = [(task.name, claim.one, claim.other, f"{claim.one} {claim.says}") for task, claim in told]
        registered = sum(currency in claim.by for task in every for claim in task.claims)
        answers.append(_pairs(pairs, searches, currency, registered, noise))
    return pd.concat(nulls, ignore_index=True), pd.concat(answers, ignore_index=True)


def _pairs(
    pairs: Sequence[Pair], searches: SearchesBy, currency: str, registered: int = 0, noise: Mapping[str, float] = {}
) -> pd.DataFrame:
    """Return the results of `claims` for the pairs whose methods both have runs. noise: the ``floors`` of `claims`."""
    available = [pair for pair in pairs if {*pair[1:3]} <= {*searches[pair[0]].methods}]
    table = claims([(task, one, other) for task, one, other, _ in available], searches, registered, noise)
    table.insert(1, "currency", currency)
    table.insert(2, "claim", [text for *_, text in available])
    return table


def _shown(table: pd.DataFrame) -> list[str]:
    """Return claims as Markdown, one table per currency."""
    parts = []
    for currency, on in table.groupby("currency", sort=False):
        kept = on[["task", "claim", "ratio", "common", "misses", "cheaper", "p (Holm)", "answer"]]
        kept = kept.rename(columns={"claim": f"by {CURRENCIES[str(currency)].label}"})
        kept.insert(3, "band", [_band(*ends) for ends in zip(on["low"], on["high"], strict=True)])
        kept.loc[on["one"].isin(WITHDRAWN) | on["other"].isin(WITHDRAWN), "answer"] += " (withdrawn)"
        parts.append(markdown(_texts(kept)))
    return parts


def _board(ranked: pd.DataFrame, currency: str, name: str) -> str:
    """Print the scores of a board in one currency, and return them as Markdown."""
    shown = pd.DataFrame({f"by {CURRENCIES[currency].label}": ranked["method"], "score": ranked["score"]})
    shown["band"] = [_band(*ends) for ends in zip(ranked["low"], ranked["high"], strict=True)]
    shown["tasks"] = ranked["tasks"]
    ranks = [_in_order(str(rank), held) for rank, held in zip(ranked["rank"], ranked["holds"].fillna(0), strict=True)]
    order = np.where(ranked["holds"] >= FIRM, "", ", no order")
    shown["rank"] = np.where(ranked["rank"].isna(), "-", pd.Series(ranks) + order)
    print_table(_texts(shown), [*shown.columns[1:]], name)
    return markdown(_texts(shown))


def _best_of(
    here: Sequence[Task], judged: Judged, parts: Mapping[str, pd.DataFrame], unranked: Sequence[str], path: Path
) -> pd.DataFrame:
    """Draw and return the best-of-k curves of the tasks of a board, in communication rounds."""
    curves = [best_of(t, parts[t.name], judged[t.name]["comm_rounds"].reached, SIZES).assign(task=t.name) for t in here]
    table = pd.concat(curves)
    table = table[~table["method"].isin(unranked)]
    best = table.groupby("method")["score"].max().sort_values(ascending=False)
    ranked = {str(method): j for j, method in enumerate(best.index)}  # the order of colours
    with figures.pictures([path], len(here), min(len(here), 2)) as axes:
        for axis, task in zip(axes, here, strict=True):
            lines = {
                str(method): Line(*rows[["points", "score", "low", "high"]].to_numpy().T)
                for method, rows in table[table["task"] == task.name].groupby("method", sort=False)
            }
            figures.draw_lines(axis, lines, ranked)
            figures.describe(axis, "sampled configurations", "score by rounds", task.name)
    return table


# The page of a task


def _of_task(
    task: Task, table: pd.DataFrame, searches_by_currency: SearchesBy, entries: Entries, references: Sequence[str]
) -> dict[str, Any]:
    """Return the results on the page of a task: scores, reached targets, and the best value of each method."""
    scores, goals = list[str](), list[str]()
    for currency, searches in searches_by_currency.items():
        every = pd.Series(searches.methods)
        names = every[_has_currency(currency, every, references)]
        if names.empty:
            continue  # only references have results, and the currency does not apply to them
        head = f"by {CURRENCIES[currency].label}"
        worths = worth(searches.reached[goals_of(task)]).mean(axis=1)
        reached = searches.reached.assign(worth=worths).set_index("method")
        rows = [{head: name} | _of_method(name, searches, reached.loc[[name]], entries) for name in names]
        scores.append(markdown(_texts(pd.DataFrame(rows).sort_values("score", ascending=False))))
        reach = {name: np.isfinite(searches.drawn(name)).mean(axis=(0, 1)) for name in names}
        shares = pd.DataFrame(reach, index=[f"{target:g}" for target in task.targets]).T.map("{:.0%}".format)
        goals.append(markdown(shares.rename_axis(head).reset_index()))
    return {"scores": scores, "goals": goals, "best_held": markdown(_texts(_best_held(task, table)))}


def _of_method(name: str, searches: Searches, reached: pd.DataFrame, entries: Entries) -> dict[str, Any]:
    """Return a method's row in the table of scores. reached: the hits of its runs, with their scores."""
    values = searches.scores(name)
    of_defaults = (reached["kind"] == REPORT) & (reached["point"] == DEFAULTS)
    return {
        "certainty": certainty(entries[name].algo, entries.folders) if name in entries else "",
        "score": float(np.median(values)),
        "band": _band(*band(values)),
        "defaults": reached.loc[of_defaults, "worth"].mean(),
        "equal clients": reached.loc[reached["kind"] == TWIN, "worth"].mean(),
    }


def _best_held(task: Task, table: pd.DataFrame) -> pd.DataFrame:
    """Return the best value that a run of each method held for two evaluations, and how the runs of the samples ended.

    A run holds the worse of two consecutive values. The column runs counts all runs; the fractions are of the sampled
    configurations only.
    """
    sign, keys = -1.0 if task.targets[-1] > task.targets[0] else 1.0, ["method", "kind", "point", "seed"]
    table = table.astype({"method": str, "kind": str, "status": str})
    values = sign * table["value"].astype(float)
    run = table.groupby(keys).ngroup()
    values = values / (abs(values).groupby(run).transform("first") if task.relative else 1.0)
    pairs = pd.concat([values, values.groupby(run).shift(-1)], axis=1)
    held = pairs.max(axis=1, skipna=False).groupby(table["method"], sort=False).min()
    ends = table.drop_duplicates(keys, keep="last")
    pool = ends[ends["kind"] == "pool"]
    how = pd.crosstab(pool["method"], pool["status"], normalize="index")
    how = how.reindex(index=held.index, columns=["stopped", "diverged", "failed"], fill_value=0).map("{:.0%}".format)
    how.insert(0, "best value held", sign * held)
    how["runs"] = ends["method"].value_counts().astype(str)
    return how.rename_axis(columns=None).reset_index()
