"""One job of many: a folder and a config. It is skipped when it is done and resumed when it was interrupted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedopt.config.composed import Composed
from fedopt.console.bar import Bar
from fedopt.console.interrupts import ending_at_once
from fedopt.console.say import say
from fedopt.errors import UserError
from fedopt.files.writing import refuse_linked
from fedopt.results.folder import ENDED, RunFolder, described, numbers_of
from fedopt.results.identity import identity, refuse_other


class Outcome(NamedTuple):
    """status: that of the run, or refused. text: the last values of its metrics, or what went wrong."""

    status: str
    text: str


@dataclass(frozen=True, eq=False)
class Job:
    """A run that shall be done in a folder. title: what its line of progress says. on_eval: as of `running.lifecycle.Run`."""

    folder: Path
    composed: Composed
    title: str
    on_eval: Callable[[dict[str, Any]], object] | None = None

    @property
    def ended(self) -> bool:
        return RunFolder(self.folder).status() in ENDED

    def check(self) -> None:
        """Raises UserError where the run that is over was one of other values or data; says where your code has changed since."""
        with ending_at_once():
            from fedopt.results.card import say_changed
            from fedopt.running.assemble import refuse_changed_data

        folder = RunFolder(self.folder)
        refuse_other(self.folder, identity(folder.config()), identity(self.composed.nodes))
        refuse_changed_data(self.folder, folder.card(), self.composed.nodes)
        say_changed(folder, self.composed.nodes, done=True)

    def do(self, processes: int, bar: Bar | None = None) -> Outcome:
        """Run, or go on, to the end. A run that has ended is only checked. What goes wrong is said, a failure recorded too.

        processes: how many share the machine. bar: what shows how far it is; None for one that it makes.
        """
        with ending_at_once():
            from fedopt.running.failure import record_failure
            from fedopt.running.lifecycle import execute

        try:
            refuse_linked(self.folder, self.folder.parent)
        except UserError as error:
            say(str(error))
            return Outcome("refused", str(error))
        folder = RunFolder(self.folder)
        status = folder.status()
        composed = self.composed.changed(resume=folder.used)
        try:
            if status in ENDED:
                self.check()
            else:
                execute(composed, lambda: self.folder, processes, self.on_eval, bar=bar)
        except Exception as error:
            if status in ENDED or (status is not None and isinstance(error, UserError)):  # what is there stays as it is
                say(str(error))
                return Outcome("refused", str(error))
            line = record_failure(folder, error, composed)
            say(f"{self.folder}: {line}")
            return Outcome("failed", line)
        return outcome_in(folder)


def outcome_in(folder: RunFolder) -> Outcome:
    """Of the run in a folder."""
    summary = folder.summary()
    final = numbers_of(summary.get("final")).items()
    return Outcome(str(summary.get("status")), "  ".join(f"{name} {value:.4g}" for name, value in final))


def optimised(folder: RunFolder, wanted: str | None) -> float | None:
    """The last value of a metric, of the problem's first one where none is wanted: what Hydra's sweepers optimise.

    The worst there is for a run that diverged, None for one that has no value.
    """
    summary = folder.summary()
    metric = next((m for m in described(folder.path) if wanted in (m.name, None)), None)
    if summary.get("status") not in ENDED or metric is None:
        return None
    return metric.worst if summary["status"] == "diverged" else numbers_of(summary.get("final")).get(metric.name)
