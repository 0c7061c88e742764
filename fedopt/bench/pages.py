"""The results of the benchmark as pages, tables and pictures, from the table of all runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment
from matplotlib.patches import Rectangle

from fedopt.analysis import markdown, median_line, print_table, write_table
from fedopt.bench.rank import (
    BAND,
    BUDGETS,
    FIRM,
    SEARCH,
    Searches,
    band,
    best_of,
    board,
    claims,
    first,
    goals_of,
    hits,
    spent,
    worth,
)
from fedopt.bench.suite import CURRENCIES, NAMES, VERSION, Entries, Task, tasks
from fedopt.config import Folders, certainty
from fedopt.console import markdown_cell, printable
from fedopt.drawing import Line, figures
from fedopt.errors import UserError
from fedopt.files import write_atomically

SIZES = (1, 2, 4, 6, 8, 12, 16, 24)  # of the searches of a best-of-k curve
QUARTILES = (0.25, 0.5, 0.75)
SHARES = BUDGETS[::4]  # at which curves of a metric are drawn
PHASE = "phase"  # the board of the diagram of drift and participation
WITHDRAWN = {"fedgda_gt", "sagda"}  # entries of version 2.0 whose answers depend on the server's steps


@dataclass(frozen=True)
class Judged:
    """A task with its runs.

    half: None for all points of the pools; 0 or 1 for every other pair of them, since a Sobol sequence fills both alike.
    """

    task: Task
    table: pd.DataFrame
    half: int | None = None

    @cached_property
    def hits(self) -> pd.DataFrame:
        return hits(self.task, self.table)

    def searches(self, currency: str) -> Searches:
        return self._searches[currency]

    @cached_property
    def _searches(self) -> dict[str, Searches]:
        some = None if self.half is None else lambda n: np.arange(n) // 2 % 2 == self.half
        by = dict([*self.hits.groupby("currency")])
        return {currency: Searches(self.task, self.table, by[currency], some=some) for currency in CURRENCIES}


def write_pages(
    table: pd.DataFrame, chosen: Sequence[Task], entries: Entries, place: Path, folders: Folders = ()
) -> None:
    """Rank the methods on the chosen tasks, and print the tables. Write pages, tables as CSV, and pictures.

    Args:
        table: The rows of all runs.
        chosen: The tasks.
        entries: All entries.
        place: The folder to write into.
        folders: The user's config folders.

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
    judged = {task.name: Judged(task, table[table["task"] == task.name]) for task in chosen}
    shown, phase = ([one for one in judged.values() if (one.task.board == PHASE) == at] for at in (False, True))
    known = {name for one in judged.values() for name in one.searches("bytes").methods}
    references = [name for name in known if name in entries and entries[name].reference]
    there = tasks([], [*map(str, folders)])
    every = [claim.by for task in there for claim in task.claims]
    registered = {currency: sum(currency in by for by in every) for currency in CURRENCIES}
    nulls = _nulls(judged)
    answers = {half: _claims(judged, registered, nulls, half) for half in (None, 0, 1)}
    firsts = pd.DataFrame([_firsts(one, _unranked([one], references)) for one in judged.values()])
    print_table(firsts, [], "who is first on each task")
    tables = {"claims": answers[None], "nulls": nulls, "firsts": firsts}
    boards, curves = [], list[pd.DataFrame]()
    for name in dict.fromkeys(one.task.board for one in shown):
        here = {one.task.name: one for one in shown if one.task.board == name}
        unranked, suffix = _unranked([*here.values()], references), f"{name.replace(' ', '_')}.svg"
        curves.append(pd.concat([_best_of(one, unranked) for one in here.values()], ignore_index=True))
        best = curves[-1].groupby("method")["score"].max().sort_values(ascending=False)
        ranked = {str(method): j for j, method in enumerate(best.index)}
        _draw_fronts([*here.values()], ranked, place / f"fronts_{suffix}")
        _draw_best_of([*here], curves[-1], ranked, place / f"best_of_{suffix}")
        of_board = [_board(here, currency, name, references, place) for currency in CURRENCIES]
        boards.append({"name": f"{name.capitalize()}: {', '.join(here)}", "tables": of_board, "suffix": suffix})
    told: dict[str, Any] = {"boards": boards, "shown": [one.task for one in shown], "phase": phase}
    told["missing"] = [task.name for task in there if task.name not in judged]
    if shown:
        tables["best_of"] = pd.concat(curves, ignore_index=True)
        told["stable"] = markdown(_texts(_stable(tables["best_of"])))
    if phase:
        _draw_phase(phase, place / "phase.svg")
    for one in shown:
        _page(one, entries, references, place, folders)
    for name, rows in tables.items():
        write_table(place / f"{name}.csv", rows)
    told |= {"firsts": markdown(_texts(firsts)), "claims": _shown(answers[None]), "nulls": _shown(nulls)}
    told["runs"] = len(table.drop_duplicates(["task", "method", "kind", "point", "seed"]))
    _fill("index", place / "index.md", agree=agreement(answers), search=SEARCH, band=BAND, firm=FIRM, **told)


