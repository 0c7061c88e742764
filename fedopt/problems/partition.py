"""The labelled examples of a problem, and which client each belongs to."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Examples, LabelledData, Ragged, World


class ScoredRows(NamedTuple):
    """Examples that models are tested on.

    Args:
        examples: The `Examples` that they are among.
        rows: Their indices there, ``[n]``.
        owner: The client of each, ``[n]``; -1 for clients without training examples.
    """

    examples: Examples
    rows: np.ndarray
    owner: np.ndarray

    @property
    def y(self) -> Tensor:
        """The classes or targets, ``[n]``."""
        return self.examples.y[self.at(slice(None))]

    def at(self, which: np.ndarray | slice) -> Tensor:
        """Return the indices of some of the rows, on the device of the examples."""
        return torch.from_numpy(self.rows[which]).to(self.examples.y.device)

    @classmethod
    def of(cls, examples: Examples, split: Ragged) -> "ScoredRows":
        """Return the examples of all clients of a split."""
        return cls(examples, split.rows, np.repeat(np.arange(len(split)), split.sizes))

    def known(self) -> "ScoredRows":
        """Return the examples without those of clients that have no training examples."""
        return self if (self.owner >= 0).all() else ScoredRows(self.examples, *(v[self.owner >= 0] for v in self[1:]))


class Partitioned(NamedTuple):
    """The examples of a problem, divided among its clients. Its fields are attributes of the problem.

    Args:
        train: The `Examples` that are not for testing. The indices in ``splits`` are those of its rows.
        test_examples: The `Examples` for testing.
        splits: Each client's training examples, ``train``, and those that it holds out or validates on, ``val``.
        test_set: The test examples, and whose each is.
        val_set: The examples that the data name for validation; None if they name none.
        local_set: The test examples of clients that train; None if the data name no client's.
    """

    train: Examples
    test_examples: Examples
    splits: dict[str, Ragged]
    test_set: ScoredRows
    val_set: ScoredRows | None
    local_set: ScoredRows | None


def partitioned(
    world: World,
    data: LabelledData,
    rows: np.ndarray | None = None,
    held_out: float | None = None,
    stratified: int | None = None,
) -> Partitioned:
    """Divide the training examples among the clients, and say whose each test and validation example is.

    Args:
        world: The partition.
        data: The data set.
        rows: The indices of the training examples to use. None: all.
        held_out: The fraction of its examples that each client holds out for the split ``val``. None: no such split. Ignored if
            the data say which examples are for validation.
        stratified: As in `World.split`.
    """
    x, y = (v if rows is None else v[rows] for v in (data.x_train, data.y_train))
    owners, validates = (v if rows is None or v is None else v[rows] for v in (data.owners, data.validates))
    train, test = Examples(x, y, data, world), Examples(data.x_test, data.y_test, data, world)
    held = held_out if validates is None else validates
    splits = world.split(len(y), None if data.real else y, held, owners, stratified)

    def scored(examples: Examples, names: np.ndarray | None) -> ScoredRows:
        owner = _owners(names, splits["train"], len(examples))
        return ScoredRows(examples, np.arange(len(examples)), owner)

    test_set, val_set, local_set = scored(test, data.owners_test), None, None
    if validates is not None:
        val_set = ScoredRows.of(train, splits["val"])
    elif data.validation:
        val_set = scored(Examples(*data.validation[:2], data, world), data.validation.owners)
    if splits["train"].names and data.owners_test is not None and (test_set.owner >= 0).any():
        local_set = test_set.known()
    return Partitioned(train, test, splits, test_set, val_set, local_set)


def _owners(names: np.ndarray | None, train: Ragged, count: int) -> np.ndarray:
    """Return the client of each example, ``[count]``; -1 for a client without training examples.

    Where the partition does not follow the data's own clients, examples are dealt out to the clients in turn.

    Args:
        names: The name of each example's client, if the data have them.
        train: The clients' training examples.
        count: The number of examples.
    """
    if train.names and names is not None:
        client = {name: i for i, name in enumerate(train.names)}
        return np.array([client.get(str(name), -1) for name in names])
    return np.arange(count) % len(train)
