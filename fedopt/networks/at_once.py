"""Functions that under vmap compute all clients of a stack in one call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    is_gradtrackingtensor,
    maybe_get_bdim,
    maybe_get_level,
)

DIFFERENTIATED = 2**31  # stands for a level where a derivative is taken, in which functions are called as they are
Made = TypeVar("Made", bound=Callable[..., Any])


@dataclass(frozen=True)
class Held:
    """What a function `at_once` keeps for a later call of one. levels: those of vmap that it was computed for, outer first.

    value: tensors, also in lists and tuples.
    """

    value: Any
    levels: tuple[int, ...] = ()


def at_once(function: Made) -> Made:
    """Decorate a function of tensors so that, under vmap, it is called once with the tensors of all clients.

    Each tensor, also in lists and tuples, then has a further first dimension: ``[n, ...]``, or ``[1, ...]`` if it is the
    same for all. So has each tensor that the function returns. Operations cost no vmap overhead there, and may write into
    memory. The function gets a `Held` as its value. Where a derivative is taken through it, it is called as it is.
    """

    @wraps(function)
    def called(*arguments: Any) -> Any:
        level = max(map(_level, arguments))
        if level in (0, DIFFERENTIATED):
            return function(*[argument.value if isinstance(argument, Held) else argument for argument in arguments])
        sizes = list[int]()
        return _of_one(
            called(*[_of_all(argument, level, sizes) for argument in arguments]), level, max(sizes, default=0)
        )

    return called  # type: ignore[return-value]


def _level(value: Any) -> int:
    """Return the innermost level of vmap among tensors, 0 without one."""
    if isinstance(value, Tensor):
        if is_batchedtensor(value):
            return maybe_get_level(value)
        return DIFFERENTIATED if is_gradtrackingtensor(value) else 0
    if isinstance(value, list | tuple):
        return max(map(_level, value), default=0)
    return max(value.levels, default=0) if isinstance(value, Held) else 0


def _of_all(value: Any, level: int, sizes: list[int]) -> Any:
    """Return tensors of one client as those of all. sizes: numbers of clients, which are added."""
    if isinstance(value, Tensor):
        if not is_batchedtensor(value) or maybe_get_level(value) != level:
            return value.unsqueeze(0)
        dim, of_all = maybe_get_bdim(value), get_unwrapped(value)
        of_all = of_all.movedim(dim, 0) if dim else of_all
        sizes.append(len(of_all))
        return of_all
    if isinstance(value, list | tuple):
        return [_of_all(part, level, sizes) for part in value]
    if not isinstance(value, Held):
        return value
    if value.levels[-1:] == (level,):
        return Held(value.value, value.levels[:-1])
    return Held(_widened(value.value, len(value.levels)), value.levels)


def _widened(value: Any, dim: int) -> Any:
    if isinstance(value, Tensor):
        return value.unsqueeze(dim)
    return [_widened(part, dim) for part in value] if isinstance(value, list | tuple) else value


def _of_one(value: Any, level: int, n: int) -> Any:
    """Return tensors of all n clients as those of one."""
    if isinstance(value, Tensor):
        same = n > 1 and len(value) == 1
        return _add_batch_dim(value.expand(n, *value.shape[1:]) if same else value, 0, level)
    if isinstance(value, list | tuple):
        return tuple(_of_one(part, level, n) for part in value)
    return Held(value.value, (*value.levels, level)) if isinstance(value, Held) else value
