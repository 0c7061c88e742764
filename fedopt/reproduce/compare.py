"""The `fedopt-compare` command: tables and pictures of runs, grouped by what differs between them.

Nothing here imports torch.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.command import Parser, answer, say
from fedopt.errors import UserError, nearest
from fedopt.reproduce.curves import draw_line, explained
from fedopt.reproduce.recorded import ABSENT, CHOSEN, Recorded, say_skipped, usable
from fedopt.reproduce.tables import in_bytes, latex, markdown, moments, plus_minus, print_table, write_table
from fedopt.results.figures import COSTS, describe, grid, look, save_with_legend, spans_decades, styled
from fedopt.results.folder import ENDED, write_atomically

FORMATS, TABLES = ("png", "pdf", "svg"), ("csv", "latex", "markdown")
MOST_TESTED = 6  # groups of which each pair is tested


@dataclass(frozen=True)
class Look:
    """Of the picture. smooth: a value is the mean of the last so many evaluations; log: None leaves the scale to the values."""

    smooth: int = 1
    ylim: tuple[float, float] | None = None
    log: bool | None = None
    title: str = ""


@dataclass(frozen=True)
class Comparison:
    """Runs in groups. table: a row for each group; by: the keys that tell the groups apart; groups: their runs, by label."""

    table: pd.DataFrame
    by: Sequence[str]
    groups: Mapping[str, list[Recorded]]
    metric: str
    x: str
    target: float | None

    def draw(self, *paths: str | Path, how: Look | None = None) -> pd.DataFrame:
        """Write a picture with a line and a band for each group, in the formats of the paths' endings; returns what is drawn."""
        return draw(list(map(Path, paths)), self.groups, self.metric, self.x, self.target, how or Look())


def main() -> None:
    """Entry point of `fedopt-compare`."""
    answer(lambda: compare(_arguments()))


def compare(arguments: argparse.Namespace) -> None:
    """Print the tables; write the files. Raises UserError when there is no run to compare."""
    wanted = (arguments.metric, arguments.x, arguments.target, arguments.group_by, arguments.names)
    found = compared(arguments.paths, *wanted)
    shown = _shown(found)
    print_table(shown, right=list(shown.columns.drop([shown.columns[0], "status"])))
    tested = tests(found.groups, found.metric)
    if len(tested):
        caption = "last values, seed by seed; two-sided paired t-test"
        print_table(
            tested.map(lambda v: f"{v:.3g}" if isinstance(v, float) else str(v)), list(tested.columns[1:]), caption
        )
    base = arguments.out / "compare"
    pictures = [base.with_suffix(f".{name}") for name in arguments.format]
    how = Look(arguments.smooth, arguments.ylim, arguments.logy, arguments.title)
    curves = base.with_name("compare_curves.csv")
    write_table(curves, found.draw(*pictures, how=how))
    written = [_write(base, name, found.table, shown) for name in arguments.table]
    print(f"results: {', '.join(map(str, [*written, *pictures, curves]))}")


def _write(base: Path, name: str, table: pd.DataFrame, shown: pd.DataFrame) -> Path:
    if name == "csv":
        write_table(path := base.with_suffix(".csv"), table)
        return path
    if (table["runs"] == table["seeds"]).all():
        shown = shown.drop(columns="runs")
    if table["status"].str.fullmatch(r"\d+ finished").all():
        shown = shown.drop(columns="status")
    path, text = (
        (base.with_suffix(".tex"), latex(shown)) if name == "latex" else (base.with_suffix(".md"), markdown(shown))
    )
    write_atomically(path, f"{text.rstrip()}\n".encode())
    return path


def compared(
    paths: Sequence[Path],
    metric: str | None = None,
    x: str = "comm_rounds",
    target: float | None = None,
    group_by: str | None = None,
    names: Sequence[str] = (),
) -> Comparison:
    """The runs in some folders by groups. names: 'OLD=NEW' of labels or their parts.

    Raises UserError when there is no run to compare.
    """
    if x not in COSTS:
        raise UserError(f"x={x}: must be one of {', '.join(COSTS)}")
    runs = usable(paths, x)
    metric = metric or default_metric(runs)
    runs = _with_metric(runs, metric)
    by = default_keys(runs) if group_by is None else _known(group_by, runs)
    found: dict[tuple[str, ...], list[Recorded]] = {}
    for run in sorted(runs, key=lambda r: [_order(value) for value in r.group(by)]):
        found.setdefault(run.group(by), []).append(run)
    labels = _labels(by, list(found), names)
    rows = [
        dict(zip(by, group, strict=True)) | {"label": label} | summary(members, metric, x, target)
        for label, (group, members) in zip(labels, found.items(), strict=True)
    ]
    groups = dict(zip(labels, found.values(), strict=True))
    _warn(by, groups, runs)
    return Comparison(pd.DataFrame(rows), by, groups, metric, x, target)


