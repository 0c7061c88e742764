"""Functions that under vmap compute all clients of a stack in one call."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

try:
    from torch._C._functorch import (
        _add_batch_dim,
        get_unwrapped,
        is_batchedtensor,
        is_gradtrackingtensor,
        maybe_current_level,
        maybe_get_bdim,
        maybe_get_level,
    )
except ImportError:  # private names, which another version of torch may not have
    READS_VMAP = False
else:
    READS_VMAP = True

# Stands for a level where a derivative is taken, in which functions are called as they are; above every level, so that max()
# picks it
DIFFERENTIATED = 2**31
Function = TypeVar("Function", bound=Callable[..., Any])


def at_once(function: Function) -> Function:
    """Decorate a function of tensors so that, under vmap, it is called once with the tensors of all clients.

    Each tensor, also in lists and tuples, then has a further first dimension: ``[n, ...]``, or ``[1, ...]`` if it is the same
    for all clients. So has each tensor that the function returns; named tuples that it returns come back as plain tuples.
    Operations in the function cost no vmap overhead, and may write into memory. Where a derivative is taken through the
    function, it is called as it is. Under a torch whose private names differ, it is called as it is too, more slowly.

    The function must work for tensors of shape ``[...]``, ``[n, ...]`` and ``[m, n, ...]``: under vmap(grad) it sees no extra
    dimension, under grad(vmap) one, and under vmap(vmap) two.
    """

    @wraps(function)
    def called(*arguments: Any) -> Any:
        level = max(map(_level, _tensors(arguments)), default=0)
        if level in (0, DIFFERENTIATED):
            return function(*arguments)
        stacked = _unbatched(arguments, level)
        n = max(len(tensor) for tensor in _tensors(stacked))
        return _batched(called(*stacked), level, n)  # called again, since one vmap may be inside another

    return called if READS_VMAP else function  # type: ignore[return-value]


def differs_by_client(tensor: Tensor) -> bool:
    """Tell whether, under vmap, each client has its own value of a tensor; False if this torch does not tell."""
    return READS_VMAP and is_batchedtensor(tensor)


def depth() -> int:
    """Return how many vmaps and other transformations of torch.func the caller is in; 0 if this torch does not tell."""
    return maybe_current_level() or 0 if READS_VMAP else 0


def number(scalar: Tensor | float) -> Any:
    """Return a scalar tensor as a Python number; under vmap, if its value differs, the tensor itself."""
    return scalar if isinstance(scalar, Tensor) and differs_by_client(scalar) else float(scalar)


def each(function: Callable[[Tensor], dict[str, float]], tensor: Tensor) -> dict[str, Any]:
    """Return what a function says of a tensor. Under vmap it is called for one value of the tensor after the other.

    The function may do what vmap cannot, such as use NumPy.
    """
    if not differs_by_client(tensor):
        return function(tensor)
    level = _level(tensor)
    found = [function(value) for value in _unbatched(tensor, level)]
    rows = tensor.new_tensor([[*one.values()] for one in found], dtype=torch.float64)
    return dict(zip(found[0], _batched(rows, level, len(found)), strict=True))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _level(tensor: Tensor) -> int:
    """Return the innermost level of vmap, 0 without one."""
    if is_batchedtensor(tensor):
        return maybe_get_level(tensor)
    return DIFFERENTIATED if is_gradtrackingtensor(tensor) else 0


def _unbatched(value: Any, level: int) -> Any:
    """Return the tensors of all clients of one level of vmap, [n, ...] or [1, ...], for the tensors of one client."""
    if isinstance(value, Tensor):
        if not is_batchedtensor(value) or maybe_get_level(value) != level:
            return value.unsqueeze(0)
        dim, value = maybe_get_bdim(value), get_unwrapped(value)
        return value.movedim(dim, 0) if dim else value
    if isinstance(value, list | tuple):
        parts = [_unbatched(part, level) for part in value]
        return value._make(parts) if hasattr(value, "_make") else parts
    return value


def _batched(value: Any, level: int, n: int) -> Any:
    """Return the tensors of one client, as vmap knows them, for the tensors of all n clients."""
    if isinstance(value, Tensor):
        return _add_batch_dim(value if len(value) == n else value.expand(n, *value.shape[1:]), 0, level)
    return tuple(_batched(part, level, n) for part in value) if isinstance(value, list | tuple) else value
