"""Jobs in the queue of a cluster, by submitit.

Each submission has a folder: runs.json lists its runs, and <id>_submitted.pkl exists until a job has ended. submitit pickles
the jobs, which contain only texts.
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
from typing import Any, NamedTuple

from filelock import FileLock

from fedopt.config import compose
from fedopt.console import Bar, counted, ctrl_c_later
from fedopt.errors import UserError, first_line
from fedopt.files import read_json, refuse_links
from fedopt.jobs.job import Job, Outcome, outcome_in
from fedopt.jobs.local import Done
from fedopt.results import ENDED, RunFolder, digits

LARGEST_ARRAY = 1000  # jobs; Slurm's own limit is 1001 where its MaxArraySize is not set
TIMES = 100  # that a job may reach its time limit
POLL = 1.0  # seconds


@dataclass(frozen=True)
class Work:
    """A run as a job of submitit, as texts that can be pickled. Calling it composes the config again, and does or resumes the
    run.

    Args:
        folder: The run's folder.
        overrides: The run's overrides.
        folders: The user's config folders.
        digits: The fingerprint of the config when the job was queued.
    """

    folder: str
    overrides: tuple[str, ...]
    folders: tuple[str, ...]
    digits: str

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
            composed = compose(self.overrides, self.folders)
            if digits(composed.nodes) != self.digits:
                raise UserError(
                    "its config files have changed since it was queued; repeat the command to queue it again"
                )
            outcome = Job(Path(self.folder), composed, "").do(processes=1)
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
        return not self.job.done()

    def outcome(self) -> Outcome:
        """Return the outcome in the run's folder if the run has ended, else the one that the job returned.

        In the second case it blocks until the job ends. A job without a readable result counts as failed; the text names its
        log.
        """
        if (there := outcome_in(RunFolder(self.folder))).status in ENDED:
            return there
        try:
            return Outcome(*self.job.result())
        except Exception:  # of submitit, or what else half a pickle raises
            return Outcome(
                "failed", f"job {self.job.job_id} ended without a result; see its log, {self.job.paths.stderr}"
            )

    def forget(self) -> None:
        """Remove an ended job from the list of queued jobs.

        If all runs of its submission have ended, remove the submission's folder with the logs too.
        """
        paths = self.job.paths
        with suppress(OSError):  # another command was faster
            paths.submitted_pickle.unlink()
        ended = all(RunFolder(Path(run)).status() in ENDED for run in _runs(paths.folder))
        if ended and not any(paths.folder.glob("*_submitted.pkl")):
            rmtree(paths.folder, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Queue:
    """A `Launcher` that queues jobs on a cluster, unless they are queued already. It yields each when it has ended.

    Args:
        partition: Slurm's partition. None: Slurm's default.
        minutes: The time limit of a job. A job that reaches it is queued again and resumes the run.
        gpus, cpus: The number for each job. None: Slurm's default.
        at_most: The number of jobs that run at once.

    Attributes:
        going: job -> its entry in the queue, for jobs that are queued or running.

    Raises:
        UserError: The jobs cannot be queued. It is raised while iterating over the jobs, not when the launcher is made.
    """

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
        """Return the line to print after Ctrl-C: which jobs stay in the queue, and how to end them."""
        ids = " ".join(dict.fromkeys(entry.job.job_id.partition("_")[0] for entry in self.going.values()))
        left = f"{counted(len(self.going), 'run')} stay in the queue; the same command watches them, scancel {ids} ends them"
        return f"stopped; {left}" if self.going else "stopped; the same command resumes it"

    def _submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs as one array. Raises UserError if they cannot be queued."""
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
            raise UserError(f"{why}; correct the cause, then repeat the command") from error
        self.going.update({job: Queued(job.folder.absolute(), one) for job, one in zip(jobs, sent, strict=True)})

    def _executor(self, batch: Path) -> Any:
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
    for pickled in _place().glob("*/*_submitted.pkl"):
        from submitit import SlurmJob

        number = pickled.name.removesuffix("_submitted.pkl")
        with suppress(LookupError, ValueError):  # another command has just removed the submission
            folder = _runs(pickled.parent)[int(number.partition("_")[2] or 0)]
            entries.append(Queued(Path(folder), SlurmJob(pickled.parent, number)))
    waiting = [entry for entry in entries if entry.waits]  # all are there: Slurm is asked once
    for entry in entries:
        if entry not in waiting:
            entry.forget()
    return waiting


def _runs(submission: Path) -> list[str]:
    """Return the folders of a submission's runs, in the order of its jobs; [] if the submission is gone."""
    runs: list[str] = read_json(submission / "runs.json", {"runs": list[str]}).get("runs", [])
    return runs


def _work(job: Job) -> Work:
    composed = job.composed
    return Work(str(job.folder.absolute()), composed.overrides, composed.folders, digits(composed.nodes))
