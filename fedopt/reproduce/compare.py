"""The `fedopt-compare` command: tables and pictures of runs, grouped by what differs between them.

Nothing here imports torch.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import AfterValidator, ConfigDict, FiniteFloat
from pydantic.dataclasses import dataclass as validated

from fedopt.command import Parser, answer, say, some_of
from fedopt.errors import UserError, nearest
from fedopt.reproduce.curves import draw_line, explained
from fedopt.reproduce.paired import tests
from fedopt.reproduce.recorded import ABSENT, CHOSEN, PROBLEM, Recorded, say_skipped, usable
from fedopt.reproduce.tables import in_bytes, latex, markdown, moments, plus_minus, print_table, write_table
from fedopt.results.figures import (
    COSTS,
    FORMATS,
    LEGENDS,
    OKABE_ITO,
    describe,
    grid,
    look,
    marks,
    save_with_legend,
    spans_decades,
    styled,
)
from fedopt.results.folder import OVER, write_atomically
from fedopt.settings import build

TABLES = ("csv", "latex", "markdown")
COLUMNS = (
    "runs",
    "seeds",
    "status",
    "spent",
    "final",
    "best",
    "to_target",
    "reached",
)  # of the tables that people read
UNEQUAL = 1.1  # spends whose ratio is larger are named


def _odd(number: int) -> int:
    if number < 1 or number % 2 == 0:
        raise ValueError(f"{number} is not an odd number, such as 1, 3, 5, with as many before as after")
    return number


def _rising(limits: tuple[float, float]) -> tuple[float, float]:
    if not limits[0] < limits[1]:
        raise ValueError("the lower end comes first")
    return limits


Limits = Annotated[tuple[FiniteFloat, FiniteFloat], AfterValidator(_rising)]


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Look:
    """Of the picture. smooth: a value is the centred mean of so many evaluations; logy: None leaves the y scale to the values.

    xlim, ylim: the ends of the axes; logx: a logarithmic x axis, which leaves out what has x = 0; legend: of `LEGENDS`.
    """

    smooth: Annotated[int, AfterValidator(_odd)] = 1
    xlim: Limits | None = None
    ylim: Limits | None = None
    logx: bool = False
    logy: bool | None = None
    title: str = ""
    legend: Literal["below", "inside", "none"] = "below"


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs in groups. table: a row for each group; by: the keys that tell the groups apart; groups: their runs, by label.

    at: the x up to which the table and the tests go, None for all of it; slots: the place of a label in the order of colours, by
    default that of the groups.
    """

    table: pd.DataFrame
    by: Sequence[str]
    groups: Mapping[str, list[Recorded]]
    metric: str
    x: str
    target: float | None
    at: float | None = None
    slots: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return _shown(self, ())[0].to_string(index=False)

    @property
    def paired(self) -> pd.DataFrame:
        """Paired tests of the groups over their seeds (`fedopt.reproduce.paired`)."""
        return tests(self.shortened, self.metric)

    @property
    def shortened(self) -> dict[str, list[Recorded]]:
        """The groups, with the evaluations that the table is made of."""
        return _until(self.groups, self.at)

    def logarithmic(self, how: Look) -> bool:
        """The scale of the y axis."""
        runs = [run for of in self.groups.values() for run in of]
        values = np.concatenate([run.values(self.metric) for run in runs])
        return spans_decades(runs[0].metric(self.metric), values) if how.logy is None else how.logy

    def explained(self, how: Look) -> str:
        """What is drawn, in words for a caption."""
        return explained(list(self.groups.values()), {self.logarithmic(how)}, how.smooth)

    @styled()
    def draw(self, *paths: str | Path, **how_drawn: Any) -> pd.DataFrame:
        """Write a picture with a line and a band for each group, in the formats of the paths' endings; returns the points drawn.

        how_drawn: title, smooth (an odd number), xlim and ylim (pairs of numbers), logx, logy (True or False), legend ("below",
        "inside" or "none"). Raises UserError for others, and for limits and endings that cannot be.
        """
        how = build(Look, how_drawn)
        if unknown := [str(path) for path in paths if Path(path).suffix[1:] not in FORMATS]:
            raise UserError(f"{unknown[0]}: a picture's name ends in .{', .'.join(FORMATS)}")
        log = self.logarithmic(how)
        for axis, begins, limits in (("x", how.logx, how.xlim), ("y", log, how.ylim)):
            if begins and limits and limits[0] <= 0:
                raise UserError(f"--{axis}lim: a logarithmic axis begins above 0; --no-log{axis} makes it linear")
        labels = [_with_status(label, runs) for label, runs in self.groups.items()]
        levels = [] if self.target is None else [f"target {self.target:g}"]
        levels += [] if self.at is None else ["where the table compares"]
        figure, ((axes,),) = grid(1, 1, [*labels, *levels] if how.legend == "below" else None)
        lines = []
        for j, (label, runs) in enumerate(self.groups.items()):
            slot = self.slots.get(label, j)
            style = look(slot) | marks(slot, j, len(self.groups))
            drawn = draw_line(axes, labels[j], runs, self.metric, style, log, how.smooth)
            lines.append(drawn.assign(line=label))
        if self.target is not None:
            axes.axhline(self.target, color="grey", linestyle=":", label=levels[0])
        if self.at is not None:
            axes.axvline(self.at, color="grey", linestyle="--", linewidth=0.8, label=levels[-1])
        describe(axes, self.x, next(iter(self.groups.values()))[0].metric(self.metric).title, how.title)
        if how.logx:
            axes.set_xscale("log")
        axes.set_yscale("log" if log else "linear")
        axes.set_xlim(how.xlim)
        axes.set_ylim(how.ylim)
        save_with_legend(figure, *map(Path, paths), note=self.explained(how), place=how.legend)
        return pd.concat(lines)

    def write(self, folder: str | Path, formats: Sequence[str] = ("csv",), columns: Sequence[str] = ()) -> list[Path]:
        """Write the table and the tests into a folder, as compare.csv, .tex or .md and compare_tests; returns the paths.

        formats: of csv, latex and markdown; columns: of runs, seeds, status, spent, final, best, to_target and reached, none for
        the usual ones; the CSV has all. Raises UserError for others.
        """
        for given, known, name in ((formats, TABLES, "formats"), (columns, COLUMNS, "columns")):
            if isinstance(given, str) or (unknown := [of for of in given if of not in known]):
                wrong = given if isinstance(given, str) else unknown[0]
                raise UserError(f"{name}={wrong}: must be a list of {', '.join(known)}")
        shown, best = _shown(self, columns)
        if not columns:
            if (self.table["runs"] == self.table["seeds"]).all():
                shown = shown.drop(columns="runs")
            if self.table["status"].str.fullmatch(r"\d+ finished").all():
                shown = shown.drop(columns="status")
        shown = shown.rename(columns={shown.columns[0]: ", ".join(map(_word, self.by))})
        best = best.rename(columns={best.columns[0]: shown.columns[0]})[list(shown.columns)]
        base, tested = Path(folder) / "compare", self.paired
        base.parent.mkdir(parents=True, exist_ok=True)
        written = [_write(base, name, self.table, shown, best) for name in formats]
        if len(tested):
            written += [_write(base.with_name("compare_tests"), name, tested, _told(tested)) for name in formats]
        return written


