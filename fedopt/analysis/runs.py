"""Reading runs from their folders. This module does not import torch."""

import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.config import Tuned, flat
from fedopt.console import counted, note
from fedopt.errors import UserError, first_line, joined
from fedopt.files import BROKEN, REMEDY, read_table
from fedopt.metrics import COSTS, Metric
from fedopt.results import LOST, OVER, RunFolder, digits
from fedopt.results.identity import identity

CHOSEN = ("algo", "problem", "dataset", "partitioner")  # config groups, which are compared by the chosen option
PROBLEM = ("problem", "dataset")
DATA = "data"  # the key of the data set's digest
ABSENT = "-"  # the value of a key that a run does not have
NO_RUN = "no run in it"  # why a folder is skipped
NAMED = 3  # the number of folders named per reason for which they are skipped


@dataclass(frozen=True)
class Recorded:
    """A run as read from its folder.

    Args:
        folder: The run's folder.
        keys: dotted config key -> value as text; for a config group, the chosen option. The value of the key ``data`` is the
            first eight digits of the data's hash.
        apart: The config keys that determine the numbers in metrics.csv, except `seed` and the keys of `eval`. The keys of
            `budget` come last.
        digits: A fingerprint of the config. Runs whose configs give the same numbers have the same fingerprint.
        metrics: name -> description of the metric.
        status: The status, such as finished.
        x: The cost axis, a key of `COSTS`.
        table: The rows of metrics.csv, one per evaluation.
        tuned: Whether the run used a tuned value.
        sources: The name of each of the user's modules -> its hash when the run began.
        bad: The round of the evaluation at which the run diverged; nan if the run did not diverge.
        departures: The config keys that determine which clients take part, what is communicated or for how long, and whose
            values are not the defaults.
        solves: The weights of the clients in the objective that the run solves, or the name of the weighting, such as
            uniform. None: unknown.
    """

    folder: Path
    keys: dict[str, str]
    apart: Sequence[str]
    digits: str
    metrics: dict[str, Metric]
    status: str
    x: str
    table: pd.DataFrame
    tuned: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    bad: float = np.nan
    departures: Sequence[str] = ()
    solves: Hashable = None

    def metric(self, name: str) -> Metric:
        """Return the description of a column of metrics.csv.

        A column that is not a metric gets a default description, in which lower values are better.
        """
        return self.metrics.get(name, Metric(name, name))

    def called(self, metric: str, label: str) -> "Recorded":
        """Return a copy of the run in which the metric has another label.

        Args:
            metric: A column of metrics.csv.
            label: The new label, with its unit.
        """
        return replace(self, metrics={**self.metrics, metric: replace(self.metric(metric), label=label)})

    def values(self, metric: str) -> np.ndarray:
        """Return the values of a metric at all evaluations, [rows]; infinite values become nan."""
        values = self.table[metric].to_numpy(dtype=float)
        return np.where(np.isfinite(values), values, np.nan)

    def good(self, metric: str) -> np.ndarray:
        """Return the values of a metric, [rows], in which the value at the evaluation where the run diverged is nan.

        Only these values may count as the best value or reach a target.
        """
        return np.where(self.table["round"] == self.bad, np.nan, self.values(metric))

    def last(self, metric: str, at: float | None = None) -> float:
        """Return the last value of a metric, which means and tests use; nan if it is not finite, or if the run diverged or
        failed.

        Args:
            metric: A column of metrics.csv.
            at: A cost. The value at the last evaluation up to this cost is returned, even if the run diverged later. None:
                no bound.

        Raises:
            UserError: The run has no evaluation up to this cost.
        """
        lost = self.status in LOST and (at is None or at >= self.cost()[-1])
        return math.nan if lost else float(self.until(at).values(metric)[-1])

    def cost(self, x: str = "") -> np.ndarray:
        """Return the cumulative cost at each evaluation, [rows].

        Args:
            x: A key of `COSTS`. Empty: the cost axis of the run.
        """
        columns = (self.table[name].to_numpy(dtype=float) for name in COSTS[x or self.x].columns)
        return np.sum([*columns], axis=0)

    def knows(self, x: str) -> bool:
        """Return whether the run has the columns of this cost, with finite values in all rows.

        Args:
            x: A key of `COSTS`.
        """
        return COSTS[x].counted(self.table) and bool(np.isfinite(self.cost(x)).all())

    def group(self, by: Sequence[str]) -> tuple[str, ...]:
        """Return the values of some config keys, which define the run's group; a dash (`ABSENT`) for a key that the run lacks.

        Args:
            by: The dotted keys.
        """
        return tuple(self.keys.get(key, ABSENT) for key in by)

    @property
    def problem(self) -> tuple[str, ...]:
        """Return the names of the problem and the data set. Metrics can only be compared between runs with the same pair."""
        return self.group(PROBLEM)

    def agrees(self, other: "Recorded") -> bool:
        """Return whether two runs have the same columns, and equal rows in the rounds that both runs have.

        Columns that measure time are not compared.
        """
        if {*self.table} != {*other.table}:
            return False
        columns = [name for name in self.table if name not in COSTS["seconds"].columns]
        shared = np.intersect1d(self.table["round"], other.table["round"])
        rows, others = (run.table.loc[run.table["round"].isin(shared), columns] for run in (self, other))
        return np.array_equal(rows, others, equal_nan=True)

    def until(self, cost: float | None) -> "Recorded":
        """Return a copy of the run that has only the evaluations up to a cost.

        Args:
            cost: The largest cost on the run's cost axis. None: the run is returned unchanged.

        Raises:
            UserError: The run has no evaluation up to this cost.
        """
        if cost is None:
            return self
        reached = self.cost() <= cost
        if not reached.any():
            first = f"the first evaluation of {self.folder} is at {self.cost()[0]:g}"
            raise UserError(f"--at={cost:g}: {first}; use a larger value")
        return replace(self, table=self.table[reached])


