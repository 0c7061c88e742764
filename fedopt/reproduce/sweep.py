"""The jobs of a sweep, and its table: one row per run."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.command import say
from fedopt.config import Asked
from fedopt.errors import UserError
from fedopt.interrupts import ctrl_c_kept, ending_at_once
from fedopt.metrics import Metric
from fedopt.reproduce.tables import write_table
from fedopt.results.folder import ENDED, RunFolder, numbers_of, read_json
from fedopt.results.identity import identity, refuse_other


def job_of_many(resolved: Callable[[], dict[str, Any]], folder: RunFolder, asked: Asked, jobs: int) -> str:
    """Skips what is done and resumes what was interrupted. Returns the status; a failure is recorded in the folder.

    resolved: gives the config, and raises UserError where it is wrong, which is a failure of this job alone.
    """
    with ending_at_once():
        from fedopt import loop

    before = folder.status()
    try:
        with ctrl_c_kept():
            config = {**resolved(), "resume": folder.used}
        if before in ENDED:
            refuse_other(folder.path, identity(folder.config()), identity(config))
            return before
        return loop.execute(config, lambda: folder.path, asked, jobs)[0]
    except Exception as error:
        if before in ENDED or (before is not None and isinstance(error, UserError)):  # what is there stays as it is
            say(str(error))
            return "refused"
        loop.record_failure(folder, error, asked)
        return "failed"


def optimised(folder: RunFolder, wanted: str | None) -> float | None:
    """The last value of a metric, of the problem's first one where none is wanted: what Hydra's sweepers optimise.

    The worst there is for a run that diverged, None for one that has no value.
    """
    summary = folder.summary()
    described = [Metric(**said) for said in read_json(folder.path / "run.json").get("metrics", ())]
    metric = next((m for m in described if wanted in (m.name, None)), None)
    if summary.get("status") not in ENDED or metric is None:
        return None
    return metric.worst if summary["status"] == "diverged" else numbers_of(summary.get("final")).get(metric.name)


def report(folder: Path) -> int:
    """Write sweep.csv, print what came out, and return the exit code: 1 when a run failed.

    sweep.csv has one row for each run folder in `folder`: its overrides, status, final and best metrics, and what the target took.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted(summary.parent for summary in folder.glob("*/summary.json")):
        summary, card = RunFolder(path).summary(), read_json(path / "run.json")
        row = {"run": path.name, "status": summary.get("status")}
        row |= dict(o.lstrip("+~").split("=", 1) for o in card.get("overrides", []) if "=" in o)
        row |= {name: summary.get(name) for name in ("round", "comm_rounds", "bytes", "seconds")}
        for part, name in (("final", "final"), ("best", "best"), ("to_target", "target")):
            row |= {f"{name}_{metric}": value for metric, value in numbers_of(summary.get(part)).items()}
        rows.append({**row, "error": summary.get("error")})
    write_table(folder / "sweep.csv", pd.DataFrame(rows))
    counts = Counter(row["status"] for row in rows)
    print(f"{len(rows)} runs: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    print(f"results: {folder / 'sweep.csv'}")
    return 1 if counts["failed"] else 0
