"""The command `fedopt report`: an HTML page with runs and the results of published experiments, without importing torch."""

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

    Args:
        args: The parsed options.

    Raises:
        UserError: A folder does not exist, or there is nothing to show.
    """
    first = page(args.paths)
    if not first.sections:
        paths = ", ".join(map(str, args.paths))
        raise UserError(f"{paths}: contains neither runs nor results of fedopt reproduce; give another folder")
    for line in first.notes:
        note(line)
    show(f"results: {first.write(args.out)}")


def _arguments() -> argparse.Namespace:
    parser = Parser(prog="fedopt report", description="Write a page of results: one HTML file that works offline.")
    add = parser.add_argument
    what = "the folder of a run or of an experiment's results, or a folder that is searched for them"
    add("paths", nargs="+", type=Path, metavar="PATH", help=what)
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    return parser.parse_args()