def _with_status(label: str, runs: Sequence[Recorded]) -> str:
    """The label, and how many of the runs are on their way, stopped or diverged."""
    others = Counter(run.status for run in runs if run.status != "finished")
    said = ", ".join(f"{n} of {len(runs)} {status}" for status, n in sorted(others.items()))
    return f"{label} ({said})" if said else label


def _until(groups: Mapping[str, Sequence[Recorded]], at: float | None) -> dict[str, list[Recorded]]:
    return {label: [run if at is None else run.until(at) for run in of] for label, of in groups.items()}


def main() -> None:
    """Entry point of `fedopt-compare`."""
    answer(lambda: compare(_arguments()))


def compare(arguments: argparse.Namespace) -> None:
    """Print the tables; write the files. Raises UserError when there is no run to compare."""
    wanted = (arguments.metric, arguments.x, arguments.target, arguments.group_by, arguments.names)
    found = compared(arguments.paths, *wanted, arguments.at, arguments.exclude)
    shown, _ = _shown(found, arguments.columns)
    print_table(shown, right=[str(name) for name in shown.columns[1:] if name != "status"])
    told = _told(found.paired)
    base = arguments.out / "compare"
    if len(told):
        at = "last values" if found.at is None else f"values at {_amount(found.x, found.at)}"
        print_table(told, list(told.columns[1:]), f"{at}, seed by seed; two-sided paired t-test, Holm: over all pairs")
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
    write_table(curves, found.draw(*pictures, **asdict(how)))
    print(f"figure: {' '.join(found.explained(how).split())}")
    written = found.write(arguments.out, arguments.table, arguments.columns)
    print(f"results: {', '.join(map(str, [*written, *pictures, curves]))}")


