"""The command `fedopt compare`: tables and figures of runs, grouped by the keys in which they differ.

This module does not import torch.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from fedopt.analysis import (
    BANDS,
    COLUMNS,
    TABLES,
    Comparison,
    amount,
    compared,
    paired_by,
    print_table,
    shown_table,
    tests_shown,
    usable,
    write_table,
)
from fedopt.commands.answer import Parser, answer, names_from, number
from fedopt.config.build import build
from fedopt.console import tell
from fedopt.drawing import FORMATS, LEGENDS, STYLE, WIDTH, PlotStyle
from fedopt.metrics import COSTS


def main() -> None:
    """Entry point of `fedopt compare`."""
    answer(lambda: compare(_arguments()))


def compare(args: argparse.Namespace) -> None:
    """Compare runs: write the files and print the tables.

    Args:
        args: The parsed options.

    Raises:
        UserError: There are no runs to compare, or an option does not match the runs.
    """
    look = build(PlotStyle, {field.name: getattr(args, field.name) for field in fields(PlotStyle)})
    wanted = {name: getattr(args, name) for name in ("metric", "target", "group_by", "names", "at", "label")}
    comparison = compared(usable(args.paths, args.x, args.exclude), **wanted)
    base = args.out / "compare"
    pictures = [base.with_suffix(f".{name}") for name in args.format]
    curves = base.with_name("compare_curves.csv")
    write_table(curves, comparison.draw(*pictures, **asdict(look)))
    written = comparison.write(args.out, args.table, args.columns, args.decimals)
    phrases, shown = (shown_table(comparison, args.columns, args.decimals, short).cells for short in (False, True))
    print_table(shown, [str(name) for name in shown.columns[1:] if name != "status"])
    tell(*(f"{name}: {phrase}" for name, phrase in zip(shown, phrases, strict=True) if name != phrase))
    for line in _alone(comparison):
        tell(line)
    if len(tests := tests_shown(comparison.paired)):
        phrase = str(tests.columns[1])
        short = tests.rename(columns={phrase: phrase.partition(" of ")[0]})
        at = "last values" if args.at is None else f"values at {amount(args.x, args.at)}"
        about = f"{phrase}: {at}, {paired_by(comparison.paired)}; two-sided paired t-test, Holm correction per problem"
        print_table(short, list(short.columns[1:]), about)
    tell(f"figure: {comparison.explained(look)}")
    tell(f"results: {', '.join(map(str, [*written, *pictures, curves]))}")


def _alone(comparison: Comparison) -> Iterator[str]:
    """Yield lines with the metric of local models, which each client trains on its own examples alone.

    Each value is the mean over the runs of a group. Nothing is yielded if the runs have no local models.

    Args:
        comparison: The comparison of the runs.
    """
    rows, _, score = comparison.metric.partition("_")
    name, by_value = f"alone_{score}", dict[str, list[str]]()
    for label, runs in comparison.groups.items() if rows in ("val", "test", "personal", "common") else ():
        if values := [run.table[name].iloc[-1] for run in runs if name in run.table]:
            by_value.setdefault(f"{sum(values) / len(values):.4g}", []).append(label)
    for value, labels in by_value.items():
        groups = f" ({', '.join(labels)})" if len(by_value) > 1 else ""
        yield f"each client alone: {name} {value} on its test rows{groups}"


def _arguments() -> argparse.Namespace:
    """Parse the arguments of the command."""
    what = "Compare runs: print a table, and write compare.csv, compare.png and compare_curves.csv (the lines)."
    parser = Parser(prog="fedopt compare", description=what)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a run's folder, or a folder that is searched for runs")
    measured = "a column of metrics.csv (default: the problem's first metric, on validation rows if there are any)"
    add("--metric", help=measured)
    add("--label", metavar="TEXT", help="the metric's label in tables and figures (default: the problem's label)")
    costs = f"the cost on the x axis: {', '.join(COSTS)} (default: comm_rounds)"
    add("--x", choices=COSTS, default="comm_rounds", metavar="NAME", help=costs)
    add("--target", type=number, help="report the cost of reaching this value of the metric")
    add("--at", type=number, metavar="VALUE", help="compare at this cost: use evaluations up to it (default: all)")
    left = "leave out runs whose path, or the name of a folder in it, matches, such as '*seed3*'; may be repeated"
    add("--exclude", action="append", default=[], metavar="PATTERN", help=left)
    add("--group-by", metavar="KEY,...", help="keys of config.yaml, such as algo,algo.K (default: all that differ)")
    called = "rename a line or a part of its label, such as 'fedmsa=FedMSA (ours)'; may be repeated, and sets the order"
    add("--names", action="append", default=[], metavar="OLD=NEW", help=called)
    formats, tables = (f"{', '.join(names)} (default: {names[0]})" for names in (FORMATS, TABLES))
    add("--format", type=names_from(FORMATS), default=[FORMATS[0]], metavar="NAME,...", help=formats)
    add("--table", type=names_from(TABLES), default=[TABLES[0]], metavar="NAME,...", help=tables)
    columns = f"columns of the tables, except CSV: {', '.join(COLUMNS)} (default: all with values, except spent)"
    add("--columns", type=names_from(COLUMNS), default=[], metavar="NAME,...", help=columns)
    digits = "decimals of the metric in the tables, except CSV, 0 to 15 (default: from its standard deviation)"
    add("--decimals", type=int, choices=range(16), metavar="N", help=digits)
    bands = "shaded band: standard deviation, standard error, 95%% t-interval or extremes (default: std)"
    add("--band", choices=[*BANDS], default="std", help=bands)
    add("--legend", choices=LEGENDS, default=LEGENDS[0], help=f"position of the legend (default: {LEGENDS[0]})")
    add("--no-caption", dest="caption", action="store_false", help="leave out the text below the figure")
    add("--width", type=number, metavar="INCHES", help=f"width of the figure (default: {WIDTH}, one column of a paper)")
    add("--height", type=number, metavar="INCHES", help="height of the figure (default: depends on its content)")
    add("--font", type=number, metavar="POINTS", help=f"font size (default: {STYLE['font.size']})")
    for axis in "xy":
        add(f"--{axis}lim", type=lambda text: text.split(","), metavar="LOW,HIGH", help=f"limits of the {axis} axis")
    logy = "use a logarithmic y axis (default: if the values span several decades)"
    add("--logy", action=argparse.BooleanOptionalAction, help=logy)
    add("--title", default="", help="title above the figure")
    add("--out", type=Path, default=Path(), metavar="DIR", help="folder for the files (default: here)")
    return parser.parse_args()
