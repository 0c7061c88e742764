"""Show the progress of a run: a bar on a terminal, or about ten lines of text elsewhere."""

from collections.abc import Sequence

from fedopt.console import Bar
from fedopt.running.loop import Moment

SHOWN = 4  # number of metrics that are shown: the first ones of the problem
LINES = 10  # number of lines of text per run, besides the first two evaluations


class Display:
    """A sink that shows the progress of a run. Lines of text are printed only for a single job, and only if the bar cannot move.

    Args:
        bar: The progress bar.
        metrics: The names of the problem's metrics. The first `SHOWN` of them are shown.
    """

    def __init__(self, bar: Bar, metrics: Sequence[str]):
        self._bar, self._shown = bar, metrics[:SHOWN]
        self._metrics: list[str] = []  # of the latest evaluation
        self._rows = self._tenth = self._moments = 0

    def __call__(self, moment: Moment) -> None:
        """Move the bar, or print a line for the first two evaluations and for one evaluation per tenth of the budget.

        Args:
            moment: The state of the run.
        """
        self._moments += 1
        if self._moments == 2:
            self._bar.restart()
        if (row := moment.row) is not None:
            self._metrics = [f"{name} {row[name]:.4g}" for name in self._shown]
        left = self._bar.move(moment.spent, [f"round {moment.round}", *self._metrics])
        if row is None:
            return
        self._rows += 1
        before, self._tenth = self._tenth, int(moment.spent * LINES)
        if (self._rows <= 2 or self._tenth > before) and not self._bar.live and self._bar.jobs == 1:
            rounds = f"round {moment.round}", f"comm_rounds {row['comm_rounds']}"
            parts = [f"{min(moment.spent, 1):4.0%}", left, *rounds, *self._metrics]
            self._bar.line("  ".join(filter(None, parts)))
