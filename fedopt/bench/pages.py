"""What the benchmark shows: hits, scores and claims in each currency, as tables, as pictures and as pages."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.bench.rank import BUDGETS, pairs, profile, scores, solved, worth
from fedopt.bench.space import words_of
from fedopt.bench.suite import CURRENCIES, Result, Suite, Task, rows
from fedopt.bench.trials import FIRST_SEED, STAGES
from fedopt.comparing.recorded import Recorded
from fedopt.comparing.tables import latex, markdown, print_table, write_table
from fedopt.files.reading import read_json
from fedopt.files.writing import write_atomically
from fedopt.results import figures

SHARES = BUDGETS[::4]  # at which curves of a metric are drawn
DIGITS = {"ratio": 3, "p": 4, "p (Holm)": 4, "again": 3}
NAMES = {"comm_rounds": "communication rounds", "bytes": "bytes", "oracle_calls": "oracle calls"}


def read_entries(out: Path) -> list[str]:
    """The methods that were entered."""
    return list(read_json(out / "entries.json", {"methods": list[str]}).get("methods", []))


def write(suite: Suite, chosen: Sequence[Task], entries: Sequence[str], place: Path) -> None:
    """Rank what there is of these tasks, print it, and write it into a folder as pages, CSV and LaTeX, with pictures."""
    results = {task.name: suite.results(task, task.methods) for task in chosen}
    hits = pd.concat([suite.hits(task, results[task.name]) for task in chosen], ignore_index=True)
    suite.out.mkdir(parents=True, exist_ok=True)
    write_atomically(suite.out / "entries.json", json.dumps({"methods": [*entries]}).encode())
    write_table(place / "hits.csv", hits)
    boards = dict.fromkeys(task.board for task in chosen)
    claims = [(task.name, claim.one, claim.other, claim.says) for task in chosen for claim in task.claims]
    text = [*_head(suite, chosen, results), "![share of goals reached](solved.svg)"]
    for board in boards:
        on = hits[hits["task"].isin([task.name for task in chosen if task.board == board]) & (hits["kind"] == "report")]
        ranked = {currency: scores(on[on["currency"] == currency]) for currency in CURRENCIES}
        for currency, table in ranked.items():
            write_table(place / f"scores_{board.replace(' ', '_')}_{currency}.csv", table)
        text += [
            f"## {board.capitalize()}",
            *_table(place / f"scores_{board.replace(' ', '_')}", _side_by_side(ranked), board),
        ]
    text.append("## Claims that were registered")
    text.append(
        "ratio: of what the first spent to what the second did, over the targets; a miss counts as the whole budget. "
        "cheaper: how often the first is, with its band of 90 %. "
        f"p: exact, of the signs of {suite.seeds} seeds. A claim held, or did not, where p is below 5 % after Holm's "
        f"correction over all claims of a currency, and {suite.further} further seeds (again) have the same sign."
    )
    for currency in CURRENCIES:
        kinds = dict([*hits[hits["currency"] == currency].groupby("kind")])
        told = pairs(kinds["report"], kinds.get("again", hits[:0]), [claim[:3] for claim in claims])
        if len(told):
            told.insert(1, "claim", [says for *_, says in claims])
            bands = zip(told["cheaper"], told.pop("low"), told.pop("high"), strict=True)
            told["cheaper"] = [f"{share:.2f} ({low:.2f} to {high:.2f})" for share, low, high in bands]
        text += [
            f"### By {NAMES[currency]}",
            *_table(place / f"claims_{currency}", told, f"claims by {NAMES[currency]}"),
        ]
    text += ["## Does tuning change who is first?", markdown(_firsts(hits))]
    text += [
        "## Profiles",
        "![profiles](profile.svg)",
        "They change with who is here: all methods of a board. Scores do not.",
    ]
    for name, curves in (("solved", solved), ("profile", profile)):
        _draw(place / f"{name}.svg", name, curves, hits[hits["kind"] == "report"], {t.name: t.board for t in chosen})
    for task in chosen:
        _page(suite, task, results[task.name], hits[hits["task"] == task.name], place)
    write_atomically(place / "index.md", "\n\n".join(text).encode() + b"\n")


def _head(suite: Suite, chosen: Sequence[Task], results: Mapping[str, Sequence[Result]]) -> list[str]:
    """What was run, when, with which code, and on what."""
    search = results[chosen[0].name][0].search
    parts = {"versions": dict[str, Any], "machine": dict[str, Any], "commit": str | None}
    card = read_json(search.place(STAGES[0], 0, FIRST_SEED) / "run.json", parts)
    versions, machine = card.get("versions", {}), card.get("machine", {})
    ran = (
        f"commit {card.get('commit')}, torch {versions.get('torch')}, {machine.get('platform')}, {os.cpu_count()} cores"
    )
    pages = ", ".join(f"[{task.name}]({task.name}.md) (version {task.version})" for task in chosen)
    return [
        "# Results of the benchmark",
        f"Written on {date.today()} from runs of {ran}. {suite.trials} trials and the defaults of each method, "
        f"{suite.tuning} seeds each; the best one is reported on {suite.seeds} other seeds. Tasks: {pages}.",
        "A score is the area under a method's curve of goals reached on the logarithm of the budget, from 1 % to all of it. "
        "In brackets: a band of 90 %, by a bootstrap of seeds. Then the rank, and the share of its samples that have it. "
        "Who does not take part in all tasks of a board has no rank.",
    ]


def _side_by_side(ranked: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The score of each method with its band and its rank, a column a currency."""
    by_method = {currency: table.set_index("method") for currency, table in ranked.items()}
    first = by_method[CURRENCIES[0]]
    cells: dict[str, Any] = {"method": [*first.index], "tasks": [*first["tasks"]]}
    for currency, table in by_method.items():
        cells[NAMES[currency]] = [
            f"{row['score']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            + ("" if pd.isna(row["rank"]) else f", rank {row['rank']} in {row['rank holds']:.0%}")
            for _, row in table.reindex(first.index).iterrows()
        ]
    return pd.DataFrame(cells)


