"""What a client function sees."""

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedopt import oracles
from fedopt.problems.classes import Problem

Rows = dict[str, tuple[Tensor, Tensor]]  # by split: numbers of examples, their weights
AT_ONCE = 256  # examples of a client that a stack fetches in one go, which saves the overhead of small batches


class Client:
    """One client, or under vmap each of a stack of them: its own examples, draws and memory.

    index: which client; memory: its own row of the algorithm's per-client memory, or None; own: what was sent to it alone;
    steps: local steps (of the stack's busiest client).
    """

    def __init__(
        self,
        problem: Problem,
        index: int | Tensor,
        whole: Rows,
        positions: Rows,
        active: Tensor | None,
        active_counts: list[int],
        memory: Any,
        own: Any = None,
    ):
        self.index = index
        self.memory = memory
        self.own = own
        self.steps = len(active_counts)
        self._problem: Any = problem
        self._whole = whole
        self._positions = positions
        self._held: Any = None
        self._iterate: Tensor | None = None  # what the last gradient step returned: the next one may overwrite it
        self._active = active
        self._active_counts = active_counts
        self._samples: dict[int, Any] = {}

    @property
    def own_steps(self) -> Tensor:
        """Local steps of this client, a whole number."""
        return torch.tensor(self.steps) if self._active is None else self._active.sum()

    def sample(self, k: int = 0) -> Any:
        """The sample of local step k (counted from 0). With full local batches it is the same one for all steps."""
        k = k if self._positions else 0
        if k not in self._samples:
            self._samples = self._fetch(k)
        return self._samples[k]

    def _fetch(self, k: int) -> dict[int, Any]:
        """The samples from k on that are fetched in one go."""
        if not self._positions:
            return {k: self._problem.sample(self.index, self._whole) if self._held is None else self._held}
        size = max(position.shape[-1] for position, _ in self._positions.values())
        if isinstance(self.index, int) or 2 * size > AT_ONCE:
            return {k: self._sample({split: (at[k], weight[k]) for split, (at, weight) in self._positions.items()})}
        some = slice(k, min(k + AT_ONCE // size, self.steps))
        chosen = {split: (at[some], weight[some]) for split, (at, weight) in self._positions.items()}
        leaves, structure = tree_flatten(torch.func.vmap(self._sample)(chosen))
        of_each = zip(*(leaf.unbind() for leaf in leaves), strict=True)
        return {k + j: tree_unflatten(list(own), structure) for j, own in enumerate(of_each)}

    def _sample(self, chosen: Rows) -> Any:
        if self._held is not None:
            return self._problem.pick(self._held, chosen)
        rows = {split: (self._whole[split][0].gather(0, at), weight) for split, (at, weight) in chosen.items()}
        return self._problem.sample(self.index, rows)

    def hold(self, x: Tensor) -> "Client":
        """This client while x stays fixed: what all its samples then share is computed once. Derivatives in x are lost."""
        held = copy(self)
        held._held = self._problem.hold(x, self._problem.sample(self.index, self._whole))
        held._samples = {}
        return held

    def gradient_step(self, x: Tensor, sample: Any, eta: float, plus: Tensor | None = None) -> Tensor:
        """x - eta (grad f_i(x) + plus), [d]. One gradient call.

        Written over x where x is what this client's last gradient step returned: use that no more.
        """
        self._iterate = oracles.gradient_step(self._problem, x, sample, eta, plus, x is self._iterate)
        return self._iterate

    def inner_gradient_step(self, x: Tensor, y: Tensor, sample: Any, eta: float, plus: Tensor | None = None) -> Tensor:
        """y - eta (grad_y g_i(x, y) + plus), [dy]. One gradient call. Written over y as `gradient_step` over x."""
        self._iterate = oracles.inner_gradient_step(self._problem, x, y, sample, eta, plus, y is self._iterate)
        return self._iterate

    def scan(
        self,
        step: Callable[..., Any],
        carry: Any,
        first: int = 0,
        last: int | None = None,
        samples: int = 1,
        numbered: bool = False,
    ) -> Any:
        """carry = step(carry, its sample or samples), the samples first..last-1 being taken in turn, `samples` by each step.

        numbered: step(carry, k, its sample or samples), k the number of the first of them.
        A client that has fewer than the others keeps its last carry.
        """
        everyone = oracles.counted_clients()
        for k in range(first, self.steps if last is None else last, samples):
            oracles.count_for(self._active_counts[k])
            own = (self.sample(j) for j in range(k, k + samples))
            of_k = (k, *own) if numbered else own
            if self._active is None or self._active_counts[k] == everyone:  # nobody has finished yet
                carry = step(carry, *of_k)
            else:
                alias = tree_map(
                    Tensor.detach, carry
                )  # no client's last gradient step: the next one is not written over it
                new = step(alias, *of_k)
                active = self._active[k]
                carry = tree_map(lambda a, b, active=active: torch.where(active, a, b), new, carry)
        oracles.count_for(everyone)
        return carry
