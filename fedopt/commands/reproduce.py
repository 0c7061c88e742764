"""The `fedopt-reproduce` command: the figures of the papers, and whether what they claim holds.

An experiment is a file conf/experiment/<paper>/<name>.yaml (`published.Published`). Its runs are shared with every other
experiment that needs the same ones; nothing here imports torch but the processes that run.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedopt.commands.answer import Parser, answer, some_of
from fedopt.comparing.tables import print_table, write_table
from fedopt.console.say import say
from fedopt.errors import UserError, cores
from fedopt.jobs.local import run_all
from fedopt.papers.figure import ended_runs, report, undecided
from fedopt.papers.kept import claims_markdown, judged_again, keep, rows_of
from fedopt.papers.published import Published, Task, chosen, load, names, takes, tasks
from fedopt.results.figures import FORMATS
from fedopt.results.folder import ENDED, RunFolder

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
