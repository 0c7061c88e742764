"""Decorator for functions of a problem that have hand-written derivatives."""

from collections.abc import Callable
from functools import partial, partialmethod, update_wrapper
from types import MethodType
from typing import Any, NamedTuple

from torch import Tensor


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
    """Decorator for a function of a problem, to which faster derivatives can be added like a setter to a ``property``.

    It is used as follows::

        @function
        def f(self, x, sample): ...  # f_i(x); this is enough

        @f.gradient
        def f(self, x, sample): ...  # grad f_i(x), faster than automatic differentiation

    The value is ``problem.f(x, sample)``, and ``problem.f.gradient(x, sample)`` is the gradient in the last variable of the
    point. With ``@function(where=condition)``, only problems for which ``condition(problem)`` is true have the derivatives.
    A subclass that overrides the function loses them.

    Attributes:
        gradient: The gradient, ``[d]``, with the same arguments as the function.
        both: The gradients in the last two variables, as a pair.
        second: A `Second` of the last two variables, x and y.
        pullback: The value, and the function ``v -> v'J`` with the Jacobian J in the last variable.
        step: A gradient step that overwrites the last variable x, ``[d]``, by
            ``x - eta (gradient(x) - gradient(anchor) + plus)``. Its arguments are those of the function, followed by
            ``eta``, ``plus`` and ``anchor``; the last two are vectors ``[d]``, or None to leave out the term.
        steps: A gradient step ``x - eta gradient(x)`` at P points in parallel, which overwrites x. Each variable has shape
            ``[P, d]``. Its arguments are those of the function, followed by ``eta``.
    """

    def __init__(self, value: Any = None, where: Callable[[Any], bool] = lambda problem: True, **forms: Any):
        self._value, self._where, self._forms = value, where, forms
        if value is not None:
            update_wrapper(self, value)

    def __call__(self, *arguments: Any) -> Any:
        """Return the value of the function; or, for ``@function(where=...)``, decorate the function in the argument."""
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


class written_for:
    """Decorator for a method that relies on certain functions of its class.

    If a subclass overrides one of these functions, accessing the method raises AttributeError.

    Args:
        functions: The functions that the method relies on.
    """

    def __init__(self, *functions: Any):
        self._functions = functions

    def __call__(self, method: Callable[..., Any]) -> "written_for":
        """Decorate the method."""
        self._method = method
        return self

    def __get__(self, problem: Any, owner: type) -> Any:
        if overridden := [f.__name__ for f in self._functions if getattr(owner, f.__name__) is not f]:
            raise AttributeError(f"{owner.__name__} overrides {overridden[0]}, and has no {self._method.__name__}")
        return self if problem is None else MethodType(self._method, problem)
