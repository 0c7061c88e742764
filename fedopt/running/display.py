"""The progress that a run shows: a bar on a terminal, about ten plain lines elsewhere."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.console import Console

from fedopt.console import Bar
from fedopt.running.loop import Moment

SHOWN = 4  # metrics, of those that a problem names first
LINES = 10  # of a run, besides its first two evaluations


@contextmanager
def announced(what: str, quiet: bool = False) -> Iterator[None]:
    """Show on a terminal what is being done during the context. quiet: if true, nothing is shown."""
    terminal = not quiet and sys.stderr is not None and sys.stderr.isatty()
    with Console(stderr=True).status(what) if terminal else nullcontext():
        yield


class Display:
    """A sink that shows progress. Plain lines are shown only without a moving bar, and for a single job.

    bar: the progress bar. metrics: the names of the problem's metrics; the first `SHOWN` are shown. prefix: begins each plain
        line.
    """

    def __init__(self, bar: Bar, metrics: Sequence[str], prefix: str = ""):
        self._bar, self._shown, self._prefix = bar, metrics[:SHOWN], prefix
        self._metrics: list[str] = []  # of the latest evaluation
        self._waiting = ""  # its line, until it is shown
        self._rows = self._tenth = self._moments = 0

    def __call__(self, moment: Moment) -> None:
        """Move the bar. As plain lines, show the first two evaluations, one per tenth of the budget, and the last."""
        self._moments += 1
        if self._moments == 2:
            self._bar.restart()
        if (row := moment.row) is not None:
            self._metrics = [f"{name} {row[name]:.4g}" for name in self._shown]
        left = self._bar.move(moment.spent, [f"round {moment.round}", *self._metrics])
        if row is None:
            return
        rounds = f"round {moment.round}", f"comm_rounds {row['comm_rounds']}"
        parts = [f"{min(moment.spent, 1):4.0%}", left, *rounds, *self._metrics]
        self._waiting = self._prefix + "  ".join(filter(None, parts))
        self._rows += 1
        tenth = int(moment.spent * LINES)
        if self._rows <= 2 or tenth > self._tenth:
            self._show()
        self._tenth = tenth

    def _show(self) -> None:
        if self._waiting and not self._bar.live and self._bar.jobs == 1:
            self._bar.line(self._waiting)
        self._waiting = ""

    def close(self) -> None:
        self._show()
