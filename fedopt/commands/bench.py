"""The command `fedopt bench`: run the tasks of the benchmark, rank the methods, and enter a new method."""

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
        raise UserError(f"{out}: contains no results to rank; run some tasks with fedopt bench run")
    write_pages(table, chosen, entries, out / "pages")
    show(f"results: {out / 'pages'}/index.md, with one page per task and tables as CSV; the runs are in {out}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog="fedopt bench",
        description="Benchmark the methods, by rules that were fixed before the results. To resume, repeat the command.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    run = commands.add_parser("run", help="run the sampled configurations of each entry, and rank the entries")
    rank = commands.add_parser("rank", help="rank your results, or the results that come with fedopt; write the pages")
    enter = commands.add_parser("enter", help="run only your method, and rank it together with the others")
    enter.add_argument("method", metavar="ENTRY", help="an entry or an algorithm, for example your own in --config-dir")
    for command in (run, rank, enter):
        add = command.add_argument
        add("tasks", nargs="*", metavar="TASK", help="a task of conf/bench (default: all)")
        add("--config-dir", dest="folders", action="append", default=[], metavar="DIR", help="your config folder")
        add("--smoke", action="store_true", help="a small version: 24 configurations, 3 seeds, three tasks")
        add("--jobs", "-j", type=positive, default=1, metavar="J", help="runs in parallel (default: 1)")
        add_launcher(command)
        out = "folder for runs and results (default: outputs/bench)"
        add("--out", type=Path, default=outputs() / "bench", metavar="DIR", help=out)
    return parser.parse_args()
