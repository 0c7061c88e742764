"""The table of a sweep, one row per run."""

import json
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from fedopt.analysis.groups import repeats
from fedopt.analysis.stats import moments
from fedopt.analysis.tables import mean_text, print_table, write_table
from fedopt.config import GROUPS, Composed, flat
from fedopt.console import counted, tell
from fedopt.errors import UserError
from fedopt.metrics import COSTS
from fedopt.results import RunFolder, numbers_of

MOST_SHOWN = 50  # the largest number of rows that are printed


def report(folder: Path, refused: Mapping[Path, str] = MappingProxyType({})) -> int:
    """Write sweep.csv, the table of a sweep, print a summary, and return the exit code: 1 if a run failed, else 0.

    sweep.csv has one row per run, with the overridden keys, the status, the costs, the final and best metrics, and the cost
    to reach the target.

    Args:
        folder: The folder of the sweep.
        refused: run folder -> why its run does not belong to this sweep. Such a run has a row with the status refused and
            without results.
    """
    rows, lasts = list[dict[str, Any]](), list[tuple[str, float]]()
    runs = [RunFolder(p.parent) for p in sorted(folder.glob("*/summary.json")) if not p.parent.is_symlink()]
    overrides = [[o.lstrip("+~").split("=", 1) for o in run.card().get("overrides", []) if "=" in o] for run in runs]
    unswept = ("output_dir", "resume")  # resume may differ for a run that was killed before it began
    swept = dict.fromkeys([*(key for key, _ in chain(*overrides) if key not in unswept), "data"])
    for run, pairs in zip(runs, overrides, strict=True):
        summary, config = run.summary(), dict[str, Any]()
        if why := refused.get(run.path):
            summary = {"status": "refused", "error": why}
        with suppress(UserError):  # a config that cannot be read
            config = flat(run.config())
        row = {"run": run.path.name, "status": summary.get("status"), **{k: v for k, v in pairs if k != "resume"}}
        row |= {"data": (run.card().get("data") or "")[:8]} | {name: summary.get(name) for name in COSTS}
        for key, name in (("final", "final"), ("best", "best"), ("to_target", "target")):
            row |= {f"{name}_{metric}": value for metric, value in numbers_of(summary.get(key)).items()}
        row["error"] = summary.get("error")
        values = {key: config[key] for key in swept if key in config and key not in row}
        row |= {key: str(value) if isinstance(value, list | dict) else value for key, value in values.items()}
        rows.append(row)
        lasts.append(_last(run, config))
    table = pd.DataFrame(rows)
    if rows and table.loc[table["status"] != "refused", "data"].nunique() < 2:
        table, swept = table.drop(columns="data"), {key: None for key in swept if key != "data"}
    write_table(folder / "sweep.csv", table)
    finals = finals_of(table, lasts, swept)
    if 0 < len(finals) <= MOST_SHOWN:
        print_table(finals, right=["runs", *(str(name) for name in finals if str(name).startswith("final"))])
    counts = Counter(row["status"] for row in rows)
    tell(f"{counted(len(rows), 'run')}: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    tell(f"results: {folder / 'sweep.csv'}")
    return 1 if counts["failed"] else 0


def _last(run: RunFolder, config: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name and the last value of a run's metric: the metric in eval.metric, or else the problem's first metric.

    The result is ('', nan) if the run has no metric.

    Args:
        run: The run's folder.
        config: The run's flat config: dotted key -> value.
    """
    metric = str(config.get("eval.metric") or next((metric.name for metric in run.card().get("metrics", ())), ""))
    try:
        return metric, run.last(metric)
    except UserError:  # rows that cannot be read
        return metric, math.nan


def finals_of(table: pd.DataFrame, lasts: Sequence[tuple[str, float]], swept: Iterable[str]) -> pd.DataFrame:
    """Return the summary of a sweep as a table of texts: the mean and standard deviation of the last values over seeds.

    The table has one row per combination of the swept keys other than seeds (seeds of data splits are averaged too). If a
    run has no last value because it failed or diverged, its row has no mean. Refused runs are left out of the
    mean, but they count in the columns `runs` and `status`. If all runs have the same metric, the heading names it, otherwise
    a column does. Statuses are shown unless all runs have finished. The table is empty if no run has a metric.

    Args:
        table: The rows of sweep.csv.
        lasts: The metric and its last value of each row; ('', nan) for a run that failed at the start.
        swept: The keys that the command sets.
    """
    names = sorted({metric for metric, _ in lasts} - {""})
    if not names:
        return pd.DataFrame()
    cells = table.astype(object).where(table.notna(), "-").astype(str)
    keys = [key for key in swept if cells[key].nunique() > 1]
    if any(repeats(key) and key != "seed" for key in keys):  # data splits, each of which gives other data
        keys = [key for key in keys if key != "data"]
    keys = [key for key in keys if not repeats(key)]
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, options in enumerate(cells[keys].to_numpy().tolist()):
        groups.setdefault((*options, names[0] if len(names) == 1 else lasts[i][0]), []).append(i)
    shown = []
    for (*values, metric), its in groups.items():
        counts = Counter(cells["status"].iloc[its])
        mean = mean_text(*moments([lasts[i][1] for i in its if cells["status"].iloc[i] != "refused"]))
        row = dict(zip(keys, values, strict=True)) | {"runs": str(len(its))}
        row["status"] = ", ".join(f"{n} {status}" for status, n in counts.items())
        shown.append(row | ({f"final {metric}": mean} if len(names) == 1 else {"metric": metric, "final": mean}))
    finals = pd.DataFrame(shown)
    return finals.drop(columns="status") if {*cells["status"]} == {"finished"} else finals


def differences(runs: Sequence[Composed], swept: Container[str]) -> str:
    """Return a warning about keys that differ between runs on the same problem although they are not swept; '' if there are
    none.

    Four things are compared: whether tuned values are used, the batch size, the budget, and the times of evaluation.

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
        f"{key} on {problem}: " + ", ".join(f"{value} ({', '.join(runs)})" for value, runs in values.items())
        for (problem, key), values in names.items()
        if len(values) > 1 and key not in swept
    ]
    remedy = ". preset=none disables all tuned values" if any(key.startswith("tuned values") for key in lines) else ""
    return f"the runs also differ in what is not swept: {'. '.join(lines)}{remedy}" if lines else ""
