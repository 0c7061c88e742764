"""Several vectors of different sizes as one value, such as a message, a point or the variables of a method."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import SequenceKey, register_pytree_node

Tensors = tuple[Tensor, ...]


class Vectors(tuple[Tensor, ...]):
    """The variables of a method, such as (x, y, v), as one value.

    ``a + b``, ``a - b`` and ``0.5 * a`` apply to each variable. A message, an answer or a state may contain this type.

    Args:
        variables: An iterable of tensors, one per variable.
    """

    def __add__(self, other: "Vectors") -> "Vectors":  # type: ignore[override]
        return Vectors(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: "Vectors") -> "Vectors":
        return Vectors(a - b for a, b in zip(self, other, strict=True))

    def __rmul__(self, factor: float | Tensor) -> "Vectors":  # type: ignore[override]
        return Vectors(factor * a for a in self)

    def moved(self, direction: "Vectors", steps: Sequence[float]) -> "Vectors":
        """Take a step along the negative directions, and return the new variables: ``a - step * d`` for each variable a.

        Args:
            direction: The direction d of each variable, with the shape of the variable.
            steps: The step sizes of the variables. Step sizes beyond the last variable are ignored.
        """
        return Vectors(a.sub(d, alpha=step) for a, d, step in zip(self, direction, steps, strict=False))

    def unflatten(self, row: Tensor) -> "Vectors":
        """Split a vector, such as one client's row of a `Memory`, into variables that have the sizes of these variables.

        Args:
            row: One vector, as ``torch.cat`` makes it of such variables. Its length is the total size of these variables.
        """
        return Vectors(torch.split(row, [a.numel() for a in self]))


register_pytree_node(
    Vectors,
    lambda v: (list(v), None),
    lambda leaves, _: Vectors(leaves),
    flatten_with_keys_fn=lambda v: ([(SequenceKey(n), a) for n, a in enumerate(v)], None),
)
