"""What a search leaves: a table of its trials, pictures, and tuned values with where they come from."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fedopt.bench.space import words_of
from fedopt.bench.trials import FIRST_SEED, STAGES, Search, Trial
from fedopt.comparing.tables import write_table
from fedopt.config.tuned import nodes
from fedopt.config.words import key_of, parsed
from fedopt.console.say import say
from fedopt.errors import UserError
from fedopt.files.writing import write_atomically
from fedopt.results import figures
from fedopt.results.folder import RunFolder

COLUMNS, PANEL = 4, 2.4  # of the picture, and inches of each


def table(searches: Sequence[Search]) -> pd.DataFrame:
    """A row a trial: algorithm, stage, number, status, loss, the value of each seed, and the keys of all."""
    rows = [
        {"algo": search.algo, "stage": trial.stage, "trial": trial.number, "status": trial.status, "loss": trial.loss}
        | {f"seed{FIRST_SEED + j}": value for j, value in enumerate(trial.values)}
        | trial.point
        for search in searches
        for trial in search.done
    ]
    return pd.DataFrame(rows)


def with_values(searches: Sequence[Search]) -> list[Search]:
    """The searches that found a value; a line is said for each other one."""
    good = []
    for search in searches:
        try:
            _ = search.best
            good.append(search)
        except UserError as error:
            say(str(error))
    return good


def winners(searches: Sequence[Search]) -> pd.DataFrame:
    """A row an algorithm: the metric's best value, that of the default, how many trials ended how, and the words to use."""
    rows = []
    for search in searches:
        best, default, tried = search.best, search.done[0], search.done
        rows.append(
            {
                "algo": search.algo,
                search.metric.name: _value(search, best),
                "default": _value(search, default),
                "trials": str(len(tried)),
                "diverged": str(sum("diverged" in trial.statuses for trial in tried)),
                "pruned": str(sum("stopped" in trial.statuses for trial in tried)),
                "at an edge": ", ".join(search.edges(best)) or "-",
                "words": " ".join(words_of(best.point)) or "the defaults",
            }
        )
    return pd.DataFrame(rows)


def _value(search: Search, trial: Trial) -> str:
    """Of the median run; a word for a trial without one."""
    if not math.isfinite(trial.loss):
        return trial.status
    return f"{-trial.loss if search.metric.better == 'higher' else trial.loss:.5g}"


def best_of(losses: Sequence[float]) -> list[float]:
    """The best of k of [n] losses, k = 1..n: the median over all orders in which they could have been tried."""
    ordered, n, best = sorted(losses), len(losses), []
    for k in range(1, n + 1):
        missed, place = 1.0, -1  # the probability that none of the first place + 1 is among the k
        while missed > 0.5:
            place += 1
            missed *= max(n - place - k, 0) / (n - place)
        best.append(ordered[place])
    return best


