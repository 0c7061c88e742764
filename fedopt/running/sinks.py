"""Who takes what a run yields: a tracker, a function of the user's, pictures. The terminal is in `display`, checkpoints in `keep`.

A sink is a function of a moment. A context manager gives one that has something to open and to close.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from fedopt.metrics import Metric
from fedopt.problems.classes import Problem
from fedopt.results import figures
from fedopt.results.folder import RunFolder
from fedopt.running.loop import Moment, Row

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


@contextmanager
def tracker(logger: Any, folder: Path, first: int) -> Iterator[Sink]:
    """logger: what the config's node builds, None for none; first: the round from which on rows are new."""
    if logger is None:
        yield lambda moment: None
        return
    with closing(logger.start(folder, first)) as writer:
        yield on_rows(lambda row: writer.log({key: row[key] for key in row if key != "round"}, row["round"]))


@contextmanager
def pictures(folder: RunFolder, metrics: Sequence[Metric], source: str | None, begun: Problem | None) -> Iterator[None]:
    """partition.png of the problem that a run begins with, None for a run that goes on; metrics.png when it has ended.

    source: the run at whose checkpoint this one began.
    """
    if begun is not None:
        figures.partition(folder.path / "partition.png", begun.splits["train"], begun.labels, begun.class_names)
    yield
    figures.metrics(folder.path / "metrics.png", folder.metrics, metrics, source)
