"""The `fedopt-bench` command: run the benchmark's tasks, rank the methods, enter a new method."""

import argparse
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from fedopt.commands.answer import Parser, add_launcher, answer, launcher_of, positive
from fedopt.config import CONF, file_of, options
from fedopt.console import ctrl_c_kept, show
from fedopt.console.say import say
from fedopt.errors import UserError, unknown

SMOKE = (3, 1, 3, 0)  # trials, seeds of each, seeds of a report and further ones, of the smallest form
CONTRACT = Path(__file__).parents[1] / "testing" / "test_contract.py"


def main() -> None:
    """Entry point of `fedopt-bench`."""
    answer(_main)


def _main() -> int:
    given = _arguments()
    if find_spec("optuna") is None:
        raise UserError("fedopt-bench needs Optuna; pip install 'fedopt[tune]'")
    os.environ.setdefault("FEDOPT_PICTURES", "0")  # of each run, which nobody looks at here
    from fedopt.bench import Suite, tasks, write_pages

    launcher = launcher_of(given)
    out = given.out / ("smoke" if given.smoke else "full")
    suite = Suite(out, given.folders, *(SMOKE if given.smoke else ()))
    chosen = tasks(given.tasks, given.folders, given.smoke)
    entered = given.method if given.command == "enter" else None
    if entered is not None:
        if entered not in (there := options("algo", given.folders)):
            raise UserError(unknown("algorithm", entered, there))
        _check_contract(entered, given.folders)
        chosen = chosen if given.tasks else [task for task in chosen if suite.fits(task, entered)]
    if given.command == "rank" and not given.tasks:
        chosen = [task for task in chosen if (out / task.name).is_dir()]
    try:
        with ctrl_c_kept():
            wanted = [(task, [entered] if entered else suite.methods(task)) for task in chosen]
            began, first = time.monotonic(), sum(suite.missing(*one) for one in wanted)
            for number, (task, methods) in enumerate(wanted if given.command != "rank" else (), 1):
                missing = sum(suite.missing(*one) for one in wanted[number - 1 :])
                seconds = (time.monotonic() - began) * missing / max(first - missing, 1)
                left = f"; about {timedelta(seconds=round(seconds))} left for all" if missing < first else ""
                show(f"task {number} of {len(chosen)}: {task.name}, {', '.join(methods)}{left}")
                suite.run(task, methods, launcher)
    except KeyboardInterrupt:
        say(launcher.stopped)
        return 130
    if not chosen:
        raise UserError(f"{out}: there is no task in it to rank; do some with fedopt-bench run")
    write_pages(suite, chosen, pages := given.pages or out / "pages")
    show(f"results: {pages}/index.md, a page a task, and tables as CSV and LaTeX; the runs are in {out}")
    return 0


def _check_contract(method: str, folders: list[str]) -> None:
    """Run the contract tests on a method. Raises UserError if one fails, or they cannot be run.

    method: the algorithm's name. folders: the user's config folders.
    """
    if find_spec("pytest") is None:
        raise UserError("enter: testing the contract of algorithms needs pytest; pip install 'fedopt[testing]'")
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
    run = commands.add_parser("run", help="tune each method, report it on other seeds, and rank them")
    rank = commands.add_parser("rank", help="rank what was run, and write the pages")
    entering = "check a method's contract, give it the same trials, rank it with the others"
    enter = commands.add_parser("enter", help=entering)
    for command in (run, rank):
        command.add_argument("tasks", nargs="*", metavar="TASK", help="a task of conf/bench (default: all)")
    enter.add_argument("method", metavar="ALGORITHM", help="such as one of your own, in --config-dir")
    enter.add_argument("tasks", nargs="*", metavar="TASK", help="a task of conf/bench (default: all)")
    for command in (run, rank, enter):
        add = command.add_argument
        add("--smoke", action="store_true", help="the smallest form: 3 trials, 3 seeds, three tasks")
        add("--jobs", "-j", type=positive, default=1, metavar="J", help="runs at a time (default: 1)")
        add_launcher(command)
        out = "the folder of runs and results (default: outputs/bench)"
        add("--out", type=Path, default=Path("outputs/bench"), metavar="DIR", help=out)
        pages = "where pages and tables go (default: pages, in the folder of the runs)"
        add("--pages", type=Path, metavar="DIR", help=pages)
        add("--config-dir", dest="folders", action="append", default=[], metavar="DIR", help="your config folder")
    return parser.parse_args()