def _told(tested: pd.DataFrame) -> pd.DataFrame:
    """The tests as texts."""
    return tested.map(lambda v: f"{v:.3g}" if isinstance(v, float) else str(v))


def _word(key: str) -> str:
    """A key as the head of a paper's table has it."""
    return "method" if key == "algo" else key.rpartition(".")[2]


def _write(base: Path, name: str, table: pd.DataFrame, shown: pd.DataFrame, best: pd.DataFrame | None = None) -> Path:
    """Of the values as CSV, or of the texts; best: [rows, columns], the cells that are bold."""
    if name == "csv":
        write_table(path := base.with_suffix(".csv"), table)
        return path
    path, made = (base.with_suffix(".tex"), latex) if name == "latex" else (base.with_suffix(".md"), markdown)
    write_atomically(path, f"{made(shown, best).rstrip()}\n".encode())
    return path


def compared(
    paths: Sequence[Path],
    metric: str | None = None,
    x: str = "comm_rounds",
    target: float | None = None,
    group_by: str | None = None,
    names: Sequence[str] = (),
    at: float | None = None,
    exclude: Sequence[str] = (),
) -> Comparison:
    """The runs in some folders by groups. names: 'OLD=NEW' of labels or their parts; at: the x up to which the table goes;
    exclude: as of `recorded.usable`.

    Raises UserError when there is no run to compare.
    """
    if x not in COSTS:
        raise UserError(f"x={x}: must be one of {', '.join(COSTS)}")
    runs = usable(paths, x, exclude)
    metric = metric or default_metric(runs)
    runs = _with_metric(runs, metric)
    by = default_keys(runs) if group_by is None else _known(group_by, runs)
    if several := [key for key in PROBLEM if key not in by and len({run.group([key]) for run in runs}) > 1]:
        say(f"--group-by={','.join(by)}: the runs have more than one {' and '.join(several)}, which are told apart too")
        by = [*by, *several]
    found: dict[tuple[str, ...], list[Recorded]] = {}
    for run in sorted(runs, key=lambda r: [_order(value) for value in r.group(by)]):
        found.setdefault(run.group(by), []).append(run)
    slots = _labels(by, list(found), names)
    if names:  # the order of the names is that of the lines too
        found = {
            group: found[group] for _, group in sorted(zip(slots.values(), found, strict=True), key=lambda of: of[0])
        }
        slots = dict(sorted(slots.items(), key=lambda slot: slot[1]))
    groups = dict(zip(slots, found.values(), strict=True))
    cut = _until(groups, at)
    rows = [
        dict(zip(by, group, strict=True)) | {"label": label} | summary(members, metric, x, target)
        for group, (label, members) in zip(found, cut.items(), strict=True)
    ]
    _warn(by, groups, runs, at)
    table = pd.DataFrame(rows) if at is None else pd.DataFrame(rows).assign(at=at)
    return Comparison(table, by, groups, metric, x, target, at, slots)


def _arguments() -> argparse.Namespace:
    does = "Compare runs: a table, compare.csv and compare.png, and compare_curves.csv with the lines as drawn."
    parser = Parser(prog="fedopt-compare", description=does)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a run's folder, or one that holds some at any depth")
    add("--metric", help="a column of metrics.csv (default: the first that the problem names)")
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
        return _odd(int(text) if text.isdecimal() else 0)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} is not an odd number, such as 1, 3, 5, with as many before as after"
        ) from None


def _limits_text(text: str) -> tuple[float, float]:
    low, comma, high = text.partition(",")
    if not comma or not _number(low) < _number(high):
        raise argparse.ArgumentTypeError(f"{text} is not LOW,HIGH with LOW below HIGH")
    return float(low), float(high)


# Metric and groups


def default_metric(runs: Sequence[Recorded]) -> str:
    """The first that the first run's problem names."""
    return next(iter(runs[0].metrics))


