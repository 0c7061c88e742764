"""Count the communication and the derivatives of a round independently of fedopt's ledger.

The functions of the problem are wrapped, so that they record which derivatives are taken (`Tap`). The messages of client
functions are counted while the clients run one by one (`Watching`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedopt.federation import OneByOne


class Tap(torch.autograd.Function):
    """The identity function, which appends to a list of events when it is differentiated.

    It appends 'back' for each gradient that is propagated back through it, and 'second' for each derivative of such a
    gradient. It is called as ``Tap.apply(v, events)``.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, events: list[str], order: Sequence[str] = ("back", "second")) -> Tensor:
        ctx.events, ctx.order = events, order
        return v.view_as(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        event, *higher = ctx.order
        ctx.events.append(event)
        return Tap.apply(gradient, ctx.events, higher) if higher else gradient, None, None


class Tapped:
    """A counter of the derivatives of a problem's functions.

    It replaces the functions on the problem object with wrapped functions, in which each variable passes through a `Tap`.
    """

    def __init__(self, problem: Any):
        self.seen: list[tuple[str, tuple[list[str], ...]]] = []  # function, events of each variable
        self.own = 0  # gradients that the problem computes in hand-written code
        for name in ("f", "g", "h"):
            if hasattr(problem, name):
                self.tap(problem, name)
        if hasattr(problem, "level"):
            self.tap_levels(problem)

    def tap(self, problem: Any, name: str) -> None:
        function = getattr(problem, name)

        def tapped(*arguments: Any) -> Any:
            *point, sample = arguments
            if not any(v.requires_grad or torch._C._functorch.is_gradtrackingtensor(v) for v in point):
                return function(*arguments)  # only the value is computed, no derivative
            events: tuple[list[str], ...] = tuple([] for _ in point)
            self.seen.append((name, events))
            return function(*(Tap.apply(v, e) for v, e in zip(point, events, strict=True)), sample)

        for form in ("gradient", "gradients", "step"):
            if hasattr(function, form):
                setattr(tapped, form, self.counted(form, getattr(function, form)))
        setattr(problem, name, tapped)

    def counted(self, form: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hand-written derivative, wrapped so that ``own`` counts the gradients that it computes.

        A `Tap` does not see gradients that are computed without automatic differentiation. A step with an anchor counts as two.

        Args:
            form: What the function computes: ``gradient``, ``gradients`` or ``step``.
            function: The function.
        """

        def tapped(*arguments: Any) -> Any:
            value = function(*arguments)
            anchored = form == "step" and arguments[-1] is not None
            self.own += len(value) if form == "gradients" else 1 + anchored
            return value

        return tapped

    def tap_levels(self, problem: Any) -> None:
        function, last = problem.level, len(problem.dims) - 1

        def tapped(n: int, z: Tensor, sample: Any) -> Tensor:
            events: list[str] = []
            self.seen.append(("f" if n == last else "level", (events,)))
            return function(n, Tap.apply(z, events), sample)

        problem.level = tapped

    def calls(self) -> Counter:
        """Return the numbers of gradients (grad), Hessian-vector products (hvp) and Jacobian-vector products (jvp) so far."""
        total = Counter(grad=self.own, hvp=0, jvp=0)
        for name, events in self.seen:
            backs = [of.count("back") for of in events]
            if name == "level":
                total["jvp"] += sum(backs)
            elif not any("second" in of for of in events):
                # If the function does not depend on a variable, its gradient is zero and still counts
                total["grad"] += max(1, *backs)
            elif len(backs) == 1:  # the gradient in the only variable was differentiated
                total["hvp"] += backs[0] - 1
            else:  # the gradient in y (the last variable) was differentiated, along a vector
                total["hvp"] += backs[-1] - 1
                total["jvp"] += backs[0]
                # FedMSA differentiates in both variables together, which includes the gradient
                total["grad"] += bool(backs[0] and backs[-1] > 1)
        return total


class Watching(OneByOne):
    """An engine that runs clients one by one, and counts for each client the bytes it receives (down) and sends (up)."""

    def __init__(self) -> None:
        self.down, self.up = Counter[int](), Counter[int]()

    def run(self, client_fn: Any, message: Any, problem: Any, stack: Any, calls: Any) -> Any:
        def watched(client: Any, message: Any) -> Any:
            answer = client_fn(client, message)
            self.down[client.index] += size(message if stack.share.own is None else (message, client.own))
            self.up[client.index] += size(answer if stack.share.memory is None else answer[0])
            return answer

        return super().run(watched, message, problem, stack, calls)


def size(message: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(message) if isinstance(leaf, Tensor))
