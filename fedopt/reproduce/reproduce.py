"""The `fedopt-reproduce` command: the figures of the papers, and whether what they claim holds.

An experiment is a file conf/experiment/<paper>/<name>.yaml (`published.Published`). Its runs are shared with every other
experiment that needs the same ones; nothing here imports torch but the processes that run.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from fedopt.command import Parser, answer, say, some_of
from fedopt.errors import UserError
from fedopt.reproduce.kept import claims_markdown, judged_again, keep, rows_of
from fedopt.reproduce.published import Published, Task, chosen, load, names, takes, tasks
from fedopt.reproduce.report import ended_runs, report, undecided
from fedopt.reproduce.sweep import job_of_many
from fedopt.reproduce.tables import print_table, write_table
from fedopt.results.figures import FORMATS
from fedopt.results.folder import ENDED, RunFolder, numbers_of
from fedopt.settings import cores

RUNS = "runs"  # the folder of all runs, in the output folder
MOST_SEEDS = 10  # of the lines of a claim that is undecided


def main() -> None:
    """Entry point of `fedopt-reproduce`."""
    answer(_main)


def _main() -> int:
    given = _arguments()
    folders, output = given.folders, given.output
    if given.list or given.claims:
        asked = chosen(given.names or names(folders), folders)
    if given.list:
        show(asked, folders, output)
        return 0
    if given.claims:
        print(claims_table(asked, folders, given.keep or output))
        return 0
    if not given.names:
        raise UserError("which experiment? fedopt-reproduce --list shows them")
    lock = RunFolder(output)
    lock.open()
    try:
        return reproduce(given)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130
    finally:
        lock.close()


def _arguments() -> argparse.Namespace:
    does = "Run published experiments, draw their figures and check their claims."
    parser = Parser(prog="fedopt-reproduce", description=does)
    add = parser.add_argument
    add("names", nargs="*", metavar="PAPER/NAME", help="such as fedmsa/fig2; a paper alone stands for all of its own")
    add("--list", action="store_true", help="show all experiments and how far they are")
    anew = "run nothing: judge anew what was measured, by the claims as they are now, and show it as Markdown"
    add("--claims", action="store_true", help=anew)
    small = (
        "keep a small figure, its curves and the claims in DIR/<paper>/<name>; with --claims: judge what is kept there"
    )
    add("--keep", type=Path, metavar="DIR", help=small)
    add("--seeds", type=_positive, metavar="N", help="seeds 0 to N-1 of each line (default: what the experiment says)")
    add("--quick", action="store_true", help="a few rounds and one seed, to see that everything runs")
    beside = f"of the figure, beside png: {', '.join(FORMATS)}"
    add("--format", type=some_of(FORMATS), default=[], metavar="NAME,...", help=beside)
    add("--jobs", type=_positive, default=cores(), metavar="J", help="runs at a time (default: one a core)")
    add("--hardware", metavar="NAME", help="cpu or cuda (default: what the experiment says)")
    add("--output", type=Path, default=Path("outputs/reproduce"), metavar="DIR", help="default: outputs/reproduce")
    own = "a config folder of your own, with experiment/<paper>/<name>.yaml"
    add("--config-dir", dest="folders", nargs=1, type=Path, default=[], metavar="DIR", help=own)
    return parser.parse_args()


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


# Running


def reproduce(given: argparse.Namespace) -> int:
    """Run what is not done yet, then draw and judge each experiment. Returns 1 when a run failed, else 0. Raises UserError."""
    plans: dict[str, tuple[Published, list[Task], Path]] = {}
    hardware = [f"hardware={given.hardware}"] if given.hardware else []
    for name in chosen(given.names, given.folders):
        published = load(name, given.folders)
        if given.quick:
            published = replace(published, title=f"{published.title} (a few rounds, no result)")
        further = [*hardware, *published.quick] if given.quick else hardware
        seeds = given.seeds or (1 if given.quick else published.seeds)
        folder = given.output / "quick" / name if given.quick else given.output / name
        plans[name] = published, tasks(name, published, seeds, further, given.folders), folder
    runs = given.output / RUNS
    failed = _run_plans(plans, runs, given.jobs)
    if not (given.quick or given.seeds):  # once more, with the seeds that undecided claims get
        added = []
        for name, (published, needed, _) in plans.items():
            lines = undecided(published, needed, ended_runs(published, needed, runs))
            known = {(task.line, task.seed) for task in needed}
            more = tasks(name, published, MOST_SEEDS, hardware, given.folders, lines)
            added += (more := [task for task in more if (task.line, task.seed) not in known])
            needed += more
        if added:
            print(f"{len(added)} runs more, with up to {MOST_SEEDS} seeds, for claims that are undecided")
            failed |= _run_plans(plans, runs, given.jobs)
    for name, (published, needed, folder) in plans.items():
        print(f"\n{name}: {published.paper}, {published.title}")
        if given.quick:
            print("(no claim is checked)")
        report(
            published,
            needed,
            runs,
            folder,
            with_claims=not given.quick,
            formats=list(dict.fromkeys(["png", *given.format])),
        )
        print(f"results: {folder}")
        if given.keep:
            keep(folder, given.keep / name)
            print(f"kept: {given.keep / name}")
    for run, why in failed.items():
        say(f"{given.output / RUNS / run}: {why}")
    return 1 if failed else 0


def _run_plans(plans: Mapping[str, tuple[Published, list[Task], Path]], runs: Path, jobs: int) -> dict[str, str]:
    """Do what has not ended of all plans' runs, each of which is named in the plan's runs.csv. Returns what `run_all` does."""
    for _, needed, folder in plans.values():
        table = pd.DataFrame([{"line": task.line, "seed": task.seed, "run": task.folder} for task in needed])
        write_table(folder / "runs.csv", table)
    different = {task.folder: task for _, needed, _ in plans.values() for task in needed}
    return run_all(list(different.values()), runs, jobs)


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
        ["fedopt.loop", "torch._dynamo"]
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


# What there is


def show(known: Sequence[str], folders: Sequence[Path], output: Path) -> None:
    """Print the table of --list, with how many have ended of the runs of all lines and seeds that an experiment asks for.

    Raises UserError for a file that is broken.
    """
    rows = []
    for name in known:
        published, listed = load(name, folders), output / name / "runs.csv"
        ended = sum(
            RunFolder(output / RUNS / str(row["run"])).status() in ENDED
            for row in rows_of(listed, ("line", "seed", "run"))
            if row["line"] in published.lines and row["seed"] < published.seeds
        )
        needed = len(published.lines) * published.seeds
        state = "done" if ended == needed else f"{ended}/{needed} runs" if listed.exists() else "-"
        rows.append((name, published.paper, published.title, takes(name, published, folders), state))
    print_table(pd.DataFrame(rows, columns=["name", "paper", "title", "minutes", "state"]))


def claims_table(wanted: Sequence[str], folders: Sequence[Path], results: Path) -> str:
    """The claims of the experiments that have been run, judged anew, as Markdown, and the names of the others."""
    rows, absent = [], []
    for name in wanted:
        if (results / name / "claims.csv").exists():
            rows += [{"experiment": name, **row} for row in judged_again(name, folders, results / name)]
        else:
            absent.append(name)
    return claims_markdown(rows) + (f"\n\nNot run yet: {', '.join(absent)}." if absent else "")


if __name__ == "__main__":
    main()
