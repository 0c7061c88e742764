"""The samples of a client, or of a stack of clients, which are loaded when the client requests them."""

from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedopt.errors import UserError
from fedopt.federation.draws import Drawn, Weighted
from fedopt.problems import Problem

Sample = Any  # the result of `Problem.sample`, or a list of such results
SMALL, AT_ONCE = 16, 256  # a stack loads batches of fewer than SMALL examples together, which saves overhead


class Share(NamedTuple):
    """The values that differ between clients. For a stack, each tensor has an additional leading dimension.

    Args:
        client: The client's index, 0 to M - 1.
        place: The client's position in the stack.
        whole: For each split, the row indices of all examples of the client and their weights, ``[n]`` each.
        positions: name of draws -> split -> the examples of each sample in the first stretch (block of consecutive samples), as
            positions among the client's examples, and their weights, ``[length, B]`` each.
        steps: name of draws -> the client's number of steps, for draws whose numbers of steps differ between clients.
        memory: The client's row of the memory. None: the exchange has no memory.
        own: The part of the message that only this client receives. None: there is no such part.
        key: The key of the client's random numbers. None: the problem draws no random numbers.
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
    """The samples of one client, or of all clients of a stack.

    Args:
        problem: The problem.
        share: The values that differ between clients.
        drawn: The draws of the stack, by name.
        stacked: Whether the object represents a stack.
    """

    def __init__(self, problem: Problem, share: Share, drawn: dict[str, Drawn], stacked: bool):
        self._problem, self._share, self._drawn, self._stacked = problem, share, drawn, stacked
        self._at_hand: dict[str, tuple[int, Any]] = {name: (0, share.positions[name]) for name in drawn}
        self._held: Any = None
        self._fetched: dict[str, dict[int, tuple[Any, np.ndarray]]] = {}

    def held(self, x: Tensor) -> "ClientSamples":
        """Return a copy whose samples come from the problem's ``hold`` and ``pick``; see `Client.hold`.

        The copy starts without loaded samples. It shares `_at_hand`, the positions of the drawn examples, which do not depend on x.

        Args:
            x: The point at which the problem's ``hold`` is evaluated, ``[dx]``.
        """
        held = copy(self)
        all_examples = self._problem.sample(self._share.client, self._share.whole)
        # The key uses the index len(drawn), which no draws have
        held._held = self._problem.hold(x, self._keyed(all_examples, len(self._drawn)))  # type: ignore[attr-defined]
        held._fetched = {}
        return held

    def of(self, name: str) -> Drawn:
        """Return the draws called ``name``. Raises UserError if the exchange has no draws of this name."""
        if name not in self._drawn:
            asked = f"a client uses the draws {name!r}, but the exchange has {', '.join(self._drawn) or 'no draws'}"
            raise UserError(f"{asked}; write fed.exchange(..., {name}=Steps(...))")
        return self._drawn[name]

    def sample(self, name: str, k: int) -> tuple[Any, np.ndarray]:
        """Return a sample, and the number of examples of each client in it, ``[clients]``.

        If samples contain all examples, all samples are the same object, unless the problem draws random numbers.

        Args:
            name: The name that the exchange gave to these draws, as in ``fed.exchange(..., xi=Steps(...))``.
            k: The index of the sample, from 0.
        """
        k = k if self._share.positions[name] or self._problem.random else 0
        if k not in self._fetched.get(name, {}):
            number, fetched = list(self._drawn).index(name), self._fetch(name, k)
            examples = self._drawn[name].examples
            self._fetched[name] = {j: (self._keyed(fetched[j], number, j), examples(j)) for j in fetched}
        return self._fetched[name][k]

    def positions(self, name: str, k: int) -> tuple[int, dict[str, Weighted]]:
        """Return the stretch that contains a sample: the index of its first sample, and its positions and weights by split.

        Args:
            name: The name that the exchange gave to these draws, as in ``fed.exchange(..., xi=Steps(...))``.
            k: The index of the sample, from 0.
        """
        first, positions = self._at_hand[name]
        if positions and not first <= k < first + self._drawn[name].length:
            first, of_stack, _ = self._drawn[name].stretch(k)
            place = self._share.place
            positions = {split: (at[place], weight[place]) for split, (at, weight) in of_stack.items()}
            self._at_hand[name] = first, positions
        return first, positions

    def _keyed(self, sample: Any, draws: int, k: int = 0) -> Any:
        """Attach the key of the client's random numbers to a sample, if the problem draws random numbers.

        Args:
            sample: The sample.
            draws: The index of the draws in the exchange. Together with k, it makes the keys of all samples distinct.
            k: The index of the sample in the draws.
        """
        if self._share.key is None:
            return sample
        return self._problem.keyed(sample, self._share.key + (draws << 32) + k)

    def _fetch(self, name: str, k: int) -> dict[int, Any]:
        """Load sample k and return {k: sample}. For a stack of clients with small samples, some of the next samples are included.

        Args:
            name: The name that the exchange gave to these draws, as in ``fed.exchange(..., xi=Steps(...))``.
            k: The index of the sample.
        """
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
