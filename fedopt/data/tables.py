"""CSV files: tables of features, one column of which is the class."""

import csv
import gzip
import re
import zlib
from contextlib import nullcontext
from dataclasses import field, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Literal
from warnings import catch_warnings

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import VALIDATES, checked, divided, parted, refuse_larger
from fedopt.data.columns import noted, numbers, refuse_cells, refuse_empty
from fedopt.data.labelled import LabelledData, Pixels
from fedopt.data.names import identifiers, numbered, spelt
from fedopt.errors import UserError, first_line, nearest, some
from fedopt.files import decoded, expanded, lines_of, opened

_config = ConfigDict(extra="forbid")
Fraction = Annotated[float, Field(gt=0, lt=1)]
SHOWN = 8  # columns in a message
_NUMBER = re.compile(r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*")
_POINTS, _COMMAS = re.compile(r"\d\.\d"), re.compile(r"(?m)(^|;)\s*[-+]?\d+,\d+\s*(;|$)")  # numbers with either


@dataclass(frozen=True, config=_config)
class Csv:
    """A table as text, also compressed (.gz), with the column names in its first line.

    Features must be numbers. The data's notes tell what was guessed, such as the separator, and which columns look wrong.

    Args:
        path: The file.
        label: The column of the class. Classes are numbered in the order of their names or numbers.
        real: Whether that column has real numbers instead, the targets of a regression.
        features: The columns that are features. None: all columns besides label, client and split.
        drop: Columns that are not features. None: none.
        missing: What to do with empty cells of features: refuse the table, or fill in means (`LabelledData.filled`).
        client: The column that names the client of each row, for `ByColumn`.
        split: The column that says ``train``, ``val`` or ``test``. None: a fraction of the rows is drawn for testing.
        test: That fraction.
        split_seed: The seed of that draw.
        stratify: Whether the draw takes that fraction of each class of each client, up to rounding. Real targets have no classes.
        pixels: As in `LabelledData`.
        separator: The character between cells. None: a tab in a .tsv, else a comma; if the first line has none, whichever of
            ; tab | it has.
        decimal: The decimal mark. None: a comma if cells are separated by semicolons and no number has a point; else a point.
        encoding: The text's encoding. None: UTF-8, or Latin-1 if it is not valid UTF-8.
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
        path = expanded(self.path)
        table, notes = self._read(path)
        keys = {"label": self.label, "client": self.client, "split": self.split}
        roles = {key: column for key, column in keys.items() if column is not None}
        dropped = self.drop or []
        features = self.features or [column for column in table.columns if column not in roles.values()]
        features = [column for column in features if column not in dropped]
        if not features:
            raise UserError(
                f"{path}: has no columns besides {', '.join([*roles.values(), *dropped])}; it must have features too"
            )
        lists = {"features": features, "drop": dropped}
        named = [*roles.items(), *((key, column) for key, columns in lists.items() for column in columns)]
        used = [column for _, column in named]
        for key, column in named:
            if column not in table.columns:
                names = list(map(str, table.columns))
                lacks = f"there is no such column in {path}{nearest(column, names)}"
                raise UserError(f"dataset.{key}={column}: {lacks}; there are {some(names, SHOWN)}")
            if used.count(column) > 1:
                raise UserError(f"dataset.{key}={column}: this column has another role too; give each column one role")
        of_roles = table[list(roles.values())]
        refuse_cells(of_roles, of_roles.isna(), path, "is empty; remove such rows, or fill in a value")
        columns = {"x": numbers(table[features], path)}
        if self.missing == "refuse":
            refuse_empty(columns["x"], features, path)
        if self.real:
            target = table[[self.label]].apply(pd.to_numeric, errors="coerce")
            remedy = "is not a finite number; mend the cell, or leave out dataset.real=true"
            refuse_cells(table[[self.label]], ~np.isfinite(target), path, remedy)
            columns["y"], classes = target.to_numpy(np.float64)[:, 0], tuple[str, ...]()
        else:
            columns["y"], classes = numbered(table[self.label].to_numpy(), f"{path}: the column {self.label}")
        if self.client is not None:
            columns["client"] = identifiers(table[self.client].to_numpy(), f"{path}: the column {self.client}")
        if self.split is not None:
            rows = self._given(table, path)
        else:
            strata = [columns[key] for key in ("client", "y") if key in columns and not (key == "y" and self.real)]
            rows = divided(len(table), self.test, self.split_seed, path, strata if self.stratify else None)
        arrays = parted(columns, rows)
        if self.split is not None and (validates := table[self.split].map(spelt).to_numpy()[rows[0]] == "val").any():
            arrays[VALIDATES] = validates
        fills = {"mean": dict[str, np.ndarray](), "refuse": None}[self.missing]
        data = checked(arrays, path, names=classes, features=tuple(features), missing=fills is not None)
        notes += [*data.notes, *noted(data, self.label)]
        return replace(data, pixels=self.pixels, fills=fills, notes=tuple(notes))

    def _read(self, path: Path) -> tuple[pd.DataFrame, list[str]]:
        """Return the table, and notes on what was guessed.

        Raises UserError if a row is longer or shorter than the first line, if a column's name is empty or repeated, or
        without rows.
        """
        text, notes = self._text(path)
        first = text.partition("\n")[0]
        separator = self.separator or ("\t" if ".tsv" in path.suffixes else ",")
        if self.separator is None and separator not in first and (other := next((s for s in ";\t|" if s in first), "")):
            separator = other
            notes.append(f"cells are separated by {'tabs' if other == chr(9) else other}")
        refuse_larger(path, len(text), text.count(separator) + text.count("\n"))
        cells = csv.reader(lines_of(text), delimiter=separator, skipinitialspace=True)
        decimal = self.decimal or "."
        number = 0
        try:
            names = [spelt(name) for name in next(row for row in cells if row)]
            for number, row in enumerate((row for row in cells if row), 1):
                if len(row) != len(names):
                    why = f"row {number} below the column names has {len(row)} cells, and there are {len(names)} names"
                    hint = "put quotes around cells with commas, or set dataset.separator and dataset.decimal"
                    raise UserError(f"{path}: {why}; {hint}")
        except (csv.Error, StopIteration) as error:
            why = "it is empty" if isinstance(error, StopIteration) else first_line(error)
            raise UserError(f"{path}: must be a CSV that begins with a line of column names ({why})") from None
        if self.decimal is None and separator == ";" and _POINTS.search(text) is None and _COMMAS.search(text):
            decimal = ","
            notes.append("numbers are read with decimal commas")
        if all(_NUMBER.fullmatch(name) for name in names):
            notes.append(
                f"the first line is read as column names, but looks like values ({', '.join(names[:3])}); if it is, add names"
            )
        if (wrong := pd.Index(names).duplicated() | (pd.Index(names) == "")).any():
            raise UserError(
                f"{path}: column {wrong.argmax() + 1} has no name, or one that occurs twice; name it (pandas: to_csv(index=False))"
            )
        if not number:
            raise UserError(f"{path}: has no rows below the column names; add examples")
        apart = {"sep": separator, "decimal": decimal, "skipinitialspace": True, "names": names, "header": 0}
        label = None if self.real else self.label
        texts = dict.fromkeys(filter(None, (label, self.client, self.split)), str)  # as they are written
        with catch_warnings(action="ignore", category=pd.errors.DtypeWarning):  # cells of several types are refused
            return pd.read_csv(BytesIO(text.encode()), index_col=False, dtype=texts, **apart), notes  # type: ignore[call-overload]

    def _text(self, path: Path) -> tuple[str, list[str]]:
        content = unpacked(path, "a CSV with a line of column names")
        try:
            return decoded(content, path, self.encoding), []
        except LookupError as error:
            raise UserError(
                f"dataset.encoding: cannot be used ({first_line(error)}); use null, utf-8 or another known one"
            ) from None
        except UserError:
            if self.encoding is not None or b"\0" in content:
                raise
            return decoded(content, path, "latin-1"), ["the text is read as Latin-1, since it is not valid UTF-8"]

    def _given(self, table: pd.DataFrame, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of all rows that do not say test in the column `split`, and of those that do.

        Rows that say val are among the first. path: for the message. Raises UserError for other values than train, val and
        test.
        """
        split = table[self.split].map(spelt)
        if other := sorted({*split} - {"train", "val", "test"}):
            raise UserError(
                f"dataset.split={self.split}: has {other[0]} in {path}; each row must say train, val or test"
            )
        return np.flatnonzero(split != "test"), np.flatnonzero(split == "test")


def unpacked(path: Path, form: str) -> bytes:
    """Return the bytes of a file, uncompressed if its name ends in .gz.

    Args:
        path: The file.
        form: What it should be, for the message, such as 'a CSV'.

    Raises:
        UserError: The file is missing or cannot be read, or its content is too large for memory.
    """
    pieces, size = list[bytes](), 0
    try:
        with (
            opened(path, links=True) as file,
            gzip.open(file) if path.suffix == ".gz" else nullcontext(file) as content,
        ):
            while piece := content.read(2**16):
                pieces.append(piece)
                refuse_larger(path, size := size + len(piece))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; give the path of {form}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: cannot be read ({first_line(error)}); copy it again, or mend its permissions"
        ) from None
    return b"".join(pieces)
