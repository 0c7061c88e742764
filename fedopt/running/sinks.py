"""Sinks process the moments of a run: trackers, the user's function, and checkpoints. The terminal is in `display`.

A sink is a function of a `Moment`. Sinks that must be opened and closed are provided by context managers.
"""

import csv
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from io import StringIO
from threading import Event
from typing import Any

import numpy as np

from fedopt.config import build_target
from fedopt.console import note, printable
from fedopt.errors import UserError, first_line
from fedopt.federation import Ledger
from fedopt.machine import number_of
from fedopt.problems import Problem, named
from fedopt.results import Checkpoint, MetricsFile, RunFolder
from fedopt.running.assemble import Experiment
from fedopt.running.loop import Moment, Progress, Row

# The minimum time between checkpoints, in seconds
CHECKPOINT_SECONDS = number_of("FEDOPT_CHECKPOINT_SECONDS", 5.0)
CHECKPOINT_SHARE = 20  # and at least this multiple of the time to write a checkpoint
LISTED = 10_000  # largest number of clients for which partition.csv and traffic.csv are written
TRAFFIC = "client", "rounds", "MB_down", "MB_up", "bytes_down", "bytes_up", "bytes_down_lost"

Sink = Callable[[Moment], object]
OnEval = Callable[[Row], object]


def on_rows(take: Callable[[Row], object]) -> Sink:
    """Return a sink that calls ``take`` with the row of each evaluation, and does nothing at other moments."""

    def sink(moment: Moment) -> None:
        if moment.row is not None:
            take(moment.row)

    return sink


class Callback:
    """The user's function ``on_eval``. If it returns true, the run is interrupted.

    Args:
        function: A function that is called with each row of metrics.csv. None: nothing is called.

    Attributes:
        interrupt: The event that stops the run.
        stopped: Whether the function has returned true.
        error: The exception that the function raised, which the caller receives unchanged. None: it raised none.
    """

    def __init__(self, function: OnEval | None):
        self._function, self.interrupt, self.stopped = function, Event(), False
        self.error: Exception | None = None

    def __call__(self, row: Row) -> None:
        try:
            if self._function is not None and self._function(dict(row)):
                self.stopped = True
                self.interrupt.set()
        except Exception as error:
            self.error = error
            raise


def loggers(node: Mapping[str, Any]) -> list[Any]:
    """Return the objects that the node `logger` of a config describes.

    Args:
        node: The node, which describes one object, several objects or none.

    Raises:
        UserError: An object cannot be built.
    """
    several = {f"logger.{name}": part for name, part in node.items() if isinstance(part, dict) and "_target_" in part}
    one = {key: value for key, value in node.items() if f"logger.{key}" not in several}
    nodes = several | ({"logger": one} if one.get("_target_") else {})
    return [build_target(part, where) for where, part in nodes.items()]


@contextmanager
def tracker(logger: Any, folder: RunFolder, first: int) -> Iterator[Sink]:
    """Provide a sink that passes rows to an experiment tracker.

    If the tracker fails, the run continues without it. Only a UserError at its start is raised.

    Args:
        logger: The object that starts the tracker, one of the results of `loggers`.
        folder: The run's folder.
        first: The first round that has not been logged yet.
    """
    failed = False

    def attempt(call: Callable[..., Any], *given: Any) -> Any:
        nonlocal failed
        try:
            return None if failed else call(*given)
        except Exception as error:
            if isinstance(error, UserError) and call == logger.start:
                raise
            failed = True
            note(line := f"{type(logger).__name__}: {first_line(error)}; the run continues without this tracker")
            folder.log(line)

    writer = attempt(logger.start, folder.path, first)
    try:
        yield on_rows(lambda row: attempt(lambda: writer.log({k: row[k] for k in row if k != "round"}, row["round"])))
    finally:
        attempt(lambda: writer.close())


