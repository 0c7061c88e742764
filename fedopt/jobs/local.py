"""Jobs on this machine: one at a time in this process, or several at once in separate processes."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing import connection
from threading import current_thread, main_thread
from typing import Any, Protocol

from fedopt.console import Bar
from fedopt.console.say import say
from fedopt.errors import UserError, first_line
from fedopt.jobs.job import Job, Outcome
from fedopt.results import ENDED
from fedopt.running import PLACE, Drawing, program_hidden, serve, warm

RUNS = "fedopt.running.lifecycle", "fedopt.drawing.run"  # what does and draws runs
Done = tuple[Job, Outcome, float | None]  # seconds, None if it had ended before


class Launcher(Protocol):
    """A way to do jobs. Calling it with jobs and a progress bar does them, and yields each job with its outcome when it has
    ended.

    It yields (job, outcome, seconds). stopped: the line to print after Ctrl-C.
    """

    @property
    def stopped(self) -> str: ...

    def prepare(self) -> None:
        """Let processes begin to import what the jobs will need, while this one still plans them."""

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]: ...


@dataclass(frozen=True)
class Local:
    """A `Launcher` that does jobs on this machine, up to ``at_once`` at a time. stopped: the line to print after Ctrl-C."""

    at_once: int = 1
    stopped: str = "stopped; the same command resumes it"

    def prepare(self) -> None:
        """Let processes begin to import, as in `Launcher`."""
        if self.at_once > 1:
            warm(*RUNS)
        else:
            Drawing(apart=True).prepare()

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
        if not jobs:
            return iter(())
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
    """Do jobs in this process, one after another. Other processes draw: a job has ended when its pictures are there."""
    ended = deque[Done]()
    stopped = False
    with closing(Drawing(apart=True, later=True)) as drawing:
        for job in jobs:
            began = time.monotonic()
            outcome = job.do(processes=1, bar=bar, drawing=drawing)
            ended.append((job, outcome, time.monotonic() - began))
            if stopped := outcome.status == "interrupted":
                break
            while ended and drawing.drawn(ended[0][0].folder):
                yield _with_pictures(ended.popleft(), drawing)
        while ended:
            yield _with_pictures(ended.popleft(), drawing)
    if stopped:
        raise KeyboardInterrupt


def _with_pictures(done: Done, drawing: Drawing) -> Done:
    """Return a job that has ended when its pictures are drawn. It has failed if they cannot be, as on a full disk."""
    job, outcome, seconds = done
    try:
        drawing.wait(job.folder)
    except (OSError, UserError) as error:
        outcome = Outcome("failed", f"{first_line(error)}; correct this, and the same command draws it")
        say(f"{job.folder}: {outcome.text}")
    return job, outcome, seconds


def _in_processes(jobs: Sequence[Job], at_once: int) -> Iterator[Done]:
    """Do jobs in processes, each of which does one after another."""
    context, waiting, at_once = warm(*RUNS), deque(jobs), min(at_once, len(jobs))
    places = list(range(at_once))  # of processes to be started
    # By the end of a pipe that takes jobs and gives their outcomes
    processes: dict[connection.Connection, tuple[Any, int]] = {}
    idle: list[connection.Connection] = []
    running: dict[connection.Connection, tuple[Job, float]] = {}
    try:
        while waiting or running:
            while waiting and (idle or places):
                if not idle:
                    pipe, theirs = context.Pipe()
                    environment = {**os.environ, PLACE: str(place := places.pop(0))}
                    process = context.Process(target=_work, args=(theirs, at_once, environment))
                    with program_hidden():
                        process.start()
                    theirs.close()
                    processes[pipe] = process, place
                    idle.append(pipe)
                pipe, job = idle.pop(), waiting.popleft()
                running[pipe] = job, time.monotonic()
                with suppress(OSError):  # it was killed meanwhile
                    pipe.send(job)
            ready = connection.wait(list(running))
            for pipe in [pipe for pipe in running if pipe in ready]:
                job, began = running.pop(pipe)
                try:
                    outcome = pipe.recv()
                    idle.append(pipe)
                except (EOFError, OSError):  # it was killed
                    process, place = processes.pop(pipe)
                    process.join()
                    places.append(place)
                    outcome = Outcome(
                        "failed", f"its process ended with code {process.exitcode}; the same command resumes it"
                    )
                yield job, outcome, time.monotonic() - began
    finally:
        for pipe in running:
            processes[pipe][0].terminate()  # the run stops after its round and keeps a checkpoint
        for pipe, (process, _) in processes.items():
            pipe.close()  # after which it ends
            process.join()


def _work(pipe: connection.Connection, at_once: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # of now, and not of the first sweep of a long session
    serve()
    # The progress of several runs at once helps nobody
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        try:
            with suppress(EOFError, OSError):  # no job is left, or the command is gone
                while True:
                    pipe.send(pipe.recv().do(at_once))
        except KeyboardInterrupt:  # the second one, as of `timeout`, which sends two
            sys.exit(130)


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
