"""The command `fedopt bench`: run the tasks of the benchmark, rank the methods, and enter a new method."""

import argparse
from pathlib import Path

from fedopt.commands.answer import Parser, answer, positive
from fedopt.config import outputs
from fedopt.console import ctrl_c_kept, show
from fedopt.console.say import say
from fedopt.errors import UserError, need

SMOKE = 24  # sampled configurations of the smallest form


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
        width = max(len(task.name) for task in chosen)
        show(*(f"{task.name:{width}}  {task.title} ({len(task.entries)} methods)" for task in chosen))
        return 0
    launcher, out = Local(args.jobs), args.out / ("smoke" if args.smoke else "full")
    registered = args.command == "run" and not (args.smoke or args.unregistered)
    pools = Pools(out, entries, _commit(registered), *([SMOKE] if args.smoke else []))
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


def _commit(registered: bool) -> str:
    """Return the commit of the code. registered: whether it must be one, so that the rules were fixed before the results.

    Raises:
        UserError: It must be a commit, and the code is not in a git checkout, or has uncommitted changes.
    """
    from fedopt.results import commit

    found = commit() or "no git checkout"
    if registered and not found.isalnum():
        why = (
            "has uncommitted changes; commit them"
            if "+" in found
            else "is not a git checkout; clone fedopt's repository"
        )
        raise UserError(f"the code {why}, so that the results can name their rules, or add --unregistered")
    return found


def _arguments() -> argparse.Namespace:
    parser = Parser(
        prog="fedopt bench",
        description="Benchmark the methods, by rules that were fixed before the results. To resume, repeat the command.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    listed = commands.add_parser("list", help="list the tasks")
    run = commands.add_parser("run", help="run the sampled configurations of each entry, and rank the entries")
    rank = commands.add_parser("rank", help="rank your results, or the results that come with fedopt; write the pages")
    enter = commands.add_parser("enter", help="run only your method, and rank it together with the others")
    enter.add_argument("method", metavar="ENTRY", help="an entry or an algorithm, for example your own in --config-dir")
    for command in (listed, run, rank, enter):
        add = command.add_argument
        add("tasks", nargs="*", metavar="TASK", help="a task of conf/bench (default: all)")
        add("--config-dir", dest="folders", action="append", default=[], metavar="DIR", help="your config folder")
        add("--smoke", action="store_true", help=f"a small version: {SMOKE} configurations, three tasks")
    for command in (run, rank, enter):
        add = command.add_argument
        add("--jobs", "-j", type=positive, default=1, metavar="J", help="parallel processes (default: 1)")
        out = "folder for runs and results (default: outputs/bench)"
        add("--out", type=Path, default=outputs() / "bench", metavar="DIR", help=out)
    run.add_argument("--unregistered", action="store_true", help="run code that is not committed; the results say so")
    return parser.parse_args()
