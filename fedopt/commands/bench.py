"""The `fedopt-bench` command: run the benchmark's tasks, rank the methods, enter a new method."""

import argparse
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from fedopt.commands.answer import Parser, add_launcher, answer, launcher_of, positive
from fedopt.config import CONF, file_of, outputs
from fedopt.console import ctrl_c_kept, show
from fedopt.console.say import say
from fedopt.errors import UserError, need

SMOKE = ((1, 3, 0), 24)  # seeds and points of the smallest form
CONTRACT = Path(__file__).parents[1] / "testing" / "test_contract.py"


def main() -> None:
    """Entry point of `fedopt-bench`."""
    answer(_main)


def _main() -> int:
    given = _arguments()
    need("fedopt-bench", "pyarrow", "bench")
    from fedopt.bench import Entries, Pools, released, tasks, with_newer, write_pages, write_release

    entries, chosen = Entries(given.folders), tasks(given.tasks, given.folders, given.smoke)
    if given.command == "command":
        show(entries.command(chosen[0], given.method, given.point, given.seed, given.twin))
        return 0
    launcher, out = launcher_of(given), given.out / ("smoke" if given.smoke else "full")
    pools = Pools(out, entries, given.folders, *(SMOKE if given.smoke else ()))
    entered = given.method if given.command == "enter" else None
    if entered is not None:
        entries.enter(entered, given.folders)
        _check_contract(entries[entered].algo, given.folders)
    if given.command in ("run", "enter") and not given.tasks:
        chosen = [task for task in chosen if pools.fits(task, entered or task.entries[0])]
    try:
        with ctrl_c_kept():
            began, due = time.monotonic(), len(chosen)
            for number, task in enumerate(chosen if given.command in ("run", "enter") else (), 1):
                left = timedelta(seconds=round((time.monotonic() - began) / max(number - 1, 1) * (due - number + 1)))
                after = f"; about {left} left for all" if number > 1 else ""
                show(f"task {number} of {due}: {task.name}, {entered or ', '.join(task.entries)}{after}")
                pools.run(task, [entered] if entered else task.entries, launcher)
    except KeyboardInterrupt:
        say(launcher.stopped)
        return 130
    here = pools.table([*chosen])
    if given.command == "run":
        write_release(out, here)
    table = here if given.command == "run" else with_newer(released(out, given.results), here)
    chosen = [task for task in chosen if task.name in set(table["task"])]
    if not chosen:
        raise UserError(f"{out}: there is no task in it to rank; do some with fedopt-bench run")
    write_pages(table, chosen, entries, pages := given.pages or out / "pages", given.folders)
    show(f"results: {pages}/index.md, a page a task, and tables as CSV; the runs are in {out}")
    return 0


def _check_contract(method: str, folders: list[str]) -> None:
    """Run the contract tests on a method. Raises UserError if one fails, or they cannot be run.

    method: the algorithm's name. folders: the user's config folders.
    """
    need("fedopt-bench enter, which tests the contract of algorithms,", "pytest", "testing")
    place = file_of("algo", method, folders).parents[1].absolute()
    # What is imported here is imported there, and no other file of the working directory is; nor are its settings of pytest read
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    environment |= {"COLUMNS": "300", "FEDOPT_CONTRACT_ALGO": method}
    environment |= {} if place == CONF else {"FEDOPT_CONTRACT_CONF": str(place)}
    options = ["-q", "-x", "-c", os.devnull, "--rootdir", str(CONTRACT.parent), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(CONTRACT), "-m", "not slow"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if broken := next((line for line in said if line.startswith("FAILED")), None):
        raise UserError(
            f"enter: {method} breaks the contract of algorithms; mend it first: {broken.partition('::')[2]}"
        )
    # What calls os._exit(0) has passed nothing
    if done.returncode or not re.match(r"\d+ passed", said[-1] if said else ""):
        last = said[-1].removeprefix("ERROR: ") if said else f"Python ended with code {done.returncode}"
        raise UserError(f"enter: the contract of {method} cannot be tested ({last}); mend this first")
    show(f"{method} keeps the contract of algorithms")


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog="fedopt-bench",
        description="The benchmark of methods, by rules that were fixed before the results. The same command goes on.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    run = commands.add_parser("run", help="run the pool of each entry, report what searches choose, and rank them")
    rank = commands.add_parser(
        "rank", help="rank what was run, or the results that come with fedopt, and write the pages"
    )
    enter = commands.add_parser("enter", help="check a method's contract, run it alone, rank it with the others")
    one = commands.add_parser("command", help="print the command of a run, which gives its rows again")
    enter.add_argument(
        "method", metavar="ENTRY", help="an entry, or an algorithm, such as one of your own, in --config-dir"
    )
    one.add_argument("tasks", nargs=1, metavar="TASK", help="a task of conf/bench")
    one.add_argument("method", metavar="ENTRY", help="an entry of the task")
    one.add_argument("point", type=int, metavar="POINT", help="the number of the point in the pool, 0 for the defaults")
    one.add_argument("seed", type=int, metavar="SEED", help="the seed")
    one.add_argument("--twin", action="store_true", help="with equal clients")
    for command in (run, rank, enter):
        command.add_argument("tasks", nargs="*", metavar="TASK", help="a task of conf/bench (default: all)")
    for command in (run, rank, enter, one):
        add = command.add_argument
        add("--config-dir", dest="folders", action="append", default=[], metavar="DIR", help="your config folder")
        add("--smoke", action="store_true", help="the smallest form: 24 points, 3 seeds, three tasks")
    for command in (run, rank, enter):
        add = command.add_argument
        add("--jobs", "-j", type=positive, default=1, metavar="J", help="runs at a time (default: 1)")
        add_launcher(command)
        out = "the folder of runs and results (default: outputs/bench)"
        add("--out", type=Path, default=outputs() / "bench", metavar="DIR", help=out)
        results = "the folder of the results of others (default: those in --out, else those that come with fedopt)"
        add("--results", type=Path, metavar="DIR", help=results)
        pages = "where pages and tables go (default: pages, in the folder of the runs)"
        add("--pages", type=Path, metavar="DIR", help=pages)
    return parser.parse_args()
