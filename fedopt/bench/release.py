"""The table of all evaluations: its columns, how it is kept, and the results that come with fedopt."""

import json
import os
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyarrow import ArrowException
from pyarrow.parquet import ParquetFile

from fedopt.bench.suite import CURRENCIES, VERSION
from fedopt.config import CONF
from fedopt.console import note
from fedopt.errors import UserError, first_line
from fedopt.files import LARGEST, read_bytes, write_atomically

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
MOST_ROWS = 5_000_000  # of a table; the results that come with fedopt have 0.8 million
WHOLE = "u?int(8|16|32|64)"
TYPES = {**dict.fromkeys(NAMES, ".*string.*"), "value": "float|double"}  # Arrow's, of columns that are no counts
FREE = dict.fromkeys(("commit", "torch", "cpu", "words"), ".{0,2000}")
TEXTS = {**dict.fromkeys(NAMES, r"\w[\w .+=,-]{0,99}"), **FREE}
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


def read_table(path: Path, columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Read a table that `write_table` wrote, or somebody has sent.

    Raises:
        UserError: It is damaged or too large, or its columns have other types or texts.
    """
    try:
        file = ParquetFile(BytesIO(read_bytes(path, LARGEST)))
        size = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
        if file.metadata.num_rows > MOST_ROWS or size > LARGEST:
            raise ValueError(f"it has more than {MOST_ROWS:,} rows, or {LARGEST:,} bytes unpacked")
        kinds = {name: str(file.schema_arrow.field(name).type) for name in columns}
        if wrong := [name for name in columns if not re.fullmatch(TYPES.get(name, WHOLE), kinds[name])]:
            raise ValueError(f"its column {wrong[0]} has the type {kinds[wrong[0]]}")
        table: pd.DataFrame = file.read([*columns]).to_pandas(ignore_metadata=True)
        for name in {*columns} - {"value"}:
            some = table[name].unique() if name in NAMES else ["None"] * table[name].hasnans
            if odd := [text for text in some if not re.fullmatch(TEXTS.get(name, r"\d+"), str(text))]:
                raise ValueError(f"its column {name} has {odd[0]!r:.60}")
        return table
    except (ArrowException, OSError, ValueError, LookupError, UserError) as error:
        why = first_line(error).removeprefix(f"{path}: ")
        raise UserError(
            f"{path}: cannot be read as a table of runs ({why}); put a good copy there, or delete it"
        ) from None


def write_release(folder: Path, table: pd.DataFrame) -> None:
    """Write the table and its card: the version, the columns, and the digests of the tasks."""
    write_table(folder / TABLE, table)
    digests = table.drop_duplicates("task").set_index("task")["task_digest"].to_dict()
    card: dict[str, Any] = {
        "bench_version": VERSION,
        "tag": f"bench-{VERSION}-registered",
        "rows": len(table),
        "columns": {name: ABOUT[name] for name in COLUMNS},
        "tasks": digests,
    }
    write_atomically(folder / CARD, (json.dumps(card, indent=2) + "\n").encode())


def released(folder: Path, results: Path | None = None) -> pd.DataFrame:
    """Return the table in a folder; without one there, the table that comes with fedopt; without that, an empty one.

    Args:
        folder: The folder. A note says so if it has no table.
        results: Another folder, which must have one and is read in its place.

    Raises:
        UserError: The table cannot be read, or ``results`` has none.
    """
    for place in (results or folder, CONF.parent / "docs" / "bench" / VERSION, CONF.parent / "bench"):
        if os.path.lexists(place / TABLE):
            if place not in (results, folder):
                note(f"{folder}: has no {TABLE}, so the results that come with fedopt are ranked")
            return read_table(place / TABLE).astype(dict.fromkeys(NAMES, object))
        if results is not None:
            raise UserError(
                f"--results {results}: has no {TABLE}, which fedopt-bench run writes; give its folder, or leave out --results"
            )
    return pd.DataFrame(columns=COLUMNS)


def with_newer(table: pd.DataFrame, newer: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which the rows of a task and a method are those of the newer one, where it has some."""
    if not len(newer) or not len(table):
        return newer if len(newer) else table
    pairs = [pd.MultiIndex.from_frame(rows[["task", "method"]]) for rows in (table, newer)]
    return pd.concat([table[~pairs[0].isin(pairs[1])], newer], ignore_index=True)
