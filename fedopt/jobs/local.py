"""Many runs on this machine, each in a process of its own."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from fedopt.jobs.job import job_of_many
from fedopt.papers.published import Task
from fedopt.results.folder import ENDED, RunFolder, numbers_of


def run_all(needed: Sequence[Task], runs: Path, jobs: int) -> dict[str, str]:
    """Do the runs that have not ended, up to `jobs` at a time, each in a process of its own.

    Returns folder -> why the run failed, for those that did.
    """
    waiting = [task for task in needed if RunFolder(runs / task.folder).status() not in ENDED]
    done = len(needed) - len(waiting)
    if done:
        print(f"{done} of {len(needed)} runs are there already")
    jobs = max(1, min(jobs, len(waiting)))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["fedopt.running.lifecycle", "torch._dynamo"]
    )  # once, not once a run, of which vmap takes the latter
    failed: dict[str, str] = {}
    running: dict[Any, tuple[BaseProcess, Task, float]] = {}  # by sentinel
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("", total=len(needed), completed=done)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    task = waiting.pop(0)
                    started = context.Process(target=_work, args=(task, runs / task.folder, jobs), daemon=True)
                    started.start()
                    running[started.sentinel] = started, task, time.monotonic()
                for sentinel in connection.wait(list(running)):
                    process, task, since = running.pop(sentinel)
                    process.join()
                    done += 1
                    status, text = _outcome(runs / task.folder, task, process.exitcode)
                    if status not in ENDED:
                        failed[task.folder] = text
                    head = f"[{done:>{len(str(len(needed)))}}/{len(needed)}] {status:<9} {task.line}  seed {task.seed}"
                    line = f"{head}  ({time.monotonic() - since:.0f} s)  {text}"
                    progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
                    progress.advance(bar)
        except KeyboardInterrupt:
            for process, *_ in running.values():
                process.terminate()  # the run stops after its round and keeps a checkpoint
            for process, *_ in running.values():
                process.join()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    return failed


def _work(task: Task, folder: Path, jobs: int) -> None:
    from fedopt.federation import ranks

    os.setpgrp()  # Ctrl-C goes to the command alone, which stops the runs
    command = multiprocessing.parent_process()
    ranks.end_when(lambda: command is not None and not command.is_alive())
    # The progress of several runs at once helps nobody
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        try:
            job_of_many(lambda: task.config, RunFolder(folder), task.asked, jobs)
        except KeyboardInterrupt:  # the second one, as of `timeout`, which sends two
            sys.exit(130)


def _outcome(path: Path, task: Task, exitcode: int | None) -> tuple[str, str]:
    """The status of a run, and a text with its last values or with what went wrong."""
    summary = RunFolder(path).summary()
    status = str(summary.get("status", "failed"))
    if status == "failed" or (exitcode and status not in ENDED):
        return "failed", str(summary.get("error") or f"its process ended with code {exitcode}").partition("\n")[0]
    return status, "  ".join(f"{name} {value:.4g}" for name, value in numbers_of(summary.get("final")).items())
