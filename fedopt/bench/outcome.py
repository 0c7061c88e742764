"""The results of a search: a table of its trials, a figure, tuned values with their source, and commands to run next."""

import math
import shlex
from collections.abc import Iterator, Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedopt.analysis import write_table
from fedopt.bench.trials import FIRST_SEED, Search, Trial
from fedopt.config import command_line, compose, content, display_name, key_of, outputs, quoted, tuned_values
from fedopt.console.say import say
from fedopt.drawing import Line, figures
from fedopt.files import write_atomically, yaml_text
from fedopt.results.identity import identity

COLUMNS, PANEL = 4, 2.4  # panels in a row of the figure, and the width of a panel in inches
APART = 1e-6  # relative difference between computing together and alone that is reported in float64
MARKS: dict[str, dict[str, Any]] = {  # of the trials in the figure
    "a trial": {"marker": ".", "color": figures.OKABE_ITO[0]},
    "the defaults": {"marker": "o", "color": figures.OKABE_ITO[1], "fillstyle": "none", "markersize": 7},
    "the best trial": {"marker": "D", "color": figures.OKABE_ITO[2], "markersize": 3},
}


def table(searches: Sequence[Search]) -> pd.DataFrame:
    """Return one row per trial: algorithm, number, status, loss, the value with each seed, and the tuned keys."""
    rows = [
        {"algo": search.algo, "trial": trial.number, "status": trial.status, "loss": trial.loss}
        | {f"seed{FIRST_SEED + j}": value for j, value in enumerate(trial.values)}
        | trial.point
        for search in searches
        for trial in search.done
    ]
    return pd.DataFrame(rows)


def with_values(searches: Sequence[Search]) -> list[Search]:
    """Return the searches in which a trial has a value. For each other search, print why it has none."""
    good = [search for search in searches if math.isfinite(search.best.loss)]
    for search in (search for search in searches if search not in good):
        ends = ", ".join(dict.fromkeys(status for trial in search.done for status in trial.statuses))
        none = f"none of {len(search.done)} trials has a value ({ends})"
        say(f"{search.name}: {none}; try smaller step sizes or a longer budget")
    return good


def winners(searches: Sequence[Search]) -> pd.DataFrame:
    """Return one row per algorithm, as text: the metric of the best trial and of the defaults, and numbers of trials."""
    rows = []
    for search in searches:
        values = {search.metric.name: value_of(search, search.best), "default": value_of(search, search.done[0])}
        ends = {"trials": len(search.done), "diverged": sum("diverged" in trial.statuses for trial in search.done)}
        rows.append({"algo": search.algo, **values, **ends})
    return pd.DataFrame(rows).astype(str)


def value_of(search: Search, trial: Trial) -> str:
    """Return the value of a trial as text: the median over its runs. For a trial without a value, return its status."""
    if not math.isfinite(trial.loss):
        return trial.status
    return f"{search.metric.sign * trial.loss:.5g}"


def best_of(losses: Sequence[float]) -> list[float]:
    """Return the best of k trials for k = 1..n, given the losses of n trials in any order.

    Entry k is the median of the lowest loss among k trials, over all ways to choose k of the n trials.
    """
    ordered, n = sorted(losses), len(losses)
    # The best of k trials has at most rank r with a chance of 1 - C(n - 1 - r, k) / C(n, k), with ranks from 0
    middle = (next(r for r in range(n) if 2 * comb(n - 1 - r, k) <= comb(n, k)) for k in range(1, n + 1))
    return [ordered[r] for r in middle]