def _firsts(hits: pd.DataFrame) -> pd.DataFrame:
    """A row a task: who has the best score of the seeds of the trials, with defaults and with tuned values, in each currency."""
    rows = []
    for task, on_task in hits.groupby("task", sort=False):
        row = {"task": str(task)}
        for currency in CURRENCIES:
            by_kind = on_task[on_task["currency"] == currency].groupby("kind")
            firsts = [scores(by_kind.get_group(kind), samples=1)["method"].iloc[0] for kind in ("default", "tuned")]
            row[NAMES[currency]] = " → ".join(dict.fromkeys(firsts))
        rows.append(row)
    return pd.DataFrame(rows)


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{c: table[c].map(f"{{:.{n}f}}".format) for c, n in DIGITS.items() if c in table}).astype(str)


def _table(path: Path, table: pd.DataFrame, caption: str) -> list[str]:
    """Print it, and write it as CSV and LaTeX. Returns it for a page; nothing for an empty one."""
    if not len(table):
        return []
    shown = _shown(table)
    print_table(shown, [*table.columns[1:]], caption)
    write_table(path.parent / f"{path.name}.csv", table)
    write_atomically(path.parent / f"{path.name}.tex", latex(shown).encode())
    return [markdown(shown)]


def _page(suite: Suite, task: Task, results: Sequence[Result], hits: pd.DataFrame, place: Path) -> None:
    """A page of a task: its rules, the curves, what each method reached, its trials, and the twin of equal clients."""
    table = []
    for result in results:
        row: dict[str, str] = {"method": result.search.algo}
        for currency in CURRENCIES:
            of_method = hits[(hits["method"] == result.search.algo) & (hits["currency"] == currency)]
            mean = worth(of_method["cost"]).groupby(of_method["kind"]).mean()
            row[NAMES[currency]] = f"{mean['report']:.3f}"
            row |= {f"{currency}: {kind}": f"{mean.get(kind, math.nan):.3f}" for kind in ("twin", "default", "tuned")}
        table.append(row)
    reported = hits[hits["kind"] == "report"]
    within = [
        {"method": method, "by": NAMES[str(of)]}
        | {f"target {task.targets[k]:g}": _within(costs) for k, costs in enumerate(goals)}
        for (method, of), one in reported.groupby(["method", "currency"], sort=False)
        for goals in [[costs for _, costs in one.groupby("target")["cost"]]]
    ]
    best = [
        {"method": r.search.algo, "by": NAMES[c], "trial": str(t.number)}
        | {
            "at an edge": ", ".join(r.search.edges(t)) or "-",
            "values": " ".join(words_of(t.point)) or "the defaults",
        }
        for r in results
        for c, t in r.best.items()
    ]
    budget = ", ".join(f"{limit:g} ({NAMES[currency]})" for currency, limit in task.budget.items())
    goal = "shares of its value at the start" if task.relative else "values"
    _draw_task(suite, task, results, place)
    parts = [
        f"# {task.name}: {task.title}",
        f"`{' '.join(task.words)}`; version {task.version}. Metric: {task.metric}, targets {', '.join(map(str, task.targets))} "
        f"({goal}). Budget: {budget}; runs end when the last one is spent.",
        *[f"`{method}` does not take part: {why}." for method, why in task.refuses.items()],
        f"![{task.metric} against what was spent]({task.name}.svg)",
        "Lines: medians over seeds of the trial that is best by each currency. Bands: from the second-least to the second-largest. "
        "Grey: the targets.",
        "## Scores",
        f"Beside each: of equal clients (twin, {' '.join(task.twin)}), and of defaults and tuned values on the trials' seeds.",
        markdown(pd.DataFrame(table)),
        "## Targets",
        "How many seeds reached each target, and the median share of the budget that those took.",
        markdown(pd.DataFrame(within)),
        "## Trials",
        f"![loss of each trial]({task.name}_trials.svg)",
        f"Dots: the last {task.metric} of a trial, median of {suite.tuning} seeds. Rings: the defaults. Crosses: diverged.",
        markdown(pd.DataFrame(best)),
    ]
    write_atomically(place / f"{task.name}.md", "\n\n".join(parts).encode() + b"\n")