@figures.styled()
def draw(path: Path, searches: Sequence[Search]) -> None:
    """The best of k trials, then each algorithm's trials by each key: a ring at the best, crosses at those without a value."""
    panels = [(search, key, values) for search in searches for key, values in search.ranges.items()]
    columns = min(len(panels) + 1, COLUMNS)
    figure, axes = figures.grid(-(-(len(panels) + 1) // columns), columns, PANEL * columns)
    metric, sign = searches[0].metric, -1 if searches[0].metric.better == "higher" else 1
    finite = [sign * trial.loss for search in searches for trial in search.done if math.isfinite(trial.loss)]
    scale = "log" if figures.spans_decades(metric, np.array(finite)) else "linear"
    curve = axes.flat[0]
    for j, search in enumerate(searches):
        best = [sign * loss for loss in best_of([trial.loss for trial in search.done if trial.stage == STAGES[0]])]
        curve.plot(
            range(1, len(best) + 1),
            [v if math.isfinite(v) else math.nan for v in best],
            label=search.algo,
            **figures.look(j),
        )
    figures.describe(curve, "trials", f"best {metric.title}", "best of k trials")
    for axis, (search, key, values) in zip(axes.flat[1:], panels, strict=False):
        trials = [trial for trial in search.done if key in trial.point]
        at = [values.ends.index(t.point[key]) if values.kind == "choice" else float(t.point[key]) for t in trials]
        axis.plot(
            at, [sign * t.loss if math.isfinite(t.loss) else math.nan for t in trials], ".", color=figures.OKABE_ITO[0]
        )
        lost = [place for place, trial in zip(at, trials, strict=True) if not math.isfinite(trial.loss)]
        top = axis.get_xaxis_transform()  # y from 0 to 1
        axis.plot(lost, [0.97] * len(lost), "x", color=figures.OKABE_ITO[6], transform=top)
        if key in search.best.point:
            axis.plot(
                at[trials.index(search.best)],
                sign * search.best.loss,
                "o",
                color=figures.OKABE_ITO[1],
                fillstyle="none",
            )
        figures.describe(axis, key.removeprefix("algo."), metric.title, search.algo)
        if values.kind == "choice":
            axis.set_xticks(range(len(values.ends)), [text.strip("'") for text in values.ends])
        else:
            axis.set_xscale("log" if values.kind == "log" else "linear")
    for axis in axes.flat[: len(panels) + 1]:
        axis.set_yscale(scale)
    for axis in axes.flat[len(panels) + 1 :]:
        axis.remove()
    figures.save(figure, path)


def source(search: Search) -> str:
    """Where tuned values come from, in a line."""
    how, best = search.how, search.best
    card = RunFolder(search.place(best.stage, best.number, FIRST_SEED)).card()
    seeds = ", ".join(map(str, search.seeds))
    ranges = ", ".join(f"{key} in {values}" for key, values in search.ranges.items())
    where = " ".join(word for word in search.words if key_of(word) != "problem" and not word.startswith("eval."))
    edge = f"; at an edge: {', '.join(search.edges(best))}" if search.edges(best) else ""
    return (
        f"fedopt-tune: {len(search.done)} trials ({how.sampler}), seeds {seeds}, {search.metric.name} {_value(search, best)}, "
        f"default {_value(search, search.done[0])}; {where}; {ranges}{edge}; commit {card.get('commit') or 'unknown'}"
    )


def write_tuned(search: Search, folder: Path) -> Path:
    """Put the best values into FOLDER/tuned/<algorithm>.yaml, under the problem; other problems stay as they are."""
    problem, path = search.problem, folder / "tuned" / f"{search.algo}.yaml"
    before = nodes(search.algo, [folder]).get(problem, {}) if path.exists() else {}
    algo: dict[str, Any] = dict(before.get("algo", {}))
    for word in parsed(words_of(search.best.point)):
        _put(algo, word.key_or_group.split(".")[1:], word.value())
    node = {problem: {"source": source(search), **{k: v for k, v in before.items() if k != "algo"}, "algo": algo}}
    text = path.read_text(encoding="utf-8") if path.exists() else f"# Tuned values of {search.algo}, by problem\n"
    new = yaml.safe_dump(node, sort_keys=False, allow_unicode=True, width=10_000)
    block = re.compile(rf"^{re.escape(problem)}:.*\n(?:[ #].*\n|\n)*", re.MULTILINE)
    text = block.sub(lambda _: new, text, count=1) if block.search(text) else f"{text.rstrip()}\n{new}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path


def _put(node: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        node[key] = dict(node[key]) if isinstance(node.get(key), Mapping) else {}
        node = node[key]
    node[path[-1]] = value


def write(searches: Sequence[Search], folder: Path) -> list[Path]:
    """The table, the picture and the tuned values of searches that have a value. Returns the files."""
    trials, picture = folder / "trials.csv", folder / "tune.png"
    write_table(trials, table(searches))
    draw(picture, searches)
    return [trials, picture, *(write_tuned(search, folder) for search in searches)]
