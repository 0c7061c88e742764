"""Decorator for functions that vmap calls once with the stacked tensors of all clients."""

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
except ImportError:  # private names, which other versions of torch may not have
    READS_VMAP = False
else:
    READS_VMAP = True

# The level of tensors whose derivative is taken, for which functions are called as they are. It exceeds every vmap level, so
# that max() returns it
DIFFERENTIATED = 2**31
Function = TypeVar("Function", bound=Callable[..., Any])


def at_once(function: Function) -> Function:
    """Decorate a function of tensors such that, under vmap, it is called once with the stacked tensors of all clients.

    Each tensor, including tensors in lists and tuples, then has an additional first dimension: ``[n, ...]``, or ``[1, ...]``
    if it is the same for all clients. Each tensor that the function returns must have this dimension too; returned named
    tuples become plain tuples. Inside the function, operations have no vmap overhead and may write to memory in place. Where
    a derivative is taken through the function, vmap maps it in the usual, slower way. vmap also maps the function in this
    slower way if the installed version of torch lacks the private functions that the decorator needs.

    The function must work for tensors of shape ``[...]``, ``[n, ...]`` and ``[m, n, ...]``: it sees no additional dimension
    under vmap(grad), one under grad(vmap), and two under vmap(vmap).
    """

    @wraps(function)
    def called(*arguments: Any) -> Any:
        level = max(map(_level, _tensors(arguments)), default=0)
        if level in (0, DIFFERENTIATED):
            return function(*arguments)
        stacked = _unbatched(arguments, level)
        n = max(len(tensor) for tensor in _tensors(stacked))
        return _batched(called(*stacked), level, n)  # recursive, because vmaps may be nested

    return called if READS_VMAP else function  # type: ignore[return-value]


def differs_by_client(tensor: Tensor) -> bool:
    """Return whether, under vmap, a tensor has a different value for each client; False if the installed version of torch
    cannot tell.
    """
    return READS_VMAP and is_batchedtensor(tensor)


def depth() -> int:
    """Return the number of nested vmaps and other transformations of torch.func around the caller; 0 if torch cannot tell."""
    return maybe_current_level() or 0 if READS_VMAP else 0


def number(scalar: Tensor | float) -> Any:
    """Return a scalar tensor as a Python number, or unchanged if, under vmap, its value differs between clients."""
    return scalar if isinstance(scalar, Tensor) and differs_by_client(scalar) else float(scalar)


def each(function: Callable[[Tensor], dict[str, float]], tensor: Tensor) -> dict[str, Any]:
    """Apply a function to a tensor. Under vmap, apply it to the tensor of each client, one client after the other.

    The function may therefore do what vmap does not support, such as use NumPy.

    Args:
        function: A function from a tensor to named numbers.
        tensor: The tensor.

    Returns:
        The named numbers; under vmap, one tensor per name, with one number per client.
    """
    if not differs_by_client(tensor):
        return function(tensor)
    level = _level(tensor)
    found = [function(value) for value in _unbatched(tensor, level)]
    rows = tensor.new_tensor([[*one.values()] for one in found], dtype=torch.float64)
    return dict(zip(found[0], _batched(rows, level, len(found)), strict=True))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in a value, which may be a tensor or nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _level(tensor: Tensor) -> int:
    """Return the level of the innermost vmap that batches a tensor: 0 if none does, `DIFFERENTIATED` where a derivative of the
    tensor is taken.
    """
    if is_batchedtensor(tensor):
        return maybe_get_level(tensor)
    return DIFFERENTIATED if is_gradtrackingtensor(tensor) else 0


def _unbatched(value: Any, level: int) -> Any:
    """Replace the tensors of one client with the stacked tensors of all clients of one vmap level.

    Args:
        value: A tensor, or nested lists and tuples of tensors.
        level: The vmap level.

    Returns:
        The value with tensors ``[n, ...]``, or ``[1, ...]`` for tensors that are the same for all clients.
    """
    if isinstance(value, Tensor):
        if not is_batchedtensor(value) or maybe_get_level(value) != level:
            return value.unsqueeze(0)
        dim, value = maybe_get_bdim(value), get_unwrapped(value)
        return value.movedim(dim, 0) if dim else value
    if isinstance(value, list | tuple):
        items = [_unbatched(item, level) for item in value]
        return value._make(items) if hasattr(value, "_make") else items
    return value


def _batched(value: Any, level: int, n: int) -> Any:
    """Replace stacked tensors with the batched tensors that vmap works with.

    Args:
        value: A tensor ``[n, ...]`` or ``[1, ...]``, or nested lists and tuples of such tensors. ``[1, ...]`` is expanded to n.
        level: The vmap level.
        n: Number of clients.
    """
    if isinstance(value, Tensor):
        return _add_batch_dim(value if len(value) == n else value.expand(n, *value.shape[1:]), 0, level)
    return tuple(_batched(item, level, n) for item in value) if isinstance(value, list | tuple) else value
