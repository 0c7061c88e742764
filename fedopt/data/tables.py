"""Tables of features with a column that is the class: CSV files."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from fedopt.data.datasets import (
    CLIENTS,
    KEYS,
    VALIDATES,
    LabelledData,
    Pixels,
    checked,
    divided,
    expanded,
    refuse_larger,
)
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
        named = {"label": self.label, "client": self.client, "split": self.split}
        roles = {key: column for key, column in named.items() if column is not None}
        features = self.features or [column for column in table.columns if column not in roles.values()]
        for key, column in [*roles.items(), *(("features", column) for column in features)]:
            if column not in table.columns:
                names = list(map(str, table.columns))
                if len(names) == 1 and ";" in names[0]:
                    raise UserError(f"{path}: has semicolons between its columns; save it with commas")
                more = f", ... ({len(names)} in all)" * (len(names) > SHOWN)
                has = f"it has {', '.join(names[:SHOWN])}{more}"
                raise UserError(f"dataset.{key}={column}: {path} has no such column{nearest(column, names)}; {has}")
            if (empty := table[column].isna()).any():
                raise UserError(
                    f"{path}: row {empty.argmax() + 1} below the names has nothing, or NA, in the column {column}"
                    f"{_others(empty.sum())}; leave such rows out, or fill them in"
                )
        if not features:
            raise UserError(f"{path}: has no column besides {', '.join(roles.values())}")
        used = [*roles.values(), *features]
        if twice := [column for column in used if used.count(column) > 1]:
            raise UserError(f"dataset: {twice[0]} is named twice; a column is the label, client, split or one feature")
        x = _numbers(table[features], path)
        for key in ("label", "client"):
            if key in roles:
                _refuse_alike(table[roles[key]], path)
        classes, y = np.unique(table[self.label].to_numpy(), return_inverse=True)
        if classes.dtype.kind == "f" and (classes % 1 != 0).any():
            raise UserError(
                f"dataset.label={self.label}: has fractions such as {classes[classes % 1 != 0][0]}, and must be classes"
            )
        rows = divided(len(y), self.test, self.split_seed, path) if self.split is None else self._given(table, path)
        values = [v[of] for of in rows for v in (x, y)]
        arrays = dict(zip(KEYS, values, strict=True))
        if self.client is not None:
            owners = table[self.client].to_numpy()
            owners = owners if owners.dtype.kind in "iu" else owners.astype(str)
            arrays |= dict(zip(CLIENTS, (owners[of] for of in rows), strict=True))
        if self.split is not None and (validates := table[self.split].to_numpy()[rows[0]] == "val").any():
            arrays[VALIDATES] = validates
        data = replace(checked(arrays, path), class_names=tuple(map(str, classes)), feature_names=tuple(features))
        return replace(data, pixels=self.pixels)

    def _given(self, table: pd.DataFrame, path: Path) -> tuple[np.ndarray, np.ndarray]:
        of = table[self.split].astype(str)
        if other := sorted({*of} - {"train", "val", "test"}):
            raise UserError(f"dataset.split={self.split}: says {other[0]} in {path}; it must say train, val or test")
        return np.flatnonzero(of != "test"), np.flatnonzero(of == "test")


def _numbers(table: pd.DataFrame, path: Path) -> np.ndarray:
    """Features, [n, features]. Raises UserError for a column of texts, and for a cell that is no finite number."""
    texts, numbers = [], []
    for column in table.columns:
        values = pd.to_numeric(table[column], errors="coerce")
        if (wrong := ~np.isfinite(values.to_numpy(np.float64))).all():
            texts.append(f"{column} (such as {table[column].iloc[0]})")
        elif wrong.any():
            row = wrong.argmax()
            raise UserError(
                f"{path}: row {row + 1} below the names says {table[column].iloc[row]} in the column {column}, which is no finite "
                f"number{_others(wrong.sum())}"
            )
        numbers.append(values.to_numpy(np.float64))
    if texts:
        raise UserError(
            f"{path}: {', '.join(texts)}: not numbers, so not features; decimals have a point; dataset.client=COLUMN is a column "
            "that says whose each row is, dataset.split=COLUMN which are for training, dataset.features=[...] names the features"
        )
    return np.stack(numbers, axis=1)


def _others(count: int) -> str:
    return f" (and {count - 1} more rows)" if count > 1 else ""


def _refuse_alike(column: pd.Series, path: Path) -> None:
    """Raises UserError for names that differ in blanks at their ends, or in capital letters, alone."""
    names: dict[str, str] = {}
    for name in column.astype(str).unique():
        if (other := names.setdefault(name.strip().casefold(), name)) != name:
            raise UserError(
                f"{path}: the column {column.name} says {other!r} and {name!r}, which would be two; write them alike"
            )


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; it should be a CSV with a line of column names")
    refuse_larger(path, path.stat().st_size)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = pd.read_csv(file)
            file.seek(0)
            names = pd.read_csv(file, header=None, nrows=1, dtype=str).iloc[0]
    except (OSError, ValueError) as error:  # pandas' errors are ValueErrors
        if fields := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            raise UserError(f"{path}: line {fields[2]} has {fields[3]} fields, and {fields[1]} are named") from None
        raise UserError(f"{path}: is no CSV in UTF-8 ({first_line(error)}); save it so, with commas") from None
    if table.empty:
        raise UserError(f"{path}: has no rows")
    if names.isna().any():
        raise UserError(
            f"{path}: column {names.isna().argmax() + 1} has no name; give it one, or leave it out (of pandas: to_csv(index=False))"
        )
    if names.duplicated().any():
        raise UserError(f"{path}: two columns have the name {names[names.duplicated()].iloc[0]}")
    return table