Groups = Mapping[str, Sequence[Recorded]]  # label -> runs of the group


def by_problem(groups: Groups) -> dict[tuple[str, ...], dict[str, Sequence[Recorded]]]:
    """Sort groups by their problem, and return the mapping (problem, data set) -> label -> runs.

    Args:
        groups: label -> runs of the group. The first run determines the problem of the group.
    """
    on: dict[tuple[str, ...], dict[str, Sequence[Recorded]]] = {}
    for label, runs in groups.items():
        on.setdefault(runs[0].problem, {})[label] = runs
    return on


def problem_name(problem: tuple[str, ...]) -> str:
    """Return the pair (problem, data set) as text. The data set is left out if the problem uses none."""
    return ", ".join(name for name in problem if name not in (ABSENT, "none"))


def usable(paths: Sequence[Path], x: str, exclude: Sequence[str] = ()) -> list[Recorded]:
    """Read all runs in some folders, and return them without copies of the same run. A note names the folders that cannot be
    read.

    Args:
        paths: Folders that hold runs, at any depth.
        x: The cost axis, a key of `COSTS`.
        exclude: Shell patterns. A run is left out if a pattern matches the path of its folder or the name of any folder on
            this path.

    Raises:
        UserError: A path does not exist, no run is left, or `x` is no cost axis.
    """
    if x not in COSTS:
        raise UserError(f"x={x}: must be one of {', '.join(COSTS)}")
    runs, skipped = gathered(paths, x, exclude)
    say_skipped(skipped)
    if not runs:
        raise UserError(f"no run to compare in {joined(paths, NAMED)}; give folders with config.yaml and metrics.csv")
    return runs


def gathered(paths: Sequence[Path], x: str, exclude: Sequence[str] = ()) -> tuple[list[Recorded], dict[str, list[str]]]:
    """Return the runs in some folders without copies of the same run, and the folders that cannot be read: reason -> folders.

    Unlike `usable`, this function may return an empty list of runs, and it prints no note about these folders.

    Args:
        paths: Folders that hold runs, at any depth.
        x: The cost axis, a key of `COSTS`.
        exclude: Shell patterns. A run is left out if a pattern matches the path of its folder or the name of any folder on
            this path.

    Raises:
        UserError: A path does not exist.
    """
    skipped: dict[str, list[str]] = {}
    runs, places = list[Recorded](), dict[Path, Path]()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such folder; give a folder that contains runs")
        marks = {"config.yaml", "metrics.csv", "summary.json"}
        inside = sorted({file.parent for file in path.rglob("*") if file.name in marks}, key=str)
        if not inside:
            skipped.setdefault(NO_RUN, []).append(str(path))
        places |= {folder.resolve(): folder for folder in inside}
    folders = [*places.values()]
    for pattern in exclude:
        kept = [folder for folder in folders if not any(fnmatch(n, pattern) for n in (str(folder), *folder.parts))]
        note(f"--exclude={pattern}: {len(folders) - len(kept)} of {counted(len(folders), 'folder')} left out")
        folders = kept
    for folder in folders:
        try:
            runs.append(read(folder, x))
        except BROKEN as error:
            skipped.setdefault(first_line(error).removeprefix(f"{folder}/"), []).append(str(folder))
    return _without_copies(runs), skipped


@contextmanager
def noting(path: Path) -> Iterator[None]:
    """Return a context that turns the error of a broken file into a printed note, so that other files are still used.

    Args:
        path: The file or folder, named in the note.
    """
    try:
        yield
    except BROKEN as error:
        why = first_line(error)
        note(why if str(path) in why else f"{path}: cannot be used ({why}); {REMEDY}")


