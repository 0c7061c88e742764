"""The `fedopt report` command: an HTML page with runs and the results of published experiments. Imports no torch."""

import argparse
from pathlib import Path

from fedopt.commands.answer import Parser, answer
from fedopt.console import note, show
from fedopt.errors import UserError
from fedopt.papers.page import page


def main() -> None:
    """Entry point of `fedopt report`."""
    answer(lambda: report(_arguments()))


def report(args: argparse.Namespace) -> None:
    """Write the page.

    Raises UserError if a folder does not exist, or there is nothing to show.
    """
    first = page(args.paths)
    if not first.sections:
        raise UserError(
            f"{', '.join(map(str, args.paths))}: there are neither runs nor results of fedopt reproduce "
            f"in it; give a folder that holds some"
        )
    for line in first.notes:
        note(line)
    show(f"results: {first.write(args.out)}")


def _arguments() -> argparse.Namespace:
    parser = Parser(prog="fedopt report", description="A page of results: one HTML file, which needs no network.")
    add = parser.add_argument
    what = "a run's folder, one of an experiment's results, or one that holds some at any depth"
    add("paths", nargs="+", type=Path, metavar="PATH", help=what)
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    return parser.parse_args()
