"""Sparse tables as text: the format of libsvm and svmlight."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from fedopt.data.datasets import LabelledData, Pixels, checked, divided, expanded, numbered, parted, refuse_larger
from fedopt.data.tables import Fraction, unpacked
from fedopt.errors import UserError, first_line

_config = ConfigDict(extra="forbid")
_LINE = re.compile(r"(\S+)((?:\s+\d+:\S+)*)\s*(?:#.*)?")


@dataclass(frozen=True, config=_config)
class Libsvm:
    """Lines `label index:value ...`, also compressed (.gz), with indices from 1 on; what a line leaves out is zero.

    test_path: a file of the examples for testing; None: the fraction `test` of the lines, at random by `split_seed`.
    features: how many there are; None: up to the largest index of both files. Classes are numbered in the order of their labels.
    """

    path: str
    test_path: str | None = None
    features: Annotated[int, Field(gt=0)] | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "raw"

    def load(self) -> LabelledData:
        paths = [expanded(path) for path in (self.path, self.test_path) if path is not None]
        read = [_lines(path) for path in paths]
        width = self.features or max(int(columns.max(initial=0)) for _, _, columns, _ in read)
        for path, (labels, _, columns, _) in zip(paths, read, strict=True):
            refuse_larger(path, 4 * width * len(labels))
            if columns.size and not 0 < columns.min() <= columns.max() <= width:
                raise UserError(f"{path}: has the feature {columns.max()} or 0, and features are 1 to {width}")
        y, names = numbered(np.concatenate([labels for labels, *_ in read]))
        x, train = np.zeros((len(y), width), dtype=np.float32), len(read[0][0])
        for start, (_, rows, columns, values) in zip((0, train), read, strict=False):
            x[start + rows, columns - 1] = values
        parts = np.arange(train), np.arange(train, len(y))
        parts = parts if self.test_path else divided(train, self.test, self.split_seed, paths[0])
        data = checked(parted({"x": x, "y": y}, parts), paths[0])
        return replace(data, pixels=self.pixels, class_names=names)


def _lines(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The labels, [n], and the rows, columns and values of all entries. Raises UserError for a line of another form."""
    try:
        lines = unpacked(path, "lines label index:value ...").decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)})") from None
    labels, rows, entries = list[str](), list[int](), list[str]()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (match := _LINE.fullmatch(line.strip())) is None or ":" in match[1]:
            raise UserError(f"{path}: line {number} is not of the form label index:value ...: {line[:60]}")
        own = match[2].split()
        rows += [len(labels)] * len(own)
        labels.append(match[1].removeprefix("+"))
        entries += own
    if not labels:
        raise UserError(f"{path}: has no rows")
    try:
        pairs = np.array([entry.split(":") for entry in entries] or np.zeros((0, 2), dtype="U1"))
        return (
            np.array(labels),
            np.array(rows, dtype=np.int64),
            pairs[:, 0].astype(np.int64),
            pairs[:, 1].astype(np.float32),
        )
    except ValueError as error:
        raise UserError(f"{path}: {first_line(error)}") from None
