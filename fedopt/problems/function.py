"""A function of a problem, with faster forms of its derivatives that were written by hand."""

from collections.abc import Callable
from functools import partial, partialmethod, update_wrapper
from types import MethodType
from typing import Any, NamedTuple

from torch import Tensor


class Second(NamedTuple):
    """What a function g says of itself at a point (x, y): the gradient in y, and two products of its second derivatives.

    Args:
        gradient: ``grad_y g``, ``[dy]``.
        hessian: The map ``v -> grad^2_yy g v``, ``[dy]``.
        cross: The map ``v -> grad^2_xy g v``, ``[dx]``.
    """

    gradient: Tensor
    hessian: Callable[[Tensor], Tensor]
    cross: Callable[[Tensor], Tensor]


class function:
    """A function of a problem that owns faster forms of its derivatives, as a ``property`` owns its setter.

    It is a decorator::

        @function
        def f(self, x, sample): ...  # f_i(x): all that is needed

        @f.gradient
        def f(self, x, sample): ...  # grad f_i(x), faster than automatic differentiation

    The value is ``problem.f(x, sample)``, and the gradient ``problem.f.gradient(x, sample)``, in the last variable of the
    point. With ``@function(where=condition)`` only problems for which ``condition(problem)`` is true have the forms. A
    subclass that overrides the function drops its forms.

    Attributes:
        gradient: The gradient, ``[d]``, of the same arguments.
        both: The gradients in the last two variables, as a pair.
        second: A `Second`, with x and y the last two variables.
        pullback: The value, and the map ``v -> v'J`` with the Jacobian in the last variable.
        step: The point ``x - eta (gradient - gradient at the anchor + plus)``, ``[d]``, written over x, the last variable.
            Arguments: the same, then ``(eta, plus, anchor)``. plus and anchor are ``[d]``, or None for no such term.
        steps: The point ``x - eta gradient`` at P points at once, written over x. Each variable is ``[P, d]``. Arguments:
            the same, then ``eta``.
    """

    def __init__(self, value: Any = None, where: Callable[[Any], bool] = lambda problem: True, **forms: Any):
        self._value, self._where, self._forms = value, where, forms
        if value is not None:
            update_wrapper(self, value)

    def __call__(self, *arguments: Any) -> Any:
        """Return the function's value. With ``@function(where=...)``, instead decorate the function that is given."""
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
    """A decorator for a method that fits only some functions of its class.

    In a subclass that overrides one of these functions, the method is missing: AttributeError.
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
