"""Who takes what a run yields: a tracker, a user's function, checkpoints, pictures. The terminal is in `display`.

A sink is a function of a moment. A context manager gives one that has something to open and to close.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any

import numpy as np

from fedopt.config.build import build_target
from fedopt.config.words import key_of
from fedopt.console.say import note
from fedopt.errors import UserError, first_line, number_of
from fedopt.federation.ledger import Ledger
from fedopt.metrics import Metric
from fedopt.problems.classes import Problem, named
from fedopt.results.checkpoint import Checkpoint
from fedopt.results.folder import RunFolder
from fedopt.results.metrics_file import MetricsFile
from fedopt.running.assemble import Experiment
from fedopt.running.loop import Moment, Progress, Row

# Wall time between checkpoints, at least
CHECKPOINT_SECONDS = number_of("FEDOPT_CHECKPOINT_SECONDS", 5.0)
CHECKPOINT_SHARE = 20  # and at least so many times what one takes
LISTED = 10_000  # clients whose examples partition.csv counts
PICTURES = number_of("FEDOPT_PICTURES", 1)  # 0 leaves them out: a small run takes a tenth of their time

Sink = Callable[[Moment], object]
OnEval = Callable[[Row], object]


def on_rows(take: Callable[[Row], object]) -> Sink:
    """A sink that takes evaluations only."""

    def sink(moment: Moment) -> None:
        if moment.row is not None:
            take(moment.row)

    return sink


class Callback:
    """A user's function of a row, None for none. Where it returns true, `stopped` is set, and the run is interrupted.

    error: what it raised, which its caller gets as it is.
    """

    def __init__(self, function: OnEval | None, interrupt: Event):
        self._function, self._interrupt = function, interrupt
        self.stopped = False
        self.error: Exception | None = None

    def __call__(self, row: Row) -> None:
        if self._function is None:
            return
        try:
            if self._function(dict(row)):
                self.stopped = True
                self._interrupt.set()
        except Exception as error:
            self.error = error
            raise


def loggers(node: Mapping[str, Any]) -> list[Any]:
    """What the node `logger` of a config names: one object, or several under their names. Raises UserError."""
    several = {f"logger.{name}": part for name, part in node.items() if isinstance(part, dict) and "_target_" in part}
    one = {key: value for key, value in node.items() if f"logger.{key}" not in several}
    nodes = several | ({"logger": one} if one.get("_target_") else {})
    return [build_target(part, where) for where, part in nodes.items()]


@contextmanager
def tracker(logger: Any, folder: RunFolder, first: int) -> Iterator[Sink]:
    """logger: of `loggers`; first: the round from which on rows are new. What fails in it ends the tracking, and not the run,
    except for a UserError at its start."""
    failed = False

    def attempt(call: Callable[..., Any], *given: Any) -> Any:
        nonlocal failed
        try:
            return None if failed else call(*given)
        except Exception as error:
            if isinstance(error, UserError) and call == logger.start:
                raise
            failed = True
            note(line := f"{type(logger).__name__}: {first_line(error)}; the run goes on without it")
            folder.log(line)

    writer = attempt(logger.start, folder.path, first)
    try:
        yield on_rows(lambda row: attempt(lambda: writer.log({k: row[k] for k in row if k != "round"}, row["round"])))
    finally:
        attempt(lambda: writer.close())


@dataclass
class Keeper:
    """A sink that writes checkpoints. It comes after those that take the row, so that no checkpoint counts a row that one lacks.

    progress: the loop's; rows: metrics.csv, open; stamp: the checkpoint's words on its config (`identity.stamp`) and its data.
    """

    e: Experiment
    progress: Progress
    checkpoint: Checkpoint
    rows: MetricsFile
    stamp: Mapping[str, str | None]

    def __post_init__(self) -> None:
        self._good: tuple[Any, Ledger, dict[str, Any]] | None = None  # at the last row that did not diverge
        self._next = -math.inf  # time of the next checkpoint

    def __call__(self, moment: Moment) -> None:
        """Keep a checkpoint if it is time for one."""
        if moment.improved and self.e.keep == "best":
            self.checkpoint.best = named(self.e.problem, self.e.algorithm.output(moment.state))
        if moment.status == "diverged":
            return
        if moment.row is not None or self._good is None:
            self._good = self._content(moment.state)
        if moment.status is None and (started := time.monotonic()) > self._next:
            self._store(*self._content(moment.state))
            done = time.monotonic()
            self._next = done + max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * (done - started))

    def end(self, moment: Moment) -> None:
        """Keep the last state, or the last good one of a run that diverged."""
        if moment.status != "diverged":
            self._store(*self._content(moment.state))
        elif self._good is not None:  # else the one on disk is it
            self._store(*self._good)

    def _content(self, state: Any) -> tuple[Any, Ledger, dict[str, Any]]:
        """What a checkpoint of this moment holds."""
        rows = {"rows": self.rows.hash, "rows_size": self.rows.written}
        return state, deepcopy(self.e.federation.ledger), {**self.stamp, **rows, **asdict(self.progress)}

    def _store(self, state: Any, ledger: Ledger, metadata: Mapping[str, Any]) -> None:
        self.rows.sync()  # the rows that are counted are on the disk first
        self.checkpoint.store(state, ledger, metadata)


@contextmanager
def pictures(folder: RunFolder, metrics: Sequence[Metric], source: str | None, begun: Problem | None) -> Iterator[None]:
    """partition.csv and .png of the problem that a run begins with, if it has classes, None if it goes on; metrics.png at its end.

    source: the run at whose checkpoint this one began.
    """
    if begun is not None and begun.labels is not None and begun.clients <= LISTED:
        labels, split = begun.labels, begun.splits["train"]
        classes = int(labels[split.rows].max()) + 1
        counts = (np.bincount(labels[rows], minlength=classes) for rows in split)
        folder.write_text("partition.csv", "".join(f"{','.join(map(str, row))}\n" for row in counts))
    if not PICTURES:
        yield
        return
    from fedopt.drawing import figures  # which takes a second to import

    if begun is not None and begun.labels is not None:
        figures.partition(folder.path / "partition.png", begun.splits["train"], begun.labels, begun.class_names)
    yield
    figures.metrics(folder.path / "metrics.png", folder.metrics, metrics, _title(folder), source or "")


def _title(folder: RunFolder) -> str:
    """Which run it is: its method, problem and seed, and the further words of its command."""
    card, config = folder.card(), folder.config()
    method, problem = (card.get("chosen", {}).get(group, "?") for group in ("algo", "problem"))
    placed = ("algo", "problem", "seed", "output_dir", "resume", "from", "name")
    words = [word for word in card.get("overrides", ()) if key_of(word) not in placed]
    return ", ".join([f"{method} on {problem}", f"seed {config.get('seed')}", *words])
