"""The jobs of a sweep, and its table: one row per run."""

import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.comparing.tables import moments, plus_minus, print_table, write_table
from fedopt.config.compose import Composed
from fedopt.config.files import GROUPS, flat
from fedopt.errors import UserError
from fedopt.results.files import read_json
from fedopt.results.folder import RunFolder, described, numbers_of

MOST_SHOWN = 50  # rows of the table that is printed


def report(folder: Path) -> int:
    """Write sweep.csv, print what came out, and return the exit code: 1 when a run failed.

    sweep.csv has one row for each run folder in `folder`: the values of all keys that one of them was given, status, final and best
    metrics, and what the target took.
    """
    rows: list[dict[str, Any]] = []
    swept: dict[str, None] = {}
    metrics: list[str] = []
    configs: list[dict[str, Any]] = []
    for path in sorted(summary.parent for summary in folder.glob("*/summary.json")):
        summary, card = RunFolder(path).summary(), read_json(path / "run.json")
        row = {"run": path.name, "status": summary.get("status")}
        given = dict(o.lstrip("+~").split("=", 1) for o in card.get("overrides", []) if "=" in o)
        swept |= dict.fromkeys(key for key in given if key != "output_dir")
        row |= given
        row |= {name: summary.get(name) for name in ("round", "comm_rounds", "bytes", "seconds")}
        for part, name in (("final", "final"), ("best", "best"), ("to_target", "target")):
            row |= {f"{name}_{metric}": value for metric, value in numbers_of(summary.get(part)).items()}
        rows.append({**row, "error": summary.get("error")})
        configs.append(_config_of(path))
        metrics.append(_metric_of(configs[-1], card))
    for row, config in zip(
        rows, configs, strict=True
    ):  # what a run was not given, it has from an option or a tuned value
        row |= {key: config[key] for key in swept if key in config and key not in row}
    write_table(folder / "sweep.csv", pd.DataFrame(rows))
    finals = finals_of(rows, metrics, [key for key in swept if len({row.get(key) for row in rows}) > 1])
    if 0 < len(finals) <= MOST_SHOWN:
        print_table(finals, right=["runs", *(str(name) for name in finals if str(name).startswith("final"))])
    counts = Counter(row["status"] for row in rows)
    if best := _best_of(folder, rows, metrics):
        print(best)
    print(f"{len(rows)} runs: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    print(f"results: {folder / 'sweep.csv'}")
    return 1 if counts["failed"] else 0


def _best_of(folder: Path, rows: Sequence[dict[str, Any]], metrics: Sequence[str]) -> str:
    """The run with the best last value of eval.metric, where all runs name the same one; empty where there is none."""
    ended = [
        (row, row.get(f"final_{metric}"))
        for row, metric in zip(rows, metrics, strict=True)
        if row["status"] == "finished"
    ]
    found = [(row, float(value)) for row, value in ended if value is not None]
    if len(set(metrics)) != 1 or len(found) < 2:
        return ""
    for metric in described(folder / found[0][0]["run"]):
        if metric.name == metrics[0] and metric.better != "neither":
            row, value = (max if metric.better == "higher" else min)(found, key=lambda of: of[1])
            return f"best final {metric.name} of one run: {value:.5g}, {row['run']}"
    return ""


def _config_of(path: Path) -> dict[str, Any]:
    """A run's values by their dotted keys, none where its config cannot be read."""
    with suppress(UserError, OSError):
        return flat(RunFolder(path).config())
    return {}


def _metric_of(config: Mapping[str, Any], card: dict[str, Any]) -> str:
    """The run's eval.metric, else the one that its problem names first; empty where there is none."""
    named = [str(said.get("name")) for said in card.get("metrics", ())]
    return config.get("eval.metric") or next(iter(named), "")


def finals_of(rows: Sequence[dict[str, Any]], metrics: Sequence[str], swept: Sequence[str]) -> pd.DataFrame:
    """A table of texts: mean and standard deviation over the seeds of the last value of each run's metric, for each combination of
    the other keys that were swept.

    rows: as of sweep.csv; metrics: of each row.
    """
    keys = [key for key in swept if key != "seed"]
    named = sorted({metric for metric in metrics if metric})  # a run that failed at once has none
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row, metric in zip(rows, metrics if len(named) > 1 else named * len(rows), strict=bool(named)):
        found.setdefault((*(str(row.get(key, "-")) for key in keys), metric), []).append(row)
    shown = []
    for (*values, metric), of in found.items():
        finals = [float(value) for row in of if (value := row.get(f"final_{metric}")) is not None]
        counts = Counter(row["status"] for row in of)
        shown.append(
            dict(zip(keys, values, strict=True))
            | {"runs": str(len(of)), "status": ", ".join(f"{n} {status}" for status, n in counts.items())}
            | {"metric": metric, "final": plus_minus(*moments(finals)) if finals else "-"}
        )
    table = pd.DataFrame(shown)
    if len(named) == 1:
        return table.drop(columns="metric").rename(columns={"final": f"final {named[0]}"})
    return table


def differences(runs: Sequence[Composed], swept: Container[str]) -> str:
    """A line on what the runs of a sweep on the same problem differ in though nobody swept it: whether there are tuned values for
    them, the budget, and when to evaluate. Empty where they do not.

    swept: the keys and groups that the sweep gives several values.
    """
    names: dict[tuple[str, str], dict[str, dict[str, None]]] = {}  # problem, key -> value -> runs
    for run in runs:
        name = " ".join(run.chosen[group] for group in GROUPS if group in swept and group != "problem")
        values = {"tuned values": "some" if run.tuned.effective else "none"}
        for node, keys in (("budget", run.nodes["budget"]), ("eval", ("every", "at"))):
            values |= {f"{node}.{key}": json.dumps(run.nodes[node][key]) for key in keys}
        for key in values:
            names.setdefault((run.chosen["problem"], key), {}).setdefault(values[key], {})[name] = None
    lines = [
        f"{key} on {problem}: " + ", ".join(f"{value} ({', '.join(some)})" for value, some in values.items())
        for (problem, key), values in names.items()
        if len(values) > 1 and key not in swept
    ]
    remedy = ". preset=none leaves tuned values out for all" * any(line.startswith("tuned values") for line in lines)
    return f"the runs differ in what is not swept: {'. '.join(lines)}{remedy}" if lines else ""
