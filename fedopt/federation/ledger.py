"""What was communicated and computed so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedopt.federation import ranks
from fedopt.federation.oracles import Calls


def size_in_bytes(message: object) -> int:
    """The bytes of all tensors in a (nested) message. Python numbers are hyperparameters, known to all, and cost nothing."""
    return sum(t.numel() * t.element_size() for t in tree_leaves(message) if isinstance(t, Tensor))


@dataclass
class Ledger:
    """comm_rounds: server -> clients -> server exchanges; down, up: bytes to and from each client, [M] int64."""

    clients: int
    comm_rounds: int = 0
    calls: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        self.down = np.zeros(self.clients, dtype=np.int64)
        self.up = np.zeros(self.clients, dtype=np.int64)

    def bill(self, cohort: np.ndarray, down: int, up: int) -> None:
        """One exchange with the clients of a cohort, `down` and `up` bytes each."""
        self.comm_rounds += 1
        self.down[cohort] += down
        self.up[cohort] += up

    def count(self, calls: Calls, device: torch.device) -> None:
        """Oracle calls of the clients of this rank; every rank adds those of all ranks."""
        counted = torch.tensor([calls.grad, calls.hvp, calls.jvp], device=device)
        grad, hvp, jvp = ranks.total([counted])[0].tolist()
        self.calls = Calls(self.calls.grad + grad, self.calls.hvp + hvp, self.calls.jvp + jvp)

    @property
    def total_bytes(self) -> int:
        """Bytes to and from all clients."""
        return int(self.down.sum() + self.up.sum())

    def columns(self) -> dict[str, int]:
        """By the names of metrics.csv, totals over all clients."""
        return {
            "comm_rounds": self.comm_rounds,
            "bytes_down": int(self.down.sum()),
            "bytes_up": int(self.up.sum()),
            "grad_calls": self.calls.grad,
            "hvp_calls": self.calls.hvp,
            "jvp_calls": self.calls.jvp,
        }

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        counts = [self.comm_rounds, self.calls.grad, self.calls.hvp, self.calls.jvp]
        return {
            "ledger.counts": torch.tensor(counts),
            "ledger.down": torch.from_numpy(self.down),
            "ledger.up": torch.from_numpy(self.up),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        self.comm_rounds, self.calls.grad, self.calls.hvp, self.calls.jvp = tensors["ledger.counts"].tolist()
        self.down, self.up = tensors["ledger.down"].numpy().copy(), tensors["ledger.up"].numpy().copy()
