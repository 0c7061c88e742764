"""Progress.

A terminal, and a cell of a notebook, has one line: a bar, the percentage, the time left, and texts as they fit. Elsewhere
there is no bar.
"""

import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedopt.console.say import folded, note
from fedopt.console.texts import html_text, printable

WIDTH, NARROW = 16, 52  # of the bar, and how many columns the rest takes where there are few
REFRESH = 0.2  # seconds between what a notebook shows


def _cell() -> Any:
    """Return a display below the running cell of a notebook, whose content can be replaced; None outside of a notebook."""
    interactive = sys.modules.get("IPython")
    if interactive is None or not hasattr(interactive.get_ipython(), "kernel"):
        return None
    return interactive.display.display({"text/plain": ""}, raw=True, display_id=True)


class Bar:
    """Shows the progress of one or several jobs. A share is a fraction from 0 to 1.

    jobs: how many there are. quiet: show nothing. stream: where lines go, by default stderr; in a notebook stdout. live:
        whether there is a moving bar.
    """

    def __init__(self, jobs: int = 1, quiet: bool = False, stream: TextIO | None = None):
        stream = stream or sys.stderr
        quiet = quiet or stream is None  # closed by whoever started this process
        self._cell, self._shown = None if quiet else _cell(), -math.inf  # when the cell showed something new last
        stream = sys.stdout if self._cell else stream  # notebooks show stderr in red
        self.jobs, self.done, self._lines = jobs, 0, set[str]()
        self._console = Console(file=stream, quiet=quiet, force_jupyter=False)
        terminal = not quiet and stream.isatty()
        self.live = terminal or self._cell is not None
        self._began: tuple[float, float] | None = None  # the time, and the share of all jobs that was done then
        self._width = max(min(WIDTH, self._console.width - NARROW), 4)
        columns = (
            BarColumn(self._width),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[text]}", markup=False),
        )
        apart = {f"redirect_{name}": getattr(sys, name).isatty() for name in ("stdout", "stderr") if terminal}
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not terminal, **apart)
        self._task = self._progress.add_task("", total=1.0, text="")
        self._progress.start()

    @property
    def counted(self) -> list[str]:
        """Which of several jobs is running, as a list of one text such as `2 of 10`; empty for a single job."""
        return [f"{min(self.done + 1, self.jobs)} of {self.jobs}"] * (self.jobs > 1)

    def move(self, share: float, texts: Sequence[str] = ()) -> str:
        """Show the share done of the present job, and as many texts as fit.

        Returns the time left for all jobs as text, empty if it is unknown.
        """
        share = (self.done + min(share, 1)) / self.jobs
        left = self._left(share)
        if self.live:
            parts = [printable(text) for text in (left, *self.counted, *texts) if text]
            while parts and len("  ".join(parts)) > self._console.width - self._width - len(" 100% "):
                parts.pop()
            self._progress.update(self._task, completed=share, text="  ".join(parts))
            self._show(share, "  ".join(parts))
        return left

    def _show(self, share: float, text: str) -> None:
        """Show the progress in the notebook's cell, if there is one, at most once in `REFRESH` seconds.

        share: the fraction of all jobs that is done. text: what stands after the percentage.
        """
        now = time.monotonic()
        if self._cell and (share == 1 or now > self._shown + REFRESH):
            text, self._shown = f"{share:4.0%} {text}", now
            markup = f"<progress value='{share:.4f}' max='1'></progress> {html_text(text)}"
            self._cell.update({"text/plain": text, "text/html": markup}, raw=True)

    def restart(self) -> None:
        """For a single job, measure the speed from now on, since its first round is slower. With several jobs, do nothing."""
        if self.jobs == 1:
            self._began = None

    def expect(self, jobs: int, done: int) -> None:
        """Set the number of all jobs, and the number of those that have ended (``done``). If one changes, the speed is measured
        anew.
        """
        if (jobs, done) != (self.jobs, self.done):
            self.jobs, self.done, self._began = jobs, done, None

    def next(self, skipped: bool = False) -> str:
        """Count the present job as ended. Return the time left for all jobs, as `move` does.

        skipped: if true, the job was not run now, and does not count for the speed.
        """
        self.done += 1
        if skipped:
            self._began = None
        return self.move(0)

    def _left(self, share: float) -> str:
        """Format the time to the end at the speed so far; empty if it is unknown or below a second. share: done of all jobs."""
        self._began = self._began or (time.monotonic(), share)
        began, before = self._began
        if not before < share < 1:
            return ""
        left = (time.monotonic() - began) * (1 - share) / (share - before)
        return f"{timedelta(seconds=round(left))} left" if 1 <= left < timedelta.max.total_seconds() else ""

    def note(self, text: str) -> None:
        """Show a note, once for all jobs."""
        if text not in self._lines and not self._console.quiet:
            self._lines.add(text)
            note(text)

    def line(self, text: str) -> None:
        """Print a line above the bar. A closed pipe or a full disk does not end the run."""
        with suppress(OSError, SystemExit):
            self._console.print(folded(text, self._console.file), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()
