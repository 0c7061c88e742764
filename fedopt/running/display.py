"""What a run shows while it works: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedopt.console.say import say
from fedopt.console.texts import printable
from fedopt.running.loop import Moment

SHOWN = 4  # metrics, of those that a problem names first
LATE = 5  # seconds, after which somebody may wonder
FEW, SECONDS = 10, 2  # evaluations that each get a plain line, and between lines from then on


@contextmanager
def announced(what: str, quiet: bool = False) -> Iterator[None]:
    """Say what is being done: on a terminal until it is done, elsewhere in one line where it takes long."""
    terminal = not quiet and sys.stderr is not None and sys.stderr.isatty()
    late = Timer(LATE, say, [f"note: {what} ..."])
    late.daemon = True
    if not (quiet or terminal):
        late.start()
    try:
        with Console(stderr=True).status(what) if terminal else nullcontext():
            yield
    finally:
        late.cancel()


class Display:
    """A sink. metrics: the names of the problem's; quiet: show nothing; row: what plain lines begin with."""

    def __init__(self, title: str, metrics: Sequence[str], quiet: bool = False, row: str = ""):
        self._shown, self._prefix = metrics[:SHOWN], row
        quiet = quiet or sys.stderr is None  # closed by whoever started this process
        self._console = Console(stderr=True, quiet=quiet)
        self._last_line = 0.0
        self._metrics = self._latest = ""  # texts of the latest evaluation
        self._rows = self._rows_shown = 0  # evaluations so far, and when the last line was written
        self._began: tuple[float, float] | None = None  # the time, and the fraction of the budget that was spent then
        self._done = 0.0
        name, text = (TextColumn(f"{{task.{of}}}", markup=False) for of in ("description", "fields[text]"))
        columns = (name, BarColumn(), TaskProgressColumn(), text, TimeElapsedColumn(), "eta", TimeRemainingColumn())
        self._has_bar = not quiet and sys.stderr.isatty()
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._has_bar)
        self._task = self._bar.add_task(printable(title), total=1.0, text="")
        self._bar.start()

    def __call__(self, moment: Moment) -> None:
        """Move the bar. As plain lines: the first evaluations, then at most one every two seconds, and the last."""
        self._done = moment.spent
        self._began = self._began or (time.monotonic(), moment.spent)
        if self._has_bar:
            text = printable(f"round {moment.round}  {self._metrics}")
            self._bar.update(self._task, completed=moment.spent, text=text)
        if (row := moment.row) is not None:
            self._metrics = "  ".join(f"{name} {row[name]:.4g}" for name in self._shown)
            self._latest = (
                f"{self._prefix}round {row['round']:>6}  comm_rounds {row['comm_rounds']:>6}  {self._metrics}"
            )
            self._rows += 1
            if self._rows <= FEW or time.monotonic() - self._last_line > SECONDS:
                self._line_of_row()

    def _line_of_row(self) -> None:
        """The latest evaluation, and how many before it were not shown, unless there is a bar."""
        if not self._has_bar and self._rows > self._rows_shown:
            left_out = self._rows - self._rows_shown - 1
            self.line(self._latest + self._eta() + f"  ({left_out} more before it in metrics.csv)" * (left_out > 0))
        self._rows_shown, self._last_line = self._rows, time.monotonic()

    def _eta(self) -> str:
        """The time to the end at the speed so far, if a second or more."""
        began, before = self._began or (0.0, self._done)
        if not before < self._done < 1:
            return ""
        left = (time.monotonic() - began) * (1 - self._done) / (self._done - before)
        return f"  eta {timedelta(seconds=round(left))}" if 1 <= left < timedelta.max.total_seconds() else ""

    def line(self, text: str) -> None:
        """A reader that is gone, or a full disk, is no reason to end a run."""
        with suppress(OSError, SystemExit):
            self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._line_of_row()
        if self._has_bar:
            self._bar.stop()
