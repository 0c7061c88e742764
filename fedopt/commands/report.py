"""The command `fedopt report`: an HTML page with runs and the results of published experiments, without importing torch."""

from pathlib import Path

from fedopt.commands.answer import Parser, answer
from fedopt.console import note, show
from fedopt.errors import UserError
from fedopt.papers.page import page


def main() -> None:
    """Entry point of `fedopt report`."""
    answer(_main)


def _main() -> None:
    """Parse the arguments of the command, and write the page.

    Raises:
        UserError: A folder does not exist, or there is nothing to show.
    """
    parser = Parser(prog="fedopt report", description="Write a page of results: one HTML file that works offline.")
    what = "the folder of a run or of an experiment's results, or a folder that is searched for them"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=what)
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    args = parser.parse_args()
    first = page(args.paths)
    if not first.sections:
        paths = ", ".join(map(str, args.paths))
        raise UserError(f"{paths}: contains neither runs nor results of fedopt reproduce; give another folder")
    for line in first.notes:
        note(line)
    show(f"results: {first.write(args.out)}")
