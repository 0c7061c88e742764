"""The `fedopt-report` command: an HTML page with runs and the results of published experiments. Imports no torch."""

import argparse
from functools import partial
from pathlib import Path

from fedopt.commands.answer import Parser, answer, positive
from fedopt.console import note, show
from fedopt.drawing import serve
from fedopt.errors import UserError
from fedopt.papers import stamp
from fedopt.papers.page import page


def main() -> None:
    """Entry point of `fedopt-report`."""
    answer(lambda: report(_arguments()))


def report(given: argparse.Namespace) -> None:
    """Write the page, or serve it with --live.

    Raises UserError if a folder does not exist, or there is nothing to show on a written page.
    """
    first = page(given.paths)
    if given.live:
        serve(lambda: page(given.paths), lambda: stamp(given.paths), given.port)
        return
    if not first.sections:
        raise UserError(
            f"{', '.join(map(str, given.paths))}: there are neither runs nor results of fedopt-reproduce "
            f"in it; give a folder that holds some"
        )
    for line in first.notes:
        note(line)
    show(f"results: {first.write(given.out)}")


def _arguments() -> argparse.Namespace:
    parser = Parser(prog="fedopt-report", description="A page of results: one HTML file, which needs no network.")
    add = parser.add_argument
    what = "a run's folder, one of an experiment's results, or one that holds some at any depth"
    add("paths", nargs="+", type=Path, metavar="PATH", help=what)
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    add("--live", action="store_true", help="serve the page on this machine and refresh it; writes no file")
    add("--port", type=partial(positive, least=0), default=8765, metavar="N", help="the port of --live (default: 8765)")
    return parser.parse_args()