def _fill(name: str, path: Path, **values: Any) -> None:
    """Write a page from a template. name: of the template, without ending. path: the file to write. values: its variables."""
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"cell": markdown_cell, "code": lambda words: printable(" ".join(words)).replace("`", "'")}
    template = environment.from_string(files("fedopt.bench").joinpath(f"{name}.md.jinja").read_text(encoding="utf-8"))
    write_atomically(path, template.render(version=VERSION, names=NAMES, **values).encode())


def _percent(share: float) -> str:
    """Return a share in percent, rounded down: one below a limit does not read as the limit."""
    return f"{100 * share // 1:.0f}%"


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its numbers as texts of three digits, and missing ones as a dash."""
    return table.map(lambda v: "-" if pd.isna(v) else f"{v:.3g}" if isinstance(v, float) else str(v))


def _band(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


def _board(here: Mapping[str, Judged], currency: str, name: str, references: Sequence[str], place: Path) -> str:
    """Write and print the scores of a board by one currency. Return them as Markdown."""
    searches = {task: one.searches(currency) for task, one in here.items()}
    ranked = board(searches, _unranked([*here.values()], references))
    ranked = ranked[ranked["method"].isin(_judged_by(currency, [*ranked["method"]], references))]
    write_table(place / f"scores_{name.replace(' ', '_')}_{currency}.csv", ranked)
    firm = [
        f"{rank} in {_percent(held)}" if held >= FIRM else f"{rank} in {_percent(held)}, no order"
        for rank, held in zip(ranked["rank"], ranked["holds"], strict=True)
    ]
    shown = pd.DataFrame({f"by {NAMES[currency]}": ranked["method"], "score": ranked["score"]})
    shown["band"] = [_band(*ends) for ends in zip(ranked["low"], ranked["high"], strict=True)]
    shown["tasks"] = ranked["tasks"]
    shown["rank"] = ["-" if pd.isna(rank) else text for rank, text in zip(ranked["rank"], firm, strict=True)]
    print_table(_texts(shown), [*shown.columns[1:]], name)
    return markdown(_texts(shown))


def _claims(
    judged: Mapping[str, Judged], registered: Mapping[str, int], nulls: pd.DataFrame, half: int | None = None
) -> pd.DataFrame:
    """Return all claims, judged by all points or by a half of each pool.

    registered: currency -> how many there are in all. nulls: of `_nulls`.
    """
    parts = []
    of_half = {name: Judged(one.task, one.table, half) for name, one in judged.items()} if half is not None else judged
    for currency in CURRENCIES:
        pairs = [
            (name, claim)
            for name, one in of_half.items()
            for claim in one.task.claims
            if currency in claim.by and {claim.one, claim.other} <= {*one.searches(currency).methods}
        ]
        on = nulls[nulls["currency"] == currency] if len(nulls) else nulls
        floors = abs(np.log(on.set_index("task")["ratio"])).groupby(level=0).max().to_dict() if len(on) else {}
        searches = {name: of_half[name].searches(currency) for name, _ in pairs}
        table = claims(
            [(name, claim.one, claim.other) for name, claim in pairs], searches, registered[currency], floors
        )
        if len(table):
            table.insert(1, "currency", currency)
            table.insert(2, "claim", [f"{claim.one} {claim.says}" for _, claim in pairs])
            parts.append(table)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["task", "currency", "answer"])


def _nulls(judged: Mapping[str, Judged]) -> pd.DataFrame:
    """Return the pairs that are one method, as `claims` judges them: what they come apart by is the noise of a search."""
    parts = []
    for currency in CURRENCIES:
        pairs = [
            (name, pair[0], pair[1])
            for name, one in judged.items()
            for pair in one.task.null
            if {*pair} <= {*one.searches(currency).methods}
        ]
        table = claims(pairs, {name: judged[name].searches(currency) for name, _, _ in pairs}, len(pairs))
        parts.append(table.assign(currency=currency))
    return pd.concat(parts, ignore_index=True)


def agreement(answers: Mapping[int | None, pd.DataFrame]) -> str:
    """Return how many claims that held or did not hold have the same answer by both halves of the pools."""
    whole, one, other = (
        table.set_index(["task", "currency", "one", "other"])["answer"] if len(table) else pd.Series(dtype=str)
        for table in answers.values()
    )
    told = whole[whole != "not told apart"].index
    same = int((one.reindex(told) == other.reindex(told)).sum())
    return f"{same} of {len(told)}"


def _shown(table: pd.DataFrame) -> list[str]:
    """Return claims as Markdown, a table per currency."""
    parts = []
    for currency in CURRENCIES:
        on = table[table["currency"] == currency]
        if len(on):
            said = on["claim"] if "claim" in on else on["one"] + ", " + on["other"]
            bands = [_band(*ends) for ends in zip(on["low"], on["high"], strict=True)]
            kept = on[["task", "ratio", "common", "misses", "cheaper", "p (Holm)", "answer"]].copy()
            kept.insert(1, f"by {NAMES[currency]}", said)
            kept.insert(3, "band", bands)
            kept.loc[on["one"].isin(WITHDRAWN) | on["other"].isin(WITHDRAWN), "answer"] += " (withdrawn)"
            parts.append(markdown(_texts(kept)))
    return parts


def _firsts(one: Judged, unranked: Sequence[str]) -> dict[str, str]:
    """Return who is first on a task by each currency, or that there is no order."""
    row = {"task": one.task.name}
    for currency in CURRENCIES:
        name, share = first(one.searches(currency), unranked)
        row[CURRENCIES[currency].short] = (
            name
            if name == "none"
            else f"{name} in {_percent(share)}"
            if share >= FIRM
            else f"no order ({name} in {_percent(share)})"
        )
    return row


def _best_of(one: Judged, unranked: Sequence[str]) -> pd.DataFrame:
    """Return the best-of-k curves of a task by communication rounds, and how often the best of all is first at each k."""
    reached = one.hits[one.hits["currency"] == "comm_rounds"]
    table = best_of(one.task, one.table, reached, SIZES)
    ordered = [name for name in dict.fromkeys(table["method"]) if name not in unranked]
    return table[table["method"].isin(ordered)].assign(task=one.task.name)


def _stable(curves: pd.DataFrame) -> pd.DataFrame:
    """Return for each task who has the best mean score after 1, 2, ... points of a search, by communication rounds."""
    best = curves.loc[curves.groupby(["task", "points"], sort=False)["score"].idxmax()]
    return best.pivot_table(index="task", columns="points", values="method", aggfunc="first", sort=False).reset_index()


def _draw_best_of(names: Sequence[str], curves: pd.DataFrame, ranked: Mapping[str, int], path: Path) -> None:
    """Draw the best-of-k curves of the tasks of a board. ranked: method -> place in the order of colours."""
    with figures.pictures([path], len(names), min(len(names), 2)) as axes:
        for axis, name in zip(axes, names, strict=True):
            of_task = curves[curves["task"] == name]
            columns = ("points", "score", "low", "high")
            lines = {
                str(method): Line(*(rows[column].to_numpy() for column in columns))
                for method, rows in of_task.groupby("method", sort=False)
            }
            figures.draw_lines(axis, lines, ranked)
            figures.describe(axis, "points of a search", "score by rounds", name)


def _draw_fronts(judged: Sequence[Judged], ranked: Mapping[str, int], path: Path) -> None:
    """Draw what searches spend until a target: rounds against bytes, and rounds against calls.

    The target is the hardest one of a task that the median searches of half of the methods reach. ranked: method -> place in
    the order of colours.
    """
    with figures.pictures([path], 2 * len(judged), 2) as axes:
        for one, pair in zip(judged, zip(*[iter(axes)] * 2, strict=True), strict=True):
            drawn = {name: one.searches("comm_rounds").drawn(name) for name in one.searches("comm_rounds").methods}
            reached = {name: np.median(drawn[name], axis=(0, 1)) <= 1 for name in drawn if name in ranked}
            counts = [sum(of_method[j] for of_method in reached.values()) for j in goals_of(one.task)]
            target = max(j for j in goals_of(one.task) if counts[j] >= min(len(reached) / 2, counts[0]))
            for axis, currency in zip(pair, ("bytes", "calls"), strict=True):
                for name in [name for name in reached if reached[name][target]]:
                    costs = drawn[name], one.searches(currency).drawn(name)
                    (a, b, c), (d, e, f) = (np.quantile(np.minimum(cost[:, :, target], 1), QUARTILES) for cost in costs)
                    style = figures.look(ranked[name]) | {"linestyle": "none"}
                    axis.errorbar(b, e, [[e - d], [f - e]], [[b - a], [c - b]], label=name, **style)
                axis.set(xscale="log", yscale="log", xlim=(0.01, 1.1), ylim=(0.01, 1.1))
                across, up = (f"share of {NAMES[c].partition(',')[0]}" for c in ("comm_rounds", currency))
                figures.describe(axis, across, up, f"{one.task.name}, to {one.task.targets[target]:g}")


def _draw_phase(phase: Sequence[Judged], path: Path) -> None:
    """Draw who is first by communication rounds and by client visits, over drift and the share of clients in a round."""
    drifts, shares = (sorted({float(one.task.facts[key]) for one in phase}) for key in ("delta", "clients"))
    every = [first(one.searches(currency))[0] for one in phase for currency in ("comm_rounds", "client_visits")]
    names = [name for name, _ in Counter(every).most_common()]
    with figures.pictures([path], 2, 1, figures.PAGE, 2 * figures.HEIGHT, place="none") as axes:
        for axis, currency in zip(axes, ("comm_rounds", "client_visits"), strict=True):
            for one in phase:
                name, share = first(one.searches(currency))
                x, y = shares.index(float(one.task.facts["clients"])), drifts.index(float(one.task.facts["delta"]))
                if name != "none":
                    colour = figures.look(names.index(name))["color"]
                    axis.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=colour, alpha=share * 0.7))
                axis.text(x, y, f"{name}\n{share:.0%}" if name != "none" else name, ha="center", va="center")
            axis.set_xticks(range(len(shares)), [f"{share:.0%}" for share in shares])
            axis.set_yticks(range(len(drifts)), [f"{drift:g}" for drift in drifts])
            axis.set(xlim=(-0.6, len(shares) - 0.4), ylim=(-0.6, len(drifts) - 0.4))
            figures.describe(axis, "share of clients in a round", "drift", f"first by {NAMES[currency]}")


def _page(one: Judged, entries: Entries, references: Sequence[str], place: Path, folders: Folders) -> None:
    """Write the page of a task: rules, curves, scores, targets reached, and what searches choose."""
    task, tables = one.task, {"scores": list[str](), "goals": list[str](), "choices": list[str]()}
    for currency in CURRENCIES:
        searches, reached = one.searches(currency), one.hits[one.hits["currency"] == currency]
        if not (names := _judged_by(currency, searches.methods, references)):
            continue  # references alone, and no currency of theirs
        reached = reached.assign(worth=worth(reached[goals_of(task)]).mean(axis=1))
        by, rows, reach = f"by {NAMES[currency]}", [], {}
        for name in names:
            values, own = searches.scores(name), reached[reached["method"] == name]
            sure = certainty(entries[name].algo, folders) if name in entries else ""
            row = {by: name, "certainty": sure, "score": float(np.median(values)), "band": _band(*band(values))}
            row["defaults"] = own.loc[(own["kind"] == "report") & (own["point"] == 0), "worth"].mean()
            rows.append(row | {"equal clients": own.loc[own["kind"] == "twin", "worth"].mean()})
            reach[name] = np.isfinite(searches.drawn(name)).mean(axis=(0, 1))
        tables["scores"].append(markdown(_texts(pd.DataFrame(rows).sort_values("score", ascending=False))))
        shares = pd.DataFrame(reach, index=[f"{target:g}" for target in task.targets]).T.map("{:.0%}".format)
        tables["goals"].append(markdown(shares.rename_axis(by).reset_index()))
        tables["choices"].append(markdown(_choices(one, searches, entries, currency)))
    _draw_task(one, references, place / f"{task.name}.svg")
    _fill("task", place / f"{task.name}.md", task=task, floors=markdown(_texts(_floors(one))), **tables)


def _unranked(judged: Sequence[Judged], references: Sequence[str]) -> list[str]:
    """Return who has no rank on these tasks: references, and the second name of a method by any task's null controls."""
    return [*references, *set.intersection(*({pair[1] for pair in one.task.null} for one in judged))]


