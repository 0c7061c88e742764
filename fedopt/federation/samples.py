"""The samples of a client, or of a stack of clients, fetched when the client asks for them."""

from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedopt.errors import UserError
from fedopt.federation.draws import Drawn, Weighted
from fedopt.problems import Problem

Sample = Any  # what a problem makes of examples, or a list of such samples
SMALL, AT_ONCE = 16, 256  # a stack fetches several batches of fewer than SMALL examples in one go, which saves overhead


class Share(NamedTuple):
    """The values that differ between clients; of a stack, tensors with a leading dimension.

    Args:
        client: The client's index, 0 to M - 1.
        place: The client's place in the stack.
        whole: For each split all rows of the client and their weights, ``[n]``.
        positions: For each name of draws the positions in the first stretch, as `Drawn.positions`.
        steps: The client's number of steps, for each name of draws in which clients take unequally many.
        memory: The client's row of the memory; None if the exchange has none.
        own: The message to the client alone; None if there is none.
        key: The key of the client's random numbers; None if the problem draws none.
    """

    client: int | Tensor
    place: Tensor
    whole: dict[str, Weighted]
    positions: dict[str, dict[str, Weighted]]
    steps: dict[str, Tensor]
    memory: Tensor | None
    own: Tensor | None
    key: Tensor | None


class ClientSamples:
    """The samples of a client.

    Args:
        problem: The problem.
        share: The values of this client.
        drawn: The draws of the stack, by name.
        stacked: Whether one object stands for every client of a stack.
    """

    def __init__(self, problem: Problem, share: Share, drawn: dict[str, Drawn], stacked: bool):
        self._problem, self._share, self._drawn, self._stacked = problem, share, drawn, stacked
        self._at_hand: dict[str, tuple[int, Any]] = {name: (0, share.positions[name]) for name in drawn}
        self._held: Any = None
        self._fetched: dict[str, dict[int, tuple[Any, np.ndarray]]] = {}

    def held(self, x: Tensor) -> "ClientSamples":
        """Return the samples for a fixed x, as `Client.hold` says. The problem must have ``hold``.

        The copy begins with no fetched samples, since its samples come from ``hold`` and ``pick``. It shares `_at_hand`:
        positions do not depend on x.
        """
        held = copy(self)
        all_examples = self._problem.sample(self._share.client, self._share.whole)
        # The key gets the index len(drawn), which no draws have
        held._held = self._problem.hold(x, self._keyed(all_examples, len(self._drawn)))  # type: ignore[attr-defined]
        held._fetched = {}
        return held

    def of(self, name: str) -> Drawn:
        """Return the draws called ``name``. Raises UserError if there are none."""
        if name not in self._drawn:
            asked = f"a client asks for the draws {name!r}, and the exchange has {', '.join(self._drawn) or 'none'}"
            raise UserError(f"{asked}; add fed.exchange(..., {name}=Steps(...))")
        return self._drawn[name]

    def sample(self, name: str, k: int) -> tuple[Any, np.ndarray]:
        """Return the k-th sample of the draws called ``name``, k = 0, 1, ..., and the number of examples of each client in it.

        With full local batches all samples are the same object, unless the problem is random.
        """
        k = k if self._share.positions[name] or self._problem.random else 0
        if k not in self._fetched.get(name, {}):
            number, fetched = list(self._drawn).index(name), self._fetch(name, k)
            examples = self._drawn[name].examples
            self._fetched[name] = {j: (self._keyed(fetched[j], number, j), examples(j)) for j in fetched}
        return self._fetched[name][k]

    def positions(self, name: str, k: int) -> tuple[int, dict[str, Weighted]]:
        """Return the index of the first sample in the stretch that holds sample k, and this client's positions in that stretch."""
        first, positions = self._at_hand[name]
        if positions and not first <= k < first + self._drawn[name].length:
            first, of_stack, _ = self._drawn[name].stretch(k)
            place = self._share.place
            positions = {split: (at[place], weight[place]) for split, (at, weight) in of_stack.items()}
            self._at_hand[name] = first, positions
        return first, positions

    def _keyed(self, sample: Any, draws: int, k: int = 0) -> Any:
        """Attach the key of the client's random numbers to a sample, if the problem draws any.

        draws, k: the index of the draws in the exchange, and of the sample in the draws; together they make keys distinct.
        """
        if self._share.key is None:
            return sample
        return self._problem.keyed(sample, self._share.key + (draws << 32) + k)

    def _fetch(self, name: str, k: int) -> dict[int, Any]:
        """Return samples from the k-th on by their index: one, or several if they are small and clients are stacked."""
        first, positions = self.positions(name, k)
        if not positions:
            return {k: self._all_examples(name)}
        size = max(at.shape[-1] for at, _ in positions.values())
        several = self._stacked and size < SMALL
        some: Any = slice(k - first, k - first + AT_ONCE // size) if several else k - first
        chosen = {split: (at[some], weight[some]) for split, (at, weight) in positions.items()}
        if not several:
            return {k: self._chosen(chosen)}
        leaves, structure = tree_flatten(torch.func.vmap(self._chosen)(chosen))
        of_each = zip(*(leaf.unbind() for leaf in leaves), strict=True)
        return {k + j: tree_unflatten(list(sample), structure) for j, sample in enumerate(of_each)}

    def _all_examples(self, name: str) -> Any:
        if self._held is not None:
            return self._held
        if (full_sample := getattr(self._problem, "full_sample", None)) is not None:
            return full_sample(self._share.client)
        rows = {split: self._share.whole[split] for split in self._drawn[name].sizes}
        return self._problem.sample(self._share.client, rows)

    def _chosen(self, chosen: dict[str, Weighted]) -> Any:
        if self._held is not None:
            return self._problem.pick(self._held, chosen)  # type: ignore[attr-defined]
        rows = {split: (self._share.whole[split][0].gather(0, at), weight) for split, (at, weight) in chosen.items()}
        return self._problem.sample(self._share.client, rows)
