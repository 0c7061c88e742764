"""The first argument of a client function: one client, with its examples, draws and memory, and the problem's oracles."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_structure

from fedopt.errors import UserError, gives
from fedopt.federation.counting import Calls
from fedopt.federation.draws import Drawn
from fedopt.federation.oracles import Oracles, for_problems
from fedopt.federation.samples import ClientSamples, Sample, Share
from fedopt.problems import Hierarchical, Minimax, Nested, Problem, normal, scales, uniform

Carry = TypeVar("Carry")
Tensors = tuple[Tensor, ...]


class Client(Oracles):
    """One client, the first argument of a client function. It has the client's examples, draws, memory and oracles.

    `Round.exchange` creates the clients. Under ``vmap``, one object represents all clients of a stack.

    Attributes:
        index: The client's index, 0 to M - 1.

    Args:
        problem: The problem.
        calls: The oracle calls of the run, to which the calls of this client are added.
        drawn: The draws of the stack, by name.
        share: The values that differ between the clients of the stack.
        key: A function from a name to a number, from which clients derive their random numbers.
        stack: The number of clients in the stack. None: clients are run one by one.
    """

    h_weighted: Callable[[Tensor], Tensors]

    def __init__(
        self,
        problem: Problem,
        calls: Calls,
        drawn: dict[str, Drawn],
        share: Share,
        key: Callable[[str], int],
        stack: int | None = None,
    ):
        super().__init__(problem, calls, stack)
        self.index, self._share, self._key = share.client, share, key
        self._samples = ClientSamples(problem, share, drawn, self._stacked)

    @property
    def memory(self) -> Any:
        """This client's row of the memory, such as ``[d]``. A client function may overwrite it.

        Raises:
            UserError: The exchange was called without ``memory=``.
        """
        return self._given("memory")

    @property
    def own(self) -> Any:
        """The part of the message that only this client receives: its row of the argument ``own`` of the exchange.

        Raises:
            UserError: The exchange was called without ``own=``.
        """
        return self._given("own")

    def _given(self, name: str) -> Any:
        if (value := getattr(self._share, name)) is None:
            needed = f"fed.exchange(..., {name}=...)"
            raise UserError(f"client.{name}: this exchange does not pass {name} to the clients; write {needed}")
        return value

    def entry(self, values: Any) -> Any:
        """Return this client's value of a hyperparameter.

        Args:
            values: A number, which is returned unchanged, or a list of numbers. From a list of length L, client i gets the
                number at position i mod L, as a scalar tensor.
        """
        if not isinstance(values, Sequence):
            return values
        like = self._problem.start()[0]
        return torch.tensor(values, device=like.device, dtype=like.dtype)[self.index % len(values)]

    def uniform(self, name: str, *shape: int, k: int = 0) -> Tensor:
        """Return this client's own random numbers between 0 and 1, such as for a mask.

        They differ between clients, exchanges and rounds, cost no bytes and follow the seed. The same arguments give the same
        numbers.

        Args:
            name: A name for the random quantity.
            shape: The shape of the result.
            k: An index that distinguishes several draws of this quantity in the exchange, such as one for each local step.
        """
        return self._sampled(uniform, name, shape, k)

    def normal(self, name: str, *shape: int, k: int = 0) -> Tensor:
        """Return this client's own standard normal numbers, of the given shape.

        Args:
            name: A name for the random quantity.
            shape: The shape of the result.
            k: An index that distinguishes several draws of this quantity in the exchange, such as one for each local step.
        """
        return self._sampled(normal, name, shape, k)

    def _sampled(self, numbers: Callable[..., Tensor], name: str, shape: tuple[int, ...], k: int) -> Tensor:
        like = self._problem.start()[0]
        key = torch.as_tensor(self.index, device=like.device) + self._key(name) + (k << 32)
        return numbers(key, *shape).to(like)

    def own_steps(self, name: str) -> Tensor:
        """Return this client's number of local steps, as a scalar tensor.

        Args:
            name: The keyword of `Round.exchange` under which the number of local steps and the batch size were given, such as
                ``local`` in ``exchange(..., local=Steps(5, B=10))``.

        Raises:
            UserError: The exchange has no draws of that name.
        """
        # Where `steps` lacks the name, the number is equal for all, so any one will do
        return self._share.steps.get(name, torch.tensor(self._samples.of(name).rising_steps[-1]))

    def sample(self, name: str) -> Sample:
        """Return the sample of the first local step, for exchanges that ask for only one step.

        If the keyword's `Steps` set ``samples``, the result is a list of samples.

        Args:
            name: The keyword of `Round.exchange` under which the number of local steps and the batch size were given, such as
                ``local`` in ``exchange(..., local=Steps(5, B=10))``.

        Raises:
            UserError: The exchange has no such keyword, or its number of steps is 0.
        """
        if self._samples.of(name).rising_steps[-1] < 1:
            raise UserError(
                f"client.sample({name!r}): the exchange asks for 0 steps; pass {name}=Steps(1), or use client.scan"
            )
        return self._of_step(name, 0)

    def batch(self, name: str, split: str) -> tuple[Tensor, Tensor]:
        """Return the index of the fixed batch that was drawn, and the fraction of the client's examples that it contains.

        Both are scalar tensors. They are 0 and 1 if every sample contains all examples of its client: if B is None, or if no
        client of the stack has more than B examples.

        Args:
            name: The name of the draws, which must be ``Steps(1, B, fixed=True)``.
            split: The name of the split from which the batch was drawn.
        """
        positions, (_, weight) = self._samples.positions(name, 0)[1], self._share.whole[split]
        if not positions:
            return torch.zeros_like(weight[0], dtype=torch.int64), torch.ones_like(weight[0])
        at, weight_in_batch = positions[split]
        width = at.shape[-1]  # B
        size_fraction = weight[0] / weight_in_batch[0, 0]  # (1 / n) / (1 / size)
        return at[0, 0] // width, size_fraction

    def steps(self, name: str) -> Iterator[Sample]:
        """Yield the sample of each local step.

        If the draws set ``samples``, each step has a list of samples. Use this method only if all clients take the same number
        of steps; otherwise use `scan`.

        Args:
            name: The keyword of `Round.exchange` under which the number of local steps and the batch size were given, such as
                ``local`` in ``exchange(..., local=Steps(5, B=10))``.

        Raises:
            UserError: The exchange has no draws of that name.
        """
        return (self._of_step(name, k) for k in range(self._samples.of(name).rising_steps[-1]))

    def scan(
        self, name: str, step: Callable[..., Carry], carry: Carry, *schedules: Callable[[int], Any], skip: int = 0
    ) -> Carry:
        """Run the client's local steps, and return the carry (the client's variables) after the last step.

        For k = skip, skip + 1, ..., the steps are::

            carry = step(carry, sample, *(schedule(k) for schedule in schedules))

        A client that takes fewer steps than other clients keeps the carry of its last step. A client that takes no steps
        returns the first carry.

        Args:
            name: The keyword of `Round.exchange` under which the number of local steps and the batch size were given, such as
                ``local`` in ``exchange(..., local=Steps(5, B=10))``.
            step: The function of one step. It takes the carry, the sample (a list of samples if the draws set ``samples``) and
                the value of each schedule, and returns the next carry.
            carry: The first carry: a tensor, or a (nested) tuple of tensors. Every step returns the same structure.
            schedules: Functions of the index k of the step, such as a decaying step size.
            skip: The number of steps to leave out at the beginning.

        Raises:
            UserError: The exchange has no draws of that name, or a step returns a different structure, or None.
        """
        busy_before, drawn = self._counter.busy, self._samples.of(name)
        fewest, most = drawn.rising_steps[0], drawn.rising_steps[-1]
        # finished[i] = carry after steps_i steps, for clients with steps_i <= k. The stack still computes them.
        finished = None
        for k in range(skip, most):
            if fewest <= k:
                self._counter.busy = busy_before & (drawn.steps > k)
                if finished is None:
                    finished = tree_map(_cloned, carry)
                elif k in drawn.rising_steps:
                    finished = self._merged(name, k, carry, finished)
            new = step(carry, self._of_step(name, k), *(schedule(k) for schedule in schedules))
            if k == skip and not _carried_on(carry, new):
                raise gives(step, new, "the next carry, of the same structure as its first argument")
            carry = new
        self._counter.busy = busy_before
        self._overwritable.clear()  # the returned carry must not be overwritten
        return carry if finished is None else self._merged(name, most, carry, finished)

    def _merged(self, name: str, k: int, carry: Carry, others: Carry) -> Carry:
        """Return ``carry`` for the clients that take exactly k steps, and ``others`` for all other clients.

        Args:
            name: The keyword of `Round.exchange` under which the number of local steps and the batch size were given, such as
                ``local`` in ``exchange(..., local=Steps(5, B=10))``.
            k: The number of steps.
            carry: The carry after k steps.
            others: The carries of the clients that take another number of steps.
        """
        take_k = self._share.steps[name] == k
        return tree_map(lambda a, b: torch.where(take_k, a, b), carry, others)

    @for_problems(Nested, Minimax, Hierarchical)
    def project(self, *point: Any) -> Tensor:
        """Project onto the problem's constraint set, and return the projected y.

        Args:
            point: The arguments of the problem's ``project``: y, ``[dy]``; in a hierarchical problem x, y and the sample.
        """
        return self._problem.project(*point)

    def project_x(self, x: Tensor) -> Tensor:
        """Project x onto the problem's constraint set, ``[d]``. Methods that do so set ``projects_x = True``.

        Args:
            x: The point, ``[d]``.
        """
        return self._problem.project_x(x)

    def _oracle_weighted(self, name: str, values: Tensor) -> Tensors:
        """Return the answer to the server, which computes the mean over clients from it by `ratio`.

        Args:
            name: The name of a function that the problem marks with `oracle`, such as h.
            values: This client's values, one for each value of the function, ``[K, ...]``.

        Returns:
            (values,), or (c values, c) if clients count differently for each value, because the problem has
            ``per_client["h_weights"]``. The factors c, ``[K]``, are proportional to the client's weights.
        """
        if (c := scales(self._problem, name)) is None:
            return (values,)
        return torch.einsum("k,k...->k...", c[self.index], values), c[self.index]

    def hold(self, x: Tensor) -> "Client":
        """Return a copy of this client with x fixed, for which quantities that depend only on x are computed once.

        The copy gives no derivatives with respect to x. A problem supports this by two methods::

            problem.hold(x, sample of all examples) -> held
            problem.pick(held, rows) -> held values of these rows

        The problem's functions must accept the results of both methods in place of a sample. If a problem lacks these methods,
        the client itself is returned.

        Args:
            x: The point, ``[dx]``.
        """
        if not hasattr(self._problem, "hold"):
            return self
        held = copy(self)
        held._samples = self._samples.held(x)
        return held

    def _of_step(self, name: str, k: int) -> Sample:
        n = self._samples.of(name).samples
        return self._sample(name, k) if n is None else [self._sample(name, k * n + j) for j in range(n)]

    def _sample(self, name: str, k: int) -> Sample:
        return self._counter.hand_out(*self._samples.sample(name, k))


def ratio(answers: Tensors) -> Tensor:
    """Return the mean over clients from the mean of their answers, ``[K, ...]``; nan for a value that no client has.

    Args:
        answers: The mean of the clients' ``client.h_weighted(values)``: (values,), or (c values, c).

    Example:
        >>> fedopt.ratio((torch.tensor([3.0, 1.0]), torch.tensor([2.0, 4.0])))
        tensor([1.5000, 0.2500])
    """
    values, *c = answers
    return torch.einsum("k,k...->k...", 1 / c[0], values) if c else values


ClientFn = Callable[[Client, Any], Any]  # (client, message) -> the client's answer


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _carried_on(carry: Any, new: Any) -> bool:
    """Return whether the new carry has the structure of the old one, and none of its leaves is None."""
    leaves, structure = tree_flatten(new)
    return structure == tree_structure(carry) and all(leaf is not None for leaf in leaves)
