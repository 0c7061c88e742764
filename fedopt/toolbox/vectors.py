"""Several vectors of different sizes as one value: a message, a point, the variables of a method."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import SequenceKey, register_pytree_node

Tensors = tuple[Tensor, ...]


class Vectors(tuple[Tensor, ...]):
    """The variables of a method, such as (x, y, v), as one value.

    ``a + b``, ``a - b`` and ``0.5 * a`` do the same with each variable. A message, an answer or a state may hold them.

    Args:
        variables: An iterable of tensors, one a variable.
    """

    def __add__(self, other: "Vectors") -> "Vectors":  # type: ignore[override]
        return Vectors(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: "Vectors") -> "Vectors":
        return Vectors(a - b for a, b in zip(self, other, strict=True))

    def __rmul__(self, factor: float | Tensor) -> "Vectors":  # type: ignore[override]
        return Vectors(factor * a for a in self)

    def moved(self, direction: "Vectors", steps: Sequence[float]) -> "Vectors":
        """Return each variable minus its step size times its direction.

        Args:
            direction: A direction for each variable, of its shape.
            steps: A step size for each variable. If there are more, the last ones are ignored.
        """
        return Vectors(a.sub(d, alpha=step) for a, d, step in zip(self, direction, steps, strict=False))

    def parts(self, row: Tensor) -> "Vectors":
        """Return the variables that a row of a `Memory` was made of by ``torch.cat``.

        Args:
            row: A vector as long as all variables together, which tell the sizes.
        """
        return Vectors(torch.split(row, [a.numel() for a in self]))


register_pytree_node(
    Vectors,
    lambda v: (list(v), None),
    lambda leaves, _: Vectors(leaves),
    flatten_with_keys_fn=lambda v: ([(SequenceKey(n), part) for n, part in enumerate(v)], None),
)
