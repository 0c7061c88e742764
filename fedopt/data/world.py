"""The context in which a problem is built: data, their partition among clients, random numbers and a device."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from fedopt.data.labelled import DatasetSource, LabelledData
from fedopt.data.partitioners import ByColumn, Partitioner, check_partition
from fedopt.data.ragged import Ragged, cut
from fedopt.decimals import exact
from fedopt.errors import UserError
from fedopt.machine import memory
from fedopt.randomness import Part, Purpose, keyed_rng, keyed_rngs, untouched

BYTES_AN_EXAMPLE = 100  # minimum memory per example while a problem is built

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """The context in which a problem is built: data, their partition, random numbers and a device (``self.world``).

    Args:
        seed: Seed of everything that is random while the problem is built.
        partitioner: Partition of the examples among clients.
        dataset: Source of the examples. None: the problem generates its own data.
        device: Device of all tensors.
        dtype: Type of floating-point tensors.
        autocast: Type in which networks compute products and convolutions. None: ``dtype``.
        mislabelled: Function that returns, for a number of clients, those whose training labels are wrong. None: there are none.
        read: Hashes of the data sets that were loaded; `load` adds to it.
    """

    seed: int
    partitioner: Partitioner
    dataset: DatasetSource | None = None
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    mislabelled: Callable[[int], np.ndarray] | None = None
    read: set[str] = field(default_factory=set, compare=False)

    @property
    def clients(self) -> int:
        """The number of clients, for problems that generate their own data.

        Raises:
            UserError: The partitioner takes the number of clients from a data set, and there is none.
        """
        if (clients := getattr(self.partitioner, "clients", None)) is None:
            raise UserError("this problem generates its own data; set partitioner=iid partitioner.clients=N")
        return clients

    def rng(self, name: Part | str | None = None) -> np.random.Generator:
        """Return a random generator for the problem's constants.

        Every call returns a fresh generator: the same name always yields the same numbers.

        Args:
            name: What the numbers are for: a `Part`, or any text that you choose. It must be given.

        Raises:
            UserError: ``name`` is None.
        """
        return keyed_rng(self.seed, Purpose.PROBLEM, name) if isinstance(name, Part) else keyed_rng(self.seed, name)

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """Convert an array to a tensor of type ``dtype`` on the device."""
        writable = np.require(array, requirements="W")  # pandas returns read-only arrays
        return torch.from_numpy(writable).to(self.device, self.dtype)

    def load(self, validation: bool = False, real: bool = False) -> LabelledData:
        """Load and return the data set.

        Missing values are filled in, for each client separately if the data name the clients. The hash of the data is added to
        ``read``.

        Args:
            validation: Whether to include training examples that the data set marks for validation.
            real: Whether targets may be real numbers (regression) as well as classes.

        Raises:
            UserError: No data set is chosen, it cannot be read, or its targets are real numbers although classes are required.
        """
        if self.dataset is None:
            raise UserError("this problem needs data; choose dataset=mnist, digits, npz, csv, images or another")
        data = self.dataset.load()
        if data.real and not real:
            raise UserError(f"{getattr(self.dataset, 'path', 'dataset')}: y must have classes: whole numbers or texts")
        if isinstance(self.partitioner, ByColumn):
            data = self.partitioner.with_owners(data)
        self.read.add(data.digest())
        data = data.filled(isinstance(self.partitioner, ByColumn))
        return data if validation else data.without_validation()

    def split(
        self,
        count: int,
        labels: np.ndarray | None = None,
        validation: float | np.ndarray | None = None,
        owners: np.ndarray | None = None,
        stratified: int | None = None,
    ) -> dict[str, Ragged]:
        """Partition the examples 0, ..., count - 1 among the clients.

        Args:
            count: Number of examples.
            labels: Class of each example, ``[count]``, for partitioners that use it.
            validation: Fraction of each client's examples that goes to the split ``val`` (at least one example), or a boolean
                array ``[count]`` that is true for the examples in ``val``. None: there is only the split ``train``.
            owners: Client of each example, ``[count]``, such as ``self.world.load().owners``. Required by
                ``partitioner=by_column``; ignored by other partitioners.
            stratified: Seed of a stratified split: the fraction ``validation`` is taken from each class of a client, rounded up
                or down, independently of the world's seed. None: the split is not stratified and follows the world's seed.

        Returns:
            The indices of each client's examples, by split: ``train`` and, with ``validation``, ``val``.

        Raises:
            UserError: The partition omits or repeats examples, or leaves a client without examples in a split; an array does
                not have one entry per example; or ``owners`` are missing.
            MemoryError: There are more examples than fit in memory. It is raised before any work is done.
        """
        if BYTES_AN_EXAMPLE * count > memory():
            raise MemoryError(f"{count:,} examples")
        for name, values in (("labels", labels), ("owners", owners), ("validation", validation)):
            if isinstance(values, np.ndarray) and values.shape != (count,):
                raise UserError(f"world.split: {name} has shape {[*values.shape]}; it must be [{count}], one per row")
        least = 1 if validation is None else 2
        among = owners if isinstance(self.partitioner, ByColumn) else labels
        with untouched(type(self.partitioner).__call__, ()):
            clients = self.partitioner(count, among, keyed_rng(self.seed, Purpose.PARTITION), least)
        check_partition(self.partitioner, clients, count, least)
        names = list(map(str, np.unique(owners))) if owners is not None and among is owners else []
        if validation is None:
            return {"train": Ragged(clients, names)}
        if isinstance(validation, np.ndarray):
            masks = {"train": ~validation, "val": validation}
            splits = {name: [rows[mask[rows]] for rows in clients] for name, mask in masks.items()}
            for name, lists in splits.items():
                if lacking := [i for i, rows in enumerate(lists) if not len(rows)]:
                    client = names[lacking[0]] if names else lacking[0]
                    why = "mark other examples as validation examples, or change the partitioner"
                    raise UserError(f"client {client} has no examples in the split {name}; {why}")
            return {name: Ragged(lists, names) for name, lists in splits.items()}
        own = Ragged(clients)
        held_out = np.clip(np.rint(exact(validation * own.sizes)), 1, own.sizes - 1).astype(np.int64)
        if stratified is None:
            rngs = keyed_rngs(self.seed, Purpose.SPLIT, range(len(own)))
            for rng, rows in zip(rngs, cut(own.rows, own.sizes), strict=True):
                rng.shuffle(rows)  # shuffles in place, and thus in own.rows
        else:
            places = keyed_rng(stratified, Purpose.SPLIT, exchange=1).permutation(count)
            strata = np.zeros(count) if labels is None else labels
            for rows, count_out in zip(cut(own.rows, own.sizes), held_out, strict=True):
                rows[:] = rows[np.lexsort((places[rows], strata[rows]))]
                every = ((np.arange(count_out) + 0.5) * len(rows) / count_out).astype(np.int64)
                rows[:] = np.concatenate([rows[every], np.delete(rows, every)])
        chunks = cut(own.rows, np.stack([held_out, own.sizes - held_out], 1).ravel())
        return {"train": Ragged(chunks[1::2], names), "val": Ragged(chunks[::2], names)}
