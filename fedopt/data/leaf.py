"""Data in the format of LEAF [Caldas et al. 2018]: JSON files that list the examples of each user."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import checked, divided, parted, refuse_larger
from fedopt.data.labelled import LabelledData, Pixels
from fedopt.data.tables import Fraction, unpacked
from fedopt.errors import UserError, first_line
from fedopt.files import decoded, expanded

_config = ConfigDict(extra="forbid")
FORM = '{"users": [USER, ...], "num_samples": [N, ...], "user_data": {USER: {"x": [...], "y": [...]}, ...}}'

KINDS: tuple[set[type], ...] = ({int}, {str}, set())  # of labels


class _User(NamedTuple):
    """The examples of one user. x: [n, ...]; y: [n], integers or texts; where: the file and the user's name, for messages."""

    name: str
    x: np.ndarray
    y: np.ndarray
    where: str


@dataclass(frozen=True, config=_config)
class Leaf:
    """LEAF's data: JSON files, also compressed (.gz), with the examples of each user.

    The users are the owners of the examples, and so the clients with `ByColumn`.

    Args:
        path: A file, a folder of files, or a folder with the folders train and test of files.
        shape: The shape to give an example, [height, width] or [height, width, channels]. None: as in the file.
        test: The fraction of the examples for testing if there is no folder test.
        split_seed: The seed of that draw.
        pixels: As in `LabelledData`.
    """

    path: str
    shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=3)] | None = None
    test: Fraction = 0.2
    split_seed: NonNegativeInt = 0
    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        path = expanded(self.path)
        splits = [folder for name in ("train", "test") if (folder := path / name).is_dir()] or [path]
        of_splits = [list(_users(split)) for split in splits]
        users = [user for split in of_splits for user in split]
        for user in users:
            if (user.x.shape[1:], user.y.dtype.kind) != (users[0].x.shape[1:], users[0].y.dtype.kind):
                raise UserError(
                    f"{user.where}: the shape of examples or the type of labels differs from that of user "
                    f"{users[0].name}; all users "
                    "must have the same"
                )
        if not users:
            raise UserError(f"{path}: has no examples; dataset.path must have .json files of the form {FORM}")
        x, y = np.concatenate([user.x for user in users]), np.concatenate([user.y for user in users])
        if self.shape is not None and np.prod(self.shape) != x[0].size:
            numbers = f"an example of {path} has {x[0].size} numbers"
            raise UserError(f"dataset.shape={self.shape}: {numbers}; choose a shape with this product")
        owners = np.repeat([user.name for user in users], [len(user.y) for user in users])
        columns = {"x": x if self.shape is None else x.reshape(len(x), *self.shape), "y": y, "client": owners}
        parts: Sequence[np.ndarray] = np.split(np.arange(len(y)), [sum(len(user.y) for user in of_splits[0])])
        parts = divided(len(y), self.test, self.split_seed, path) if len(splits) == 1 else parts
        data = replace(checked(parted(columns, parts), path, "last"), pixels=self.pixels)
        note = f"{len(np.unique(owners)):,} users, with examples {list(x.shape[1:])}; partitioner=by_column makes each a client"
        return replace(data, notes=(note, *data.notes))


def _users(file: Path) -> Iterator[_User]:
    """Yield the users that have examples, of a file or of all files in a folder.

    Raises UserError, which names the file and the user, if the content is not of LEAF's form.
    """
    if file.is_dir():
        for inner in sorted(inner for end in ("json", "json.gz") for inner in file.glob(f"[!.]*.{end}")):
            yield from _users(inner)
        return
    try:
        text = decoded(unpacked(file, FORM), file)
        refuse_larger(
            file, len(text), text.count(",") + 2 * sum(map(text.count, "[{"))
        )  # a list is as large as two numbers
        content = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: is not valid JSON ({first_line(error)}); it must be {FORM}") from None
    held: dict[str, Any] = content if isinstance(content, dict) else {}
    names, counts, data = [held.get(key, ()) for key in ("users", "num_samples", "user_data")]
    alike = isinstance(names, list) and isinstance(counts, list) and len(names) == len(counts)
    if not (alike and isinstance(data, dict) and sorted(map(str, names)) == sorted(data)):
        raise UserError(f"{file}: must have users, num_samples and user_data for the same users, as in {FORM}")
    for name, count in zip(map(str, names), counts, strict=True):
        own, where = data[name] if isinstance(data[name], dict) else {}, f"{file}: user {name}"
        y = own["y"] if isinstance(own.get("y"), list) else []
        try:
            x = np.array(own.get("x"))
        except ValueError:  # rows of unequal lengths
            x = np.array(None)
        fits = x.dtype.kind in "iuf" and (x.ndim > 1 or not x.size) and {*map(type, y)} in KINDS
        if not fits or len(x) != len(y):
            raise UserError(
                f"{where}: x must be a list of equally long lists of numbers, and y as long a list of whole numbers or texts"
            )
        if count != len(y):
            raise UserError(
                f"{where}: has {len(y)} examples, and num_samples says {count}; correct num_samples, or copy the file again"
            )
        if len(y):
            yield _User(name, x.astype(np.float64), np.array(y), where)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Raises ValueError if a key appears twice."""
    if len(found := dict(pairs)) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {max(keys, key=keys.count)} occurs twice")
    return found
