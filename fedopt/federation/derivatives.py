"""Derivatives of functions of tensors, counted, for one client or for a stack of clients."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedopt.federation.counting import Calls, Counter

T = TypeVar("T")


class Derivatives:
    """Derivatives of any function, each counted as oracle calls.

    Args:
        calls: The counter they are added to; None for a new one.
        stack: The number of clients under torch.func.vmap, for which derivatives come from torch.func. None for one client by
            itself, for which plain automatic differentiation has less overhead.
    """

    def __init__(self, calls: Calls | None = None, stack: int | None = None):
        self._stacked = stack is not None
        self._counter = Counter(calls or Calls(), stack or 1)

    def grad(self, fn: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Return the gradient of ``fn(..., x, sample)``, a scalar, in x, ``[d]``. It counts as one gradient call.

        It does not count in a function that is itself differentiated. If fn does not depend on x, the gradient is zeros.

        Args:
            fn: A function of the problem, such as ``client.f``, or any other.
            arguments: The function's arguments; the last two are x and the sample.
        """
        *fixed, x, sample = arguments
        self._counter.count(sample, grad=1)
        if (gradient := self._form(fn, "gradient")) is not None:
            return gradient(*arguments)
        return self._grad(lambda x: fn(*fixed, x, sample), x)

    def gradients(self, fn: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Return the gradient of ``fn(..., x, sample)`` in x at each of P points, ``[P, d]``. It counts as P gradient calls.

        Args:
            fn: As in `grad`.
            arguments: The function's arguments: the variables, ``[P, d]`` each, and one sample for all points.
        """
        *points, sample = arguments
        return self.at_each(lambda *point: self.grad(fn, *point, sample), *points)

    def vjp(
        self, fn: Callable[..., Any], *primals: Tensor, grad: int = 0, hvp: int = 0, jvp: int = 0, sample: Any = None
    ) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
        """Return ``fn(*primals)``, and the map from cotangents v to v'J, a tuple of one vector for each primal.

        Args:
            fn: A function that returns a tensor or a tuple of tensors; v has the same structure.
            primals: The point, one tensor for each argument of fn.
            grad: The number of gradient calls that each use of the map counts as.
            hvp: The number of Hessian-vector products that each use counts as.
            jvp: The number of Jacobian-vector products that each use counts as.
            sample: The sample that fn uses, whose examples are counted. None: the one that the client got last.
        """
        value, pull = self._vjp(fn, *primals)
        return value, self._counting(pull, sample, grad, hvp, jvp)

    def pullback(self, fn: Callable[..., Tensor], *arguments: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return ``fn(..., x, sample)``, and the map v -> v'J with its Jacobian in x, ``[d]``.

        Each use of the map counts as one Jacobian-vector product.

        Args:
            fn: As in `grad`, but with a tensor of any shape as its value.
            arguments: As in `grad`.
        """
        *fixed, x, sample = arguments
        if (pullback := self._form(fn, "pullback")) is None:
            value, product = self.vjp(lambda x: fn(*fixed, x, sample), x, jvp=1, sample=sample)
            return value, lambda v: product(v)[0]
        value, pull = pullback(*arguments)
        return value, self._counting(pull, sample, jvp=1)

    def _counting(self, product: Callable[[Any], T], sample: Any, *each: int, **by_name: int) -> Callable[[Any], T]:
        """Wrap the map `product` so that each use is counted as `Counter.count` does."""

        def counting(v: Any) -> T:
            self._counter.count(sample, *each, **by_name)
            return product(v)

        return counting

    def _form(self, fn: Callable[..., Any], name: str) -> Callable[..., Any] | None:
        """Return a form of fn that was written by hand, such as its gradient; None if it has none.

        None also inside a derivative, since the form may not be differentiable.
        """
        return getattr(fn, name, None) if self._counter.depth == 0 else None

    def at_each(self, fn: Callable[..., Tensor], *points: Tensor) -> Tensor:
        """Return fn at each of P points, ``[P, ...]``. Oracle calls in fn count P times.

        In a stack of clients all points are computed in parallel, otherwise one by one.

        Args:
            fn: A function of one point.
            points: The variables, ``[P, d]`` each.
        """
        if not self._stacked:
            return torch.stack([fn(*point) for point in zip(*points, strict=True)])
        around = self._counter.points
        self._counter.points *= len(points[0])
        values = torch.func.vmap(fn)(*points)
        self._counter.points = around
        return values

    def _inside(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap fn so that oracle calls made inside it are not counted. The derivative that calls it is counted already."""

        def inside(*arguments: Any) -> Any:
            self._counter.depth += 1
            try:
                return fn(*arguments)
            finally:
                self._counter.depth -= 1

        return inside

    def _vjp(self, fn: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
        fn = self._inside(fn)
        if self._stacked:
            value, pull_back = torch.func.vjp(fn, *primals)[:2]
            return value, pull_back
        nested = self._counter.depth > 0 or any(
            p.requires_grad for p in primals
        )  # another derivative is taken through this one
        primals = tuple(p if p.requires_grad else p.detach().requires_grad_() for p in primals)
        value = fn(*primals)

        def pull(cotangents: Any) -> tuple[Tensor, ...]:
            values, cots = (value, cotangents) if isinstance(value, tuple) else ((value,), (cotangents,))
            live = [(v, c) for v, c in zip(values, cots, strict=True) if v.requires_grad]
            if not live:
                return tuple(torch.zeros_like(p) for p in primals)
            v, c = zip(*live, strict=True)
            return torch.autograd.grad(v, primals, c, create_graph=nested, retain_graph=True, materialize_grads=True)

        detached = value if nested else tuple(v.detach() for v in value) if isinstance(value, tuple) else value.detach()
        return detached, pull

    def _grad(self, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        fn = self._inside(fn)
        if self._stacked:
            return torch.func.grad(fn)(x)
        nested = self._counter.depth > 0 or x.requires_grad  # another derivative is taken through this one
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        value = fn(x)
        if not value.requires_grad:  # constant in x
            return torch.zeros_like(x)
        return torch.autograd.grad(value, x, create_graph=nested, materialize_grads=True)[0]
