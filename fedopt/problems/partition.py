"""The labelled examples of a problem, and the client that each example belongs to."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Examples, LabelledData, Ragged, World


class ScoredRows(NamedTuple):
    """Examples on which models are tested.

    Attributes:
        examples: The `Examples` that contain them.
        rows: Their indices in ``examples``, ``[n]``.
        owner: Index of the client of each example, ``[n]``; -1 if this client has no training examples.
    """

    examples: Examples
    rows: np.ndarray
    owner: np.ndarray

    @property
    def y(self) -> Tensor:
        """The classes or targets, ``[n]``."""
        return self.examples.y[self.at(slice(None))]

    def at(self, which: np.ndarray | slice) -> Tensor:
        """Return selected entries of ``rows``, as a tensor on the device of the examples.

        Args:
            which: Positions of the entries in ``rows``.
        """
        return torch.from_numpy(self.rows[which]).to(self.examples.y.device)

    @classmethod
    def of(cls, examples: Examples, split: Ragged) -> "ScoredRows":
        """Return the examples of all clients in a split.

        Args:
            examples: The `Examples` to which the indices of the split refer.
            split: Indices of each client's examples.
        """
        return cls(examples, split.rows, np.repeat(np.arange(len(split)), split.sizes))

    def known(self) -> "ScoredRows":
        """Return only those examples whose clients have training examples."""
        return self if (self.owner >= 0).all() else ScoredRows(self.examples, *(v[self.owner >= 0] for v in self[1:]))


class Partitioned(NamedTuple):
    """The examples of a problem, partitioned among its clients. The fields become attributes of the problem.

    Attributes:
        train: All `Examples` that are not for testing. The indices in ``splits`` refer to them.
        test_examples: The `Examples` for testing.
        splits: Indices of each client's training examples (``train``), and of its held-out or validation examples
            (``val``).
        test_set: The test examples with the client of each.
        val_set: The validation examples that the data mark, with the client of each. None: the data mark none.
        local_set: The test examples of clients that have training examples. None: the data do not name the clients of test
            examples.
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
    """Partition the training examples among the clients, and assign test and validation examples to clients.

    Args:
        world: The world of the run, which partitions examples among its clients.
        data: The data set.
        rows: Indices of the training examples to use. None: all.
        held_out: Fraction of each client's examples that goes to the split ``val``. None: there is no such split. Ignored
            if the data mark validation examples.
        stratified: Seed of a stratified choice of the examples in ``val``. None: not stratified (see `World.split`).
    """
    x, y = (v if rows is None else v[rows] for v in (data.x_train, data.y_train))
    owners, validates = (v if rows is None or v is None else v[rows] for v in (data.owners, data.validates))
    held = held_out if validates is None else validates
    splits = world.split(len(y), None if data.real else y, held, owners, stratified)
    if world.mislabelled and not data.real:
        wrong = np.concatenate([splits["train"][i] for i in world.mislabelled(len(splits["train"]))])
        y = y.copy()
        y[wrong] = data.classes - 1 - y[wrong]
    train, test = Examples(x, y, data, world), Examples(data.x_test, data.y_test, data, world)

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
    """Return the client index of each example, ``[count]``; -1 if the example's client has no training examples.

    If the partition does not follow the clients that the data name, the examples are assigned to the clients in turn.

    Args:
        names: Name of each example's client, ``[count]``. None: the data do not name clients.
        train: The clients' training examples, with the names of the clients if the partition follows them.
        count: Number of examples.
    """
    if train.names and names is not None:
        client = {name: i for i, name in enumerate(train.names)}
        return np.array([client.get(str(name), -1) for name in names])
    return np.arange(count) % len(train)
