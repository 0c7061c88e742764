"""Progress. A terminal has one line: a bar, the percentage, the time left, and texts as they fit. Elsewhere there is no bar."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedopt.console.say import note
from fedopt.console.texts import printable

WIDTH, NARROW = 16, 52  # of the bar, and how many columns the rest takes where there are few


class Bar:
    """Progress of some jobs, by default of one. A share is of the present job, from 0 to 1.

    quiet: show nothing. stream: where lines go, by default stderr. live: whether there is a bar.
    """

    def __init__(self, jobs: int = 1, quiet: bool = False, stream: TextIO | None = None):
        stream = stream or sys.stderr
        quiet = quiet or stream is None  # closed by whoever started this process
        self.jobs, self.done, self._lines = jobs, 0, set[str]()
        self._console = Console(file=stream, quiet=quiet)
        self.live = not quiet and stream.isatty()
        self._began: tuple[float, float] | None = None  # the time, and the share of all jobs that was done then
        self._width = max(min(WIDTH, self._console.width - NARROW), 4)
        columns = (
            BarColumn(self._width),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[text]}", markup=False),
        )
        apart = {f"redirect_{name}": getattr(sys, name).isatty() for name in ("stdout", "stderr") if self.live}
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not self.live, **apart)
        self._task = self._progress.add_task("", total=1.0, text="")
        self._progress.start()

    @property
    def counted(self) -> list[str]:
        """Which of several jobs this is."""
        return [f"{min(self.done + 1, self.jobs)} of {self.jobs}"] * (self.jobs > 1)

    def move(self, share: float, texts: Sequence[str] = ()) -> str:
        """Show how far the present job is, and texts as they fit. Returns the time left for all jobs, empty where it is unknown."""
        share = (self.done + min(share, 1)) / self.jobs
        left = self._left(share)
        if self.live:
            parts = [printable(text) for text in (left, *self.counted, *texts) if text]
            while parts and len("  ".join(parts)) > self._console.width - self._width - len(" 100% "):
                parts.pop()
            self._progress.update(self._task, completed=share, text="  ".join(parts))
        return left

    def restart(self) -> None:
        """Measure the speed of a single job from now on: its first round is slower than the others."""
        if self.jobs == 1:
            self._began = None

    def next(self, skipped: bool = False) -> str:
        """The present job has ended. skipped: it had ended before, and tells nothing about the time. Returns as `move`."""
        self.done += 1
        if skipped:
            self._began = None
        return self.move(0)

    def _left(self, share: float) -> str:
        """The time to the end at the speed so far, if a second or more."""
        self._began = self._began or (time.monotonic(), share)
        began, before = self._began
        if not before < share < 1:
            return ""
        left = (time.monotonic() - began) * (1 - share) / (share - before)
        return f"{timedelta(seconds=round(left))} left" if 1 <= left < timedelta.max.total_seconds() else ""

    def note(self, text: str) -> None:
        """A note, once for all jobs."""
        if text not in self._lines and not self._console.quiet:
            self._lines.add(text)
            note(text)

    def line(self, text: str) -> None:
        """Above the bar. A reader that is gone, or a full disk, is no reason to end a run."""
        with suppress(OSError, SystemExit):
            self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()
