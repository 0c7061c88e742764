"""Tables of features with a column that is the class: CSV files."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from fedopt.data import datasets
from fedopt.data.datasets import CLIENTS, KEYS, VALIDATES, LabelledData, Pixels, divided, expanded
from fedopt.errors import UserError, first_line, nearest

_config = ConfigDict(extra="forbid")
Fraction = Annotated[float, Field(gt=0, lt=1)]
SHOWN = 8  # columns in a message


@dataclass(frozen=True, config=_config)
class Csv:
    """A CSV file with a line of column names. Every column but those that are named here is a feature, and must be numbers.

    label: the column of the classes, numbered in the order of their names or numbers. features: the columns that are features,
    None for all others; a column has one role. client: the column that says whose each row is, for `ByColumn`.
    split: the column that says `train`, `val` or `test`; None: the fraction `test` of the rows, at random by `split_seed`, is for
        testing.
    """

    path: str
    label: str
    features: Annotated[list[str], Field(min_length=1)] | None = None
    client: str | None = None
    split: str | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        path = expanded(self.path)
        table = _read(path)
        keys = {"label": self.label, "client": self.client, "split": self.split}
        roles = {key: column for key, column in keys.items() if column is not None}
        features = self.features or [column for column in table.columns if column not in roles.values()]
        if not features:
            raise UserError(f"{path}: has no column besides {', '.join(roles.values())}")
        used = [*roles.values(), *features]
        for key, column in [*roles.items(), *(("features", column) for column in features)]:
            if column not in table.columns:
                names = list(map(str, table.columns))
                has = ", ".join(names[:SHOWN]) + f", ... ({len(names)} in all)" * (len(names) > SHOWN)
                lacks = f"no such column in {path}{nearest(column, names)}"
                raise UserError(f"dataset.{key}={column}: {lacks}; it has {has}")
            if used.count(column) > 1:
                raise UserError(f"dataset.{key}: the column {column} is named twice, and a column has one role")
        _refuse_cells(table[used], table[used].isna(), path, "which is missing; leave such rows out, or fill them in")
        x = table[features].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
        why = "which is no finite number; dataset.features=[...] names the features, dataset.client the clients"
        _refuse_cells(table[features], ~np.isfinite(x), path, why)
        for column in filter(None, (self.label, self.client)):
            _refuse_alike(table[column], path)
        classes, y = np.unique(table[self.label].to_numpy(), return_inverse=True)
        if classes.dtype.kind == "f" and (fractions := classes[classes % 1 != 0]).size:
            raise UserError(f"dataset.label={self.label}: has fractions such as {fractions[0]}, and must be classes")
        rows = divided(len(y), self.test, self.split_seed, path) if self.split is None else self._given(table, path)
        arrays = dict(zip(KEYS, (array[part] for part in rows for array in (x, y)), strict=True))
        if self.client is not None:
            owners = table[self.client].to_numpy()
            owners = owners if owners.dtype.kind in "iu" else owners.astype(str)
            arrays |= dict(zip(CLIENTS, (owners[part] for part in rows), strict=True))
        if self.split is not None and (validates := table[self.split].to_numpy()[rows[0]] == "val").any():
            arrays[VALIDATES] = validates
        data = replace(datasets.checked(arrays, path), pixels=self.pixels)
        return replace(data, class_names=tuple(map(str, classes)), feature_names=tuple(features))

    def _given(self, table: pd.DataFrame, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """The rows to train on, and those to test on, as the column `split` says."""
        split = table[self.split].astype(str)
        if other := sorted({*split} - {"train", "val", "test"}):
            raise UserError(f"dataset.split={self.split}: says {other[0]} in {path}; it must say train, val or test")
        return np.flatnonzero(split != "test"), np.flatnonzero(split == "test")


def _refuse_cells(table: pd.DataFrame, wrong: np.ndarray | pd.DataFrame, path: Path, why: str) -> None:
    """Raises UserError, which names the first of the cells that are wrong."""
    if len(cells := np.argwhere(np.asarray(wrong))):
        (row, column), others = cells[0], f" (and {len(cells) - 1} more cells)" * (len(cells) > 1)
        cell = f"{table.iloc[row, column]} in the column {table.columns[column]}"
        raise UserError(f"{path}: row {row + 1} below the names says {cell}{others}, {why}")


def _refuse_alike(column: pd.Series, path: Path) -> None:
    """Raises UserError for names that differ only in blanks at their ends, or in capital letters."""
    names: dict[str, str] = {}
    for name in column.astype(str).unique():
        if (other := names.setdefault(name.strip().casefold(), name)) != name:
            raise UserError(f"{path}: the column {column.name} says {other!r} and {name!r}; write them alike")


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; it should be a CSV with a line of column names")
    datasets.refuse_larger(path, path.stat().st_size)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = pd.read_csv(file)
            file.seek(0)
            names = pd.read_csv(file, header=None, nrows=1, dtype=str).iloc[0]  # pandas renames those that stand twice
    except (OSError, ValueError) as error:  # pandas' errors are ValueErrors
        raise UserError(f"{path}: is no CSV in UTF-8 with commas ({first_line(error)})") from None
    if table.empty:
        raise UserError(f"{path}: has no rows")
    if (wrong := names.isna() | names.duplicated()).any():
        number = wrong.argmax() + 1
        raise UserError(f"{path}: column {number} has no name, or another's; of pandas: to_csv(index=False)")
    return table
