"""What clients keep from round to round."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from fedopt.errors import UserError


class Memory:
    """A row for each client, [M, d]. It is a value, as tensors are: `replaced` gives another one, which shares all other rows with
    this one, so that a round costs what its cohort does and clients that never took part share one row."""

    def __init__(self, rows: Sequence[Tensor]):
        """rows: [d] for each client, or [M, d]."""
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, clients: np.ndarray) -> Tensor:
        """[clients, d]. Raises UserError where a client has no row."""
        self._check(clients)
        return torch.stack([self._rows[i] for i in clients])

    def replaced(self, clients: np.ndarray, rows: Tensor) -> "Memory":
        """With other rows for these clients, [clients, d]. Raises UserError where a client has no row, or one of another shape."""
        self._check(clients)
        if other := {self._rows[i].shape for i in clients} - {rows.shape[1:]}:
            raise UserError(
                f"rows of shape {list(rows.shape[1:])} for a Memory whose rows have {list(other.pop())}: it has one for each "
                "client, such as Memory(x.new_zeros(problem.clients, len(x)))"
            )
        new = Memory(self._rows)
        for i, row in zip(clients, rows, strict=True):
            new._rows[i] = row.clone()  # by itself: it would keep the whole cohort's tensor alive
        return new

    def _check(self, clients: np.ndarray) -> None:
        last = np.max(clients, initial=-1)
        if last >= len(self._rows):
            raise UserError(
                f"client {last} has no row in a Memory of {len(self._rows)}: every client has one, from 0 on"
            )

    def changed(self, since: "Memory") -> np.ndarray:
        """The clients whose rows are not those of an earlier memory."""
        pairs = zip(self._rows, since._rows, strict=True)
        return np.array([i for i, (row, before) in enumerate(pairs) if row is not before], dtype=np.int64)

    def tensor(self) -> Tensor:
        """[M, d]."""
        return torch.stack(self._rows)


# To functions of trees it is one tensor
register_pytree_node(Memory, lambda memory: ([memory.tensor()], None), lambda leaves, _: Memory(next(iter(leaves))))
