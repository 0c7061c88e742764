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
            return function(*map(_opened, arguments))
        peeled = _Peeled(level)
        of_all = [peeled.of_all(argument) for argument in arguments]
        result = called(*of_all) if peeled.deeper else function(*map(_opened, of_all))
        return _of_one(result, level, peeled.n)

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


def _opened(value: Any) -> Any:
    return value.value if isinstance(value, Held) else value


class _Peeled:
    """The tensors of one client as those of all, of one level of vmap.

    n: the number of clients, 0 if all is held. deeper: whether there is a further level.
    """

    def __init__(self, level: int):
        self.level, self.n, self.deeper = level, 0, False

    def of_all(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            batched = is_batchedtensor(value)
            if not batched or maybe_get_level(value) != self.level:
                self.deeper |= batched
                return value.unsqueeze(0)
            dim, value = maybe_get_bdim(value), get_unwrapped(value)
            value = value.movedim(dim, 0) if dim else value
            self.n, self.deeper = value.shape[0], self.deeper or is_batchedtensor(value)
            return value
        if isinstance(value, list | tuple):
            return [self.of_all(part) for part in value]
        if not isinstance(value, Held):
            return value
        held = value.levels[-1:] == (self.level,)
        levels = value.levels[:-1] if held else value.levels
        self.deeper |= bool(levels)
        return Held(value.value if held else _widened(value.value, len(levels)), levels)


def _widened(value: Any, dim: int) -> Any:
    if isinstance(value, Tensor):
        return value.unsqueeze(dim)
    return [_widened(part, dim) for part in value] if isinstance(value, list | tuple) else value


def _of_one(value: Any, level: int, n: int) -> Any:
    """Return tensors of all n clients as those of one."""
    if isinstance(value, Tensor):
        same = n > 1 and value.shape[0] == 1
        return _add_batch_dim(value.expand(n, *value.shape[1:]) if same else value, 0, level)
    if isinstance(value, list | tuple):
        return tuple(_of_one(part, level, n) for part in value)
    return Held(value.value, (*value.levels, level)) if isinstance(value, Held) else value