def _judged_by(currency: str, methods: Sequence[str], references: Sequence[str]) -> list[str]:
    """Return the methods that a currency is about: references on pooled data have no rounds, bytes and visits to clients."""
    return [name for name in methods if currency.startswith("calls") or name not in references]


def _choices(one: Judged, searches: Searches, entries: Entries, currency: str) -> pd.DataFrame:
    """Return for each method the point that searches choose most often, and the keys for which it lies at an edge."""
    rows = []
    for name in searches.methods:
        chance = searches.chance[name]
        number = int(chance.argmax()) + 1
        own = one.table[(one.table["method"] == name) & (one.table["point"] == number)]
        words, edges = str(own["words"].iloc[0]), "-"
        if name in entries and number <= one.task.points:
            roles, shares = entries[name].ranges, entries.cube(one.task, entries[name])[number - 1]
            near = [key for key, share in zip(roles, shares, strict=False) if not 0.1 <= share <= 0.9]
            edges = ", ".join(key for key in near if "choice" not in entries.roles.get(roles[key], "")) or "-"
        row = {f"by {NAMES[currency]}": name, "point": str(number), "chosen in": f"{chance.max():.0%}"}
        rows.append(row | {"at an edge": edges, "values": words})
    return pd.DataFrame(rows)


def _floors(one: Judged) -> pd.DataFrame:
    """Return the best value that any run of each method held for two evaluations, and how the runs of its pool ended."""
    sign = -1.0 if one.task.targets[-1] > one.task.targets[0] else 1.0
    rows = []
    for name, table in one.table.groupby("method", observed=True, sort=False):
        held, keys = [], ["kind", "point", "seed"]
        for _, run in table.groupby(keys, observed=True, sort=False):
            values = sign * run["value"].to_numpy(float)
            pairs = np.maximum(values[:-1], values[1:]) / (abs(values[0]) if one.task.relative else 1.0)
            held.append(np.nanmin(pairs) if np.isfinite(pairs).any() else np.inf)
        pool = table[table["kind"] == "pool"].groupby(["point", "seed"], observed=True)["status"].last().astype(str)
        rounds = max(int(table["comm_rounds"].max()), 1)
        row = {
            "method": str(name),
            "best value held": float(sign * min(held)),
        }
        row |= {how: f"{(pool == how).mean():.0%}" for how in ("stopped", "diverged", "failed")}
        rows.append(row | {"runs": str(len(held)), "rounds at most": str(rounds)})
    return pd.DataFrame(rows)


