"""Tables of features with a column that is the class: CSV files."""

import csv
import gzip
import re
import zlib
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Literal
from warnings import catch_warnings

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from fedopt.data import datasets
from fedopt.data.datasets import VALIDATES, LabelledData, Pixels, divided, expanded, parted
from fedopt.data.names import identifiers, numbered, spelt
from fedopt.errors import UserError, first_line, nearest
from fedopt.files.reading import decoded, lines_of, opened

_config = ConfigDict(extra="forbid")
Fraction = Annotated[float, Field(gt=0, lt=1)]
SHOWN = 8  # columns in a message
_NUMBER = re.compile(r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*")
_POINTS, _COMMAS = re.compile(r"\d\.\d"), re.compile(r"(?m)(^|;)\s*[-+]?\d+,\d+\s*(;|$)")  # numbers with either


@dataclass(frozen=True, config=_config)
class Csv:
    """A table as text, also compressed (.gz), with a line of column names. Every column but those that are named here is a
    feature, and must be numbers.

    label: the column of the classes, numbered in the order of their names or numbers. features: the columns that are features,
    None for all others; a column has one role. client: the column that says whose each row is, for `ByColumn`.
    split: the column that says `train`, `val` or `test`; None: the fraction `test` of the rows, at random by `split_seed`, is for
        testing.
    separator: between cells; None: a tab in a .tsv, else the comma, or what the names are apart by where they have no comma.
    decimal: the point or the comma of numbers; None: the comma where cells are apart by semicolons and no number has a point.
    encoding: of the text; None: UTF-8, or Latin-1 where it is none. What was taken for what is in the notes of the data.
    """

    path: str
    label: str
    features: Annotated[list[str], Field(min_length=1)] | None = None
    client: str | None = None
    split: str | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None

    def load(self) -> LabelledData:
        path = expanded(self.path)
        table, notes = self._read(path)
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
        y, classes = numbered(table[self.label].to_numpy(), f"{path}: the column {self.label}")
        rows = divided(len(y), self.test, self.split_seed, path) if self.split is None else self._given(table, path)
        columns = {"x": x, "y": y}
        if self.client is not None:
            columns["client"] = identifiers(table[self.client].to_numpy(), f"{path}: the column {self.client}")
        arrays = parted(columns, rows)
        if self.split is not None and (validates := table[self.split].map(spelt).to_numpy()[rows[0]] == "val").any():
            arrays[VALIDATES] = validates
        data = datasets.checked(arrays, path, names=classes, features=tuple(features))
        return replace(data, pixels=self.pixels, notes=(*notes, *data.notes))

    def _read(self, path: Path) -> tuple[pd.DataFrame, list[str]]:
        """The table, and notes on what was taken for what. Raises UserError where a line has more or fewer cells than the first."""
        text, notes = self._text(path)
        first = text.partition("\n")[0]
        separator = self.separator or ("\t" if ".tsv" in path.suffixes else ",")
        if self.separator is None and separator not in first and (other := next((s for s in ";\t|" if s in first), "")):
            separator = other
            notes.append(f"cells are apart by {'tabs' if other == chr(9) else other}")
        cells = csv.reader(lines_of(text), delimiter=separator, skipinitialspace=True)
        decimal = self.decimal or "."
        number = 0
        try:
            names = [spelt(name) for name in next(row for row in cells if row)]
            for number, row in enumerate((row for row in cells if row), 1):
                if len(row) != len(names):
                    why = f"row {number} below the names has {len(row)} cells, and there are {len(names)} names"
                    hint = "a comma in a number needs quotes; dataset.separator and dataset.decimal say what is used"
                    raise UserError(f"{path}: {why}; {hint}")
        except (csv.Error, StopIteration) as error:
            raise UserError(f"{path}: is no CSV with a line of column names ({first_line(error)})") from None
        if self.decimal is None and separator == ";" and _POINTS.search(text) is None and _COMMAS.search(text):
            decimal = ","
            notes.append("numbers have decimal commas")
        if all(_NUMBER.fullmatch(name) for name in names):
            notes.append(
                f"the first line is taken as the names of columns, and looks like values ({', '.join(names[:3])})"
            )
        if (wrong := pd.Index(names).duplicated() | (pd.Index(names) == "")).any():
            raise UserError(
                f"{path}: column {wrong.argmax() + 1} has no name, or another's; of pandas: to_csv(index=False)"
            )
        if not number:
            raise UserError(f"{path}: has no rows")
        datasets.refuse_larger(path, len(text), number * len(names))
        apart = {"sep": separator, "decimal": decimal, "skipinitialspace": True, "names": names, "header": 0}
        texts = dict.fromkeys(filter(None, (self.label, self.client, self.split)), str)  # as they are written
        with catch_warnings(action="ignore", category=pd.errors.DtypeWarning):  # cells of several types are refused
            return pd.read_csv(BytesIO(text.encode()), index_col=False, dtype=texts, **apart), notes  # type: ignore[call-overload]

    def _text(self, path: Path) -> tuple[str, list[str]]:
        content = unpacked(path, "a CSV with a line of column names")
        try:
            return decoded(content, path, self.encoding), []
        except LookupError as error:
            raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
        except UserError:
            if self.encoding is not None or b"\0" in content:
                raise
            return decoded(content, path, "latin-1"), ["the text is read as Latin-1, since it is no UTF-8"]

    def _given(self, table: pd.DataFrame, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """The rows to train on, and those to test on, as the column `split` says."""
        split = table[self.split].map(spelt)
        if other := sorted({*split} - {"train", "val", "test"}):
            raise UserError(f"dataset.split={self.split}: says {other[0]} in {path}; it must say train, val or test")
        return np.flatnonzero(split != "test"), np.flatnonzero(split == "test")


def _refuse_cells(table: pd.DataFrame, wrong: np.ndarray | pd.DataFrame, path: Path, why: str) -> None:
    """Raises UserError, which names the first of the cells that are wrong."""
    if len(cells := np.argwhere(np.asarray(wrong))):
        (row, column), others = cells[0], f" (and {len(cells) - 1} more cells)" * (len(cells) > 1)
        cell = f"{table.iloc[row, column]} in the column {table.columns[column]}"
        raise UserError(f"{path}: row {row + 1} below the names says {cell}{others}, {why}")


def unpacked(path: Path, form: str) -> bytes:
    """A file, or what is in one that ends in .gz. Raises UserError where it cannot be read, and for more than memory takes.

    form: what it should be, in words.
    """
    pieces, size = list[bytes](), 0
    try:
        with (
            opened(path, links=True) as file,
            gzip.open(file) if path.suffix == ".gz" else nullcontext(file) as content,
        ):
            while piece := content.read(2**16):
                pieces.append(piece)
                datasets.refuse_larger(path, size := size + len(piece))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; it should be {form}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
    return b"".join(pieces)
