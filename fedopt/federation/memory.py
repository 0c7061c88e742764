"""What clients keep from round to round."""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from fedopt.errors import UserError

GROUP = 1024  # clients whose rows are in one list
EXAMPLE = "make it with a row for each client, such as Memory(x.new_zeros(problem.clients, len(x)))"


class Memory:
    """A row for each client, ``[M, ...]``. It is a value, as tensors are: no method changes it.

    `replaced` returns a new memory that shares all unchanged rows with this one. So the cost of a round depends on its cohort
    alone, and clients that never took part share one row.

    Args:
        rows: A tensor for each client, all of one shape and dtype: vectors, numbers or matrices. Or one tensor of all rows,
            such as ``[M, d]``.

    Raises:
        UserError: There is no row, or rows differ in shape or dtype.
    """

    def __init__(self, rows: Sequence[Tensor] | Tensor):
        """Keep the rows as they are, not copied. rows: a tensor for each client, or one of all rows, [M, ...]."""
        if len(rows) == 0 or not isinstance(rows[0], Tensor):
            raise UserError(f"a Memory needs a tensor for each client; {EXAMPLE}")
        self._like = first = rows[0]
        self.shape, self.dtype = (len(rows), *first.shape), first.dtype
        self._refuse_others(rows)
        self._groups: list[list[Tensor]] = [[*rows[k : k + GROUP]] for k in range(0, len(rows), GROUP)]

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, clients: np.ndarray) -> Tensor:
        """Return the rows of these clients, ``[n, ...]``.

        Args:
            clients: The indices of n clients.

        Raises:
            UserError: A client has no row: its index is M or more.
        """
        self._check(clients)
        rows = [self._groups[i // GROUP][i % GROUP] for i in np.asarray(clients).tolist()]
        return torch.stack(rows) if rows else self._like.new_empty(0, *self._like.shape)

    def replaced(self, clients: np.ndarray, rows: Sequence[Tensor] | Tensor) -> "Memory":
        """Return a memory with new rows for these clients; this one stays as it is.

        Args:
            clients: The indices of the clients.
            rows: A tensor for each of them, or one tensor ``[clients, ...]``.

        Raises:
            UserError: A client has no row, or a new row has a different shape or dtype.
            ValueError: There are more or fewer rows than clients.
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
        """Raise UserError if a row has another shape or dtype than the memory's rows."""
        some = rows[:1] if isinstance(rows, Tensor) else rows  # the rows of a tensor are alike
        for shape, dtype in {(row.shape, row.dtype) for row in some} - {(self._like.shape, self.dtype)}:
            raise UserError(
                f"a Memory's rows have shape {[*self._like.shape]} of {self.dtype}, and a new one {[*shape]} of {dtype}; {EXAMPLE}"
            )

    def _check(self, clients: np.ndarray) -> None:
        last = np.max(clients, initial=-1)
        if last >= len(self):
            raise UserError(
                f"client {last} has no row in a Memory of {len(self)} rows; make it with a row for each "
                f"client, problem.clients in all"
            )

    def changed(self, since: "Memory") -> np.ndarray:
        """Return the indices of clients whose rows were replaced since an earlier memory of the same clients."""
        groups = enumerate(zip(self._groups, since._groups, strict=True))
        others = ((GROUP * k, zip(now, before, strict=True)) for k, (now, before) in groups if now is not before)
        clients = [first + place for first, rows in others for place, (a, b) in enumerate(rows) if a is not b]
        return np.array(clients, dtype=np.int64)

    def tensor(self) -> Tensor:
        """Return all rows, ``[M, ...]``, as one new tensor."""
        return self.rows(np.arange(len(self)))


def _from_leaves(leaves: Iterable[Any], context: None) -> Any:
    """Return the memory with these rows. torch.func.vmap puts numbers in place of tensors, and gets them back."""
    (rows,) = leaves
    return Memory(rows) if isinstance(rows, Tensor) else rows


# To functions of trees it is one tensor
register_pytree_node(Memory, lambda memory: ([memory.tensor()], None), _from_leaves)
