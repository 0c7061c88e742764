"""The costs of a run so far: bytes, communication rounds and oracle calls."""

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

OF_CLIENTS = "down", "up", "lost", "rounds"  # the counts per client


def size_in_bytes(message: object) -> int:
    """Return the total size in bytes of all tensors in a (nested) message.

    Numbers cost nothing, since they are hyperparameters, which the server and all clients know.
    """
    return sum(t.numel() * t.element_size() for t in tree_leaves(message) if isinstance(t, Tensor))


@dataclass
class Ledger:
    """The costs of a run so far.

    Args:
        clients: The number of clients, M.
        comm_rounds: The number of communication rounds (server -> clients -> server).
        visits: The number of clients that took part, summed over all communication rounds.
        calls: The oracle calls, summed over all clients.

    Attributes:
        down: The bytes sent to each client, ``[M]`` int64.
        up: The bytes sent by each client, ``[M]`` int64.
        lost: The bytes sent to each client in exchanges from which it then dropped out, ``[M]`` int64. ``down`` does not include
            these bytes.
        rounds: The number of rounds in which each client took part, ``[M]`` int64.
        sent: The messages of recent rounds, which are stored only if answers may be late.
        centres: The last result of clipping in each exchange. Their names begin with centre., as in a checkpoint.
    """

    clients: int
    comm_rounds: int = 0
    visits: int = 0
    calls: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        self.down, self.up, self.lost, self.rounds = np.zeros((4, self.clients), dtype=np.int64)
        self.sent, self.centres = Sent(), dict[str, Tensor]()

    def bill(self, cohort: np.ndarray, down: int, up: int) -> None:
        """Add the cost of one communication round.

        Args:
            cohort: The indices of the clients.
            down: The number of bytes sent to each of these clients.
            up: The number of bytes sent by each of these clients.
        """
        self.comm_rounds += 1
        self.visits += len(cohort)
        self.down[cohort] += down
        self.up[cohort] += up

    def count(self, calls: Calls) -> None:
        """Add oracle calls of all ranks. Every rank must call this method.

        Args:
            calls: The oracle calls of the clients that this rank computed.
        """
        # On the CPU, so that no GPU is synchronised
        counted = ranks.total([torch.tensor([*vars(calls).values()])])[0].tolist()
        self.calls = Calls(*map(add, vars(self.calls).values(), counted))

    def columns(self) -> dict[str, int]:
        """Return the total costs over all clients, keyed by column of metrics.csv."""
        totals = {"bytes_down": int(self.down.sum()), "bytes_up": int(self.up.sum())}
        calls = {k if k.endswith("_examples") else f"{k}_calls": n for k, n in vars(self.calls).items()}
        return {"comm_rounds": self.comm_rounds, **totals, **calls, "client_visits": self.visits}

    def _counts(self) -> dict[str, int]:
        """Return the counts that are a single number, keyed by their names in checkpoints."""
        return {"comm_rounds": self.comm_rounds, **vars(self.calls), "visits": self.visits}

    def tensors(self) -> dict[str, Tensor]:
        """Return all counts as tensors, keyed by their names in checkpoints. Those of `sent` and `centres` are left out."""
        counts = {f"ledger.{name}": torch.tensor(n) for name, n in self._counts().items()}
        return counts | {f"ledger.{name}": torch.from_numpy(getattr(self, name)) for name in OF_CLIENTS}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set all counts and the messages in `sent` to the stored values.

        Args:
            tensors: The tensors of a checkpoint by name.

        Raises:
            ValueError: The counts are for a different number of clients, not whole numbers, or negative.
            KeyError: A count is missing.
        """
        for name, like in self.tensors().items():
            if tensors[name].shape != like.shape or tensors[name].dtype != like.dtype or (tensors[name] < 0).any():
                raise ValueError(f"{name}: must be {like.numel()} whole numbers of 0 or more")
        counts = {name: int(tensors[f"ledger.{name}"]) for name in self._counts()}
        self.comm_rounds, self.visits = counts.pop("comm_rounds"), counts.pop("visits")
        self.calls = Calls(**counts)
        self.sent.tensors = {name: t for name, t in tensors.items() if name.startswith("late.")}
        self.centres = {name: t for name, t in tensors.items() if name.startswith("centre.")}
        for name in OF_CLIENTS:
            setattr(self, name, tensors[f"ledger.{name}"].numpy().copy())
