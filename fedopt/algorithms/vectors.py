"""Several vectors of different sizes as one value: a message, a point, the variables of a method."""

from torch import Tensor
from torch.utils._pytree import SequenceKey, register_pytree_node

Tensors = tuple[Tensor, ...]


class Vectors(tuple[Tensor, ...]):
    """Variables that are added, subtracted and scaled one by one."""

    def __add__(self, other: "Vectors") -> "Vectors":  # type: ignore[override]
        return Vectors(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: "Vectors") -> "Vectors":
        return Vectors(a - b for a, b in zip(self, other, strict=True))

    def __rmul__(self, factor: float) -> "Vectors":  # type: ignore[override]
        return Vectors(factor * a for a in self)


register_pytree_node(
    Vectors,
    lambda v: (list(v), None),
    lambda leaves, _: Vectors(leaves),
    flatten_with_keys_fn=lambda v: ([(SequenceKey(n), part) for n, part in enumerate(v)], None),
)
