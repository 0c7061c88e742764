"""Data sets in CSV files: one column contains the class or the target, others contain the features."""

import csv
import gzip
import re
import zlib
from dataclasses import field, replace
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import VALIDATES, checked, npz_arrays, refuse_larger, split_at_random
from fedopt.data.columns import column_notes, numbers, refuse_cells, refuse_empty
from fedopt.data.labelled import LabelledData, Pixels
from fedopt.data.names import clean_name, identifiers, numbered
from fedopt.errors import UserError, first_line, joined, nearest
from fedopt.files import decoded, expanded, read_bytes

_config = ConfigDict(extra="forbid")
Fraction = Annotated[float, Field(gt=0, lt=1)]
SHOWN = 8  # columns shown in a message


@dataclass(frozen=True, config=_config)
class Csv:
    """A table in a text file, optionally compressed (.gz), with the column names in its first line.

    Features must be numbers. The notes of the data list what was guessed, such as the separator, and suspicious columns.

    Args:
        path: The file.
        label: Column of the class. Classes are numbered in the order of their names or numbers.
        real: Whether this column contains real numbers, the targets of a regression, instead of classes.
        features: Columns used as features. None: all columns except label, client and split.
        drop: Columns that are not used as features. None: none.
        missing: What happens if feature cells are empty. ``refuse``: an error is raised. ``mean``: they are filled with the
            column's mean (`LabelledData.filled`).
        client: Column that names the client of each row, for `ByColumn`.
        split: Column with the values ``train``, ``val`` or ``test``. None: a random fraction of the rows is used for
            testing.
        test: Fraction of the rows used for testing if ``split`` is None.
        split_seed: Seed of the random choice of test rows.
        stratify: Whether the fraction ``test`` is taken from each class of each client, up to rounding. Regression targets
            are not stratified.
        pixels: How inputs are scaled for models (see `LabelledData`).
        separator: Character between cells. None: a tab in a .tsv file, otherwise a comma. If the first line does not
            contain that character: the first of semicolon, tab and vertical bar that it does contain.
        decimal: The decimal mark. None: a comma if cells are separated by semicolons and the file contains numbers such as 1,5
            but none such as 1.5 (a date such as 12.05.2024 counts as one of the latter); otherwise a point.
        encoding: Encoding of the text. None: UTF-8, or Latin-1 if the text is not valid UTF-8.
    """

    path: str
    label: str
    real: bool = False
    features: Annotated[list[str], Field(min_length=1)] | None = None
    client: str | None = None
    split: str | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None
    drop: list[str] | None = field(default=None, kw_only=True, metadata={"before": None})
    missing: Literal["refuse", "mean"] = field(default="refuse", kw_only=True, metadata={"before": "refuse"})
    stratify: bool = field(default=False, kw_only=True, metadata={"before": False})

    def load(self) -> LabelledData:
        """Read the file and return the data.

        Raises:
            UserError: The file is not a table with column names, a column is missing, or a cell is not allowed.
        """
        path = expanded(self.path)
        table, notes = self._read(path)
        features = self._features(table, path)
        of_roles = table[list(self._roles.values())]
        refuse_cells(of_roles, of_roles.isna(), path, "is empty; remove these rows, or fill in values")
        columns = {"x": numbers(table[features], path)}
        if self.missing == "refuse":
            refuse_empty(columns["x"], features, path)
        classes = tuple[str, ...]()
        if self.real:
            target = table[[self.label]].apply(pd.to_numeric, errors="coerce")
            remedy = "is not a finite number; correct the cell, or leave out dataset.real=true"
            refuse_cells(table[[self.label]], ~np.isfinite(target), path, remedy)
            columns["y"] = target.to_numpy(np.float64)[:, 0]
        else:
            columns["y"], classes = numbered(table[self.label].to_numpy(), f"{path}: the column {self.label}")
        if self.client is not None:
            columns["client"] = identifiers(table[self.client].to_numpy(), f"{path}: the column {self.client}")
        if self.split is not None:
            split = table[self.split].map(clean_name).to_numpy()
            if other := sorted({*split} - {"train", "val", "test"}):
                raise UserError(f"dataset.split={self.split}: this column has {other[0]}; use only train, val and test")
            rows = np.flatnonzero(split != "test"), np.flatnonzero(split == "test")
        else:
            strata = [columns[key] for key in ("client", "y") if key in columns and not (key == "y" and self.real)]
            rows = split_at_random(len(table), self.test, self.split_seed, path, strata if self.stratify else ())
        arrays = npz_arrays(columns, rows)
        if self.split is not None and (validates := split[rows[0]] == "val").any():
            arrays[VALIDATES] = validates
        data = checked(arrays, path, class_names=classes, allow_nan=self.missing == "mean")
        data = replace(data, feature_names=tuple(features))
        notes += [*data.notes, *column_notes(data, self.label)]
        fills = dict[str, np.ndarray]() if self.missing == "mean" else None
        return replace(data, pixels=self.pixels, fills=fills, notes=tuple(notes))

    @property
    def _roles(self) -> dict[str, str]:
        """The columns that are not features: ``label``, ``client`` and ``split`` -> column name; unset ones are left out."""
        columns = {"label": self.label, "client": self.client, "split": self.split}
        return {key: column for key, column in columns.items() if column is not None}

    def _features(self, table: pd.DataFrame, path: Path) -> list[str]:
        """Return the names of the feature columns.

        Args:
            table: The table.
            path: The file, for messages.

        Raises:
            UserError: There are no features, a named column does not exist, or a column has two roles.
        """
        roles, dropped = self._roles, self.drop or []
        features = self.features or [column for column in table.columns if column not in roles.values()]
        features = [column for column in features if column not in dropped]
        if not features:
            raise UserError(f"{path}: has no columns except {', '.join([*roles.values(), *dropped])}; add features")
        named = [*roles.items(), *(("features", name) for name in features), *(("drop", name) for name in dropped)]
        used = [column for _, column in named]
        for key, column in named:
            if column not in table.columns:
                names = list(map(str, table.columns))
                lacks = f"there is no such column in {path}{nearest(column, names)}"
                raise UserError(f"dataset.{key}={column}: {lacks}; there are {joined(names, SHOWN)}")
            if used.count(column) > 1:
                raise UserError(f"dataset.{key}={column}: this column is named more than once; name it once")
        return features

    def _read(self, path: Path) -> tuple[pd.DataFrame, list[str]]:
        """Read the table.

        Args:
            path: The file.

        Returns:
            The table, and notes on what was guessed.

        Raises:
            UserError: The file is not a table with column names.
        """
        text, notes = self._text(path)
        first = text.partition("\n")[0]
        separator = self.separator or ("\t" if ".tsv" in path.suffixes else ",")
        if self.separator is None and separator not in first and (other := next((s for s in ";\t|" if s in first), "")):
            separator = other
            notes.append(f"cells are separated by {'tabs' if other == chr(9) else other}")
        decimal = self.decimal or "."
        if self.decimal is None and separator == ";" and re.search(r"\d,\d", text) and not re.search(r"\d\.\d", text):
            decimal = ","
            notes.append("numbers are read with decimal commas")
        refuse_larger(path, len(text) + 10 * text.count(separator))  # reading a number takes about 50 bytes
        cells = csv.reader(StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
        rows = filter(None, cells)  # pandas would pad short rows and shift the cells of long ones
        texts = dict.fromkeys([name for key, name in self._roles.items() if key != "label" or not self.real], str)
        apart = {"sep": separator, "decimal": decimal, "skipinitialspace": True, "header": 0}
        try:
            names = [clean_name(name) for name in next(rows, [])]
            if "" in names or len({*names}) < len(names):
                raise ValueError("a column name is empty or occurs twice; with pandas, use to_csv(index=False)")
            for number, row in enumerate(rows, 1):
                if len(row) != len(names):
                    has = f"row {number} below the header has {len(row)} cells, not {len(names)}"
                    raise ValueError(f"{has}; correct it, or set dataset.separator or dataset.decimal")
            del cells, rows  # they contain another copy of the text
            table = pd.read_csv(StringIO(text), names=names, dtype=texts, low_memory=False, **apart)  # type: ignore[call-overload]
            if table.empty:
                raise ValueError("it has no rows below the column names")
        except (ValueError, csv.Error) as error:
            why = first_line(error)
            raise UserError(f"{path}: must be a CSV with column names, and rows of the same length ({why})") from None
        return table, notes

    def _text(self, path: Path) -> tuple[str, list[str]]:
        """Read the text of the file, decompressed if its name ends in .gz.

        Args:
            path: The file.

        Returns:
            The text, and notes on what was guessed.

        Raises:
            UserError: The file does not exist or cannot be read.
        """
        try:
            content = read_bytes(path)
            content = gzip.decompress(content) if path.suffix == ".gz" else content
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such file; give the path of a CSV with column names") from None
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: cannot be read ({first_line(error)}); copy it again") from None
        try:
            return decoded(content, path, self.encoding), []
        except UserError:
            if self.encoding is not None or b"\0" in content:
                raise
            return decoded(content, path, "latin-1"), ["the text is read as Latin-1, since it is not valid UTF-8"]
