"""The `fedopt-compare` command: a table and a picture of runs, grouped by what differs between them.

Nothing here imports torch.
"""

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedopt.command import Parser, answer, say
from fedopt.config import flat
from fedopt.errors import UserError, first_line, nearest
from fedopt.metrics import Metric
from fedopt.results.figures import COSTS, describe, grid, plt, save_with_legend, set_scale
from fedopt.results.folder import ENDED, RunFolder, read_json, whole_rows, write_atomically
from fedopt.results.identity import identity

CLASSES = ("algo", "problem", "dataset", "partitioner")  # config groups that stand for the class that they name
ABSENT = "-"  # the value of a key that a run does not have


@dataclass(frozen=True)
class Recorded:
    """A run as its folder has it.

    keys: dotted config keys, values as text; apart: those in which another run with other numbers differs, but for the seed.
    metrics: what they say of themselves, by name. x: what is spent, of `COSTS`; table: metrics.csv.
    """

    folder: Path
    keys: dict[str, str]
    apart: Sequence[str]
    metrics: dict[str, Metric]
    status: str
    x: str
    table: pd.DataFrame

    def metric(self, name: str) -> Metric:
        """What a column says of itself; of a column that is no metric, less is better."""
        return self.metrics.get(name, Metric(name, name))

    def values(self, metric: str) -> np.ndarray:
        """[rows], nan for whatever is not finite."""
        values = self.table[metric].to_numpy(dtype=float)
        return np.where(np.isfinite(values), values, np.nan)

    def cost(self, x: str = "") -> np.ndarray:
        """[rows] of what is spent, of the run's own x or of another."""
        return self.table[list(COSTS[x or self.x][0])].to_numpy(dtype=float).sum(axis=1)

    def group(self, by: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.keys.get(key, ABSENT) for key in by)


def main() -> None:
    """Entry point of `fedopt-compare`."""
    answer(lambda: compare(_arguments()))


@dataclass(frozen=True)
class Comparison:
    """Runs in groups. table: a row for each group; by: the keys that tell the groups apart; groups: their runs, by label."""

    table: pd.DataFrame
    by: Sequence[str]
    groups: dict[str, list[Recorded]]
    metric: str
    x: str
    target: float | None

    def draw(self, path: str | Path) -> None:
        """Write a picture, as PNG: a line and a band for each group."""
        draw(Path(path), self.groups, self.metric, self.x, self.target)


def compared(
    paths: Sequence[Path], metric: str | None, x: str, target: float | None, group_by: str | None
) -> Comparison:
    """The runs in some folders by groups. Raises UserError when there is no run to compare."""
    if x not in COSTS:
        raise UserError(f"x={x}: must be one of {', '.join(COSTS)}")
    runs = _usable(paths, x)
    metric = metric or default_metric(runs)
    runs = _with_metric(runs, metric)
    by = default_keys(runs) if group_by is None else _known(group_by, runs)
    groups: dict[tuple[str, ...], list[Recorded]] = {}
    for run in sorted(runs, key=lambda r: [_order(value) for value in r.group(by)]):
        groups.setdefault(run.group(by), []).append(run)
    rows = pd.DataFrame(
        [dict(zip(by, group, strict=True)) | summary(members, metric, x, target) for group, members in groups.items()]
    )
    return Comparison(rows, by, {_label(by, group): runs for group, runs in groups.items()}, metric, x, target)


def compare(arguments: argparse.Namespace) -> None:
    """Print the table; write compare.csv and compare.png. Raises UserError when there is no run to compare."""
    out, wanted = arguments.out, (arguments.metric, arguments.x, arguments.target, arguments.group_by)
    found = compared(arguments.paths, *wanted)
    shown = _shown(found.table, found.by, found.metric, found.x, found.target)
    print_table(shown, right=list(shown.columns.drop([*found.by, "status"])))
    write_table(out / "compare.csv", found.table)
    found.draw(out / "compare.png")
    print(f"results: {out / 'compare.csv'}, {out / 'compare.png'}")