def _arguments() -> argparse.Namespace:
    does = "Compare runs: a table, compare.csv and compare.png, and compare_curves.csv with the lines as drawn."
    parser = Parser(prog="fedopt-compare", description=does)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a run's folder, or one that holds some at any depth")
    add("--metric", help="a column of metrics.csv (default: the first that the problem names)")
    add("--x", choices=COSTS, default="comm_rounds", help="what a run spends (default: comm_rounds)")
    add("--target", type=_number, help="say how much x it took to reach this value of the metric")
    add("--group-by", metavar="KEY,...", help="keys of config.yaml, such as algo,algo.K (default: all that differ)")
    called = "another name for a line or a part of its label, such as 'fedmsa=FedMSA (ours)'; may be repeated"
    add("--names", action="append", default=[], metavar="OLD=NEW", help=called)
    for option, known, default in (("--format", FORMATS, "png"), ("--table", TABLES, "csv")):
        add(
            option,
            type=_some_of(known),
            default=[default],
            metavar="NAME,...",
            help=f"{', '.join(known)} (default: {default})",
        )
    add("--smooth", type=_count, default=1, metavar="N", help="draw the mean of the last N evaluations")
    add("--ylim", type=_limits, metavar="LOW,HIGH", help="the ends of the y axis")
    add(
        "--logy",
        action=argparse.BooleanOptionalAction,
        help="a logarithmic y axis (default: where values span decades)",
    )
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


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _limits(text: str) -> tuple[float, float]:
    low, comma, high = text.partition(",")
    if not comma or not _number(low) < _number(high):
        raise argparse.ArgumentTypeError(f"{text} is not LOW,HIGH with LOW below HIGH")
    return float(low), float(high)


