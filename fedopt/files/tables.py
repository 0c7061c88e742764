"""Reading CSV files that may have been sent, or be broken or missing."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.files.reading import LARGEST, REMEDY, read_as


def read_table(
    path: Path,
    columns: Sequence[str] = (),
    growing: bool = False,
    most: int = LARGEST,
    remedy: str = REMEDY,
    **how: Any,
) -> pd.DataFrame:
    """Read a CSV file whose first line has the column names.

    Args:
        path: The file.
        columns: Names that it must have.
        growing: Whether it may still be written to. An incomplete last line is then left out, and a file without a complete
            line gives an empty table.
        most: The largest number of bytes.
        remedy: What to do if it is broken, for the message.
        how: Further arguments of `pandas.read_csv`.

    Raises:
        UserError: The file cannot be read as such a table.
    """

    def parse(text: str) -> pd.DataFrame:
        text = text[: text.rfind("\n") + 1] if growing else text
        if growing and not text:
            return pd.DataFrame()
        # Of the text: pandas would take a ~ in a path for the home folder
        table = pd.read_csv(StringIO(text), low_memory=False, **how)
        if lacking := [name for name in columns if name not in table]:
            raise ValueError(f"it lacks the column {lacking[0]}")
        if not table.index.equals(pd.RangeIndex(len(table))):  # pandas takes the first cells for names of rows
            raise ValueError("its rows have more cells than its first line has names")
        return table

    return read_as(path, parse, most, remedy)
