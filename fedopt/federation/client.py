"""What a client function sees: one client, with its examples, draws and memory, and the oracles of its problem."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from fedopt.errors import UserError, gives
from fedopt.federation.counting import Calls
from fedopt.federation.draws import Drawn, Weighted
from fedopt.federation.oracles import Oracles, for_problems
from fedopt.problems import Hierarchical, Minimax, Nested, Problem

SMALL, AT_ONCE = 16, 256  # a stack fetches several batches of fewer than SMALL examples in one go, which saves overhead


class Client(Oracles):
    """One client of an exchange, as a client function sees it: its examples, draws and memory, and the oracles of its problem.

    `Round.exchange` makes clients. Under ``vmap`` one object stands for every client of a stack at once.

    Attributes:
        index: The client's index, 0 to M - 1.

    Args:
        problem: The problem.
        calls: The counter that oracle calls are added to.
        drawn: The draws of the stack, by name.
        share: The values that differ between clients: index, place in the stack, rows, positions, steps, memory, message and
            key.
        stack: The number of clients in the stack; None if clients are run one by one.
    """

    def __init__(
        self, problem: Problem, calls: Calls, drawn: dict[str, Drawn], share: dict[str, Any], stack: int | None = None
    ):
        super().__init__(problem, calls, stack)
        self.index: int | Tensor = share["index"]
        self._share, self._drawn = share, drawn
        self._steps: dict[str, list[int]] = {name: sorted(d.steps.tolist()) for name, d in drawn.items()}
        self._at_hand: dict[str, tuple[int, Any]] = {name: (0, share["positions"][name]) for name in drawn}
        self._held: Any = None
        self._samples: dict[str, dict[int, tuple[Any, np.ndarray]]] = {}  # and the examples of each client in them

    @property
    def memory(self) -> Any:
        """This client's row of the memory, ``[d]``. A client function may write over it.

        Raises:
            UserError: The exchange has no memory; its ``memory=`` is missing.
        """
        return self._given("memory")

    @property
    def own(self) -> Any:
        """The message that the server sent to this client alone.

        Raises:
            UserError: The exchange sends no such message; its ``own=`` is missing.
        """
        return self._given("own")

    def _given(self, name: str) -> Any:
        if self._share.get(name) is None:
            raise UserError(
                f"client.{name}: this exchange does not give clients any; add fed.exchange(..., {name}=...)"
            )
        return self._share[name]

    def entry(self, values: Any) -> Any:
        """Return this client's value of a hyperparameter.

        values: a number, which is returned as it is; or a list, of which client i gets the entry i mod its length, as a
            scalar tensor.
        """
        if not isinstance(values, Sequence):
            return values
        like = self._problem.start()[0]
        return torch.tensor(values, device=like.device, dtype=like.dtype)[self.index % len(values)]

    def own_steps(self, name: str) -> Tensor:
        """Return this client's number of local steps in the draws called ``name``, as a scalar tensor.

        Raises UserError if there are no draws of that name.
        """
        return self._share["steps"].get(name, torch.tensor(self._taken(name)[-1]))

    def sample(self, name: str) -> Any:
        """Return the sample of the first step of the draws called ``name``.

        It is a list of samples if the draws set ``samples``. Use it for draws of one step. Raises UserError if there are no
        draws of that name.
        """
        return next(self.steps(name))

    def batch(self, name: str, split: str) -> tuple[Tensor, Tensor]:
        """Return the index of the fixed batch that was drawn, and the fraction of the client's examples that it has.

        Both are scalar tensors. They are 0 and 1 if every sample is all examples (B = None).

        Args:
            name: The name of the draws, which must be ``Steps(1, B, fixed=True)``.
            split: The split that the batch belongs to.
        """
        positions, (_, weight) = self._stretch(name, 0)[1], self._share["whole"][split]
        if not positions:
            return torch.zeros_like(weight[0], dtype=torch.int64), torch.ones_like(weight[0])
        at, weight_in_batch = positions[split]
        return at[0, 0] // at.shape[-1], weight[0] / weight_in_batch[0, 0]

    def steps(self, name: str) -> Iterator[Any]:
        """Yield the sample of each local step in the draws called ``name``.

        It is a list of samples if the draws set ``samples``. Use it only if all clients take equally many steps; `scan` also
        works if they do not. Raises UserError if there are no draws of that name.
        """
        return (self._of_step(name, k) for k in range(self._taken(name)[-1]))

    def scan(
        self, name: str, step: Callable[..., Any], carry: Any, *schedules: Callable[[int], Any], skip: int = 0
    ) -> Any:
        """Run the client's local steps, and return the last carry.

        Each step is ``carry = step(carry, sample, *(schedule(k) for schedule in schedules))``, with k = skip, skip + 1, ... A
        client with fewer steps than the others keeps its last carry. One without steps returns the first carry.

        Args:
            name: The name of the draws.
            step: The function of one step. It takes a sample, or a list of samples if the draws set ``samples``.
            carry: The first carry: a tensor, or a (nested) tuple of tensors. Every step returns the same structure.
            schedules: Functions of the step's index k, such as step sizes. Their values are further arguments of ``step``.
            skip: The number of steps that are left out at the beginning.

        Raises:
            UserError: There are no draws of that name, or a step returns another structure, or None.
        """
        everyone, steps, of_each = self._counter.busy, self._taken(name), self._drawn[name].steps
        kept = None  # the carries of clients that have finished; they go on with the others, for nothing
        for k in range(skip, steps[-1]):
            if steps[0] <= k:
                self._counter.busy = everyone & (of_each > k)
            if steps[0] <= k and kept is None:
                kept = tree_map(_cloned, carry)
            elif k in steps:
                kept = self._those_of(name, k, carry, kept)
            new = step(carry, self._of_step(name, k), *(schedule(k) for schedule in schedules))
            if k == skip and not _carried_on(carry, new):
                raise gives(step, new, "the next carry, of the same structure as its first argument")
            carry = new
        self._counter.busy = everyone
        self._own.clear()  # what is returned is not written over
        return carry if kept is None else self._those_of(name, steps[-1], carry, kept)

    def _those_of(self, name: str, k: int, these: Any, others: Any) -> Any:
        """Return one carry for the clients that take k steps in the draws called ``name``, and another one for the others."""
        take_k = self._share["steps"][name] == k
        return tree_map(lambda a, b: torch.where(take_k, a, b), these, others)

    @for_problems(Nested, Minimax, Hierarchical)
    def project(self, *point: Any) -> Any:
        """Project onto the problem's constraint set, and return the projected y.

        point: the arguments of the problem's ``project``: y, or (x, y, sample) in a hierarchical problem.
        """
        return self._problem.project(*point)

    def hold(self, x: Tensor) -> "Client":
        """Return a copy of this client with x fixed, for which parts that depend on x alone are computed only once.

        Derivatives in x are lost. A problem opts in by two methods; for all others this returns the client itself. ``hold(x,
        sample)`` computes these parts from a sample of all the client's examples. ``pick(held, rows)`` selects examples from
        the result. The problem's functions must then accept both results in place of a sample.
        """
        if (hold := getattr(self._problem, "hold", None)) is None:
            return self
        held = copy(self)
        all_examples = self._problem.sample(self.index, self._share["whole"])
        held._held, held._samples = hold(x, self._keyed(all_examples, len(self._drawn))), {}
        return held

    def _taken(self, name: str) -> list[int]:
        """Return the number of steps that each client of the stack takes in the draws called ``name``, in rising order.

        Raises UserError if there are no draws of that name.
        """
        if name not in self._steps:
            raise UserError(
                f"a client asks for the draws {name!r}, and the exchange has "
                f"{', '.join(self._steps) or 'none'}; add fed.exchange(..., {name}=Steps(...))"
            )
        return self._steps[name]

    def _of_step(self, name: str, k: int) -> Any:
        n = self._drawn[name].samples
        return self._sample(name, k) if n is None else [self._sample(name, k * n + j) for j in range(n)]

    def _sample(self, name: str, k: int) -> Any:
        """Return the k-th sample, k = 0, 1, ..., of the draws called ``name``.

        With full local batches all samples are the same object, unless the problem is random.
        """
        k = k if self._share["positions"][name] or self._problem.random else 0
        samples = self._samples.get(name, {})
        if k not in samples:
            number = list(self._drawn).index(name)
            fetched, examples = self._fetch(name, k).items(), self._drawn[name].examples
            samples = self._samples[name] = {j: (self._keyed(sample, number, j), examples(j)) for j, sample in fetched}
        return self._counter.hand_out(*samples[k])

    def _keyed(self, sample: Any, draws: int, k: int = 0) -> Any:
        """Attach the key of its random numbers to a sample, if the problem draws any.

        draws, k: the index of the draws in the exchange and of the sample in them; together they make keys distinct.
        """
        if not self._problem.random:
            return sample
        return self._problem.keyed(sample, self._share["key"] + (draws << 32) + k)

    def _fetch(self, name: str, k: int) -> dict[int, Any]:
        """Return samples from the k-th on by their index: one, or several if they are small and clients are stacked."""
        first, positions = self._stretch(name, k)
        if not positions and self._held is not None:
            return {k: self._held}
        if not positions:
            if (full_sample := getattr(self._problem, "full_sample", None)) is not None:
                return {k: full_sample(self.index)}
            whole = {split: self._share["whole"][split] for split in self._drawn[name].splits}
            return {k: self._problem.sample(self.index, whole)}
        size = max(at.shape[-1] for at, _ in positions.values())
        if not self._stacked or size >= SMALL:
            some: Any = k - first
            return {k: self._chosen({split: (at[some], weight[some]) for split, (at, weight) in positions.items()})}
        some = slice(k - first, k - first + AT_ONCE // size)
        chosen = {split: (at[some], weight[some]) for split, (at, weight) in positions.items()}
        leaves, structure = tree_flatten(torch.func.vmap(self._chosen)(chosen))
        of_each = zip(*(leaf.unbind() for leaf in leaves), strict=True)
        return {k + j: tree_unflatten(list(own), structure) for j, own in enumerate(of_each)}

    def _stretch(self, name: str, k: int) -> tuple[int, dict[str, Weighted]]:
        """Return the index of the first sample in the stretch that holds sample k, and this client's positions in that stretch."""
        first, positions = self._at_hand[name]
        if positions and not first <= k < first + self._drawn[name].length:
            first, of_stack = self._drawn[name].stretch(k)
            place = self._share["place"]
            positions = {split: (at[place], weight[place]) for split, (at, weight) in of_stack.items()}
            self._at_hand[name] = first, positions
        return first, positions

    def _chosen(self, chosen: dict[str, Weighted]) -> Any:
        if self._held is not None:
            return self._problem.pick(self._held, chosen)
        rows = {split: (self._share["whole"][split][0].gather(0, at), weight) for split, (at, weight) in chosen.items()}
        return self._problem.sample(self.index, rows)


ClientFn = Callable[[Client, Any], Any]  # what a client computes from its message, and sends back


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _carried_on(carry: Any, new: Any) -> bool:
    """Tell whether the new carry has as many leaves as the old one, none of them None."""
    leaves = tree_leaves(new)
    return len(leaves) == len(tree_leaves(carry)) and all(leaf is not None for leaf in leaves)
