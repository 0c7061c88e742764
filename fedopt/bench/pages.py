"""The results of the benchmark as pages, tables and pictures, from the table of all runs."""

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
from fedopt.drawing import Line, figures
from fedopt.errors import UserError
from fedopt.files import write_atomically

SIZES = (1, 2, 4, 6, 8, 12, 16, 24)  # of the searches of a best-of-k curve
PHASE = "phase"  # a board of many small tasks, which have no page and no rank
WITHDRAWN = {"fedgda_gt", "sagda"}  # entries of version 2.0 whose answers depend on the server's steps

Judged = Mapping[str, Mapping[str, Searches]]  # task -> currency -> its searches


def write_pages(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries, place: Path) -> None:
    """Rank the methods on the chosen tasks, and print the tables. Write pages, tables as CSV, and pictures.

    Args:
        table: The rows of all runs.
        chosen: The tasks.
        entries: All entries.
        place: The folder to write into.

    Raises:
        UserError: A row is of a task whose rules have changed since.
    """
    by_name = {task.name: task for task in chosen}
    table = table[table["task"].isin(by_name)]
    kept = table[["task", "method", "task_digest"]].drop_duplicates()
    for task, name, digest in kept.itertuples(index=False):
        if name in entries and digest != entries.digest(by_name[task], entries[name]):
            raise UserError(
                f"{task}: the results of {name} followed other rules than its files have now; restore them, or run it again"
            )
    parts = {task.name: table[table["task"] == task.name] for task in chosen}
    judged = {task.name: searches_of(task, parts[task.name]) for task in chosen}
    references = [name for name in kept["method"].unique() if name in entries and entries[name].reference]
    firsts = pd.DataFrame([_firsts(task, judged[task.name], _unranked([task], references)) for task in chosen])
    print_table(firsts, [], "who is first on each task")
    nulls, answers = _answers(judged, chosen, tasks([], entries.folders))
    tables, boards = {"claims": answers, "nulls": nulls, "firsts": firsts}, list[dict[str, Any]]()
    shown, curves = [task for task in chosen if task.board != PHASE], list[pd.DataFrame]()
    for name in dict.fromkeys(task.board for task in shown):
        here = [task for task in shown if task.board == name]
        unranked, suffix = _unranked(here, references), name.replace(" ", "_")
        curves.append(_best_of(here, judged, parts, unranked, place / f"best_of_{suffix}.svg"))
        scores = {
            currency: board({t.name: judged[t.name][currency] for t in here}, unranked) for currency in CURRENCIES
        }
        scores = {by: ranked[_judged_by(by, ranked["method"], references)] for by, ranked in scores.items()}
        tables |= {f"scores_{suffix}_{currency}": ranked for currency, ranked in scores.items()}
        title = f"{name.capitalize()}: {', '.join(task.name for task in here)}"
        of_board = [_board(ranked, currency, name) for currency, ranked in scores.items()]
        boards.append({"name": title, "tables": of_board, "picture": f"best_of_{suffix}.svg"})
    for task in shown:
        page = _of_task(task, parts[task.name], judged[task.name], entries, references)
        _fill("task", place / f"{task.name}.md", task=task, **page)
    if curves:
        tables["best_of"] = pd.concat(curves, ignore_index=True)
    for name, rows in tables.items():
        write_table(place / f"{name}.csv", rows)
    runs = len(table.drop_duplicates(["task", "method", "kind", "point", "seed"]))
    texts = {"firsts": markdown(firsts), "claims": _shown(answers), "nulls": _shown(nulls)}
    _fill("index", place / "index.md", runs=runs, shown=shown, boards=boards, **texts)


def _fill(name: str, path: Path, **values: Any) -> None:
    """Write a page from a template. name: of the template, without ending. path: the file to write. values: its variables."""
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"cell": markdown_cell, "code": lambda words: printable(" ".join(words)).replace("`", "'")}
    template = environment.from_string(files("fedopt.bench").joinpath(f"{name}.md.jinja").read_text(encoding="utf-8"))
    rules = {"version": VERSION, "search": SEARCH, "band": BAND, "firm": FIRM}
    write_atomically(path, template.render(**rules, **values).encode())


# What has no rank, and what a currency is about


def _unranked(of: Sequence[Task], references: Sequence[str]) -> list[str]:
    """Return who has no rank on these tasks: references, and the second name of a method by any task's null controls."""
    return [*references, *set.intersection(*({pair[1] for pair in task.null} for task in of))]


def _judged_by(currency: str, methods: pd.Series, references: Sequence[str]) -> pd.Series:
    """Return which methods a currency is about: references on pooled data have no rounds, bytes and visits to clients."""
    return ~methods.isin([] if currency.startswith("calls") else [*references])


