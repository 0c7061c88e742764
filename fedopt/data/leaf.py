"""Data in the form of LEAF [Caldas et al. 2018]: JSON files that say of each user which examples are its own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.data.datasets import LabelledData, Pixels, checked, divided, expanded, parted
from fedopt.data.tables import Fraction, unpacked
from fedopt.errors import UserError, first_line

_config = ConfigDict(extra="forbid")
FORM = '{"users": [USER, ...], "num_samples": [N, ...], "user_data": {USER: {"x": [...], "y": [...]}, ...}}'

KINDS: tuple[set[type], ...] = ({int}, {str}, set())  # of labels


class _User(NamedTuple):
    """x: [n, ...]; y: [n], whole numbers or texts; where: the file and the name, for messages."""

    name: str
    x: np.ndarray
    y: np.ndarray
    where: str


@dataclass(frozen=True, config=_config)
class Leaf:
    """A JSON file, a folder of such files, or one with the folders train and test of them; also compressed (.gz).

    The owners of the examples are LEAF's users. shape: of an example, [height, width] or [height, width, channels]; None: as in the
    file. Without a folder for testing, the fraction `test` of the examples, at random by `split_seed`, is for testing.
    """

    path: str
    shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=3)] | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        path = expanded(self.path)
        splits = [folder for name in ("train", "test") if (folder := path / name).is_dir()] or [path]
        of_splits = [[user for file in _files(split) for user in _users(file)] for split in splits]
        users = [user for split in of_splits for user in split]
        for user in users:
            if (forms := [(list(u.x.shape[1:]), u.y.dtype.kind) for u in (user, users[0])])[0] != forms[1]:
                had = [
                    f"examples {shape} with {'texts' if kind == 'U' else 'numbers'} as labels" for shape, kind in forms
                ]
                raise UserError(f"{user.where} has {had[0]}, and {users[0].name} {had[1]}")
        if not users:
            raise UserError(f"{path}: has no examples")
        x, y = np.concatenate([user.x for user in users]), np.concatenate([user.y for user in users])
        if self.shape is not None and np.prod(self.shape) != x[0].size:
            raise UserError(f"dataset.shape={self.shape}: an example of {path} has {x[0].size} numbers")
        owners = np.repeat([user.name for user in users], [len(user.y) for user in users])
        columns = {"x": x if self.shape is None else x.reshape(len(x), *self.shape), "y": y, "client": owners}
        if len(splits) == 1:
            parts = divided(len(y), self.test, self.split_seed, path)
        else:
            train = sum(len(user.y) for user in of_splits[0])
            parts = np.arange(train), np.arange(train, len(y))
        data = replace(checked(parted(columns, parts), path, "last"), pixels=self.pixels)
        note = f"{len(np.unique(owners)):,} users of LEAF, for partitioner=by_column, with examples {list(x.shape[1:])}"
        return replace(data, notes=(note, *data.notes))


def _files(path: Path) -> list[Path]:
    """The file, or those in a folder. Raises UserError where it has none."""
    if not path.is_dir():
        return [path]
    files = sorted(file for end in ("json", "json.gz") for file in path.glob(f"[!.]*.{end}"))
    if not files:
        raise UserError(f"{path}: has no .json files, nor folders train and test that do; each should be {FORM}")
    return files


def _users(file: Path) -> Iterator[_User]:
    """Those of a file that have examples. Raises UserError, which names the file and the user."""
    try:
        content = json.loads(unpacked(file, FORM))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: is no JSON ({first_line(error)})") from None
    names, counts, data = map((content if isinstance(content, dict) else {}).get, ("users", "num_samples", "user_data"))
    if not (isinstance(data, dict) and isinstance(names, list) and sorted(map(str, names)) == sorted(data)):
        raise UserError(f"{file}: the users that it lists are not those that it has data of; it should be {FORM}")
    if not (isinstance(counts, list) and len(counts) == len(names)):
        raise UserError(f"{file}: num_samples must have a number for each of the {len(names)} users")
    for name, count in zip(map(str, names), counts, strict=True):
        own, where = data[name] if isinstance(data[name], dict) else {}, f"{file}: user {name}"
        y = own["y"] if isinstance(own.get("y"), list) else []
        try:
            x = np.array(own.get("x"))
        except ValueError:  # rows of unequal lengths
            x = np.array(None)
        fits = x.dtype.kind in "iuf" and (x.ndim > 1 or not x.size) and {*map(type, y)} in KINDS
        if not fits or len(x) != len(y):
            raise UserError(f"{where}: x must be rows of numbers of one length, and y as many whole numbers or texts")
        if count != len(y):
            raise UserError(f"{where}: has {len(y)} examples, and num_samples says {count}")
        if len(y):
            yield _User(name, x.astype(np.float32), np.array(y), where)
