"""The `fedopt bench` command: run the benchmark's tasks, rank the methods, enter a new method."""

import argparse
from pathlib import Path

from fedopt.commands.answer import Parser, add_launcher, answer, launcher_of, positive
from fedopt.config import outputs
from fedopt.console import ctrl_c_kept, show
from fedopt.console.say import say
from fedopt.errors import UserError, need

SMOKE = ((1, 3, 0), 24)  # seeds and points of the smallest form


def main() -> None:
    """Entry point of `fedopt bench`."""
    answer(_main)


def _main() -> int:
    args = _arguments()
    need("fedopt bench", "pyarrow", "bench")
    from fedopt.bench import Entries, Pools, released, tasks, with_newer, write_pages, write_table

    entries, chosen = Entries(args.folders), tasks(args.tasks, args.folders, args.smoke)
    launcher, out = launcher_of(args), args.out / ("smoke" if args.smoke else "full")
    pools = Pools(out, entries, *(SMOKE if args.smoke else ()))
    if args.command == "enter":
        entries.enter(args.method)
    names = {task.name: [args.method] if args.command == "enter" else task.entries for task in chosen}
    if args.command != "rank" and not args.tasks:
        chosen = [task for task in chosen if pools.fits(task, names[task.name][0])]
    try:
        with ctrl_c_kept():
            for number, task in enumerate(chosen if args.command != "rank" else (), 1):
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
        raise UserError(f"{out}: there is no task in it to rank; do some with fedopt bench run")
    write_pages(table, chosen, entries, out / "pages")
    show(f"results: {out / 'pages'}/index.md, a page a task, and tables as CSV; the runs are in {out}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog="fedopt bench",
        description="The benchmark of methods, by rules that were fixed before the results. The same command goes on.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    run = commands.add_parser("run", help="run the pool of each entry, report what searches choose, and rank them")
    rank = commands.add_parser(
        "rank", help="rank what was run, or the results that come with fedopt, and write the pages"
    )
    enter = commands.add_parser("enter", help="run a method of yours alone, and rank it with the others")
    enter.add_argument(
        "method", metavar="ENTRY", help="an entry, or an algorithm, such as one of your own, in --config-dir"
    )
    for command in (run, rank, enter):
        add = command.add_argument
        add("tasks", nargs="*", metavar="TASK", help="a task of conf/bench (default: all)")
        add("--config-dir", dest="folders", action="append", default=[], metavar="DIR", help="your config folder")
        add("--smoke", action="store_true", help="the smallest form: 24 points, 3 seeds, three tasks")
        add("--jobs", "-j", type=positive, default=1, metavar="J", help="runs at a time (default: 1)")
        add_launcher(command)
        out = "the folder of runs and results (default: outputs/bench)"
        add("--out", type=Path, default=outputs() / "bench", metavar="DIR", help=out)
    return parser.parse_args()
