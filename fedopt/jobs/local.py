"""Run jobs on this machine: one after another in this process, or several in parallel in separate processes."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing import connection, get_context, parent_process, resource_tracker
from types import ModuleType
from typing import Protocol

from fedopt.console import Bar, ctrl_c_later, end_with
from fedopt.jobs.job import Job, Outcome
from fedopt.machine import PLACE, short_spins
from fedopt.results import ENDED

Done = tuple[Job, Outcome, float | None]  # the number is the seconds of the run, or None if it had ended before


class Launcher(Protocol):
    """A function that runs jobs.

    A launcher is called with jobs and a progress bar. It runs the jobs, and yields (job, outcome, seconds) when a job has ended.

    Attributes:
        stopped: The line to print after Ctrl-C.
    """

    @property
    def stopped(self) -> str: ...

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]: ...


@dataclass(frozen=True)
class Local:
    """A `Launcher` that runs jobs on this machine.

    Args:
        at_once: The number of jobs that run in parallel.
        stopped: The line to print after Ctrl-C.
    """

    at_once: int = 1
    stopped: str = "stopped; to resume, repeat the command"

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
        if not jobs:
            return iter(())
        return _in_turn(jobs, bar) if self.at_once <= 1 else _in_processes(jobs, self.at_once)


def run_all(jobs: Sequence[Job], launcher: Launcher, shared: Bar | None = None) -> dict[Job, Outcome]:
    """Run jobs with one progress bar, and print a line when a job ends.

    Args:
        jobs: The jobs. Jobs that have already ended are only checked.
        launcher: The launcher of the jobs that have not ended.
        shared: A progress bar that also counts other jobs, and that stays open. None: a new one.

    Returns:
        The outcomes of the jobs that neither finished nor diverged, for example those that failed or were refused.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. It is raised after all runs on this machine have written a checkpoint.
        UserError: The launcher cannot queue the jobs.
    """
    ended, waiting = ([job for job in jobs if job.ended is wanted] for wanted in (True, False))
    bar = shared or Bar(len(jobs), stream=sys.stdout)
    checked = ((job, job.do(processes=1), None) for job in ended)
    done: Iterable[Done] = chain(checked, launcher(waiting, bar))
    bad: dict[Job, Outcome] = {}
    with nullcontext() if shared else closing(bar):
        for job, (status, text), seconds in done:
            if status not in ENDED:
                bad[job] = Outcome(status, text or status)
            left = bar.next(skipped=seconds is None)
            took = "already done" if status in ENDED else ""
            if seconds is not None:
                took = f"({', '.join(filter(None, [f'{seconds:.0f} s', left]))})"
            texts = f"[{bar.done:>{len(str(bar.jobs))}}/{bar.jobs}] {status:<9} {job.title}", took, text
            bar.line("  ".join(filter(None, texts)))
    return bad


def _in_turn(jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
    """Run jobs in this process, one after another, and yield each job with its outcome and the seconds that it took.

    Args:
        jobs: The jobs.
        bar: The progress bar.

    Raises:
        KeyboardInterrupt: A job was interrupted; its outcome is yielded first.
    """
    for job in jobs:
        began = time.monotonic()
        outcome = job.do(processes=1, bar=bar)
        yield job, outcome, time.monotonic() - began
        if outcome.status == "interrupted":
            raise KeyboardInterrupt


class _Worker:
    """A process that runs one job after another.

    Args:
        at_once: The number of processes that share the machine.
        place: The index of this process among them.

    Attributes:
        pipe: The end of a pipe through which jobs are sent and outcomes are received.
    """

    def __init__(self, at_once: int, place: int):
        context, self.place = get_context("spawn"), place
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, at_once, place))
        with program_hidden(), ctrl_c_later():  # Ctrl-C during the imports of the process would print a traceback
            self.process.start()
        theirs.close()


def _in_processes(jobs: Sequence[Job], at_once: int) -> Iterator[Done]:
    """Run jobs in several processes, each of which runs one job after another. A process that was killed is replaced.

    Args:
        jobs: The jobs.
        at_once: The largest number of processes.
    """
    waiting, at_once = deque(jobs), min(at_once, len(jobs))
    resource_tracker.ensure_running()  # must start before Ctrl-C is blocked, since it unblocks Ctrl-C
    places, workers = deque(range(at_once)), list[_Worker]()  # the indices of processes to start; the running processes
    running: dict[_Worker, tuple[Job, float]] = {}
    try:
        while waiting or running:
            while places and len(workers) < len(running) + len(waiting):
                workers.append(_Worker(at_once, places.popleft()))
            for worker in (worker for worker in workers if worker not in running):
                if waiting:
                    running[worker] = waiting.popleft(), time.monotonic()
                    with suppress(OSError):  # the process was killed meanwhile
                        worker.pipe.send(running[worker][0])
            ready = connection.wait([worker.pipe for worker in running])
            for worker in [worker for worker in running if worker.pipe in ready]:
                job, began = running.pop(worker)
                try:
                    outcome = worker.pipe.recv()
                except (EOFError, OSError):  # the process was killed
                    workers.remove(worker)
                    places.append(worker.place)
                    worker.process.join()
                    code = worker.process.exitcode
                    outcome = Outcome("failed", f"its process ended with code {code}; to resume, repeat the command")
                yield job, outcome, time.monotonic() - began
    finally:
        for worker in workers:
            worker.process.terminate()  # its run stops after the current round and writes a checkpoint
        for worker in workers:
            worker.pipe.close()
            worker.process.join()


@contextmanager
def program_hidden() -> Iterator[None]:
    """Hide the user's script during the context, so that a process that is started does not run it again.

    Scripts therefore need no `__main__` guard.
    """
    program, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    os.environ.update(spins := short_spins())
    try:
        yield
    finally:
        for name in spins:
            os.environ.pop(name, None)
        sys.modules["__main__"] = program


def _work(pipe: connection.Connection, at_once: int, place: int) -> None:
    """Run the jobs that arrive through a pipe until it is closed or the command has ended. Only the command receives Ctrl-C.

    Args:
        pipe: The end of a pipe through which jobs are received and outcomes are sent.
        at_once: The number of processes that share the machine.
        place: The index of this process among them.
    """
    os.environ[PLACE] = str(place)
    os.setpgrp()
    command = parent_process()
    assert command is not None
    end_with(command.is_alive)
    # The progress lines of several parallel runs would be mixed up
    with open(os.devnull, "w", encoding="utf-8") as devnull, redirect_stderr(devnull):
        try:
            with suppress(EOFError, OSError):  # no job is left, or the command is gone
                while True:
                    pipe.send(pipe.recv().do(at_once))
        except KeyboardInterrupt:  # a second signal; for example, `timeout` sends two
            sys.exit(130)