def _draw_task(one: Judged, references: Sequence[str], path: Path) -> None:
    """Draw the metric against the share of each budget, for the point that searches choose most often."""
    task, shown, log = one.task, [*CURRENCIES][:4], one.task.relative
    scores = {name: -np.median(one.searches("calls").scores(name)) for name in one.searches("calls").methods}
    places = {name: j for j, name in enumerate(sorted(scores, key=lambda name: scores[name]))}
    with figures.pictures([path], len(shown)) as axes:
        for axis, currency in zip(axes, shown, strict=True):
            searches, lines = one.searches(currency), {}
            for name in _judged_by(currency, searches.methods, references):
                own = one.table[(one.table["method"] == name) & (one.table["kind"] == "report")]
                own = own[own["point"] == int(searches.chance[name].argmax()) + 1]
                runs = [_at_shares(run, task, currency) for _, run in own.groupby("seed")]
                if runs:
                    lines[name] = median_line(SHARES, np.array(runs))
            axis.set(xscale="log", yscale="log" if log else "linear")
            figures.draw_lines(axis, lines, places)
            figures.describe(
                axis,
                "share of the budget",
                task.metric + (", over that at the start" if log else ""),
                NAMES[currency].partition(",")[0],
            )
            if log:
                axis.set_ylim(task.targets[-1] / 3, 3)
            for target in task.targets:
                axis.axhline(target, color="grey", linewidth=0.4, zorder=0)


def _at_shares(run: pd.DataFrame, task: Task, currency: str) -> np.ndarray:
    """Return the last value by the time each of `SHARES` of the budget was spent, [shares]; a run that was stopped keeps it."""
    values = run["value"].to_numpy(float)
    values = values / (values[0] if task.relative else 1.0)
    places = np.searchsorted(spent(run, currency) / task.limit(currency), SHARES, side="right") - 1
    return np.nan_to_num(values[places], nan=np.inf if task.targets[-1] < task.targets[0] else -np.inf)
