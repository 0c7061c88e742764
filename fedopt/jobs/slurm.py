"""Jobs in a cluster's queue, by submitit; or, to try that out, in submitit's processes on this machine.

Each submission has a folder: runs.json lists its runs, and <id>_submitted.pkl exists until a job has ended. submitit pickles
    the jobs, which contain only texts.
"""

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from threading import Event
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple

from filelock import FileLock

from fedopt.config import compose
from fedopt.console import Bar, counted, ctrl_c_later, note
from fedopt.errors import UserError, first_line
from fedopt.files import opened, read_json, refuse_links
from fedopt.jobs.job import Job, Outcome, outcome_in
from fedopt.jobs.local import Done
from fedopt.results import ENDED, RunFolder, digits

LARGEST_ARRAY = 1000  # jobs; Slurm's own limit is 1001 where its MaxArraySize is not set
TIMES = 100  # that a job may reach its time limit
POLL = 1.0  # seconds
Kind = Literal["slurm", "local-executor"]
BATCH = {"kind": Kind, "runs": list[str]}  # of runs.json


@dataclass(frozen=True)
class Work:
    """A run as a job of submitit, as texts that can be pickled. Calling it composes the config again, and does or resumes the
    run.

    Args:
        folder: The run's folder.
        words: The run's overrides.
        folders: The user's config folders.
        digits: The fingerprint of the config when the job was queued.
        at_once: The number of runs that share a machine.
    """

    folder: str
    words: tuple[str, ...]
    folders: tuple[str, ...]
    digits: str
    at_once: int

    def __call__(self) -> tuple[str, str]:
        """Do the run and return (status, text) of its outcome.

        If the time limit is near, the run stops after its current round and the job is queued again. A cancelled job exits
        without a result.
        """
        from submitit import JobEnvironment

        sent = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")  # shortly before the time limit
        requeue, asked = signal.getsignal(sent), Event()

        def make_room(number: int, frame: Any) -> None:
            asked.set()
            os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(sent, make_room)
        try:
            composed = compose(self.words, self.folders)
            if digits(composed.nodes) != self.digits:
                raise UserError(
                    "its config files have changed since it was queued; repeat the command to queue it again"
                )
            outcome = Job(Path(self.folder), composed, "").do(self.at_once)
        except UserError as error:
            outcome = Outcome("refused", str(error))
        except KeyboardInterrupt:  # before the first round
            outcome = Outcome("interrupted", "")
        signal.signal(sent, signal.SIG_IGN)
        if outcome.status == "interrupted":
            if asked.is_set() and callable(requeue):
                requeue(sent, None)  # submitit's, which exits
            sys.exit(128 + signal.SIGTERM)  # cancelled: no result
        return outcome.status, outcome.text

    def checkpoint(self) -> Any:
        """Return the job that submitit queues again at the time limit: this one, which then resumes the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Queued(NamedTuple):
    """A run in the queue. folder: the run's folder. job: submitit's job."""

    folder: Path
    job: Any

    @property
    def waits(self) -> bool:
        """Return whether the run is queued or running, as far as this machine can tell."""
        if not self.job.paths.submitted_pickle.exists() and RunFolder(self.folder).status() in ENDED:
            return False  # another command has seen it end
        if type(self.job).__name__ == "SlurmJob":
            return not self.job.done()
        args = subprocess.run(["ps", "-o", "args=", "-p", self.job.job_id], capture_output=True, text=True).stdout
        return "submitit" in args and not self.job.paths.result_pickle.exists()

    def outcome(self) -> Outcome:
        """Return the outcome in the run's folder if the run has ended, else the one that the job returned.

        In the second case it blocks until the job ends. A job without a readable result counts as failed; the text names its
        log.
        """
        if (there := outcome_in(RunFolder(self.folder))).status in ENDED:
            return there
        with warnings.catch_warnings(action="ignore"):  # submitit tries half a file twice
            try:
                with suppress(FileNotFoundError), opened(self.job.paths.result_pickle):
                    pass  # is no pipe
                return Outcome(*self.job.result())
            except Exception:  # of submitit, or what else half a pickle raises
                log = f"job {self.job.job_id} ended without a result; see its log, {self.job.paths.stderr}"
                return Outcome("failed", log)

    def forget(self) -> None:
        """Remove an ended job from the list of queued jobs.

        If all runs of its submission have ended, remove the submission's folder with the logs too.
        """
        paths = self.job.paths
        with suppress(OSError):  # another command was faster
            paths.submitted_pickle.unlink()
        if not any(paths.folder.glob("*_submitted.pkl")):
            runs = read_json(paths.folder / "runs.json", BATCH).get("runs")  # None if another command was faster
            if runs and all(RunFolder(Path(run)).status() in ENDED for run in runs):
                rmtree(paths.folder, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Queue:
    """A `Launcher` that queues jobs on a cluster, unless they are queued already. It yields each when it has ended.

    Args:
        kind: ``slurm``, or ``local-executor`` to try it out on this machine, which ignores partition and cpus.
        partition: Slurm's partition. None: Slurm's default.
        minutes: The time limit of a job. A job that reaches it is queued again and resumes the run.
        gpus, cpus: The number for each job. None: Slurm's default.
        at_most: The number of jobs that run at once.

    Attributes:
        going: job -> its entry in the queue, for jobs that are queued or running.

    Raises:
        UserError: The jobs cannot be queued. It is raised while iterating over the jobs, not when the launcher is made.
    """

    kind: Kind
    partition: str | None = None
    minutes: int = 60
    gpus: int | None = None
    cpus: int | None = None
    at_most: int = 50
    going: dict[Job, Queued] = field(default_factory=dict, init=False)

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
        began = monotonic()
        refuse_links([lock := queue_folder() / ".lock"])
        with FileLock(lock):  # two commands queue nothing twice
            before = {entry.folder: entry for entry in queued()}
            self.going.update({job: before[path] for job in jobs if (path := job.folder.absolute()) in before})
            todo = [job for job in jobs if job not in self.going]
            self._submit(todo)
        while todo or self.going:
            sleep(POLL)
            for job, entry in [*self.going.items()]:
                if not entry.waits:
                    outcome = entry.outcome()
                    entry.forget()
                    del self.going[job]
                    yield job, outcome, monotonic() - began
            self._submit(todo)

    @property
    def stopped(self) -> str:
        """Return the line to print after Ctrl-C: which jobs stay in the queue, and how to end them."""
        ids = " ".join(dict.fromkeys(entry.job.job_id.partition("_")[0] for entry in self.going.values()))
        ends = f"{'scancel' if self.kind == 'slurm' else 'kill'} {ids} ends them"
        left = f"{counted(len(self.going), 'run')} stay in the queue; the same command watches them, {ends}"
        return f"stopped; {left}" if self.going else "stopped; the same command resumes it"

    def _submit(self, todo: list[Job]) -> None:
        """Queue as many jobs as there is room for, and remove them from ``todo`` in place. Raises UserError if they cannot be
        queued.
        """
        slurm = self.kind == "slurm"
        while todo and (room := (LARGEST_ARRAY if slurm else self.at_most) - len(self.going)) > 0:
            number = room if slurm else 1
            group, todo[:] = todo[:number], todo[number:]
            batch = queue_folder() / token_hex(8)
            batch.mkdir(mode=0o700)
            runs = [str(job.folder.absolute()) for job in group]
            (batch / "runs.json").write_text(json.dumps({"kind": self.kind, "runs": runs}), encoding="utf-8")
            try:
                with ctrl_c_later():
                    sent = self._executor(batch).submit_array(
                        [_work(job, 1 if slurm else self.at_most) for job in group]
                    )
            except (RuntimeError, ImportError, OSError) as error:
                rmtree(batch)
                why = f"--launcher {self.kind}: the runs cannot be queued ({first_line(error)})"
                raise UserError(f"{why}; correct the cause, then repeat the command") from error
            self.going.update({job: Queued(job.folder.absolute(), one) for job, one in zip(group, sent, strict=True)})

    def _executor(self, batch: Path) -> Any:
        import submitit

        asked: dict[str, Any] = {"signal_delay_s": min(90, 30 * self.minutes), "gpus_per_node": self.gpus}
        if self.kind == "local-executor":
            executor: Any = submitit.LocalExecutor(batch, max_num_timeout=TIMES)
            asked |= {"timeout_min": self.minutes}
        else:
            executor = submitit.SlurmExecutor(batch, max_num_timeout=TIMES)
            asked |= {"time": self.minutes, "partition": self.partition, "cpus_per_task": self.cpus}
            asked |= {"job_name": "fedopt", "array_parallelism": self.at_most}
        executor.update_parameters(**{key: value for key, value in asked.items() if value is not None})
        return executor


def _place() -> Path:
    return Path(os.environ.get("FEDOPT_QUEUE", "~/.cache/fedopt/queue")).expanduser().absolute()


def queue_folder() -> Path:
    """Return the folder of the queue, created for this user alone, since its files are executed.

    Raises UserError if other users may write there.
    """
    folder = _place()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UserError(
            f"{folder}: other users may write here, and its files are executed; set FEDOPT_QUEUE to another folder"
        )
    return folder


def queued() -> list[Queued]:
    """Return the runs that are queued or running. Entries of ended jobs are removed from the queue's folder."""
    entries = []
    for listed in (path for path in _place().glob("*/runs.json") if not path.parent.is_symlink()):
        from submitit.local.local import LocalJob
        from submitit.slurm.slurm import SlurmJob

        for pickled in listed.parent.glob("*_submitted.pkl"):
            batch, number = read_json(listed, BATCH), pickled.name.removesuffix("_submitted.pkl")
            try:
                folder = Path(batch["runs"][int(number.partition("_")[2] or 0)])
                job: Any = (SlurmJob if batch["kind"] == "slurm" else LocalJob)(listed.parent, number)
                entries.append(Queued(folder, job))
            except (LookupError, ValueError):
                if pickled.exists():  # else another command has seen its end
                    note(
                        f"{listed}: does not say what job {number} runs, so this job is not watched; remove {listed.parent}"
                    )
    waiting = [entry for entry in entries if entry.waits]  # all are there: Slurm is asked once
    for entry in entries:
        if entry not in waiting:
            entry.forget()
    return waiting


def _work(job: Job, at_once: int) -> Work:
    composed = job.composed
    return Work(str(job.folder.absolute()), composed.words, composed.folders, digits(composed.nodes), at_once)
