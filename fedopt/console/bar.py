"""The progress bar.

In a terminal or a notebook, progress is one line with a bar, the percentage, the time left, and as many texts as fit.
Elsewhere there is no bar.
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

WIDTH, NARROW = 16, 52  # columns of the bar, and columns that a narrow terminal reserves for the rest of the line
REFRESH = 0.2  # seconds between updates in a notebook


def _cell() -> Any:
    """Return a display below the running cell of a notebook whose content can be replaced; None outside a notebook."""
    interactive = sys.modules.get("IPython")
    if interactive is None or not hasattr(interactive.get_ipython(), "kernel"):
        return None
    return interactive.display.display({"text/plain": ""}, raw=True, display_id=True)


class Bar:
    """The progress bar of one or several jobs.

    Args:
        jobs: The number of jobs, such as the runs of a sweep.
        quiet: Whether to show nothing.
        stream: The stream for output. None: stderr. In a notebook it is always stdout.

    Attributes:
        jobs: The number of jobs.
        done: The number of jobs that have ended.
        live: Whether there is a moving bar.
    """

    def __init__(self, jobs: int = 1, quiet: bool = False, stream: TextIO | None = None):
        stream = stream or sys.stderr
        quiet = quiet or stream is None  # the parent process has closed stderr
        self._cell, self._shown = None if quiet else _cell(), -math.inf  # the time of the last update of the cell
        stream = sys.stdout if self._cell else stream  # notebooks show stderr in red
        self.jobs, self.done, self._lines = jobs, 0, set[str]()
        self._console = Console(file=stream, quiet=quiet, force_jupyter=False)
        terminal = not quiet and stream.isatty()
        self.live = terminal or self._cell is not None
        self._began: tuple[float, float] | None = None  # when the measurement of speed began: time, fraction done
        self._width = max(min(WIDTH, self._console.width - NARROW), 4)
        percentage, text = TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.fields[text]}", markup=False)
        apart = {f"redirect_{name}": getattr(sys, name).isatty() for name in ("stdout", "stderr") if terminal}
        options: dict[str, Any] = {"console": self._console, "transient": True, "disable": not terminal}
        self._progress = Progress(BarColumn(self._width), percentage, text, **options, **apart)
        self._task = self._progress.add_task("", total=1.0, text="")
        self._progress.start()

    @property
    def counted(self) -> list[str]:
        """The position among several jobs, as a list with one text such as `2 of 10`; an empty list for a single job."""
        return [f"{min(self.done + 1, self.jobs)} of {self.jobs}"] * (self.jobs > 1)

    def move(self, fraction: float, texts: Sequence[str] = ()) -> str:
        """Show the progress of the current job.

        Args:
            fraction: The fraction of the current job that is done, from 0 to 1.
            texts: Texts to show, as many as fit into the line.

        Returns:
            The time left for all jobs, as text; empty if it is unknown.
        """
        fraction = (self.done + min(fraction, 1)) / self.jobs
        left = self._left(fraction)
        if self.live:
            shown = [printable(text) for text in (left, *self.counted, *texts) if text]
            while shown and len("  ".join(shown)) > self._console.width - self._width - len(" 100% "):
                shown.pop()
            self._progress.update(self._task, completed=fraction, text="  ".join(shown))
            self._show(fraction, "  ".join(shown))
        return left

    def _show(self, fraction: float, text: str) -> None:
        """Show the progress in the notebook's cell, if there is one, at most once in `REFRESH` seconds.

        Args:
            fraction: The fraction of all jobs that is done.
            text: The text after the percentage.
        """
        now = time.monotonic()
        if self._cell and (fraction == 1 or now > self._shown + REFRESH):
            text, self._shown = f"{fraction:4.0%} {text}", now
            markup = f"<progress value='{fraction:.4f}' max='1'></progress> {html_text(text)}"
            self._cell.update({"text/plain": text, "text/html": markup}, raw=True)

    def restart(self) -> None:
        """Begin to measure the speed of a single job again, for example because its first round is slower than the others.

        With several jobs, nothing happens.
        """
        if self.jobs == 1:
            self._began = None

    def expect(self, jobs: int, done: int) -> None:
        """Set the numbers that the bar shows. If one of them changes, the speed is measured again.

        Args:
            jobs: The number of jobs.
            done: The number of jobs that have ended.
        """
        if (jobs, done) != (self.jobs, self.done):
            self.jobs, self.done, self._began = jobs, done, None

    def next(self, skipped: bool = False) -> str:
        """Count the current job as ended.

        Args:
            skipped: Whether the job had ended before, so that it does not count for the speed.

        Returns:
            The time left for all jobs, as text; empty if it is unknown.
        """
        self.done += 1
        if skipped:
            self._began = None
        return self.move(0)

    def _left(self, fraction: float) -> str:
        """Return the time until all jobs end, at the speed so far, as text; empty if it is unknown or less than a second.

        Args:
            fraction: The fraction of all jobs that is done.
        """
        self._began = self._began or (time.monotonic(), fraction)
        began, before = self._began
        if not before < fraction < 1:
            return ""
        left = (time.monotonic() - began) * (1 - fraction) / (fraction - before)
        return f"{timedelta(seconds=round(left))} left" if 1 <= left < timedelta.max.total_seconds() else ""

    def note(self, text: str) -> None:
        """Show a note. Equal notes of several jobs are shown only once."""
        if text not in self._lines and not self._console.quiet:
            self._lines.add(text)
            note(text)

    def line(self, text: str) -> None:
        """Print a line above the bar. A closed pipe or a full disk is ignored, so that the run continues."""
        with suppress(OSError, SystemExit):
            self._console.print(folded(text, self._console.file), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self._progress.stop()
