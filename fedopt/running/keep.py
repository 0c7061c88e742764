"""What it takes to go on with a run: metrics.csv, and the checkpoint that counts its rows."""

import math
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from typing import Any

from fedopt.errors import number_of
from fedopt.federation.ledger import Ledger
from fedopt.problems.classes import named
from fedopt.results.checkpoint import Checkpoint
from fedopt.results.metrics_file import MetricsFile
from fedopt.running.assemble import Experiment
from fedopt.running.loop import Moment, Progress

# Wall time between checkpoints, at least
CHECKPOINT_SECONDS = number_of("FEDOPT_CHECKPOINT_SECONDS", 5.0)
CHECKPOINT_SHARE = 20  # and at least so many times what one takes


class Keeper:
    """A sink that writes checkpoints. It comes after those that take the row, so that no checkpoint counts a row that one lacks.

    progress: the loop's; rows: metrics.csv, open; stamp: what the checkpoint says of its config (`identity.stamp`) and its data.
    """

    def __init__(
        self,
        e: Experiment,
        progress: Progress,
        checkpoint: Checkpoint,
        rows: MetricsFile,
        stamp: Mapping[str, str | None],
    ):
        self._e, self._progress, self._checkpoint, self._rows, self._stamp = e, progress, checkpoint, rows, stamp
        self._good: tuple[Any, Ledger, dict[str, Any]] | None = None  # at the last row that did not diverge
        self._next = -math.inf  # time of the next checkpoint

    def __call__(self, moment: Moment) -> None:
        """Keep a checkpoint if it is time for one."""
        if moment.improved and self._e.keep == "best":
            self._checkpoint.best = named(self._e.problem, self._e.algorithm.output(moment.state))
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
        rows = {"rows": self._rows.hash, "rows_size": self._rows.written}
        return state, deepcopy(self._e.federation.ledger), {**self._stamp, **rows, **asdict(self._progress)}

    def _store(self, state: Any, ledger: Ledger, metadata: Mapping[str, Any]) -> None:
        self._rows.sync()  # the rows that are counted are on the disk first
        self._checkpoint.store(state, ledger, metadata)
