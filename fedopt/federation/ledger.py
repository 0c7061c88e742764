"""Counts of what a run has communicated and computed so far, and the messages that late clients still answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedopt.federation import ranks
from fedopt.federation.derivatives import Calls
from fedopt.federation.late import Sent


def size_in_bytes(message: object) -> int:
    """Return the bytes of all tensors in a (nested) message. Numbers cost nothing: they are hyperparameters, which all know."""
    return sum(t.numel() * t.element_size() for t in tree_leaves(message) if isinstance(t, Tensor))


@dataclass
class Ledger:
    """Counts what a run communicates and computes.

    comm_rounds: the number of exchanges server -> clients -> server. visits: the clients that took part, summed over exchanges.
    calls: the oracle calls.
    down, up: the bytes to and from each client, [M] int64.
    sent: the messages of the last rounds, if answers may be late.
    """

    clients: int
    comm_rounds: int = 0
    visits: int = 0
    calls: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        self.down = np.zeros(self.clients, dtype=np.int64)
        self.up = np.zeros(self.clients, dtype=np.int64)
        self.sent = Sent()

    def bill(self, cohort: np.ndarray, down: int, up: int) -> None:
        """Add one exchange with the clients of a cohort. down, up: the bytes to and from each one of them."""
        self.comm_rounds += 1
        self.visits += len(cohort)
        self.down[cohort] += down
        self.up[cohort] += up

    def count(self, calls: Calls) -> None:
        """Add the oracle calls of all ranks' clients. All ranks must call it, each with the calls of its own clients."""
        counted = ranks.total([torch.tensor([*vars(calls).values()])])[0].tolist()  # on the CPU: no GPU waits
        self.calls = Calls(*map(add, vars(self.calls).values(), counted))

    @property
    def total_bytes(self) -> int:
        """The bytes to and from all clients so far."""
        return int(self.down.sum() + self.up.sum())

    def columns(self) -> dict[str, int]:
        """Return the totals over all clients, by their column names in metrics.csv."""
        totals = {"bytes_down": int(self.down.sum()), "bytes_up": int(self.up.sum())}
        calls = {k if k.endswith("_examples") else f"{k}_calls": n for k, n in vars(self.calls).items()}
        return {"comm_rounds": self.comm_rounds, **totals, **calls, "client_visits": self.visits}

    def tensors(self) -> dict[str, Tensor]:
        """Return the counts as tensors, for a checkpoint; without `sent`."""
        counts = torch.tensor([self.comm_rounds, *vars(self.calls).values(), self.visits])
        down, up = torch.from_numpy(self.down), torch.from_numpy(self.up)
        return {"ledger.counts": counts, "ledger.down": down, "ledger.up": up}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the counts, and the messages, from a dict of tensors as a checkpoint has it.

        Raises ValueError if they are of a different number of clients, not whole, or negative.
        """
        for name, like in self.tensors().items():
            found = tensors[name]
            if found.shape != like.shape or found.dtype != like.dtype or (found < 0).any():
                raise ValueError(f"{name}: must be {like.numel()} whole numbers of 0 or more")
        self.comm_rounds, *calls, self.visits = tensors["ledger.counts"].tolist()
        self.calls = Calls(*calls)
        self.sent.tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("sent.")}
        self.down, self.up = tensors["ledger.down"].numpy().copy(), tensors["ledger.up"].numpy().copy()
