"""Run jobs on a cluster with Slurm, using submitit.

Each submission has a folder, in which runs.json lists the runs, and <id>_submitted.pkl exists until a job has ended. submitit
pickles the jobs, which contain only strings.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from threading import Event
from time import monotonic, sleep
from types import FrameType
from typing import Any, NamedTuple

from filelock import FileLock

from fedopt.config import compose
from fedopt.console import Bar, counted, ctrl_c_later
from fedopt.errors import UserError, first_line
from fedopt.files import read_json, refuse_links
from fedopt.jobs.job import Job, Outcome, outcome_in
from fedopt.jobs.local import Done
from fedopt.results import ENDED, RunFolder, digits

LARGEST_ARRAY = 1000  # jobs; Slurm's default MaxArraySize is 1001
TIMES = 100  # how often a job may reach its time limit and be queued again
POLL = 1.0  # seconds


@dataclass(frozen=True)
class Work:
    """A run as a job of submitit, which consists of strings that can be pickled.

    Calling it composes the config again, and executes or resumes the run.

    Args:
        folder: The run's folder.
        overrides: The run's overrides.
        folders: The user's config folders.
        digits: A hash of the config at the time when the job was queued.
    """

    folder: str
    overrides: tuple[str, ...]
    folders: tuple[str, ...]
    digits: str

    def __call__(self) -> tuple[str, str]:
        """Execute the run.

        Shortly before the job's time limit, the run stops after its current round, and the job is queued again to resume the
        run. A cancelled job exits without a result.

        Returns:
            The run's status, and the reason if the run failed or was refused (otherwise an empty text).
        """
        from submitit import JobEnvironment

        near_limit = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")  # arrives shortly before the time limit
        requeue, timed_out = signal.getsignal(near_limit), Event()

        def stop(number: int, frame: FrameType | None) -> None:
            timed_out.set()
            os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(near_limit, stop)
        try:
            composed = compose(self.overrides, self.folders)
            if digits(composed.nodes) != self.digits:
                raise UserError("the config files have changed since the run was queued; repeat the command")
            outcome = Job(Path(self.folder), composed, "").do(processes=1)
        except UserError as error:
            outcome = Outcome("refused", str(error))
        except KeyboardInterrupt:  # before the first round
            outcome = Outcome("interrupted", "")
        signal.signal(near_limit, signal.SIG_IGN)
        if outcome.status == "interrupted":
            if timed_out.is_set() and callable(requeue):
                requeue(near_limit, None)  # submitit's handler, which exits
            sys.exit(128 + signal.SIGTERM)  # the job was cancelled
        return outcome.status, outcome.text

    def checkpoint(self) -> Any:
        """Return the job that submitit queues again at the time limit: this job, which then resumes the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Queued(NamedTuple):
    """A run in the queue.

    Attributes:
        folder: The run's folder.
        job: The job of submitit.
    """

    folder: Path
    job: Any

    @property
    def waits(self) -> bool:
        """Whether the run is queued or running, as far as this machine can tell."""
        if not self.job.paths.submitted_pickle.exists() and RunFolder(self.folder).status() in ENDED:
            return False  # another command has processed the end of the job
        return not self.job.done()

    def outcome(self) -> Outcome:
        """Return the outcome in the run's folder if the run has ended, otherwise the outcome that the job returns.

        In the second case this method blocks until the job ends. A job without a readable result counts as failed, and the
        text names the job's log.
        """
        if (recorded := outcome_in(RunFolder(self.folder))).status in ENDED:
            return recorded
        try:
            return Outcome(*self.job.result())
        except Exception:  # raised by submitit, or by an incomplete pickle
            return Outcome("failed", f"job {self.job.job_id} has no result; see its log {self.job.paths.stderr}")

    def forget(self) -> None:
        """Remove a job that has ended from the list of queued jobs.

        If all runs of its submission have ended, the folder of the submission is removed too, with the logs.
        """
        paths = self.job.paths
        with suppress(OSError):  # another command has removed it
            paths.submitted_pickle.unlink()
        ended = all(RunFolder(Path(run)).status() in ENDED for run in _runs(paths.folder))
        if ended and not any(paths.folder.glob("*_submitted.pkl")):
            rmtree(paths.folder, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Queue:
    """A `Launcher` that queues jobs on a cluster. Jobs that are already queued are not queued again.

    Args:
        partition: Slurm's partition. None: Slurm's default.
        minutes: The time limit of a job. A job that reaches it is queued again and resumes the run.
        gpus: The number of GPUs per job. None: Slurm's default.
        cpus: The number of CPU cores per job. None: Slurm's default.
        at_most: The largest number of jobs that run in parallel.

    Attributes:
        going: The entries in the queue of the jobs that are queued or running.

    Raises:
        UserError: The jobs cannot be queued. This is raised by the iteration over the jobs.
    """

    partition: str | None = None
    minutes: int = 60
    gpus: int | None = None
    cpus: int | None = None
    at_most: int = 50
    going: dict[Job, Queued] = field(default_factory=dict, init=False)

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
        """Queue jobs, wait for them, and yield each job with its outcome and the seconds from the start until it ended.

        Args:
            jobs: The jobs.
            bar: The progress bar, which is not used.
        """
        began = monotonic()
        refuse_links([lock := queue_folder() / ".lock"])
        with FileLock(lock):  # so that two commands do not queue the same run
            before = {entry.folder: entry for entry in queued()}
            self.going.update({job: before[path] for job in jobs if (path := job.folder.absolute()) in before})
            new = [job for job in jobs if job not in self.going]
            for first in range(0, len(new), LARGEST_ARRAY):
                self._submit(new[first : first + LARGEST_ARRAY])
        while self.going:
            sleep(POLL)
            for job, entry in [*self.going.items()]:
                if not entry.waits:
                    outcome = entry.outcome()
                    entry.forget()
                    del self.going[job]
                    yield job, outcome, monotonic() - began

    @property
    def stopped(self) -> str:
        """The line to print after Ctrl-C. It says how many runs stay in the queue, and how to cancel them."""
        ids = " ".join(dict.fromkeys(entry.job.job_id.partition("_")[0] for entry in self.going.values()))
        left = f"{counted(len(self.going), 'run')} still queued; repeat the command to wait again, or cancel with scancel {ids}"
        return f"stopped; {left}" if self.going else "stopped; to resume, repeat the command"

    def _submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs as one job array of Slurm, and add their entries to ``going``.

        Raises:
            UserError: The jobs cannot be queued.
        """
        batch = queue_folder() / token_hex(8)
        batch.mkdir(mode=0o700)
        runs = [str(job.folder.absolute()) for job in jobs]
        (batch / "runs.json").write_text(json.dumps({"runs": runs}), encoding="utf-8")
        try:
            with ctrl_c_later():
                sent = self._executor(batch).submit_array([_work(job) for job in jobs])
        except (RuntimeError, ImportError, OSError) as error:
            rmtree(batch)
            why = f"--launcher slurm: the runs cannot be queued ({first_line(error)})"
            raise UserError(f"{why}; fix the cause, then repeat the command") from error
        self.going.update({job: Queued(job.folder.absolute(), one) for job, one in zip(jobs, sent, strict=True)})

    def _executor(self, batch: Path) -> Any:
        """Return an executor of submitit that writes its files to the folder ``batch``."""
        from submitit import SlurmExecutor

        asked = {"partition": self.partition, "gpus_per_node": self.gpus, "cpus_per_task": self.cpus}
        executor = SlurmExecutor(batch, max_num_timeout=TIMES)
        executor.update_parameters(
            job_name="fedopt",
            time=self.minutes,
            signal_delay_s=min(90, 30 * self.minutes),
            array_parallelism=self.at_most,
            **{key: value for key, value in asked.items() if value is not None},
        )
        return executor


def _place() -> Path:
    """Return the path of the queue's folder, which may not exist yet."""
    return Path(os.environ.get("FEDOPT_QUEUE", "~/.cache/fedopt/queue")).expanduser().absolute()


def queue_folder() -> Path:
    """Return the folder of the queue. It is created so that only this user can write to it, since its files are executed.

    Raises:
        UserError: Other users may write to the folder.
    """
    folder = _place()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UserError(f"{folder}: other users can change this folder; set FEDOPT_QUEUE to a folder of your own")
    return folder


def queued() -> list[Queued]:
    """Return the runs that are queued or running. Entries of jobs that have ended are removed from the queue's folder."""
    entries = []
    for pickled in _place().glob("*/*_submitted.pkl"):
        from submitit import SlurmJob

        number = pickled.name.removesuffix("_submitted.pkl")
        with suppress(LookupError, ValueError):  # another command has just removed the submission
            folder = _runs(pickled.parent)[int(number.partition("_")[2] or 0)]
            entries.append(Queued(Path(folder), SlurmJob(pickled.parent, number)))
    # Only after all entries are known, so that Slurm is asked once
    waiting = [entry for entry in entries if entry.waits]
    for entry in entries:
        if entry not in waiting:
            entry.forget()
    return waiting


def _runs(submission: Path) -> list[str]:
    """Return the folders of the runs of a submission, in the order of its jobs; [] if the submission was removed."""
    return [*read_json(submission / "runs.json", {"runs": list[str]}).get("runs", [])]


def _work(job: Job) -> Work:
    """Return a job in the form that submitit can pickle."""
    composed = job.composed
    return Work(str(job.folder.absolute()), composed.overrides, composed.folders, digits(composed.nodes))