# Numbers as texts


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its numbers as texts of three digits, and missing ones as a dash."""
    return table.map(lambda v: "-" if pd.isna(v) else f"{v:.3g}" if isinstance(v, float) else str(v))


def _band(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


def _in_order(text: str, share: float) -> str:
    """Return a text with the share of searches in which it holds, rounded down: one below a limit does not read as the limit."""
    return f"{text} in {100 * share // 1:.0f}%"


# The page of all results


def _firsts(task: Task, by: Mapping[str, Searches], unranked: Sequence[str]) -> dict[str, str]:
    """Return who is first on a task by each currency, or that there is no order."""
    row = {"task": task.name}
    for currency, searches in by.items():
        name, share = first(searches, unranked)
        said = name if name == "none" else _in_order(name, share)
        row[CURRENCIES[currency].short] = f"no order ({said})" if share < FIRM else said
    return row


def _answers(judged: Judged, chosen: Sequence[Task], every: Sequence[Task]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the pairs that are one method, and the claims, as `claims` judges them: what the former come apart by is the
    noise of a search. every: all tasks, whose claims are registered.
    """
    nulls, answers = list[pd.DataFrame](), list[pd.DataFrame]()
    for currency in CURRENCIES:
        searches = {task.name: judged[task.name][currency] for task in chosen}
        pairs = [(task.name, one, other, f"{one}, {other}") for task in chosen for one, other in task.null]
        nulls.append(_pairs(pairs, searches, currency))
        floors = nulls[-1].set_index("task")["ratio"].map(math.log).abs().groupby(level=0).max().to_dict()
        told = [(task.name, claim) for task in chosen for claim in task.claims if currency in claim.by]
        pairs = [(task, claim.one, claim.other, f"{claim.one} {claim.says}") for task, claim in told]
        registered = sum(currency in claim.by for task in every for claim in task.claims)
        answers.append(_pairs(pairs, searches, currency, registered, floors))
    return pd.concat(nulls, ignore_index=True), pd.concat(answers, ignore_index=True)


def _pairs(
    pairs: Sequence[tuple[str, str, str, str]], searches: Mapping[str, Searches], currency: str, *how: Any
) -> pd.DataFrame:
    """Return what `claims` says of the pairs whose runs are there. pairs: (task, one, other, words). how: for `claims`."""
    there = [pair for pair in pairs if {*pair[1:3]} <= {*searches[pair[0]].methods}]
    table = claims([(task, one, other) for task, one, other, _ in there], searches, *how)
    table.insert(1, "currency", currency)
    table.insert(2, "claim", [words for *_, words in there])
    return table


def _shown(table: pd.DataFrame) -> list[str]:
    """Return claims as Markdown, a table per currency."""
    parts = []
    for currency, on in table.groupby("currency", sort=False):
        kept = on[["task", "claim", "ratio", "common", "misses", "cheaper", "p (Holm)", "answer"]]
        kept = kept.rename(columns={"claim": f"by {CURRENCIES[str(currency)].label}"})
        kept.insert(3, "band", [_band(*ends) for ends in zip(on["low"], on["high"], strict=True)])
        kept.loc[on["one"].isin(WITHDRAWN) | on["other"].isin(WITHDRAWN), "answer"] += " (withdrawn)"
        parts.append(markdown(_texts(kept)))
    return parts


def _board(ranked: pd.DataFrame, currency: str, name: str) -> str:
    """Print the scores of a board by one currency. Return them as Markdown."""
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
    """Draw and return the best-of-k curves of the tasks of a board, by communication rounds."""
    table = pd.concat(
        [best_of(t, parts[t.name], judged[t.name]["comm_rounds"].reached, SIZES).assign(task=t.name) for t in here]
    )
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
            figures.describe(axis, "points of a search", "score by rounds", task.name)
    return table


# The page of a task


def _of_task(
    task: Task, table: pd.DataFrame, by: Mapping[str, Searches], entries: Entries, references: Sequence[str]
) -> dict[str, Any]:
    """Return what the page of a task shows besides its rules: scores, targets reached, and how far each method gets."""
    scores, goals = list[str](), list[str]()
    for currency, searches in by.items():
        every = pd.Series(searches.methods)
        names = every[_judged_by(currency, every, references)]
        if names.empty:
            continue  # references alone, and no currency of theirs
        reached, head = searches.reached, f"by {CURRENCIES[currency].label}"
        reached = reached.assign(worth=worth(reached[goals_of(task)]).mean(axis=1)).set_index("method")
        rows, reach = [], {}
        for name in names:
            values, own = searches.scores(name), reached.loc[[name]]
            sure = certainty(entries[name].algo, entries.folders) if name in entries else ""
            row = {head: name, "certainty": sure, "score": float(np.median(values)), "band": _band(*band(values))}
            row["defaults"] = own.loc[(own["kind"] == "report") & (own["point"] == 0), "worth"].mean()
            rows.append(row | {"equal clients": own.loc[own["kind"] == "twin", "worth"].mean()})
            reach[name] = np.isfinite(searches.drawn(name)).mean(axis=(0, 1))
        ordered = pd.DataFrame(rows).sort_values("score", ascending=False)
        scores.append(markdown(_texts(ordered)))
        shares = pd.DataFrame(reach, index=[f"{target:g}" for target in task.targets]).T.map("{:.0%}".format)
        goals.append(markdown(shares.rename_axis(head).reset_index()))
    return {"scores": scores, "goals": goals, "floors": markdown(_texts(_floors(task, table)))}


def _floors(task: Task, table: pd.DataFrame) -> pd.DataFrame:
    """Return the best value that any run of each method held for two evaluations, and how the runs of its pool ended."""
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