def _with_metric(runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Those that have the metric; the others are named on stderr."""
    kept = [run for run in runs if metric in run.table]
    if not kept:
        names = sorted({str(name) for run in runs for name in run.table})
        raise UserError(f"--metric={metric}: no run has it{nearest(metric, names)}")
    skipped: dict[str, list[str]] = {}
    for run in runs:
        if metric not in run.table:
            skipped.setdefault(f"has no metric {metric}, but {', '.join(run.metrics)}", []).append(str(run.folder))
    say_skipped(skipped)
    return kept


def default_keys(runs: Sequence[Recorded]) -> list[str]:
    """What differs between the runs, `algo` where nothing does."""
    return differing(runs) or ["algo"]


def differing(runs: Sequence[Recorded]) -> list[str]:
    """The groups in which other options were chosen, then every key that differs between runs of the same options.

    A key that only some option has, or that goes with it, is not named besides the option.
    """
    chosen = [key for key in CHOSEN if len({run.group([key]) for run in runs}) > 1]
    apart = len({run.group(chosen) for run in runs})
    others = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.apart)
        if key not in CHOSEN and len({run.group([*chosen, key]) for run in runs}) > apart
    ]
    rest = [key for key in others if key != "from"]  # another start alone is no name for a line where more differs
    return [*chosen, *(rest if chosen or rest else others)]


def _known(chosen: str, runs: Sequence[Recorded]) -> list[str]:
    """The keys of `--group-by`. Raises UserError for one that no run has."""
    keys = list(dict.fromkeys(key.strip() for key in chosen.split(",")))
    known = list(dict.fromkeys(key for run in runs for key in run.keys))
    for key in keys:
        if key not in known:
            raise UserError(f"--group-by={key}: no run's config has this key{nearest(key, known)}")
    return keys


def _order(value: str) -> tuple[float, str]:
    """Numbers by size, before words."""
    return (float(value), "") if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value) else (np.inf, value)


def _shortened(groups: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """With four digits of each number, where that tells the values of a key apart as well."""
    columns = []
    for values in zip(*groups, strict=True):
        short = [f"{float(v):.4g}" if re.fullmatch(r"-?\d+\.\d{4,}(e[-+]?\d+)?", v) else v for v in values]
        columns.append(short if len(set(short)) == len(set(values)) else values)
    return list(zip(*columns, strict=True))


def _parts(by: Sequence[str], groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """What the label of each group is made of: the options chosen, and key=value of the other keys that it has."""
    pairs = ([(key, value) for key, value in zip(by, of, strict=True) if value != ABSENT] for of in groups)
    return [[value if key in CHOSEN else f"{key}={value}" for key, value in of] for of in pairs]


def _labels(by: Sequence[str], groups: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, int]:
    """One for each group: the options chosen, and key=value of the other keys that it has; and its place in the order of colours.

    That is the place of its name in `names`, whether or not the others have lines, so that figures of fewer lines have the same
    colours. Raises UserError for what is no name.
    """
    whole, parts = _parts(by, groups), _parts(by, _shortened(groups))
    labels = [", ".join(of) or ABSENT for of in parts]
    known = list(dict.fromkeys([*labels, *(part for of in parts for part in of)]))
    long = [*(", ".join(of) for of in whole), *(part for of in whole for part in of)]
    short = dict(zip(long, [*labels, *(part for of in parts for part in of)], strict=True))
    new: dict[str, str] = {}
    places: dict[str, int] = {}
    for place, text in enumerate(names):
        if "=" not in text:
            raise UserError(f"--names={text}: must be OLD=NEW with OLD one of {', '.join(known)}")
        given = max((name for name in [*known, *long] if text.startswith(f"{name}=")), key=len, default="")
        if given:
            old = short.get(given, given)
            new[old] = text[len(given) + 1 :]
            places.setdefault(old, place)
        else:
            say(f"--names={text}: no line is called so; there are {'; '.join(known)}")
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    slots: dict[str, int] = {}
    free = len(names)
    for label, of in zip(labels, parts, strict=True):
        named = [places[name] for name in (label, *of) if name in places and name not in shared]
        slot, free = (min(named), free) if named else (free, free + 1)
        while slot in slots.values():
            slot += len(OKABE_ITO)  # the same colour, other dashes
        renamed = new.get(label) or ", ".join(new.get(part, part) for part in of) or ABSENT
        if renamed in slots:
            raise UserError("--names: two lines have the same name then")
        slots[renamed] = slot
    return slots


def _warn(
    by: Sequence[str], groups: Mapping[str, Sequence[Recorded]], runs: Sequence[Recorded], at: float | None
) -> None:
    """Say on stderr what makes the comparison unequal."""
    pooled = list(dict.fromkeys(key for members in groups.values() for key in differing(members)))
    if pooled:
        say(
            f"runs that differ in {', '.join(pooled)} count as one group; --group-by {','.join([*by, *pooled])} tells them apart"
        )
    if others := [key for key in _besides(by, groups) if key not in pooled]:
        say(f"the groups differ in {', '.join(others)} as well")
    if unfinished := [_with_status(label, of) for label, of in groups.items() if any(r.status not in OVER for r in of)]:
        say(f"not finished: {'; '.join(unfinished)}: the table has their values so far; --exclude leaves runs out")
    if at is None:
        _warn_of_ends(by, groups, runs[0].x)
    else:
        early = [label for label, of in groups.items() if any(run.cost()[-1] * UNEQUAL < at for run in of)]
        if early:
            say(f"--at={at:g}: runs of {', '.join(early)} end earlier, and have their last values in the table")
    tuned: dict[str, dict[str, bool]] = {}
    for run in runs:
        if {"algo", "problem", "preset"} <= run.keys.keys():  # a config that somebody sent may lack them
            of = tuned.setdefault(run.keys["problem"], {})
            of[run.keys["algo"]] = of.get(run.keys["algo"], False) or run.tuned
    for problem, of in tuned.items():
        if len(set(of.values())) > 1:
            with_, without = (", ".join(algo for algo in of if of[algo] is yes) for yes in (True, False))
            say(
                f"{problem}: {with_} ran with tuned values (a preset), {without} without: budgets and step sizes may be unequal"
            )


def _besides(by: Sequence[str], groups: Mapping[str, Sequence[Recorded]]) -> list[str]:
    """The keys in which groups of one problem differ besides those that they are told apart by.

    Not those that an option brings with it: its own, and those that an algorithm's or a problem's tuned values set, the budget and
    when to evaluate, of which `_warn_of_ends` speaks.
    """
    brings = {"seed", "eval", "budget", "from", *by, *({"algo"} if {"algo", "problem"} & {*by} else ())}
    found: dict[str, None] = {}
    for problem in {of[0].keys.get("problem") for of in groups.values()}:
        runs = [run for of in groups.values() for run in of if run.keys.get("problem") == problem]
        keys = dict.fromkeys(key for run in runs for key in run.apart)
        for key in keys:
            if not {key, key.partition(".")[0]} & brings and len({run.group([key]) for run in runs}) > 1:
                found[key] = None
    return list(found)


def _warn_of_ends(by: Sequence[str], groups: Mapping[str, Sequence[Recorded]], x: str) -> None:
    """Say where the last values are not those of one x: within a group, and between groups of a problem."""
    whole = [status for status in OVER if status != "diverged"]
    ends = {label: [run.cost()[-1] for run in of if run.status in whole] for label, of in groups.items()}
    cut = [label for label, costs in ends.items() if len(set(costs)) > 1]
    if cut and x != "seconds":  # which are never the same
        label, costs = cut[0], ends[cut[0]]
        say(
            f"{label}: its finished runs end between {_amount(x, min(costs))} and {_amount(x, max(costs))}; its line ends where "
            "the first of them does, and the table has their own last values"
        )
    if any(key.partition(".")[0] == "budget" for key in by):
        return
    on: dict[tuple[str, ...], dict[str, float]] = {}
    for label, costs in ends.items():
        if costs:
            on.setdefault(groups[label][0].problem, {})[label] = float(np.mean(costs))
    for spent in on.values():
        least, most = (choose(spent, key=lambda label: spent[label]) for choose in (min, max))
        if spent[most] > UNEQUAL * spent[least]:
            say(
                f"unequal spends: {least} ends at {_amount(x, spent[least])}, {most} at {_amount(x, spent[most])}; the table has "
                f"last values, --x {x} --at {_least(spent[least])} those of equal spends"
            )
            return


def _least(number: float) -> str:
    """With six digits, rounded down."""
    digits = 5 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{math.floor(number * 10.0**digits) / 10.0**digits:.6g}"


# Tables


def summary(runs: Sequence[Recorded], metric: str, x: str, target: float | None) -> dict[str, Any]:
    """A row of compare.csv. Standard deviations are over runs, with n - 1; a final value not finite makes nan."""
    described, statuses = runs[0].metric(metric), Counter(run.status for run in runs)
    row = {
        "runs": len(runs),
        "seeds": len({run.keys.get("seed") for run in runs}),
        "status": ", ".join(f"{n} {status}" for status, n in sorted(statuses.items())),
        **_moments(f"spent_{x}", [run.cost()[-1] for run in runs]),
        **_moments(f"final_{metric}", [run.values(metric)[-1] for run in runs]),
        **_moments(f"best_{metric}", [described.best(run.values(metric)) for run in runs]),
    }
    if target is not None:
        hits = [[described.reached(value, target) for value in run.values(metric)] for run in runs]
        costs = [run.cost()[hit][0] for run, hit in zip(runs, hits, strict=True) if any(hit)]
        row |= {"target": target, "reached": len(costs), **_moments(f"{x}_to_target", costs)}
    return row


def _moments(name: str, values: Sequence[float]) -> dict[str, float]:
    return dict(zip((f"{name}_mean", f"{name}_std"), moments(values), strict=True))


def _amount(x: str, mean: float, std: float = math.nan) -> str:
    """What is spent, with its unit."""
    return in_bytes(mean, std) if x == "bytes" else f"{plus_minus(mean, std)} {COSTS[x][1]}"


def _shown(found: Comparison, columns: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table as texts, and which of its cells are the best of their problem. columns: of `COLUMNS`, none for the usual ones.

    Raises UserError for a column without values.
    """
    rows, metric, x, target = found.table, found.metric, found.x, found.target
    described = next(iter(found.groups.values()))[0].metric(metric)
    counts = {name: rows[name].astype(str) for name in ("runs", "seeds", "status")}
    final = "final" if found.at is None else f"at {_amount(x, found.at)}:"
    # heading, column of the CSV, how a value is shown, whether higher is better
    values: dict[str, tuple[str, str, Any, bool]] = {
        "spent": (COSTS[x][1], f"spent_{x}", in_bytes if x == "bytes" else plus_minus, False),
        "final": (f"{final} {described.title}", f"final_{metric}", plus_minus, described.better == "higher"),
        "best": (f"best {described.title}", f"best_{metric}", plus_minus, described.better == "higher"),
    }
    if target is not None:
        values["to_target"] = (f"{COSTS[x][1]} to {target:g}", f"{x}_to_target", values["spent"][2], False)
        counts["reached"] = rows["reached"].astype(str) + " of " + rows["runs"].astype(str)
    there = [name for name in COLUMNS if name in counts or name in values]
    if missing := [name for name in columns if name not in there]:
        raise UserError(f"--columns={missing[0]}: has values with --target alone")
    heads = {"reached": "reached by"}
    shown = pd.DataFrame({", ".join(found.by): rows["label"].astype(str)})
    best = pd.DataFrame({shown.columns[0]: np.zeros(len(rows), dtype=bool)})
    problems = [of[0].problem for of in found.groups.values()]
    for name in columns or [name for name in there if name != "spent" or found.at is not None]:
        if name in counts:
            shown[heads.get(name, name)], best[heads.get(name, name)] = counts[name], False
            continue
        head, column, show, higher = values[name]
        mean, std = rows[f"{column}_mean"], rows[f"{column}_std"]
        cells = [show(*pair) if math.isfinite(pair[0]) else ABSENT for pair in zip(mean, std, strict=True)]
        if name == "to_target":  # a mean over those that reached it alone
            few = rows["reached"].between(1, rows["runs"] - 1)
            cells = [f"{c} ({by})" if of else c for c, by, of in zip(cells, counts["reached"], few, strict=True)]
        shown[head] = cells
        ranked = mean.where(rows["reached"] == rows["runs"]) if name == "to_target" else mean
        best[head] = False if name == "spent" else _best(ranked, std, show, problems, higher)
    return shown, best


def _best(mean: pd.Series, std: pd.Series, show: Any, problems: Sequence[Any], higher: bool) -> list[bool]:
    """Whether each value is the best of those of its problem, or as good as it with the digits that it is shown with."""
    tops = (mean if higher else -mean).groupby(pd.Series(problems)).transform("max") * (1 if higher else -1)
    several = pd.Series(problems).map(Counter(problems)) > 1
    return [
        bool(more and math.isfinite(value) and show(value, spread) == show(top, spread))
        for value, spread, top, more in zip(mean, std, tops, several, strict=True)
    ]
