"""The table of all evaluations of the benchmark: its columns, its file, and the results that come with fedopt."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from fedopt.bench.suite import BITS, COUNTS, NAME
from fedopt.config import CONF
from fedopt.console import note
from fedopt.errors import UserError, first_line
from fedopt.files import LARGEST, read_bytes, write_atomically

ABOUT = ("bench_version", "commit", "torch", "cpu", "task", "task_digest")  # texts, equal for all runs of an entry
NAMES = (*ABOUT, "method", "words", "kind", "metric", "status")
COLUMNS = [*NAMES, "threads", "point", "seed", *COUNTS, "value"]
TABLE = "results.parquet"
TEXT = pa.dictionary(pa.int32(), pa.string())  # a category in pandas
TYPES = {**dict.fromkeys(COLUMNS, pa.int64()), **dict.fromkeys(NAMES, TEXT), "value": pa.float32()}
MOST_ROWS = 20_000_000  # of a table
ROWS = 100_000  # of a group, whose different texts fit into one dictionary


def rounded(values: pd.Series) -> np.ndarray:
    """Round values to single precision with `BITS` bits of the fraction, which compresses well. inf and nan are unchanged."""
    exact, dropped = values.to_numpy(np.float32), 23 - BITS
    kept = (exact.view(np.uint32) + np.uint32(1 << dropped - 1)) & np.uint32(2**32 - (1 << dropped))
    return np.where(np.isfinite(exact), kept.view(np.float32), exact)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table of runs as Parquet, with the encodings that need the fewest bytes: about two for a row."""
    kept = table[COLUMNS].astype(dict.fromkeys(NAMES, "category"))
    kept = kept.sort_values(["task", "method", "kind", "point", "seed", "step"], ignore_index=True)
    whole = [name for name in COLUMNS if TYPES[name] == pa.int64()]
    kept[whole] = kept[whole].apply(pd.to_numeric, downcast="integer")
    path.parent.mkdir(parents=True, exist_ok=True)
    small: dict[str, Any] = {"compression": "zstd", "compression_level": 15, "row_group_size": ROWS}
    small |= {"use_dictionary": [*NAMES], "use_byte_stream_split": ["value"]}
    write_atomically(path, kept.astype({"words": str}).to_parquet(None, index=False, **small))


def read_table(path: Path, columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Read a table that `write_table` has written. It may come from somebody else.

    Raises:
        UserError: The table is damaged or too large, or its columns have other types.
    """
    try:
        file = ParquetFile(BytesIO(read_bytes(path, LARGEST)), read_dictionary=NAMES)
        size = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
        if file.metadata.num_rows > MOST_ROWS or size > LARGEST:
            raise ValueError(f"it has more than {MOST_ROWS:,} rows, or {LARGEST:,} bytes unpacked")
        schema = pa.schema([pa.field(name, TYPES[name]) for name in columns])
        table: pd.DataFrame = file.read([*columns]).select([*columns]).cast(schema).to_pandas(ignore_metadata=True)
        if empty := [name for name in columns if TYPES[name] == pa.int64() and table[name].hasnans]:
            raise ValueError(f"its column {empty[0]} has empty cells")
        if odd := [name for name in table.get("method", pd.Series()).unique() if not NAME.fullmatch(str(name))]:
            raise ValueError(f"its column method has {odd[0]!r:.60}")
        return table
    except (pa.ArrowException, OSError, ValueError, LookupError, UserError) as error:
        why = first_line(error).removeprefix(f"{path}: ")
        raise UserError(f"{path}: cannot be read as a table of runs ({why}); restore or delete it") from None


def released(folder: Path) -> pd.DataFrame:
    """Return the table in a folder. If there is none, print a note and return the table that comes with fedopt.

    Raises:
        UserError: The table cannot be read.
    """
    kept = sorted((CONF.parent / "docs" / "bench").glob(f"*/{TABLE}"))[-1:]
    path = next((path for path in (folder / TABLE, *kept, CONF.parent / "bench" / TABLE) if path.is_file()), None)
    if path is None:
        return pd.DataFrame(columns=COLUMNS)
    if path.parent != folder:
        note(f"{folder}: has no {TABLE}; the results that come with fedopt are ranked")
    return read_table(path)


def with_newer(table: pd.DataFrame, newer: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the rows of a newer table for each task and method that the newer one has.

    Rows of another version of the benchmark are left out. If the newer table is empty, the other one is returned.
    """
    same = table[table["bench_version"].isin(newer["bench_version"].unique())]
    if newer.empty or same.empty:
        return table if newer.empty else newer
    pairs = [pd.MultiIndex.from_frame(rows[["task", "method"]]) for rows in (same, newer)]
    return pd.concat([same[~pairs[0].isin(pairs[1])], newer], ignore_index=True)