def _some_of(known: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: there are {', '.join(known)}{nearest(name, list(known))}")
        return names

    return read


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
    return [*chosen, *others]


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


def _labels(by: Sequence[str], groups: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """One for each group: the options chosen, and key=value of the other keys that it has. Raises UserError for an unknown name."""
    parts = [
        [value if key in CHOSEN else f"{key}={value}" for key, value in zip(by, group, strict=True) if value != ABSENT]
        for group in groups
    ]
    labels = [", ".join(of) or ABSENT for of in parts]
    known = [*labels, *(part for of in parts for part in of)]
    new: dict[str, str] = {}
    for text in names:
        old = max((name for name in known if text.startswith(f"{name}=")), key=len, default="")
        if not old:
            raise UserError(f"--names={text}: must be OLD=NEW with OLD one of {', '.join(dict.fromkeys(known))}")
        new[old] = text[len(old) + 1 :]
    renamed = [
        new.get(label) or ", ".join(new.get(part, part) for part in of) or ABSENT
        for label, of in zip(labels, parts, strict=True)
    ]
    if len(set(renamed)) < len(renamed):
        raise UserError("--names: two lines have the same name then")
    return renamed


def _warn(by: Sequence[str], groups: Mapping[str, Sequence[Recorded]], runs: Sequence[Recorded]) -> None:
    """Say on stderr what makes the comparison unequal."""
    pooled = list(dict.fromkeys(key for members in groups.values() for key in differing(members)))
    if pooled:
        say(
            f"runs that differ in {', '.join(pooled)} count as one group; --group-by {','.join([*by, *pooled])} tells them apart"
        )
    ends = {label: {run.cost()[-1] for run in of if run.status in ENDED} for label, of in groups.items()}
    cut = [(label, costs) for label, costs in ends.items() if len(costs) > 1]
    if cut and runs[0].x != "seconds":  # which are never the same
        label, costs = cut[0]
        say(
            f"{label}: its runs end at {min(costs):.6g} to {max(costs):.6g} {COSTS[runs[0].x][1]}; its line ends where the first "
            "does, and the table has their own last values"
        )
    tuned: dict[str, dict[str, bool]] = {}
    for run in runs:
        if {"algo", "problem", "preset"} <= run.keys.keys():  # a config that somebody sent may lack them
            tuned.setdefault(run.keys["problem"], {})[run.keys["algo"]] = run.keys["preset"] != "none"
    for problem, of in tuned.items():
        if len(set(of.values())) > 1:
            with_, without = (", ".join(algo for algo in of if of[algo] is yes) for yes in (True, False))
            say(
                f"{problem}: {with_} ran with tuned values (a preset), {without} without: budgets and step sizes may be unequal"
            )


# Tables


def summary(runs: Sequence[Recorded], metric: str, x: str, target: float | None) -> dict[str, Any]:
    """A row of compare.csv. Standard deviations are over runs, with n - 1; a final value not finite makes nan."""
    described, statuses = runs[0].metric(metric), Counter(run.status for run in runs)
    row = {
        "runs": len(runs),
        "seeds": len({run.keys.get("seed") for run in runs}),
        "status": ", ".join(f"{n} {status}" for status, n in sorted(statuses.items())),
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


def _shown(found: Comparison) -> pd.DataFrame:
    """The table as texts."""
    rows, metric, x, target = found.table, found.metric, found.x, found.target
    title = next(iter(found.groups.values()))[0].metric(metric).title

    def cells(name: str, show: Any = plus_minus) -> list[str]:
        return [show(*pair) for pair in zip(rows[f"{name}_mean"], rows[f"{name}_std"], strict=True)]

    shown = rows[["label", "runs", "seeds", "status"]].astype(str).rename(columns={"label": ", ".join(found.by)})
    shown[f"final {title}"] = cells(f"final_{metric}")
    shown[f"best {title}"] = cells(f"best_{metric}")
    if target is not None:
        costs = cells(f"{x}_to_target", in_bytes if x == "bytes" else plus_minus)
        shown[f"{COSTS[x][1]} to {target:g}"] = np.where(rows["reached"] > 0, costs, ABSENT)
        shown["reached by"] = rows["reached"].astype(str) + " of " + rows["runs"].astype(str)
    return shown


def tests(groups: Mapping[str, Sequence[Recorded]], metric: str) -> pd.DataFrame:
    """Each pair of up to `MOST_TESTED` groups: the mean difference of last values over the seeds that both have, and a p-value.

    Where values span decades, the ratio of geometric means, tested by the logarithms. A seed's runs in a group are one mean.
    """
    if len(groups) > MOST_TESTED:
        return pd.DataFrame()
    runs = [(label, run.keys.get("seed", ABSENT), run.values(metric)[-1]) for label, of in groups.items() for run in of]
    last = pd.DataFrame(runs, columns=["label", "seed", "value"])
    described = next(iter(groups.values()))[0].metric(metric)
    log = spans_decades(described, last["value"].to_numpy())
    if log:
        last["value"] = np.log(last["value"])
    seeds = last.groupby(["seed", "label"])["value"].mean().unstack()
    rows = []
    for one, other in combinations(groups, 2):
        apart = (seeds[one] - seeds[other]).dropna().to_numpy()
        if len(apart) > 1 and not np.allclose(apart, apart[0]):  # the test divides by their deviation
            from scipy.stats import ttest_1samp  # half a second

            mean, p = apart.mean(), float(ttest_1samp(apart, 0).pvalue)
            rows.append(
                (f"{one} / {other}" if log else f"{one} - {other}", np.exp(mean) if log else mean, len(apart), p)
            )
    what = "ratio" if log else "difference"
    return pd.DataFrame(rows, columns=["pair", f"{what} of final {described.title}", "seeds", "p"])


# Picture


@styled()
def draw(
    paths: Sequence[Path],
    groups: Mapping[str, Sequence[Recorded]],
    metric: str,
    x: str,
    target: float | None,
    how: Look,
) -> pd.DataFrame:
    """A line and a band for each group (`curves.explained`); returns what is drawn. Raises UserError for limits that cannot be."""
    runs = [run for members in groups.values() for run in members]
    described = runs[0].metric(metric)
    log = how.log if how.log is not None else spans_decades(described, np.concatenate([r.values(metric) for r in runs]))
    if log and how.ylim and how.ylim[0] <= 0:
        raise UserError("--ylim: a logarithmic axis begins above 0; --no-logy makes it linear")
    figure, ((axes,),) = grid(1, 1, len(groups))
    lines = [
        draw_line(axes, label, members, metric, look(j), log, how.smooth)
        for j, (label, members) in enumerate(groups.items())
    ]
    if target is not None:
        axes.axhline(target, color="grey", linestyle=":", label=f"target {target:g}")
    describe(axes, x, described.title, how.title)
    axes.set_yscale("log" if log else "linear")
    axes.set_ylim(how.ylim)
    save_with_legend(figure, *paths, note=explained(list(groups.values()), {log}, how.smooth))
    return pd.concat(lines)
