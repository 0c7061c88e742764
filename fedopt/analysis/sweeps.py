"""The table of a sweep, one row per run."""

import json
import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.analysis.groups import repeats
from fedopt.analysis.stats import moments
from fedopt.analysis.tables import mean_text, print_table, write_table
from fedopt.config import GROUPS, Composed, flat
from fedopt.console import counted, tell
from fedopt.errors import UserError
from fedopt.metrics import COSTS
from fedopt.results import RunFolder, described, numbers_of

MOST_SHOWN = 50  # rows of the table that is printed


def report(folder: Path, refused: Mapping[Path, str] | None = None) -> int:
    """Write sweep.csv, print a summary, and return the exit code: 1 if a run failed, else 0.

    sweep.csv has a row per run: the keys that were overridden, status, costs, final and best metrics, and the cost to reach
    the target.

    Args:
        folder: The folder of the sweep.
        refused: run folder -> why its run does not belong to this sweep. Its row has the status refused and no results.
    """
    rows: list[dict[str, Any]] = []
    configs: list[dict[str, Any]] = []
    swept: dict[str, None] = {}
    metrics: list[str] = []  # of each row: eval.metric, else the one that the problem names first
    lasts: dict[str, float] = {}  # run -> last value of its metric
    for path in sorted(p.parent for p in folder.glob("*/summary.json") if not p.parent.is_symlink()):
        summary, card, config = RunFolder(path).summary(), RunFolder(path).card(), {}
        if why := (refused or {}).get(path):
            summary = {"status": "refused", "error": why}
        with suppress(UserError):  # a config that cannot be read
            config = flat(RunFolder(path).config())
        row = {"run": path.name, "status": summary.get("status")}
        given = dict(o.lstrip("+~").split("=", 1) for o in card.get("overrides", []) if "=" in o)
        given.pop("resume", None)  # a run that was killed before it began has another one
        # data: a column if there are several
        swept |= dict.fromkeys([*(key for key in given if key != "output_dir"), "data"])
        row |= given | {"data": (card.get("data") or "")[:8]}
        row |= {name: summary.get(name) for name in COSTS}
        for part, name in (("final", "final"), ("best", "best"), ("to_target", "target")):
            row |= {f"{name}_{metric}": value for metric, value in numbers_of(summary.get(part)).items()}
        rows.append({**row, "error": summary.get("error")})
        configs.append(config)
        metrics.append(str(config.get("eval.metric") or next((metric.name for metric in card.get("metrics", ())), "")))
        with suppress(UserError):  # rows that cannot be read
            lasts[path.name] = RunFolder(path).last(metrics[-1])
    for row, config in zip(rows, configs, strict=True):
        values = {key: config[key] for key in swept if key in config and key not in row}
        row |= {key: str(value) if isinstance(value, list | dict) else value for key, value in values.items()}
    if len({row["data"] for row in rows if row["status"] != "refused"}) < 2:
        for row in rows:
            del row["data"]
    write_table(folder / "sweep.csv", pd.DataFrame(rows))
    finals = finals_of(rows, metrics, lasts, [key for key in swept if len({row.get(key) for row in rows}) > 1])
    if {row["status"] for row in rows} == {"finished"}:
        finals = finals.drop(columns="status", errors="ignore")
    if 0 < len(finals) <= MOST_SHOWN:
        print_table(finals, right=["runs", *(str(name) for name in finals if str(name).startswith("final"))])
    if best := _best_of(folder, rows, metrics):
        tell(best)
    counts = Counter(row["status"] for row in rows)
    tell(f"{counted(len(rows), 'run')}: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    tell(f"results: {folder / 'sweep.csv'}")
    return 1 if counts["failed"] else 0


def _best_of(folder: Path, rows: Sequence[dict[str, Any]], metrics: Sequence[str]) -> str:
    """Return a line that names the finished run with the best last value.

    It is empty if fewer than two runs have finished, if runs have different metrics, or if the metric has no better
    direction.
    """
    if len(set(metrics)) != 1:
        return ""
    column = f"final_{metrics[0]}"
    finals = {row["run"]: row[column] for row in rows if row["status"] == "finished" and column in row}
    metric = next((m for run in finals for m in described(folder / run) if m.name == metrics[0]), None)
    if len(finals) < 2 or metric is None or metric.better == "neither":
        return ""
    best = max if metric.better == "higher" else min
    run, value = best(finals.items(), key=lambda item: item[1])
    return f"best final {metric.name} of one run: {value:.5g}, {run}"


def finals_of(
    rows: Sequence[dict[str, Any]], metrics: Sequence[str], lasts: Mapping[str, float], swept: Sequence[str]
) -> pd.DataFrame:
    """Return a table as text: mean and standard deviation of last values over seeds, a row per combination of the other swept
        keys. Seeds of data splits are seeds too.

    A run without a last value leaves its group without a mean; runs that were refused do not count. The table is empty if no row
    has a metric. A single metric is named in the heading, several in a column.

    Args:
        rows: The rows of sweep.csv.
        metrics: The metric of each row; empty for a run that failed at once.
        lasts: run -> last value of its metric, as `RunFolder.last` returns it.
        swept: The keys that take several values.
    """
    splits = any(repeats(key) and key != "seed" for key in swept)  # which give data of their own
    keys = [key for key in swept if not (repeats(key) or (splits and key == "data"))]
    names = sorted(set(metrics) - {""})
    if len(names) == 1:
        metrics = names * len(rows)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row, metric in zip(rows, metrics, strict=True):
        groups.setdefault((*(str(row.get(key, "-")) for key in keys), metric), []).append(row)
    shown = []
    for (*values, metric), members in groups.items():
        finals = [lasts.get(row["run"], math.nan) for row in members if row["status"] != "refused"]
        counts = Counter(row["status"] for row in members)
        shown.append(
            dict(zip(keys, values, strict=True))
            | {"runs": str(len(members)), "status": ", ".join(f"{n} {status}" for status, n in counts.items())}
            | {"metric": metric, "final": mean_text(*moments(finals))}
        )
    table = pd.DataFrame(shown if names else [])
    if len(names) == 1:
        return table.drop(columns="metric").rename(columns={"final": f"final {names[0]}"})
    return table


def differences(runs: Sequence[Composed], swept: Container[str]) -> str:
    """Return a line on differences between runs on the same problem that the sweep did not ask for; '' if there are none.

    It compares whether tuned values are used, batch sizes, the budget, and when to evaluate.

    Args:
        runs: The configs of the sweep.
        swept: The keys and config groups to which the sweep gives several values.
    """
    names: dict[tuple[str, str], dict[str, dict[str, None]]] = {}  # problem, key -> value -> runs
    for run in runs:
        name = " ".join(run.chosen[group] for group in GROUPS if group in swept and group != "problem")
        values = {"tuned values": "some" if run.tuned.effective else "none"}
        for node, keys in (("algo", ("B",)), ("budget", run.nodes["budget"]), ("eval", ("every", "at", "points"))):
            values |= {f"{node}.{key}": json.dumps(run.nodes[node][key]) for key in keys if key in run.nodes[node]}
        for key in values:
            names.setdefault((run.chosen["problem"], key), {}).setdefault(values[key], {})[name] = None
    lines = [
        f"{key} on {problem}: " + ", ".join(f"{value} ({', '.join(some)})" for value, some in values.items())
        for (problem, key), values in names.items()
        if len(values) > 1 and key not in swept
    ]
    remedy = (
        ". preset=none leaves tuned values out for all" if any(key.startswith("tuned values") for key in lines) else ""
    )
    return f"the runs also differ in what is not swept: {'. '.join(lines)}{remedy}" if lines else ""
