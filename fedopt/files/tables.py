"""Read CSV files that may be missing, broken or from somebody else."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.files.reading import LARGEST, REMEDY, read_as

# pandas before 3.1 rounds the last digit of some numbers unless asked
OLD = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if OLD else {}


def read_table(
    path: Path,
    columns: Sequence[str] = (),
    growing: bool = False,
    most: int = LARGEST,
    remedy: str = REMEDY,
    **how: Any,
) -> pd.DataFrame:
    """Read a CSV file whose first line contains the column names.

    Args:
        path: The file.
        columns: Names of columns that the file must have.
        growing: Whether another process may still be writing the file. An incomplete last line is then left out, and a file
            without a complete line gives an empty table.
        most: The largest number of bytes.
        remedy: What to do if the file is broken, for the message.
        how: Additional arguments of `pandas.read_csv`.

    Raises:
        UserError: The file cannot be read as such a table.
    """

    def parse(text: str) -> pd.DataFrame:
        text = text[: text.rfind("\n") + 1] if growing else text
        if growing and not text:
            return pd.DataFrame()
        # pandas reads the text and not the path, in which it would replace a ~ by the home folder
        table = pd.read_csv(StringIO(text), low_memory=False, **(EXACT | how))
        if lacking := [name for name in columns if name not in table]:
            raise ValueError(f"the column {lacking[0]} is missing")
        if not table.index.equals(pd.RangeIndex(len(table))):  # pandas has taken the first cells for names of rows
            raise ValueError("its rows have more cells than the first line has names")
        return table

    return read_as(path, parse, most, remedy)
