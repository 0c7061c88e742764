"""The `fedopt-compare` command: tables and pictures of runs, grouped by what differs between them.

Nothing here imports torch.
"""

import argparse
import math
from dataclasses import asdict
from pathlib import Path

from fedopt.commands.answer import Parser, answer, some_of
from fedopt.comparing.comparison import TABLES, Look, compared, odd
from fedopt.comparing.shown import COLUMNS, shown_table, tests_shown
from fedopt.comparing.tables import print_table, write_table
from fedopt.comparing.unequal import amount
from fedopt.results.figures import COSTS, FORMATS, LEGENDS


def main() -> None:
    """Entry point of `fedopt-compare`."""
    answer(lambda: compare(_arguments()))


def compare(arguments: argparse.Namespace) -> None:
    """Write the files, and print the tables. Raises UserError when there is no run to compare."""
    wanted = (arguments.metric, arguments.x, arguments.target, arguments.group_by, arguments.names)
    comparison = compared(arguments.paths, *wanted, arguments.at, arguments.exclude, arguments.label)
    base = arguments.out / "compare"
    pictures = [base.with_suffix(f".{name}") for name in arguments.format]
    how = Look(
        smooth=arguments.smooth,
        xlim=arguments.xlim,
        ylim=arguments.ylim,
        logx=arguments.logx,
        logy=arguments.logy,
        title=arguments.title,
        legend=arguments.legend,
    )
    curves = base.with_name("compare_curves.csv")
    write_table(curves, comparison.draw(*pictures, **asdict(how)))
    written = comparison.write(arguments.out, arguments.table, arguments.columns, arguments.decimals)
    shown, _ = shown_table(comparison, arguments.columns, arguments.decimals)
    print_table(shown, right=[str(name) for name in shown.columns[1:] if name != "status"])
    tests = tests_shown(comparison.paired)
    if len(tests):
        at = "last values" if comparison.at is None else f"values at {amount(comparison.x, comparison.at)}"
        print_table(
            tests, list(tests.columns[1:]), f"{at}, seed by seed; two-sided paired t-test, Holm: over all pairs"
        )
    print(f"figure: {' '.join(comparison.explained(how).split())}")
    print(f"results: {', '.join(map(str, [*written, *pictures, curves]))}")


def _arguments() -> argparse.Namespace:
    does = "Compare runs: a table, compare.csv and compare.png, and compare_curves.csv with the lines as drawn."
    parser = Parser(prog="fedopt-compare", description=does)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a run's folder, or one that holds some at any depth")
    add("--metric", help="a column of metrics.csv (default: the first that the problem names)")
    add(
        "--label",
        metavar="TEXT",
        help="what the metric is called in tables and figures (default: what the problem calls it)",
    )
    add("--x", choices=COSTS, default="comm_rounds", help="what a run spends (default: comm_rounds)")
    add("--target", type=_number, help="say how much x it took to reach this value of the metric")
    until = "make the table and the tests at this x: of each run's evaluations up to it (default: of all)"
    add("--at", type=_number, metavar="VALUE", help=until)
    left = "leave out the runs whose path, or the name of a folder of it, matches, such as '*seed=3*'; may be repeated"
    add("--exclude", action="append", default=[], metavar="PATTERN", help=left)
    add("--group-by", metavar="KEY,...", help="keys of config.yaml, such as algo,algo.K (default: all that differ)")
    called = (
        "another name for a line or a part of its label, such as 'fedmsa=FedMSA (ours)'; may be repeated, and the order "
        "is that of the lines and of the colours"
    )
    add("--names", action="append", default=[], metavar="OLD=NEW", help=called)
    for option, known, default in (("--format", FORMATS, "png"), ("--table", TABLES, "csv")):
        add(
            option,
            type=some_of(known),
            default=[default],
            metavar="NAME,...",
            help=f"{', '.join(known)} (default: {default})",
        )
    chosen = f"of the tables but the CSV: {', '.join(COLUMNS)} (default: all but spent, as far as there are values)"
    add("--columns", type=some_of(COLUMNS), default=[], metavar="NAME,...", help=chosen)
    digits = "of the metric in the tables but the CSV, 0 to 15 (default: by its deviation)"
    add("--decimals", type=int, choices=range(16), metavar="N", help=digits)
    add("--smooth", type=_odd_text, default=1, metavar="N", help="draw means of N evaluations, centred; N is odd")
    add("--legend", choices=LEGENDS, default="below", help="where the legend is (default: below)")
    for axis in "xy":
        add(f"--{axis}lim", type=_limits_text, metavar="LOW,HIGH", help=f"the ends of the {axis} axis")
    where = "a logarithmic y axis (default: where values span decades)"
    add("--logx", action=argparse.BooleanOptionalAction, default=False, help="a logarithmic x axis")
    add("--logy", action=argparse.BooleanOptionalAction, help=where)
    add("--title", default="", help="above the picture")
    add("--out", type=Path, default=Path(), metavar="DIR", help="where the files go (default: here)")
    return parser.parse_args()


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return number


def _odd_text(text: str) -> int:
    try:
        return odd(int(text) if text.isdecimal() else 0)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} is not an odd number, such as 1, 3, 5, with as many before as after"
        ) from None


def _limits_text(text: str) -> tuple[float, float]:
    low, comma, high = text.partition(",")
    if not comma or not _number(low) < _number(high):
        raise argparse.ArgumentTypeError(f"{text} is not LOW,HIGH with LOW below HIGH")
    return float(low), float(high)