@dataclass
class Keeper:
    """A sink that writes checkpoints.

    It must come after the sinks that process rows, so that a checkpoint refers only to rows that they have all received.

    Args:
        e: The objects of the run.
        progress: The progress of the run.
        checkpoint: The run's checkpoint.
        rows: The open file metrics.csv.
        stamp: The fingerprints of the config and the hashes of the data, which are stored in the checkpoint.
    """

    e: Experiment
    progress: Progress
    checkpoint: Checkpoint
    rows: MetricsFile
    stamp: Mapping[str, str | None]

    def __post_init__(self) -> None:
        self._good: tuple[Any, Ledger, dict[str, Any]] | None = None  # at the last evaluation that did not diverge
        self._next = -math.inf  # time of the next checkpoint

    def __call__(self, moment: Moment) -> None:
        """Write a checkpoint if one is due. With keep=best, store the variables if this is the best evaluation so far.

        Args:
            moment: The state of the run.
        """
        if moment.improved and self.e.keep == "best":
            self.checkpoint.best = named(self.e.problem, moment.point, self.e.own)
        if moment.status == "diverged" or moment.state is None:  # of a run that was computed together with others
            return
        if moment.row is not None or self._good is None:
            self._good = self._content(moment.state)
        if moment.status is None and (started := time.monotonic()) > self._next:
            self._store(*self._content(moment.state))
            done = time.monotonic()
            self._next = done + max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * (done - started))

    def end(self, moment: Moment) -> None:
        """Write the last checkpoint: of the last state or, if the run diverged, of the last evaluation before the divergence.

        Args:
            moment: The last moment of the run.
        """
        if moment.status != "diverged":
            self._store(*self._content(moment.state))
        elif self._good is not None:  # otherwise the checkpoint on the disk is the right one
            self._store(*self._good)

    def _content(self, state: Any) -> tuple[Any, Ledger, dict[str, Any]]:
        """Return the content of a checkpoint: the state, a copy of the ledger, and the metadata."""
        rows = {"rows": self.rows.hash, "rows_size": self.rows.written}
        return state, deepcopy(self.e.federation.ledger), {**self.stamp, **rows, **vars(self.progress)}

    def _store(self, state: Any, ledger: Ledger, metadata: Mapping[str, Any]) -> None:
        self.rows.sync()  # the checkpoint may refer only to rows that are on the disk
        self.checkpoint.store(state, ledger, metadata)


def write_clients(folder: RunFolder, problem: Problem, point: Sequence[Any]) -> None:
    """Write clients.csv, one row per client, if the problem evaluates single clients.

    Each client is evaluated with its personal model, with the common model, and with a model trained only on its own data. A
    column name consists of the model and the score, such as own_recall_yes. Some columns are followed by the ends of a confidence
    interval. An existing clients.csv and its figure are removed.

    Args:
        folder: The run's folder.
        problem: The problem that the algorithm solves.
        point: The final variables; () if the run has not reached its end, and then nothing is written.
    """
    for name in ("clients.csv", "clients.png"):
        (folder.path / name).unlink(missing_ok=True)
    if point and (of_clients := problem.clients_table(*point)):
        split = problem.splits["train"]
        columns: dict[str, Any] = {"client": map(printable, split.names or map(str, range(len(split))))}
        for name, values in {"examples": split.sizes, **of_clients}.items():
            columns[name] = [f"{value:.10g}" if math.isfinite(value) else "" for value in values]
        _write_csv(folder, "clients.csv", [[*columns], *zip(*columns.values(), strict=True)])


def _write_csv(folder: RunFolder, name: str, rows: Iterable[Iterable[Any]]) -> None:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    folder.write_text(name, text.getvalue())


def write_division(folder: RunFolder, problem: Problem) -> None:
    """Write partition.csv, and own_test.csv if clients keep some of their training rows for testing.

    partition.csv has one row per client, with its number of examples of each class. It is written for data with classes and at
    most `LISTED` clients. own_test.csv lists the rows that clients use for testing.

    Args:
        folder: The run's folder.
        problem: The problem that the config names.
    """
    if problem.labels is not None and problem.clients <= LISTED:
        labels, split = problem.labels, problem.splits["train"]
        classes = int(labels[split.rows].max()) + 1
        _write_csv(folder, "partition.csv", (np.bincount(labels[rows], minlength=classes) for rows in split))
    if (kept := problem.own_test_rows) is not None:
        # The client, and the numbers of its rows in the training data, from 1, in ascending order
        clients = zip(kept.names or range(len(kept)), kept, strict=True)
        places = [(printable(str(name)), row + 1) for name, rows in clients for row in sorted(rows)]
        _write_csv(folder, "own_test.csv", [("client", "row"), *places])


def write_traffic(folder: RunFolder, problem: Problem, ledger: Ledger) -> None:
    """Write traffic.csv, one row per client: its number of rounds, and the bytes sent to it and by it.

    Nothing is written for more than `LISTED` clients.

    Args:
        folder: The run's folder.
        problem: The problem that the algorithm solves.
        ledger: The costs of the run.
    """
    if problem.clients <= LISTED:
        names = map(printable, problem.splits["train"].names or map(str, range(problem.clients)))
        down = ledger.down + ledger.lost
        in_mb = ([f"{size / 1e6:.6g}" for size in sizes] for sizes in (down, ledger.up))
        rows = zip(names, ledger.rounds, *in_mb, down, ledger.up, ledger.lost, strict=True)
        _write_csv(folder, "traffic.csv", [TRAFFIC, *rows])
