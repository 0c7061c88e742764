"""Rows of a table, fast for a stack of clients too.

vmap turns `index_select` into a gather of single numbers, ten times slower than copying rows: these operators tell it to
select the rows of all clients at once.
"""

from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("fedopt", "DEF")
_library.define("take_rows(Tensor table, Tensor rows) -> Tensor")
_library.impl("take_rows", lambda table, rows: table.index_select(0, rows), "CompositeExplicitAutograd")
_library.define("take_scaled_rows(Tensor table, Tensor rows, Tensor scale, Tensor shift) -> Tensor")
_library.impl(
    "take_scaled_rows",
    lambda table, rows, scale, shift: table.index_select(0, rows).to(scale.dtype).mul_(scale).add_(shift),
    "CompositeExplicitAutograd",
)


def take_rows(table: Tensor, rows: Tensor) -> Tensor:
    """table[rows]: the rows [B] of a table [n, ...] that all clients share; no gradient."""
    taken: Tensor = torch.ops.fedopt.take_rows(table, rows)
    return taken


def take_scaled_rows(table: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """table[rows] * scale + shift, [B, d] of the dtype of scale: rows of a table [n, d] of any dtype; scale, shift: [d]."""
    taken: Tensor = torch.ops.fedopt.take_scaled_rows(table, rows, scale, shift)
    return taken


def _of_all_clients(operator: Any) -> Any:
    def rule(
        info: Any, in_dims: tuple[int | None, ...], table: Tensor, rows: Tensor, *more: Tensor
    ) -> tuple[Tensor, int]:
        in_table, in_rows, *others = in_dims
        assert in_table is None
        assert in_rows is not None
        assert others == [None] * len(more)
        rows = rows.movedim(in_rows, 0)
        return operator(table, rows.reshape(-1), *more).unflatten(0, rows.shape), 0

    return rule


for name in ("take_rows", "take_scaled_rows"):
    torch.library.register_vmap(f"fedopt::{name}", _of_all_clients(getattr(torch.ops.fedopt, name)), lib=_library)
