"""What a problem is built with: data, their division among clients, a seed, and where and how numbers are held."""

from dataclasses import dataclass, field

import numpy as np
import torch

from fedopt.data.datasets import DatasetSource, LabelledData
from fedopt.data.partitioners import ByColumn, Partitioner, check_division
from fedopt.data.ragged import Ragged, cut
from fedopt.errors import UserError, memory
from fedopt.randomness import Part, Purpose, keyed_rng, keyed_rngs, untouched

BYTES_AN_EXAMPLE = 100  # at least, while examples are divided and a problem is made

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """What a problem is built in: its data, their partition, its random numbers, and the device.

    Args:
        seed: The seed of every draw that is made while building.
        partitioner: It says whose each example is.
        dataset: Where examples come from; None for problems that make their own data.
        device: Where tensors are.
        dtype: The type of the run's numbers.
        autocast: The type of products and convolutions of networks; None for ``dtype``.
        read: Digests of the data that were loaded.
    """

    seed: int
    partitioner: Partitioner
    dataset: DatasetSource | None = None
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    read: set[str] = field(default_factory=set, compare=False)

    @property
    def clients(self) -> int:
        """The number of clients, for problems whose data follow from it.

        Raises:
            UserError: The number follows from the data.
        """
        if (clients := getattr(self.partitioner, "clients", None)) is None:
            raise UserError("this problem makes its data itself: use partitioner=iid with partitioner.clients=N")
        return clients

    def rng(self, name: Part | str | None = None) -> np.random.Generator:
        """Return a generator for the problem's constants. The same name gives the same numbers.

        Raises:
            UserError: There is no name.
        """
        return keyed_rng(self.seed, Purpose.PROBLEM, name) if isinstance(name, Part) else keyed_rng(self.seed, name)

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """Return the array's numbers on the device, in the type of the run's numbers."""
        return torch.from_numpy(array).to(self.device, self.dtype)

    def load(self, validation: bool = False) -> LabelledData:
        """Return the data set.

        Args:
            validation: Whether training examples that the data set keeps for validation come too.

        Raises:
            UserError: No data set is chosen, or it cannot be read.
        """
        if self.dataset is None:
            raise UserError("this problem needs data: choose dataset=mnist, digits, npz, csv, images or another")
        data = self.dataset.load()
        if isinstance(self.partitioner, ByColumn):
            data = self.partitioner.with_owners(data)
        self.read.add(data.digest())
        return data if validation else data.without_validation()

    def split(
        self,
        count: int,
        labels: np.ndarray | None = None,
        validation: float | np.ndarray | None = None,
        owners: np.ndarray | None = None,
    ) -> dict[str, Ragged]:
        """Divide examples 0 to count - 1 among the clients, and return whose each one is, by split.

        Args:
            count: The number of examples.
            labels: ``[count]``, their classes, for partitioners that use them.
            validation: The fraction of its examples that each client keeps for the split ``val``, at least one. Or the examples
                that are kept, ``[count]`` of bool.
            owners: ``[count]``, whose each example is, for natural partitions.

        Raises:
            UserError: The partition loses examples, gives one twice, or leaves a client without any in a split.
            MemoryError: There are more examples than memory. It is raised before time is spent.
        """
        if BYTES_AN_EXAMPLE * count > memory():
            raise MemoryError(f"{count:,} examples")
        least = 1 if validation is None else 2
        among = owners if isinstance(self.partitioner, ByColumn) else labels
        with untouched(type(self.partitioner).__call__, ()):
            parts = self.partitioner(count, among, keyed_rng(self.seed, Purpose.PARTITION), least)
        check_division(self.partitioner, parts, count, least)
        names = list(map(str, np.unique(owners))) if owners is not None and among is owners else []
        if validation is None:
            return {"train": Ragged(parts, names)}
        if isinstance(validation, np.ndarray):
            masks = {"train": ~validation, "val": validation}
            splits = {name: [part[mask[part]] for part in parts] for name, mask in masks.items()}
            for name, rows_of_clients in splits.items():
                if lacking := [i for i, rows in enumerate(rows_of_clients) if not len(rows)]:
                    client = names[lacking[0]] if names else lacking[0]
                    why = "the data say which are for validation, and each client needs some of both"
                    raise UserError(f"client {client} has no examples in the split {name}: {why}")
            return {name: Ragged(rows_of_clients, names) for name, rows_of_clients in splits.items()}
        own = Ragged(parts)
        rngs = keyed_rngs(self.seed, Purpose.SPLIT, range(len(own)))
        for rng, rows in zip(rngs, cut(own.rows, own.sizes), strict=True):
            rng.shuffle(rows)  # in place, and so in own.rows
        held_out = np.clip(np.rint(validation * own.sizes), 1, own.sizes - 1).astype(np.int64)
        pieces = cut(own.rows, np.stack([held_out, own.sizes - held_out], 1).ravel())
        return {"train": Ragged(pieces[1::2], names), "val": Ragged(pieces[::2], names)}
