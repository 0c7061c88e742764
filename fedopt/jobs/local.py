"""Jobs on this machine: one at a time in this process, or several, each in a process of its own."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from multiprocessing import connection
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from fedopt.console.interrupts import end_with
from fedopt.jobs.job import Job
from fedopt.results.folder import ENDED, RunFolder


def run_all(jobs: Sequence[Job], at_once: int = 1) -> dict[Job, str]:
    """Do the jobs, up to `at_once` at a time, and print a line for each that ends. Returns why a job did not end well, for those.

    Raises KeyboardInterrupt after Ctrl-C or SIGTERM, when all that ran have kept a checkpoint.
    """
    done = _in_turn(jobs) if at_once <= 1 else _in_processes(jobs, at_once)
    bad: dict[Job, str] = {}
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    show_bar = at_once > 1 and sys.stdout.isatty()  # a single run shows its own
    with Progress(*columns, transient=True, disable=not show_bar) as progress, _sigterm_as_ctrl_c():
        bar = progress.add_task("", total=len(jobs))
        for number, (job, status, seconds, text) in enumerate(done, 1):
            if status not in ENDED:
                bad[job] = text or status
            there = "was there already" if status in ENDED and seconds is None else ""
            took = f"({seconds:.0f} s)" if seconds is not None else ""
            parts = f"[{number:>{len(str(len(jobs)))}}/{len(jobs)}] {status:<9} {job.title}", took, there, text
            progress.console.print("  ".join(filter(None, parts)), markup=False, highlight=False, soft_wrap=True)
            progress.advance(bar)
    return bad


Outcome = tuple[Job, str, float | None, str]  # status, seconds (None where there was nothing to do), values or error


def _in_turn(jobs: Sequence[Job]) -> Iterator[Outcome]:
    for job in jobs:
        there, began = RunFolder(job.folder).status() in ENDED, time.monotonic()
        status = job.do(processes=1)
        yield job, status, None if there else time.monotonic() - began, job.values()
        if status == "interrupted":
            raise KeyboardInterrupt


def _in_processes(jobs: Sequence[Job], at_once: int) -> Iterator[Outcome]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["fedopt.running.lifecycle", "torch._dynamo"]
    )  # once, not once a run: vmap takes the latter
    waiting, at_once = list(jobs), min(at_once, len(jobs))
    running: dict[Any, tuple[Any, Job, float, bool]] = {}  # by sentinel
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                process = context.Process(target=_work, args=(job, at_once), daemon=True)
                process.start()
                running[process.sentinel] = process, job, time.monotonic(), RunFolder(job.folder).status() in ENDED
            for sentinel in connection.wait(list(running)):
                process, job, began, there = running.pop(sentinel)
                process.join()
                status, text = RunFolder(job.folder).status() or "failed", job.values()
                if status not in ENDED and process.exitcode and status != "failed":
                    status, text = "failed", f"its process ended with code {process.exitcode}"
                elif process.exitcode == REFUSED:
                    status, text = "refused", "the folder holds another run"
                yield job, status, None if there else time.monotonic() - began, text
    finally:
        for process, *_ in running.values():
            process.terminate()  # the run stops after its round and keeps a checkpoint
        for process, *_ in running.values():
            process.join()


REFUSED = 4  # the exit code of a process whose job was refused


def _work(job: Job, at_once: int) -> None:
    os.setpgrp()  # Ctrl-C goes to the command alone, which stops the runs
    command = multiprocessing.parent_process()
    assert command is not None
    end_with(command.is_alive)
    # The progress of several runs at once helps nobody
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        try:
            status = job.do(at_once)
        except KeyboardInterrupt:  # the second one, as of `timeout`, which sends two
            sys.exit(130)
    sys.exit(REFUSED if status == "refused" else 0)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
