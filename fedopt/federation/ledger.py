"""Counts of what a run has communicated and computed so far, and the messages that late clients still answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedopt.federation import ranks
from fedopt.federation.counting import Calls
from fedopt.federation.late import Sent

OF_CLIENTS = "down", "up", "lost", "rounds"  # the counts of each client


def size_in_bytes(message: object) -> int:
    """Return the bytes of all tensors in a (nested) message. Numbers cost nothing: they are hyperparameters, which all know."""
    return sum(t.numel() * t.element_size() for t in tree_leaves(message) if isinstance(t, Tensor))


@dataclass
class Ledger:
    """Counts what a run communicates and computes.

    Args:
        comm_rounds: The number of exchanges server -> clients -> server.
        visits: The clients that took part, summed over exchanges.
        calls: The oracle calls. down, up: the bytes to and from each client, [M] int64. lost: the bytes to each client that
            dropped out after it had the message, [M] int64; not in `down`. rounds: the number of rounds in which each client
            took part, [M] int64. sent: the messages of the last rounds, if answers may be late.
    """

    clients: int
    comm_rounds: int = 0
    visits: int = 0
    calls: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        self.down, self.up, self.lost, self.rounds = np.zeros((4, self.clients), dtype=np.int64)
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

    def columns(self) -> dict[str, int]:
        """Return the totals over all clients, by their column names in metrics.csv."""
        totals = {"bytes_down": int(self.down.sum()), "bytes_up": int(self.up.sum())}
        calls = {k if k.endswith("_examples") else f"{k}_calls": n for k, n in vars(self.calls).items()}
        return {"comm_rounds": self.comm_rounds, **totals, **calls, "client_visits": self.visits}

    def _counts(self) -> dict[str, int]:
        """Return the counts that are one number for all clients, by their names in checkpoints."""
        return {"comm_rounds": self.comm_rounds, **vars(self.calls), "visits": self.visits}

    def tensors(self) -> dict[str, Tensor]:
        """Return the counts as tensors, each by its name, for a checkpoint; without `sent`."""
        counts = {f"ledger.{name}": torch.tensor(n) for name, n in self._counts().items()}
        return counts | {f"ledger.{name}": torch.from_numpy(getattr(self, name)) for name in OF_CLIENTS}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the counts, and the messages, from a dict of tensors as a checkpoint has it.

        Raises ValueError if they are of a different number of clients, not whole, or negative; KeyError if one is missing.
        """
        for name, like in self.tensors().items():
            if tensors[name].shape != like.shape or tensors[name].dtype != like.dtype or (tensors[name] < 0).any():
                raise ValueError(f"{name}: must be {like.numel()} whole numbers of 0 or more")
        counts = {name: int(tensors[f"ledger.{name}"]) for name in self._counts()}
        self.comm_rounds, self.visits = counts.pop("comm_rounds"), counts.pop("visits")
        self.calls = Calls(**counts)
        self.sent.tensors = {name: t for name, t in tensors.items() if name.startswith("late.")}
        for name in OF_CLIENTS:
            setattr(self, name, tensors[f"ledger.{name}"].numpy().copy())