def _arguments() -> argparse.Namespace:
    parser = Parser(prog="fedopt-compare", description="Compare runs: a table, compare.csv and compare.png.")
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a run's folder, or one that holds some at any depth")
    add("--metric", help="a column of metrics.csv (default: the first that the problem names)")
    add("--x", choices=COSTS, default="comm_rounds", help="what a run spends (default: comm_rounds)")
    add("--target", type=_number, help="say how much x it took to reach this value of the metric")
    add("--group-by", metavar="KEY,...", help="keys of config.yaml, such as algo,algo.K (default: all that differ)")
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


# Reading


def _usable(paths: Sequence[Path], x: str) -> list[Recorded]:
    """All runs that can be read, each once; the others are named on stderr."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such folder")
        marks = {"config.yaml", "metrics.csv", "summary.json"}
        inside = sorted({file.parent for file in path.rglob("*") if file.name in marks}, key=str)
        if not inside:
            say(f"{path}: skipped: no run in it")
        found |= {folder.resolve(): folder for folder in inside}
    runs = []
    for folder in found.values():
        try:
            runs.append(read(folder, x))
        except (OSError, ValueError, yaml.YAMLError, UserError) as error:
            say(f"{folder}: skipped: {first_line(error)}")
    if not runs:
        where = ", ".join(map(str, paths))
        raise UserError(f"no run to compare in {where}: a run's folder has config.yaml and metrics.csv")
    return runs


def read(folder: Path, x: str) -> Recorded:
    """Its rows that are whole so far. Raises OSError, ValueError, YAMLError or UserError where it is of no use."""
    if missing := [name for name in ("config.yaml", "metrics.csv", "run.json") if not (folder / name).is_file()]:
        raise UserError(f"no {' and no '.join(missing)}")
    config = RunFolder(folder).config()
    metrics: dict[str, Metric] = {}
    with suppress(KeyError, TypeError):
        metrics = {fields["name"]: Metric(**fields) for fields in read_json(folder / "run.json").get("metrics", [])}
    if not metrics:
        raise UserError("run.json does not say what its metrics are")
    whole = whole_rows(folder / "metrics.csv")
    if whole.count("\n") < 2:
        raise UserError("metrics.csv has no rows")
    table = pd.read_csv(StringIO(whole)).apply(pd.to_numeric, errors="coerce")
    columns = COSTS[x][0]
    if lacking := [name for name in columns if name not in table]:
        raise UserError(f"metrics.csv has no column {lacking[0]}")
    apart = [key for key in _keys(identity(config)) if key != "seed"]
    status = RunFolder(folder).status() or "unknown"
    run = Recorded(folder, _keys(flat(config)), apart, metrics, status, x, table)
    if not np.isfinite(run.cost()).all():
        raise UserError(f"metrics.csv has rows without {' or '.join(columns)}")
    return run


def _keys(config: dict[str, Any]) -> dict[str, str]:
    """Values as text. A node's `_target_` stands for the node, by its last part; other keys with an underscore are left out."""
    return {
        key.removesuffix("._target_"): _text(value).rpartition(".")[2] if key.endswith("._target_") else _text(value)
        for key, value in config.items()
        if key.endswith("._target_") or not key.rpartition(".")[2].startswith("_")
    }


def _text(value: Any) -> str:
    """As YAML would have it, and the same for 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


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
    for run in runs:
        if metric not in run.table:
            say(f"{run.folder}: skipped: has no metric {metric}, but {', '.join(run.metrics)}")
    return kept


def default_keys(runs: Sequence[Recorded]) -> list[str]:
    """The classes that differ, then every key that differs between runs of the same classes; `algo` where nothing does.

    A key that only some class has, or that goes with it, is not named besides the class.
    """
    classes = [key for key in CLASSES if len({run.group([key]) for run in runs}) > 1]
    apart = len({run.group(classes) for run in runs})
    others = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.apart)
        if key not in CLASSES and len({run.group([*classes, key]) for run in runs}) > apart
    ]
    return [*classes, *others] or ["algo"]


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


def _label(by: Sequence[str], group: Sequence[str]) -> str:
    return ", ".join(value if key in CLASSES else f"{key}={value}" for key, value in zip(by, group, strict=True))


# Table


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


def moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean of [n] values, nan where there is none, and their standard deviation, nan where there is one or the mean is infinite."""
    of = pd.Series(values, dtype=float)
    with np.errstate(invalid="ignore"):  # inf less inf
        return of.mean(skipna=False), of.std(skipna=False)


