"""Jobs on this machine: one at a time in this process, or several at once in separate processes."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing import connection
from threading import current_thread, main_thread
from typing import Any, Protocol

from fedopt.console import Bar, end_with
from fedopt.jobs.job import Job, Outcome
from fedopt.results import ENDED
from fedopt.running import PLACE, program_hidden

Done = tuple[Job, Outcome, float | None]  # seconds, None if it had ended before


class Launcher(Protocol):
    """A way to do jobs. Calling it with jobs and a progress bar does them, and yields each job with its outcome when it has
    ended.

    It yields (job, outcome, seconds). stopped: the line to print after Ctrl-C.
    """

    @property
    def stopped(self) -> str: ...

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]: ...


@dataclass(frozen=True)
class Local:
    """A `Launcher` that does jobs on this machine, up to ``at_once`` at a time. stopped: the line to print after Ctrl-C."""

    at_once: int = 1
    stopped: str = "stopped; the same command resumes it"

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
        return _in_turn(jobs, bar) if self.at_once <= 1 else _in_processes(jobs, self.at_once)


def run_all(jobs: Sequence[Job], launcher: Launcher, shared: Bar | None = None) -> dict[Job, Outcome]:
    """Do jobs under one progress bar, and print a line when each ends.

    Return job -> outcome for the jobs that neither finished nor diverged, such as those that failed or were refused.

    Args:
        jobs: The jobs. Those that have ended are only checked.
        launcher: Does the jobs that have not ended.
        shared: A progress bar that counts these jobs among others; it stays open. None: a new one.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came. It is raised when all runs on this machine have written a checkpoint.
        UserError: The launcher cannot queue the jobs.
    """
    ended, waiting = ([job for job in jobs if job.ended is wanted] for wanted in (True, False))
    bar = shared or Bar(len(jobs), stream=sys.stdout)
    checked = ((job, job.do(processes=1), None) for job in ended)
    done: Iterable[Done] = chain(checked, launcher(waiting, bar))
    bad: dict[Job, Outcome] = {}
    with nullcontext() if shared else closing(bar), _sigterm_as_ctrl_c():
        for job, (status, text), seconds in done:
            if status not in ENDED:
                bad[job] = Outcome(status, text or status)
            left = bar.next(skipped=seconds is None)
            there = "was there already" if status in ENDED else ""
            took = there if seconds is None else f"({', '.join(filter(None, [f'{seconds:.0f} s', left]))})"
            parts = f"[{bar.done:>{len(str(bar.jobs))}}/{bar.jobs}] {status:<9} {job.title}", took, text
            bar.line("  ".join(filter(None, parts)))
    return bad


def _in_turn(jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
    for job in jobs:
        began = time.monotonic()
        outcome = job.do(processes=1, bar=bar)
        yield job, outcome, time.monotonic() - began
        if outcome.status == "interrupted":
            raise KeyboardInterrupt


def _in_processes(jobs: Sequence[Job], at_once: int) -> Iterator[Done]:
    context = multiprocessing.get_context("forkserver")
    # Imported once, not once a run: vmap takes the last
    context.set_forkserver_preload(["fedopt.running.lifecycle", "fedopt.drawing.run", "torch._dynamo"])
    waiting, at_once = list(jobs), min(at_once, len(jobs))
    places = list(range(at_once))  # that are free
    # By the end of a pipe that the outcome comes from
    running: dict[connection.Connection, tuple[Any, Job, float, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                receives, sends = context.Pipe(duplex=False)
                environment = {**os.environ, PLACE: str(place := places.pop(0))}
                process = context.Process(target=_work, args=(job, at_once, sends, environment))
                with program_hidden():
                    process.start()
                sends.close()
                running[receives] = process, job, time.monotonic(), place
            ready = connection.wait(list(running))
            for receives in [end for end in running if end in ready]:
                process, job, began, place = running.pop(receives)
                places.append(place)
                try:
                    outcome = receives.recv()
                    process.join()
                except EOFError:  # it was killed
                    process.join()
                    outcome = Outcome(
                        "failed", f"its process ended with code {process.exitcode}; the same command resumes it"
                    )
                yield job, outcome, time.monotonic() - began
    finally:
        for process, *_ in running.values():
            process.terminate()  # the run stops after its round and keeps a checkpoint
        for process, *_ in running.values():
            process.join()


def _work(job: Job, at_once: int, sends: connection.Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # of now, and not of the first sweep of a long session
    os.setpgrp()  # Ctrl-C goes only to the command, which stops the runs
    command = multiprocessing.parent_process()
    assert command is not None
    end_with(command.is_alive)
    # The progress of several runs at once helps nobody
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        try:
            outcome = job.do(at_once)
        except KeyboardInterrupt:  # the second one, as of `timeout`, which sends two
            sys.exit(130)
    with suppress(OSError):  # the command may be gone
        sends.send(outcome)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C in the `with` block. Outside the main thread, which alone receives signals, it does nothing."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