def draw(path: Path, searches: Sequence[Search]) -> None:
    """Draw the best of k trials, and all trials in one panel per algorithm and tuned key.

    Args:
        path: The file of the figure.
        searches: Searches on the same metric, which have a value.
    """
    panels = [(search, key) for search in searches for key in search.ranges]
    columns, metric = min(len(panels) + 1, COLUMNS), searches[0].metric
    names = {search.algo: display_name(search.algo, search.folders) for search in searches}
    losses = {names[search.algo]: [trial.loss for trial in search.done] for search in searches}
    values = metric.sign * np.concatenate([*losses.values()])
    with figures.pictures([path], len(panels) + 1, columns, PANEL * columns) as axes:
        best = {name: _finite(metric.sign * np.array(best_of(its))) for name, its in losses.items()}
        figures.draw_lines(axes[0], {name: Line(np.arange(1, len(y) + 1), y) for name, y in best.items()})
        figures.describe(axes[0], "trials", f"best {metric.title}", "best of k trials")
        for axis, (search, key) in zip(axes[1:], panels, strict=True):
            figures.describe(axis, key.removeprefix("algo."), metric.title, names[search.algo])
            _draw_trials(axis, search, key)
        for axis in axes:
            axis.set_yscale("log" if figures.spans_decades(metric, values) else "linear")


def _finite(values: np.ndarray) -> np.ndarray:
    """Replace values that are not finite by nan, which is not drawn."""
    return np.where(np.isfinite(values), values, math.nan)


def _draw_trials(axis: Axes, search: Search, key: str) -> None:
    """Draw a marker for each trial of a search: the key's value against the final metric.

    Trials whose metric is missing or infinite are crosses at the top. A default that the x axis cannot show is left out.
    """
    values = search.ranges[key]
    texts = [trial.point.get(key, search.defaults[key]).strip("'") for trial in search.done]
    if values.kind == "choice":  # which may lack the default
        ends = [*dict.fromkeys([*(str(end).strip("'") for end in values.ends), texts[0]])]
        at = np.array([ends.index(text) for text in texts], float)
        axis.set_xticks(range(len(ends)), ends)
    else:
        at = np.array([math.nan if math.isnan(values.share(text)) else float(text) for text in texts])
        axis.set_xscale("log" if values.kind == "log" else "linear")
    heights = _finite(search.metric.sign * np.array([trial.loss for trial in search.done]))
    best, others = search.done.index(search.best), [*range(1, len(heights))]
    for kind, members in {"a trial": others, "the defaults": [0], "the best trial": [best]}.items():
        if np.isfinite(heights[members]).any():
            axis.plot(at[members], heights[members], linestyle="none", label=kind, **MARKS[kind])
    if lost := at[np.isnan(heights)].tolist():
        above: dict[str, Any] = {"transform": axis.get_xaxis_transform()}  # y is a fraction of the height
        axis.plot(lost, [0.97] * len(lost), "x", color=figures.OKABE_ITO[6], label="without a value", **above)


def repeating(search: Search) -> str:
    """Return the command that repeats the runs of the best trial. The trial's value is their median."""
    many, seeds = ["-m"] if search.how.seeds > 1 else [], f"seed={','.join(map(str, search.seeds))}"
    return command_line([*many, *search.command(search.best.point), seeds], search.folders)


def comparing(searches: Sequence[Search], folder: Path) -> list[str]:
    """Return the commands that compare the algorithms at their best values on three seeds that the search did not use.

    One command suffices if the files in the search's `tuned/` folder reproduce the configs of the best trials. If an
    experiment file sets a tuned key, they do not; there is then one command per algorithm, with its values as overrides.
    """
    # A folder that is not shared with runs of untuned values or of a search with fewer trials
    place = outputs() / "tuned" / f"{folder.name}_{sum(len(search.done) for search in searches)}"
    more, folders = ["seed=0,1,2", f"output_dir={quoted(str(place))}"], (*searches[0].folders, str(folder))
    in_file = {"preset", *(key for search in searches for key in search.ranges)}
    shared = [text for text in searches[0].overrides if key_of(text) not in in_file]
    for search in searches:
        found = compose([f"algo={search.algo}", *shared, f"seed={FIRST_SEED}"], folders)
        if identity(found.nodes) != identity(search.best_run.config()):
            return [command_line(["-m", *s.command(s.best.point), *more], s.folders) for s in searches]
    return [command_line(["-m", f"algo={','.join(search.algo for search in searches)}", *shared, *more], folders)]


