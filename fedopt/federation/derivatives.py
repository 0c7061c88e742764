"""Derivatives of functions of tensors for one client or a stack of clients. Each derivative counts as oracle calls."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedopt.federation.counting import Calls, Counter
from fedopt.networks import depth

T = TypeVar("T")


class Derivatives:
    """Derivatives of arbitrary functions. Each derivative counts as oracle calls.

    Args:
        calls: The oracle calls to which new calls are added. None: a new counter.
        stack: The number of clients that are vectorised by torch.func.vmap; derivatives are then taken by torch.func. None: a
            single client; derivatives are then taken by torch.autograd, which has less overhead.
    """

    def __init__(self, calls: Calls | None = None, stack: int | None = None):
        self._stacked = stack is not None or depth() > 0
        self._counter = Counter(calls or Calls(), stack or 1)

    def grad(self, fn: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Return the gradient of ``fn(..., x, sample)`` with respect to x, ``[d]``. It counts as one gradient call.

        It is not counted inside a function that is itself differentiated. If fn does not depend on x, the gradient is zero.

        Args:
            fn: A function that returns a scalar: a function of the problem, such as ``client.f``, or any other function.
            arguments: The arguments of fn. The last two are x, ``[d]``, and the sample.
        """
        *fixed, x, sample = arguments
        self._counter.count(sample, grad=1)
        if (gradient := self._form(fn, "gradient")) is not None:
            return gradient(*arguments)
        return self._grad(lambda x: fn(*fixed, x, sample), x)

    def gradients(self, fn: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Return the gradients of ``fn(..., x, sample)`` with respect to x at P points, ``[P, d]``.

        They count as P gradient calls.

        Args:
            fn: A function of one point that returns a scalar.
            arguments: The variables of fn at all points, ``[P, d]`` each, the last of which is x; then one sample for all
                points.
        """
        *points, sample = arguments
        return self.at_each(lambda *point: self.grad(fn, *point, sample), *points)

    def vjp(
        self, fn: Callable[..., Any], *primals: Tensor, grad: int = 0, hvp: int = 0, jvp: int = 0, sample: Any = None
    ) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
        """Return ``fn(*primals)``, and the function v -> v'J, where J is the Jacobian of fn at the primals.

        The returned function gives one tensor for each primal, of its shape. Each call of it is counted.

        Args:
            fn: A function that returns a tensor or a tuple of tensors; v has the same structure.
            primals: The point: one tensor for each argument of fn.
            grad: The number of gradient calls to count per call of the returned function.
            hvp: The number of Hessian-vector products to count per call.
            jvp: The number of Jacobian-vector products to count per call.
            sample: The sample that fn uses, whose examples are counted. None: the last sample that the client received.
        """
        value, pull = self._vjp(fn, *primals)
        return value, self._counting(pull, sample, grad, hvp, jvp)

    def pullback(self, fn: Callable[..., Tensor], *arguments: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return ``fn(..., x, sample)``, and the function v -> v'J, ``[d]``, where J is the Jacobian of fn with respect to x.

        Each call of the returned function counts as one Jacobian-vector product.

        Args:
            fn: A function that returns a tensor of any shape. v has the same shape.
            arguments: The arguments of fn. The last two are x, ``[d]``, and the sample.
        """
        *fixed, x, sample = arguments
        if (pullback := self._form(fn, "pullback")) is None:
            value, product = self.vjp(lambda x: fn(*fixed, x, sample), x, jvp=1, sample=sample)
            return value, lambda v: product(v)[0]
        value, pull = pullback(*arguments)
        return value, self._counting(pull, sample, jvp=1)

    def _counting(self, product: Callable[[Any], T], sample: Any, *each: int, **by_name: int) -> Callable[[Any], T]:
        """Return ``product``, wrapped so that each call of it counts oracle calls on ``sample``.

        Args:
            product: The function.
            sample: The sample whose examples are counted.
            each: The arguments of `Counter.count` after the sample: the numbers of gradient calls, Hessian-vector products and
                Jacobian-vector products per call.
            by_name: The same numbers, by their names ``grad``, ``hvp`` and ``jvp``.
        """

        def counting(v: Any) -> T:
            self._counter.count(sample, *each, **by_name)
            return product(v)

        return counting

    def _form(self, fn: Callable[..., Any], name: str) -> Callable[..., Any] | None:
        """Return a derivative of fn that was written by hand; None if fn has no such derivative.

        None is also returned inside another derivative, since a derivative written by hand may not be differentiable.

        Args:
            fn: The function.
            name: The attribute of fn that holds the derivative, such as ``gradient``.
        """
        return getattr(fn, name, None) if self._counter.depth == 0 else None

    def at_each(self, fn: Callable[..., Tensor], *points: Tensor) -> Tensor:
        """Return the values of fn at P points, ``[P, ...]``. Oracle calls in fn count P times.

        In a stack of clients, all points are computed in parallel; otherwise they are computed one by one.

        Args:
            fn: A function of one point, which returns a tensor.
            points: The variables of fn at all points, ``[P, d]`` each.
        """
        if not self._stacked:
            return torch.stack([fn(*point) for point in zip(*points, strict=True)])
        around = self._counter.points
        self._counter.points *= len(points[0])
        values = torch.func.vmap(fn)(*points)
        self._counter.points = around
        return values

    def _inside(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return fn, wrapped so that oracle calls inside it are not counted, since its derivative is already counted."""

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
        # Whether another derivative is taken through this one
        nested = self._counter.depth > 0 or any(p.requires_grad for p in primals)
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