def _shown(rows: pd.DataFrame, by: Sequence[str], metric: str, x: str, target: float | None) -> pd.DataFrame:
    def cells(name: str) -> list[str]:
        return [plus_minus(*pair) for pair in zip(rows[f"{name}_mean"], rows[f"{name}_std"], strict=True)]

    shown = rows[[*by, "runs", "seeds", "status"]].astype(str)
    shown[f"final {metric}"] = cells(f"final_{metric}")
    shown[f"best {metric}"] = cells(f"best_{metric}")
    if target is not None:
        shown[f"{x} to {target:g}"] = np.where(rows["reached"] > 0, cells(f"{x}_to_target"), ABSENT)
        shown["reached by"] = rows["reached"].astype(str) + " of " + rows["runs"].astype(str)
    return shown


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write the table as CSV, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, table.to_csv(index=False).encode())


def print_table(table: pd.DataFrame, right: Sequence[str] = (), caption: str | None = None) -> None:
    """Print a table of texts. right: the columns that are flush right."""
    shown = Table(caption=caption)
    for name in table:
        shown.add_column(Text(str(name)), justify="right" if name in right else "left")
    for cells in table.itertuples(index=False):
        shown.add_row(*map(Text, cells))
    Console(width=None if sys.stdout.isatty() else 250).print(shown)


def plus_minus(mean: float, std: float) -> str:
    return f"{mean:.4g} ± {std:.3g}" if math.isfinite(std) else f"{mean:.4g}"


# Picture


def draw(path: Path, groups: dict[str, list[Recorded]], metric: str, x: str, target: float | None) -> None:
    """A line and a band of one standard deviation for each group."""
    figure, ((axes,),) = grid(1, 1, len(groups))
    means = [
        draw_line(axes, label, runs, metric, colour(j, len(groups))) for j, (label, runs) in enumerate(groups.items())
    ]
    described = next(iter(groups.values()))[0].metric(metric)
    set_scale(axes, described, np.concatenate(means))
    if target is not None:
        axes.axhline(target, color="grey", linestyle=":")
    describe(axes, COSTS[x][1], described.title)
    save_with_legend(figure, path)


def draw_line(axes: plt.Axes, label: str, runs: Sequence[Recorded], metric: str, colour: Any) -> np.ndarray:
    """Draw the mean of the runs and a band of one standard deviation; returns the mean, [points]."""
    cost, mean, std = curve(runs, metric)
    axes.plot(cost, mean, color=colour, label=label, marker="o" if len(cost) == 1 else None)
    axes.fill_between(cost, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
    return mean


def colour(j: int, n: int) -> Any:
    """Of line j among n."""
    return f"C{j}" if n <= 10 else plt.colormaps["viridis"](j / (n - 1))


def curve(runs: Sequence[Recorded], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation (0 for one run) of the metric on the union of the runs' x, all [points].

    The curve goes from where all runs have begun to where the first finished or diverged one ends, so that no run drops
    out of the mean by ending; one that is still on its way counts as far as it has got.
    """
    costs = [run.cost() for run in runs]
    ends = [cost[-1] for run, cost in zip(runs, costs, strict=True) if run.status in ENDED]
    last = min(ends or [max(cost[-1] for cost in costs)])
    union = np.unique(np.concatenate(costs))
    x = union[(union >= max(cost[0] for cost in costs)) & (union <= last)]
    values = [np.interp(x, cost, run.values(metric)) for run, cost in zip(runs, costs, strict=True)]
    covered = np.ma.array(values, mask=[x > cost[-1] for cost in costs])
    return x, covered.mean(axis=0).filled(np.nan), covered.std(axis=0, ddof=1).filled(0)
