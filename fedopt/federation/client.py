"""What a client function sees."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedopt import oracles
from fedopt.problems.classes import Problem


class Client:
    """One client, or under vmap each of a stack of them: its own examples, draws and memory.

    index: which client; memory: its own row of the algorithm's per-client memory, or None;
    steps: local steps (of the stack's busiest client).
    """

    def __init__(
        self,
        problem: Problem,
        index: int | Tensor,
        rows: dict[str, tuple[Tensor, Tensor]],
        active: Tensor | None,
        active_counts: list[int],
        memory: Any,
    ):
        self.index = index
        self.memory = memory
        self.steps = len(active_counts)
        self._problem = problem
        self._rows = rows
        self._active = active
        self._active_counts = active_counts
        self._samples: dict[int, Any] = {}

    def sample(self, k: int = 0) -> Any:
        """The sample of local step k (counted from 0). With full local batches it is the same one for all steps."""
        steps_drawn = next(iter(self._rows.values()))[0].shape[0]
        k = min(k, steps_drawn - 1)
        if k not in self._samples:
            rows = {split: (index[k], weight[k]) for split, (index, weight) in self._rows.items()}
            self._samples = {k: self._problem.sample(self.index, rows)}
        return self._samples[k]

    def scan(self, step: Callable[[Any, Any], Any], carry: Any, first: int = 0) -> Any:
        """carry = step(carry, sample of step k) for the steps from `first` on; a client that has fewer keeps its last carry."""
        for k in range(first, self.steps):
            oracles.count_for(self._active_counts[k])
            new = step(carry, self.sample(k))
            if self._active is None:
                carry = new
            else:
                active = self._active[k]
                carry = tree_map(lambda a, b, active=active: torch.where(active, a, b), new, carry)
        oracles.count_for(self._active_counts[0])
        return carry
