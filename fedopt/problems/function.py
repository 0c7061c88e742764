"""Decorator for functions of a problem that have hand-written derivatives."""

from collections.abc import Callable
from functools import cache, partial, partialmethod, update_wrapper
from types import MethodType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Tensor])


class Second(NamedTuple):
    """First and second derivatives of a function g at a point (x, y).

    Attributes:
        gradient: The gradient ``grad_y g``, ``[dy]``.
        hessian: Function ``v -> grad^2_yy g v``, from ``[dy]`` to ``[dy]``.
        cross: Function ``v -> grad^2_xy g v``, from ``[dy]`` to ``[dx]``.
    """

    gradient: Tensor
    hessian: Callable[[Tensor], Tensor]
    cross: Callable[[Tensor], Tensor]


class function:
    """Decorator for a function of a problem, to which hand-written derivatives can be added like a setter to a ``property``.

    A faster derivative is added under the name of the function::

        @function
        def f(self, x, sample): ...  # f_i(x); a derivative is optional

        @f.gradient
        def f(self, x, sample): ...  # grad f_i(x), faster than automatic differentiation

    The value is ``problem.f(x, sample)``, and ``problem.f.gradient(x, sample)`` is the gradient in the last variable of the
    point. With ``@function(where=condition)``, only problems for which ``condition(problem)`` is true have the derivatives.
    A subclass that overrides the function loses them.

    Attributes:
        gradient: Decorator for a method that returns the gradient in the last variable, ``[d]``. Unless noted, each such method
            has the arguments of the function.
        both: Decorator for the gradients in the last two variables, as a pair.
        second: Decorator for a `Second` of the last two variables, x and y.
        pullback: Decorator for the value, and the function ``v -> v'J`` with the Jacobian J in the last variable.
        step: Decorator for a gradient step that overwrites the last variable x, ``[d]``, with
            ``x - eta (gradient(x) - gradient(anchor) + plus)``. It has the further arguments ``eta``, ``plus`` and ``anchor``.
            The last two are vectors ``[d]``, or None to leave out the term.
        steps: Decorator for a gradient step ``x - eta gradient(x)`` at P points in parallel, which overwrites x. Each variable
            has shape ``[P, d]``. It has the further argument ``eta``.
    """

    def __init__(self, value: Any = None, where: Callable[[Any], bool] = lambda problem: True, **forms: Any):
        self._value, self._where, self._forms = value, where, forms
        if value is not None:
            update_wrapper(self, value)

    def __call__(self, *arguments: Any) -> Any:
        """Return the value of the function for some arguments.

        After ``@function(where=...)``, which has no function yet, decorate the function in the argument, and return the decorator.

        Args:
            arguments: The problem and the other arguments of the function; or only the function to decorate.
        """
        return function(arguments[0], self._where) if self._value is None else self._value(*arguments)

    def __get__(self, problem: Any, owner: type) -> Any:
        if problem is None:
            return self
        bound: Any = partial(self._value, problem)
        for name, form in self._forms.items() if self._where(problem) else ():
            setattr(bound, name, partial(form, problem))
        return bound

    def _with(self, name: str, form: Callable[..., Any]) -> "function":
        return function(self._value, self._where, **{**self._forms, name: form})

    gradient, both = partialmethod(_with, "gradient"), partialmethod(_with, "both")
    second, pullback = partialmethod(_with, "second"), partialmethod(_with, "pullback")
    step, steps = partialmethod(_with, "step"), partialmethod(_with, "steps")


def oracle(K: int | str) -> Callable[[Method], Method]:
    """Return a decorator of a problem's method ``h(self, x, sample)`` with K values, which gives clients its derivatives.

    Clients call it as ``client.h``, ``client.h_vjp`` and ``client.h_jacobian``. The method may have any name.

    Args:
        K: The number of values that the method returns, or the name of the problem's attribute with this number.

    Example:
        >>> class Loads(fedopt.Problem):
        ...     @fedopt.oracle(2)
        ...     def h(self, x, sample):
        ...         return torch.stack([x.sum() - 1, -x.min()])
    """

    def mark(method: Method) -> Method:
        method.oracle = K  # type: ignore[attr-defined]
        return method

    return mark


def marked(problem: Any) -> dict[str, int]:
    """Return the number of values of each function that a problem marks with `oracle`, by the name of the function.

    Args:
        problem: The problem.

    Example:
        >>> import fedopt
        >>> class TwoObjectives:
        ...     @fedopt.oracle(2)
        ...     def h(self, x, sample):
        ...         return x[:2]
        >>> fedopt.marked(TwoObjectives())
        {'h': 2}
    """
    return {name: getattr(problem, K) if isinstance(K, str) else K for name, K in _marks(problem.__class__)}


@cache
def _marks(cls: Any) -> list[tuple[str, Any]]:
    K = {name: getattr(getattr(cls, name, None), "oracle", None) for name in dir(cls)}
    return [(name, number) for name, number in K.items() if number is not None]


def scales(problem: Any, name: str) -> Tensor | None:
    """Return the factors c with which means over clients become ratios, ``[M, K]``; None if all clients count by p_i.

    With the weights n of the problem, ``per_client["h_weights"]``, they satisfy::

        sum_i p_i c_ik h_ik  =  sum_i n_ik h_ik / sum_i n_ik

    Args:
        problem: The problem.
        name: The name of a function that it marks with `oracle`, such as h.
    """
    n = problem.per_client.get(f"{name}_weights")
    return None if n is None else n / n.sum(0).clamp(min=1e-30) / torch.from_numpy(problem.weights).to(n)[:, None]


class written_for:
    """Decorator for a method that is correct only as long as no subclass overrides certain functions of its class.

    If a subclass overrides one of these functions, accessing the method raises AttributeError, so that ``hasattr`` is false.

    Args:
        functions: The functions that the method relies on.
    """

    def __init__(self, *functions: Any):
        self._functions = functions

    def __call__(self, method: Callable[..., Any]) -> "written_for":
        """Store the method, and return the decorator in its place.

        Args:
            method: The method.
        """
        self._method = method
        return self

    def __get__(self, problem: Any, owner: type) -> Any:
        if overridden := [f.__name__ for f in self._functions if getattr(owner, f.__name__) is not f]:
            raise AttributeError(f"{owner.__name__} overrides {overridden[0]}, and has no {self._method.__name__}")
        return self if problem is None else MethodType(self._method, problem)
