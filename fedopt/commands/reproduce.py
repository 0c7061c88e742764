"""The command `fedopt reproduce`: draw the figures of papers, and check whether their claims are supported.

An experiment is a file conf/experiment/<paper>/<name>.yaml (see `published.Published`). Experiments that need the same runs
share them. torch is imported only in the processes that execute the runs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.analysis import write_table
from fedopt.commands.answer import Parser, add_launcher, answer, launcher_of, names_from, positive
from fedopt.config import outputs
from fedopt.console import show, show_table, tell
from fedopt.console.say import say
from fedopt.drawing import FORMATS
from fedopt.errors import UserError
from fedopt.jobs import Job, Launcher, run_all
from fedopt.machine import cores
from fedopt.papers import Plan, chosen, load, names, takes
from fedopt.papers.report import report
from fedopt.results import ENDED, RunFolder


def main() -> None:
    """Entry point of `fedopt reproduce`."""
    answer(_main)


def _main() -> int:
    """Execute the command, and return its exit code."""
    args = _arguments()
    wanted = chosen(args.names or names(args.folders), args.folders)
    if args.list:
        published = {name: load(name, args.folders) for name in wanted}
        rows = [(name, takes(name, one, args.folders), f"{one.paper}: {one.title}") for name, one in published.items()]
        show_table(["experiment", "minutes", "paper and figure"], rows)
        return 0
    if not args.names:
        raise UserError("no experiment is named; choose one from fedopt reproduce --list")
    launcher, overrides = launcher_of(args), [f"hardware={args.hardware}"] if args.hardware else []
    lock = RunFolder(args.output)
    lock.open()
    try:
        how: Any = {"folders": args.folders, "overrides": overrides, "seeds": args.seeds, "quick": args.quick}
        plans = [Plan(name=name, output=args.output, **how) for name in wanted]
        return reproduce(plans, launcher, ["png", *args.format])
    except KeyboardInterrupt:
        say(launcher.stopped)
        return 130
    finally:
        lock.close()


def _arguments() -> argparse.Namespace:
    """Parse the arguments of the command."""
    what = "Run published experiments, draw their figures and check their claims."
    parser = Parser(prog="fedopt reproduce", description=what)
    add = parser.add_argument
    add("names", nargs="*", metavar="PAPER/NAME", help="such as fedmsa/fig2; PAPER alone means all of its experiments")
    add("--list", action="store_true", help="list all experiments, with their run time in minutes on two cores")
    add("--seeds", type=positive, metavar="N", help="number of seeds per line (default: set by the experiment)")
    add("--quick", action="store_true", help="only a few rounds and one seed, to test that everything runs")
    formats = f"further formats of the figure, besides png: {', '.join(FORMATS)}"
    add("--format", type=names_from(FORMATS), default=[], metavar="NAME,...", help=formats)
    add("--jobs", type=positive, default=cores(), metavar="J", help="runs in parallel (default: one per core)")
    add_launcher(parser)
    add("--hardware", metavar="NAME", help="cpu or cuda (default: set by the experiment)")
    add("--output", type=Path, default=outputs() / "reproduce", metavar="DIR", help="default: outputs/reproduce")
    folder = "your config folder, with experiment/<paper>/<name>.yaml"
    add("--config-dir", dest="folders", nargs=1, type=Path, default=[], metavar="DIR", help=folder)
    return parser.parse_args()


def reproduce(plans: Sequence[Plan], launcher: Launcher, formats: Sequence[str]) -> int:
    """Execute the missing runs, then draw the figure of each experiment and check its claims.

    Args:
        plans: The experiments.
        launcher: The launcher that executes the runs.
        formats: The formats of the figures, such as png.

    Returns:
        The exit code: 1 if a run failed or was refused, otherwise 0.
    """
    failed = _run(plans, launcher)
    if more := sum(plan.add_undecided() for plan in plans):
        tell(f"{more} more runs for undecided claims")
        failed |= _run(plans, launcher)
    for plan in plans:
        tell(f"\n{plan.name}: {plan.published.paper}, {plan.published.title}")
        if plan.quick:
            show("(--quick: no claims are checked)")
        report(plan, list(dict.fromkeys(formats)))
        show(f"results: {plan.results}")
    for folder, why in failed.items():
        say(f"{folder}: {why}")
    return 1 if failed else 0


def _run(plans: Sequence[Plan], launcher: Launcher) -> dict[Path, str]:
    """Write runs.csv of each plan, and execute the runs that have not ended.

    Args:
        plans: The experiments.
        launcher: The launcher that executes the runs.

    Returns:
        For each run that failed or was refused, its folder and the reason.
    """
    for plan in plans:
        table = pd.DataFrame([{"line": task.line, "seed": task.seed, "run": task.folder} for task in plan.tasks])
        write_table(plan.results / "runs.csv", table)
    tasks = {plan.runs / task.folder: task for plan in plans for task in plan.tasks}
    waiting = {folder: task for folder, task in tasks.items() if RunFolder(folder).status() not in ENDED}
    if done := len(tasks) - len(waiting):
        show(f"{done} of {len(tasks)} runs are already done")
    todo = [Job(folder, task.composed, f"{task.line}  seed {task.seed}") for folder, task in waiting.items()]
    return {job.folder: outcome.text for job, outcome in run_all(todo, launcher).items()}


if __name__ == "__main__":
    main()
