"""The table of all evaluations: its columns, how it is kept, and the results that come with fedopt."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.bench.suite import CURRENCIES, VERSION
from fedopt.config import CONF
from fedopt.errors import UserError
from fedopt.files import write_atomically

COUNTED = [column for currency in CURRENCIES.values() for column in currency.columns]
# Columns of the table, and of metrics.csv
COUNTS = {"step": "round"} | {column.removesuffix("_examples"): column for column in COUNTED}
NAMES = (
    "bench_version",
    "commit",
    "torch",
    "cpu",
    "task",
    "task_digest",
    "method",
    "words",
    "kind",
    "metric",
    "status",
)
COLUMNS = [*NAMES, "threads", "point", "seed", *COUNTS, "value"]
TABLE, CARD = "results.parquet", "results.json"
ABOUT = {
    "bench_version": "version of the rules",
    "commit": "of fedopt",
    "torch": "version of PyTorch",
    "cpu": "processor",
    "task": "name of the task",
    "task_digest": "hash of what may not change between runs that are compared",
    "method": "name of the entry",
    "words": "values of the searched keys; empty for the defaults",
    "kind": "pool: of a search; report: on other seeds; twin: the same with equal clients",
    "metric": "name of the metric of the task",
    "status": "how the run ended; stopped: it had reached the last target",
    "threads": "of the run",
    "point": "number of the point in the pool, 0 for the defaults",
    "seed": "of the run",
    "step": "rounds of the algorithm",
    "comm_rounds": "communication rounds so far",
    "client_visits": "clients that took part so far",
    "bytes_up": "bytes from clients so far",
    "bytes_down": "bytes to clients so far",
    "grad": "gradients of one example so far",
    "hvp": "Hessian-vector products of one example so far",
    "jvp": "Jacobian-vector products of one example so far",
    "value": "of the metric, in single precision with 12 bits of the fraction",
}


def rounded(values: pd.Series) -> np.ndarray:
    """Return values in single precision with 12 bits of the fraction, which compress well. What is not finite stays."""
    exact = values.to_numpy(np.float32)
    bits = ((exact.view(np.uint32) + np.uint32(1 << 10)) & np.uint32(0xFFFFF800)).view(np.float32)
    return np.where(np.isfinite(exact), bits, exact)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table of runs as Parquet."""
    kept = table[COLUMNS].astype(dict.fromkeys(NAMES, "category"))
    kept = kept.sort_values(["task", "method", "kind", "point", "seed", "step"], ignore_index=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, kept.to_parquet(None, compression="zstd", index=False))


def read_table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a table that `write_table` wrote. Raises UserError if it is damaged."""
    try:
        return pd.read_parquet(path, columns=columns)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: is damaged ({str(error).splitlines()[0]}); delete it and repeat the command"
        ) from None


def write_release(folder: Path, table: pd.DataFrame) -> None:
    """Write the table and its card: the version, the columns, and the digests of the tasks."""
    write_table(folder / TABLE, table)
    digests = table.drop_duplicates("task").set_index("task")["task_digest"].to_dict()
    card: dict[str, Any] = {
        "bench_version": VERSION,
        "tag": f"bench-{VERSION}-registered",
        "rows": len(table),
        "columns": ABOUT,
        "tasks": digests,
    }
    write_atomically(folder / CARD, (json.dumps(card, indent=2) + "\n").encode())


def released(folder: Path) -> pd.DataFrame:
    """Return the table in a folder; without one there, the table that comes with fedopt; without that, an empty one."""
    for place in (folder, CONF.parent / "docs" / "bench" / VERSION, CONF.parent / "bench"):
        if (place / TABLE).exists():
            return read_table(place / TABLE).astype(dict.fromkeys(NAMES, object))
    return pd.DataFrame(columns=COLUMNS)


def with_newer(table: pd.DataFrame, newer: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which the rows of a task and a method are those of the newer one, where it has some."""
    if not len(newer) or not len(table):
        return newer if len(newer) else table
    pairs = [pd.MultiIndex.from_frame(rows[["task", "method"]]) for rows in (table, newer)]
    return pd.concat([table[~pairs[0].isin(pairs[1])], newer], ignore_index=True)


def benchopt(table: pd.DataFrame, path: Path) -> None:
    """Write a table in the columns of benchopt's results. Its time is missing: no score is about seconds."""
    renamed = pd.DataFrame(
        {"objective_name": f"fedopt bench {VERSION}", "dataset_name": table["task"], "data_name": table["task"]}
    )
    renamed["solver_name"], renamed["idx_rep"], renamed["stop_val"] = table["method"], table["seed"], table["step"]
    renamed["time"], renamed["objective_value"], renamed["sampling_strategy"] = np.nan, table["value"], "callback"
    spent = [*COUNTS][1:]
    renamed = renamed.assign(**{f"objective_{name}": table[name] for name in spent})
    renamed = renamed.assign(**{f"p_solver_{name}": table[name] for name in ("point", "words", "kind")})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, renamed.to_parquet(None, compression="zstd", index=False))