def _without_copies(runs: Sequence[Recorded]) -> list[Recorded]:
    """Return the runs without copies, in their order. A note says how many copies were left out.

    Of all runs with the same config, seed and data, the longest run is kept. A shorter run is kept too if it did not fail
    and its rows differ from the rows of every run that is kept; a note names such runs.
    """
    kept: dict[tuple[str, ...], list[Recorded]] = {}
    longest_last = sorted(runs, key=lambda run: (run.status in OVER, len(run.table)))
    for run in longest_last[::-1]:
        same = kept.setdefault((run.digits, *run.group([*CHOSEN, DATA])), [])
        if not same or (run.status != "failed" and not any(run.agrees(other) for other in same)):
            same.append(run)
    counting = {run.folder for same in kept.values() for run in same}
    if copies := len(runs) - len(counting):
        note(f"{copies} of {len(runs)} runs left out, since they repeat runs with the same config, seed and data")
    if unlike := next((same for same in kept.values() if len(same) > 1), []):
        where = ", ".join(str(run.folder) for run in unlike[:NAMED])
        note(f"{where}: the same config, seed and data gave different rows; leave some out with --exclude")
    return [run for run in runs if run.folder in counting]


def say_skipped(skipped: Mapping[str, Sequence[str]]) -> None:
    """Print a note that names the skipped folders, if there are any.

    Args:
        skipped: The reason -> the folders that were skipped for this reason.
    """
    reasons = [f"{joined(folders, NAMED)} ({why})" for why, folders in skipped.items()]
    if count := sum(map(len, skipped.values())):
        note(f"{counted(count, 'folder')} skipped: {'; '.join(reasons)}")


def read(folder: Path, x: str) -> Recorded:
    """Read the run in a folder. If the run is still in progress, the complete rows that it has written so far are read.

    Args:
        folder: The run's folder.
        x: The cost axis, a key of `COSTS`.

    Raises:
        OSError, ValueError, UserError: A file is missing or broken, or metrics.csv has no rows or lacks the cost.
    """
    if missing := [name for name in ("config.yaml", "metrics.csv", "run.json") if not (folder / name).is_file()]:
        raise UserError(f"no {' and no '.join(missing)}")
    config, card = RunFolder(folder).config(), RunFolder(folder).card()
    metrics = {metric.name: metric for metric in card.get("metrics", ())}
    if not metrics:
        raise UserError("run.json has no descriptions of the metrics; it is incomplete, or was not written by fedopt")
    table = read_table(folder / "metrics.csv", growing=True)
    if table.empty:
        raise UserError("metrics.csv has no rows, since the run has not been evaluated yet")
    for name in table.select_dtypes(exclude="number"):  # the file may come from somebody else
        table[name] = pd.to_numeric(table[name], errors="coerce")
    columns = COSTS[x].columns
    if lacking := [name for name in ("round", *columns) if name not in table]:
        raise UserError(f"metrics.csv lacks the column {lacking[0]}; choose another cost axis (--x)")
    same = {key: value for key, value in config.items() if key != "eval"}  # evaluation times do not identify a run
    apart = [key for key in _keys(identity(same)) if key != "seed"]
    apart.sort(key=lambda key: key.startswith("budget."))  # last in labels and tables
    keys, tuned = _keys(flat(config)), card.get("tuned", Tuned())
    keys |= {group: name for group, name in card.get("chosen", {}).items() if group in CHOSEN and group in keys}
    keys["tuned"] = tuned.name or "none"
    if card.get(DATA):
        keys[DATA] = card[DATA][:8]
    status = RunFolder(folder).seen() or "unknown"
    bad = table["round"].iloc[-1] if RunFolder(folder).status() == "diverged" else np.nan
    facts = {
        "sources": card.get("sources", {}),
        "departures": card.get("departures", ()),
        "solves": _solves(card, keys),
    }
    run = Recorded(folder, keys, apart, digits(same), metrics, status, x, table, tuned.effective, bad=bad, **facts)
    if not np.isfinite(run.cost()).all():
        raise UserError(f"metrics.csv has rows without a number for {' or '.join(columns)}; delete or rerun the run")
    return run


def _solves(card: Mapping[str, Any], keys: Mapping[str, str]) -> Hashable:
    """Return the weights of the clients in the objective that a run solves, or the name of the weighting; None if unknown.

    Args:
        card: The content of run.json.
        keys: dotted config key -> value as text.
    """
    if "effective_weights" not in card:
        return None
    weights = card["effective_weights"]
    if weights is None:
        return keys.get("problem.weighting", "uniform")
    return tuple(weights) if len({*weights}) > 1 else "uniform"


def _keys(config: dict[str, Any]) -> dict[str, str]:
    """Return the values of a config as texts, by their dotted keys.

    The class that NODE._target_ names is returned under the key NODE, without its module. Other keys whose last name begins
    with an underscore are left out.

    Args:
        config: The flat config: dotted key -> value.
    """
    return {
        key.removesuffix("._target_"): _text(value).rpartition(".")[2] if key.endswith("._target_") else _text(value)
        for key, value in config.items()
        if key.endswith("._target_") or not key.rpartition(".")[2].startswith("_")
    }


def _text(value: Any) -> str:
    """Return a config value as text: a string unchanged, any other value as JSON. 1 and 1.0 give the same text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)
