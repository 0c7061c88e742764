"""A job: a run to do in a folder. It is skipped if it has ended, and resumed if it was interrupted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedopt.config import Composed
from fedopt.console import Bar, ending_at_once
from fedopt.console.say import say
from fedopt.errors import UserError
from fedopt.files import refuse_linked
from fedopt.results import ENDED, RunFolder, numbers_of, refuse_other
from fedopt.results.identity import identity

if TYPE_CHECKING:
    from fedopt.running import Outcome as Computed


class Outcome(NamedTuple):
    """How a job ended.

    status: the run's status, or 'refused' if the job was not done and its folder was left unchanged.
    text: the last values of the metrics, or what went wrong.
    """

    status: str
    text: str


@dataclass(frozen=True, eq=False)
class Job:
    """A run to do in a folder.

    composed: its config. title: its name in the progress output. on_eval: as in `running.lifecycle.execute`.
    computed: The outcome of the run, if it was computed together with others.
    """

    folder: Path
    composed: Composed
    title: str
    on_eval: Callable[[dict[str, Any]], object] | None = None
    computed: "Computed | None" = None

    @property
    def ended(self) -> bool:
        return RunFolder(self.folder).status() in ENDED

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do, as of `RunFolder.settled`."""
        return RunFolder(self.folder).settled

    def check(self) -> None:
        """Check the ended run in the folder. Raises UserError if it had other config values or data than this job.

        A note names your modules that have changed since.
        """
        with ending_at_once():
            from fedopt.results import say_changed
            from fedopt.running import refuse_changed_data

        folder = RunFolder(self.folder)
        refuse_other(self.folder, identity(folder.config()), identity(self.composed.nodes))
        refuse_changed_data(self.folder, folder.card(), self.composed.nodes)
        say_changed(folder, self.composed.nodes)

    def do(self, processes: int, bar: Bar | None = None) -> Outcome:
        """Do the run without pictures, resuming it if it has begun, and return how it ended.

        A run that has ended is only checked. Errors do not raise: they are printed and
        returned, and a failure is recorded in the folder. Neither the config nor the method's fit to the problem is checked here:
        `plan` does that for a sweep. A run that failed before is done again.

        Args:
            processes: The number of processes that share the machine.
            bar: The progress bar. None: a new one.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed before the first round, or twice. After one Ctrl-C during the run, the
                status is 'interrupted' instead.
        """
        with ending_at_once():
            from fedopt.running import Options, execute, record_failure

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
                options = Options(processes, self.on_eval, bar=bar, pictures=False, computed=self.computed)
                execute(composed, lambda: self.folder, options)
        except Exception as error:
            if status in ENDED or (status is not None and isinstance(error, UserError)):  # what is there stays as it is
                say(str(error))
                return Outcome("refused", str(error))
            line = record_failure(folder, error, composed)
            say(line if str(self.folder) in line else f"{self.folder}: {line}")
            # By another process, meanwhile. A run of ours that could not be recorded as failed looks interrupted
            taken = status is None and folder.used and folder.seen() not in ("failed", "interrupted")
            return Outcome("refused" if taken else "failed", line)
        return outcome_in(folder)


def outcome_in(folder: RunFolder) -> Outcome:
    """Return the outcome that the run in a folder has recorded. Its text is the last values of the metrics."""
    summary = folder.summary()
    final = numbers_of(summary.get("final")).items()
    return Outcome(str(summary.get("status")), "  ".join(f"{name} {value:.4g}" for name, value in final))
