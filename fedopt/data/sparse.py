"""Sparse tables as text, in the format of libsvm and svmlight."""

import re
from array import array
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import checked, divided, parted, refuse_larger
from fedopt.data.labelled import LabelledData, Pixels
from fedopt.data.names import numbered
from fedopt.data.tables import Fraction, unpacked
from fedopt.errors import UserError, first_line
from fedopt.files import decoded, expanded, lines_of

_config = ConfigDict(extra="forbid")
_LINE = re.compile(r"([^\s:,]+)((?:\s+\d{1,18}:[!-9;-^`-~]+)*)\s*(?:#.*)?", re.ASCII)


@dataclass(frozen=True, config=_config)
class Libsvm:
    """A text of lines `label index:value ...`, also compressed (.gz). Indices begin at 1; features that a line omits are zero.

    Classes are numbered in the order of their labels.

    Args:
        path: The file.
        test_path: A file of test examples. None: a fraction of the lines is drawn for testing.
        features: The number of features. None: the largest index of both files.
        test: The fraction for testing, without ``test_path``.
        split_seed: The seed of that draw.
        pixels: As in `LabelledData`.
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
            refuse_larger(path, 8 * width * len(labels))
            if columns.max(initial=0) > width:
                largest = columns.max()
                raise UserError(
                    f"{path}: has feature {largest}, and dataset.features={width}; use null, or at least {largest}"
                )
        y, names = numbered(np.concatenate([labels for labels, *_ in read]), f"{paths[0]}: the column of labels")
        x, train = np.zeros((len(y), width)), len(read[0][0])
        for start, (_, rows, columns, values) in zip((0, train), read, strict=False):
            x[start + rows, columns - 1] = values
        parts = np.arange(train), np.arange(train, len(y))
        parts = parts if self.test_path else divided(train, self.test, self.split_seed, paths[0])
        return replace(checked(parted({"x": x, "y": y}, parts), paths[0], names=names), pixels=self.pixels)


def _lines(path: Path) -> list[np.ndarray]:
    """Return the labels, [n], and the row, the index and the value of each entry, [entries] each.

    Raises UserError for a line that does not have the form, and for a file without lines.
    """
    labels, rows, columns, values = list[str](), array("q"), array("q"), array("d")
    text = decoded(unpacked(path, "lines label index:value ..."), path)
    refuse_larger(path, len(text), text.count(":") + 2 * text.count("\n"))
    for number, line in enumerate(map(str.strip, lines_of(text)), 1):
        if not line or line.startswith("#"):
            continue
        where = f"{path}: line {number}"
        if (match := _LINE.fullmatch(line)) is None:
            raise UserError(f"{where}: must be of the form 'label index:value ...', with one label, not {line[:60]!r}")
        pairs = [entry.split(":") for entry in match[2].split()]
        own = [int(index) for index, _ in pairs]
        if 0 in own:
            hint = "with scikit-learn, write it by dump_svmlight_file(..., zero_based=False)"
            raise UserError(f"{where}: has the index 0, and indices must begin at 1; {hint}")
        if len({*own}) < len(own):
            twice = max(own, key=own.count)
            raise UserError(f"{where}: has the index {twice} more than once; keep one entry of it")
        try:
            values.extend(float(value) for _, value in pairs)
        except ValueError as error:
            raise UserError(f"{where}: {first_line(error)}; values must be numbers") from None
        rows.extend(repeat(len(labels), len(own)))
        columns.extend(own)
        labels.append(match[1])
    if not labels:
        raise UserError(f"{path}: has no lines with examples; each must be 'label index:value ...'")
    return [np.array(labels), *map(np.array, (rows, columns, values))]
