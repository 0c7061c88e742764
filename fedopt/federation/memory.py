"""Per-client state: the tensors that clients keep from round to round."""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from fedopt.errors import UserError

GROUP = 1024  # number of clients whose rows are in one list
EXAMPLE = "make it with a row for each client, such as Memory(x.new_zeros(problem.clients, len(x)))"


class Memory:
    """Per-client state: one row (a tensor) for each client, ``[M, ...]``. A memory is immutable.

    `replaced` returns a new memory, which shares all unchanged rows with this one. The cost of a round therefore depends only on
    the size of its cohort, and clients that have never taken part can share one row.

    Args:
        rows: One tensor per client, all of the same shape and dtype, or a single tensor that contains all rows, such as
            ``[M, d]``. The rows are not copied.

    Raises:
        UserError: There are no rows, or rows differ in shape or dtype.
    """

    def __init__(self, rows: Sequence[Tensor] | Tensor):
        """Store the rows without copying them. rows: one tensor per client, or a single tensor, ``[M, ...]``."""
        if len(rows) == 0 or not isinstance(rows[0], Tensor):
            raise UserError(f"a Memory needs a tensor for each client; {EXAMPLE}")
        self._like = first = rows[0]
        self.shape, self.dtype = (len(rows), *first.shape), first.dtype
        self._refuse_others(rows)
        self._groups: list[list[Tensor]] = [[*rows[k : k + GROUP]] for k in range(0, len(rows), GROUP)]

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, clients: np.ndarray) -> Tensor:
        """Return the rows of some clients as one tensor, ``[n, ...]``.

        Args:
            clients: The indices of the clients, ``[n]``.

        Raises:
            UserError: An index is M or more.
        """
        self._check(clients)
        rows = [self._groups[i // GROUP][i % GROUP] for i in np.asarray(clients).tolist()]
        return torch.stack(rows) if rows else self._like.new_empty(0, *self._like.shape)

    def replaced(self, clients: np.ndarray, rows: Sequence[Tensor] | Tensor) -> "Memory":
        """Return a new memory in which the rows of some clients are replaced. This memory does not change.

        Args:
            clients: The indices of the clients, ``[n]``.
            rows: The new row of each of these clients: n tensors, or a single tensor ``[n, ...]``.

        Raises:
            UserError: An index is M or more, or a new row has a different shape or dtype than this memory's rows.
            ValueError: The number of rows differs from the number of clients.
        """
        self._check(clients)
        self._refuse_others(rows)
        new = copy(self)
        new._groups = list(self._groups)
        for i, row in zip(np.asarray(clients).tolist(), rows, strict=True):
            group, place = divmod(i, GROUP)
            if new._groups[group] is self._groups[group]:
                new._groups[group] = list(self._groups[group])
            new._groups[group][place] = row.clone()  # a view would keep the cohort's tensor alive
        return new

    def _refuse_others(self, rows: Sequence[Tensor] | Tensor) -> None:
        """Raise UserError if a row has a different shape or dtype than the memory's rows."""
        checked = rows[:1] if isinstance(rows, Tensor) else rows  # all rows of one tensor have the same shape and dtype
        for shape, dtype in {(row.shape, row.dtype) for row in checked} - {(self._like.shape, self.dtype)}:
            why = f"rows have shape {[*self._like.shape]} ({self.dtype}), but a new row has {[*shape]} ({dtype})"
            raise UserError(f"a Memory's {why}; {EXAMPLE}")

    def _check(self, clients: np.ndarray) -> None:
        last = np.max(clients, initial=-1)
        if last >= len(self):
            why = f"client {last} has no row in a Memory of {len(self)} rows"
            raise UserError(f"{why}; make it with problem.clients rows, one per client")

    def changed(self, since: "Memory") -> np.ndarray:
        """Return the sorted indices of the clients whose rows were replaced after ``since``.

        Args:
            since: An earlier memory of the same clients.
        """
        groups = enumerate(zip(self._groups, since._groups, strict=True))
        others = ((GROUP * k, zip(now, before, strict=True)) for k, (now, before) in groups if now is not before)
        clients = [first + place for first, rows in others for place, (a, b) in enumerate(rows) if a is not b]
        return np.array(clients, dtype=np.int64)

    def tensor(self) -> Tensor:
        """Return all rows, ``[M, ...]``, as one new tensor."""
        return self.rows(np.arange(len(self)))


def _from_leaves(leaves: Iterable[Any], context: None) -> Any:
    """Return the per-client state with these rows, for PyTorch's tree functions.

    Args:
        leaves: One tensor that contains all rows. torch.func.vmap replaces it with a number, which is returned as it is.
        context: Not used.
    """
    (rows,) = leaves
    return Memory(rows) if isinstance(rows, Tensor) else rows


# For PyTorch's tree functions, a memory is one tensor
register_pytree_node(Memory, lambda memory: ([memory.tensor()], None), _from_leaves)
