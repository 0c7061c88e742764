"""Several variables that are added as one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.utils._pytree import register_pytree_node


class Vectors(tuple[Tensor, ...]):
    """Tensors of different sizes, such as (x, z^1, ..., z^N); sums and differences are taken one by one."""

    def __add__(self, other: Sequence[Tensor]) -> Vectors:  # type: ignore[override]
        return Vectors(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other: Sequence[Tensor]) -> Vectors:
        return Vectors(a - b for a, b in zip(self, other, strict=True))

    def __rmul__(self, factor: float) -> Vectors:  # type: ignore[override]
        return Vectors(factor * a for a in self)


register_pytree_node(
    Vectors, lambda v: (list(v), None), lambda parts, _: Vectors(parts), serialized_type_name="fedopt.vectors.Vectors"
)
