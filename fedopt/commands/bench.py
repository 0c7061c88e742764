"""The command `fedopt bench`: run the tasks of the benchmark, rank the methods, and enter a new method."""

import argparse
from pathlib import Path

from fedopt.commands.answer import Parser, answer, positive
from fedopt.config import outputs
from fedopt.console import ctrl_c_kept, show
from fedopt.console.say import say
from fedopt.errors import UserError, need

SMOKE = 24  # sampled configurations of the smallest form
COMMANDS = {
    "list": "list the tasks",
    "run": "run the sampled configurations of each entry, and rank the entries",
    "rank": "rank your results, or the results that come with fedopt; write the pages",
    "enter": "run only your method, and rank it together with the others",
}


def main() -> None:
    """Entry point of `fedopt bench`."""
    answer(_main)


def _main() -> int:
    args = _arguments()
    need("fedopt bench", "pyarrow", "bench")
    from fedopt.bench import Entries, Pools, released, tasks, with_newer, write_pages, write_table
    from fedopt.jobs import Local

    entries, chosen = Entries(args.folders), tasks(args.tasks, args.folders, args.smoke)
    if args.command == "list":
        show(*(f"{task.name:16} {task.title} ({len(task.entries)} methods)" for task in chosen))
        return 0
    registered = args.command == "run" and not (args.smoke or args.unregistered)
    launcher, out = Local(args.jobs), args.out / ("smoke" if args.smoke else "full")
    pools = Pools(out, entries, _commit(registered), *([SMOKE] if args.smoke else []))
    if args.command == "enter":
        entries.enter(args.method)
    names = {task.name: [args.method] if args.command == "enter" else task.entries for task in chosen}
    if args.command != "rank" and not args.tasks:
        chosen = [task for task in chosen if pools.fits(task, names[task.name][0])]
    try:
        with ctrl_c_kept():
            small_first = sorted(chosen, key=lambda task: task.points)  # tasks on data, which most users read first
            for number, task in enumerate(small_first if args.command != "rank" else (), 1):
                show(f"task {number} of {len(chosen)}: {task.name}, {', '.join(names[task.name])}")
                pools.run(task, names[task.name], launcher)
    except KeyboardInterrupt:
        say(launcher.stopped)
        return 130
    table = pools.table(chosen)
    if args.command == "run":
        write_table(out / "results.parquet", table)
    else:
        table = with_newer(released(out), table)
    chosen = [task for task in chosen if task.name in set(table["task"])]
    if not chosen:
        raise UserError(f"{out}: contains no results to rank; run some tasks with fedopt bench run")
    write_pages(table, chosen, entries, out / "pages")
    show(f"results: {out / 'pages'}/index.md, with one page per task and tables as CSV; the runs are in {out}")
    return 0


def _commit(registered: bool) -> str:
    """Return the commit of the code, as the table of runs names it.

    Raises:
        UserError: The run is to be registered, and the code is not exactly the code of a commit.
    """
    from fedopt.results import commit

    found = commit() or "not a git checkout"
    if registered and not found.isalnum():
        raise UserError(
            f"fedopt's code is {found}; run a commit of a clone, so that rules come first, or add --unregistered"
        )
    return found


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog="fedopt bench",
        description="Benchmark the methods, by rules that were fixed before the results. To resume, repeat the command.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, help_ in COMMANDS.items():
        add = commands.add_parser(name, help=help_).add_argument
        if name == "enter":
            add("method", metavar="ENTRY", help="an entry or an algorithm, for example your own in --config-dir")
        add("tasks", nargs="*", metavar="TASK", help="a task of conf/bench (default: all)")
        add("--config-dir", dest="folders", action="append", default=[], metavar="DIR", help="your config folder")
        add("--smoke", action="store_true", help=f"a small version: {SMOKE} configurations, three tasks")
        add("--jobs", "-j", type=positive, default=1, metavar="J", help="parallel processes (default: 1)")
        add("--unregistered", action="store_true", help="run code that is no commit; the table says so")
        out = "folder for runs and results (default: outputs/bench)"
        add("--out", type=Path, default=outputs() / "bench", metavar="DIR", help=out)
    return parser.parse_args()