def _within(costs: pd.Series) -> str:
    finite = costs[np.isfinite(costs)]
    return f"{len(finite)}/{len(costs)}" + (f" at {finite.median():.1%}" if len(finite) else "")


@figures.styled()
def _draw(
    path: Path, name: str, curves: Callable[[pd.DataFrame], pd.DataFrame], hits: pd.DataFrame, boards: Mapping[str, str]
) -> None:
    """Curves of methods, a row a board and a column a currency."""
    rows = {board: [task for task in boards if boards[task] == board] for board in boards.values()}
    figure, axes = figures.grid(len(rows), len(CURRENCIES), 2.6 * len(CURRENCIES))
    colour = {method: j for j, method in enumerate(dict.fromkeys(hits["method"]))}
    for of_board, (board, on) in zip(axes, rows.items(), strict=True):
        for axis, currency in zip(of_board, CURRENCIES, strict=True):
            shares = curves(hits[(hits["currency"] == currency) & hits["task"].isin(on)])
            for method in shares:
                j = colour[method]
                axis.plot(
                    shares.index, shares[method], label=method, **figures.look(j), **figures.marks(j, j, len(colour))
                )
            x = "share of the budget" if name == "solved" else "ratio to the least median cost"
            figures.describe(axis, x, "share of goals reached", f"{board}: {NAMES[currency]}")
            axis.set_xscale("log")
            axis.set_ylim(-0.02, 1.02)
    figures.save(figure, path)


@figures.styled()
def _draw_task(suite: Suite, task: Task, results: Sequence[Result], place: Path) -> None:
    """The metric against what was spent, a panel a currency; and the last value of each trial, a column a method."""
    figure, axes = figures.grid(1, len(CURRENCIES), 2.6 * len(CURRENCIES))
    metric = results[0].search.metric
    for axis, currency in zip(axes.flat, CURRENCIES, strict=True):
        drawn = []
        for j, result in enumerate(results):
            reports = suite.reports(task, result.search, result.best[currency].number)
            runs = [rows(report.folder) for report in reports if report.kind == "report"]
            values = np.sort([_at_budgets(run, task, currency) for run in runs if run is not None], axis=0)
            if not len(values):
                continue
            look = figures.look(j) | figures.marks(j, j, len(results))
            axis.plot(SHARES, np.median(values, axis=0), label=result.search.algo, **look)
            axis.fill_between(
                SHARES,
                values[1 % len(values)],
                values[-2 % len(values)],
                color=figures.look(j)["color"],
                alpha=0.15,
                lw=0,
            )
            drawn.append(values)
        title = f"{metric.title}, over that at the start" if task.relative else metric.title
        figures.describe(axis, "share of the budget", title, NAMES[currency])
        axis.set_xscale("log")
        if drawn and figures.spans_decades(metric, np.concatenate(drawn)):
            axis.set_yscale("log")
            axis.set_ylim(bottom=max(axis.get_ylim()[0], task.targets[-1] / 3))
        for target in task.targets:
            axis.axhline(target, color="grey", linewidth=0.4, zorder=0)
    figures.save(figure, place / f"{task.name}.svg")

    figure, ((axis,),) = figures.grid(1, 1, 2.6 * len(CURRENCIES))
    sign = -1 if metric.better == "higher" else 1
    losses = {result.search.algo: [sign * trial.loss for trial in result.search.done] for result in results}
    finite = np.array([loss for of_method in losses.values() for loss in of_method if math.isfinite(loss)])
    for place_of, of_method in enumerate(losses.values()):
        shift = np.linspace(-0.25, 0.25, len(of_method))
        axis.plot(
            place_of + shift, np.where(np.isfinite(of_method), of_method, np.nan), ".", color=figures.OKABE_ITO[0]
        )
        axis.plot(
            place_of + shift[0],
            of_method[0] if math.isfinite(of_method[0]) else math.nan,
            "o",
            color=figures.OKABE_ITO[1],
            fillstyle="none",
        )
        lost = place_of + shift[~np.isfinite(of_method)]
        axis.plot(lost, [0.97] * len(lost), "x", color=figures.OKABE_ITO[6], transform=axis.get_xaxis_transform())
    figures.describe(axis, "", metric.title)
    axis.set_xticks(range(len(losses)), [*losses])
    if figures.spans_decades(metric, finite):
        axis.set_yscale("log")
        axis.set_ylim(bottom=max(axis.get_ylim()[0], 1e-10 * axis.get_ylim()[1]))
    figures.save(figure, place / f"{task.name}_trials.svg")


def _at_budgets(run: Recorded, task: Task, currency: str) -> np.ndarray:
    """[len(SHARES)], the last value that a run had when each share of the budget was spent; relative ones to the first."""
    values = run.values(task.metric)
    places = np.searchsorted(run.cost(currency) / task.budget[currency], SHARES, side="right") - 1
    return values[places] / (values[0] if task.relative else 1.0)