def remarks(searches: Sequence[Search]) -> Iterator[str]:
    """Yield the reasons to trust the best values less, one line each."""
    for search in searches:
        name, best, tried = search.name, search.best, [trial for trial in search.done if trial.point]
        lost = sum(not {"diverged", "failed"}.isdisjoint(trial.statuses) for trial in tried)
        many = f"{lost} of {len(tried)} diverged or failed" if 2 * lost > len(tried) else ""
        if not best.point:
            how = f" ({many}): search smaller step sizes" if many else ": run more trials, or give other ranges"
            yield f"{name}: no trial was better than the defaults{how}"
        elif many:
            yield f"{name}: {many}; search smaller step sizes"
        if {*best.statuses} != {"finished"}:
            yield f"{name}: the runs of the best trial ended differently ({best.status}); its value is their median"
        double = search.best_run.config()["hardware"]["dtype"] == "float64"
        for trial in tried:
            ahead = trial.found < best.loss and trial != best  # the order changed
            if ahead or (double and not math.isclose(trial.found, trial.loss, rel_tol=APART)):
                values = f"{value_of(search, trial)} alone, {search.metric.sign * trial.found:.7g} together with others"
                yield f"{name}: trial {trial.number} has the value {values}"
        if at := [f"{key}={value} in {search.ranges[key]}" for key, value in search.edges.items()]:
            yield f"{name}: the best value is at an edge of its range or outside it, {', '.join(at)}; widen the range"


def source(search: Search) -> str:
    """Return a line on how the tuned values of a search were found: trials, seeds, values, ranges and commit."""
    seeds, commit = ", ".join(map(str, search.seeds)), search.best_run.card().get("commit") or "unknown"
    ranges = ", ".join(f"{key} in {values}" for key, values in search.ranges.items())
    where = shlex.join(text for text in search.overrides if key_of(text) != "problem" and not text.startswith("eval."))
    edge = f"; at an edge: {', '.join(search.edges)}" if search.edges else ""
    values = f"{search.metric.name} {value_of(search, search.best)}, default {value_of(search, search.done[0])}"
    how = f"fedopt tune: {len(search.done)} trials ({search.how.sampler}), seeds {seeds}, {values}"
    return f"{how}; {where}; {ranges}{edge}; commit {commit}"


def write_tuned(search: Search, folder: Path) -> Path:
    """Write the best values to FOLDER/tuned/<algorithm>.yaml, under the problem's name, and return the path.

    Values for other problems in the file are kept.
    """
    problem, path = search.problem, folder / "tuned" / f"{search.algo}.yaml"
    known = content(path) if path.exists() else {}
    before = known.get(problem, {})
    values = {**before, "source": source(search)}
    values |= {part: {**(before.get(part) or {}), **keys} for part, keys in _ran_on(search).items()}
    text = yaml_text({**known, problem: values}, width=10_000)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"# Tuned values of {search.algo}, by problem\n{text}".encode())
    return path


def _ran_on(search: Search) -> dict[str, dict[str, Any]]:
    """Return part of the config -> the values that determine the best trial, to be stored as tuned values.

    They are the values of its point, the tuned values that they replace, and the search's overrides of `algo`. Overrides of the
    budget and of the evaluations are left out.
    """
    ran, chosen = search.best_run.config(), search.best_run.card()["chosen"]
    usual, given = (tuned_values(preset, chosen, search.folders)[1] for preset in ("auto", ran["preset"]))
    fixed = (key for key in map(key_of, search.overrides) if key.startswith("algo."))
    found: dict[str, dict[str, Any]] = {} if search.best.point else {"algo": {}}  # the defaults count as tuned
    for key in dict.fromkeys([*usual, *given, *fixed, *search.best.point]):
        part, name, *_ = key.split(".")  # a value inside a schedule: the schedule is stored
        if name in ran[part]:
            length = part in ("budget", "eval") and key not in search.best.point
            value = given.get(key, ran[part][name]) if length else ran[part][name]
            found.setdefault(part, {})[name] = value
    return found


def write_searches(searches: Sequence[Search], folder: Path) -> list[Path]:
    """Write trials.csv, tune.png and tuned/<algorithm>.yaml to a folder, and return their paths."""
    trials, picture = folder / "trials.csv", folder / "tune.png"
    write_table(trials, table(searches))
    draw(picture, searches)
    return [trials, picture, *(write_tuned(search, folder) for search in searches)]
