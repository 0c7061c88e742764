"""Euclidean projections onto the sets Y of minimax problems.

Each returns the point of the set nearest to y. They are exact, and the same under vmap.
"""

from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l1", "l2", "linf"]


def simplex(y: Tensor, total: float | Tensor = 1.0) -> Tensor:
    """Return the point of {z >= 0, sum z = total} nearest to y, a vector. total: more than 0.

    It is max(y - t, 0) with t = max_k ((sum of the k largest y) - total) / k. A shift of y changes nothing: its largest entry is
    moved to 0 first, since sums of large numbers lose the total.

    Example:
        >>> fedopt.simplex(torch.tensor([0.5, 1.5]))
        tensor([0., 1.])
    """
    y = y - y.amax()
    falling = torch.sort(y, descending=True).values
    k = torch.arange(1, len(y) + 1, device=y.device, dtype=y.dtype)
    return torch.relu(y - ((falling.cumsum(0) - total) / k).amax())


def box(y: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Return the point of {low <= z <= high} nearest to y.

    Example:
        >>> fedopt.box(torch.tensor([-2.0, 0.5]), low=-1.0, high=1.0)
        tensor([-1.0000,  0.5000])
    """
    return y.clamp(min=low).clamp(max=high)


def ball(y: Tensor, radius: float | Tensor, norm: Norm = "l2") -> Tensor:
    """Return the point nearest to y of the ball of a radius around 0. With norm l2 or linf, y may be several vectors, [..., d].

    radius: more than 0.

    Example:
        >>> fedopt.ball(torch.tensor([3.0, 4.0]), radius=1.0)
        tensor([0.6000, 0.8000])
    """
    if norm == "linf":
        return box(y, -radius, radius)
    if norm == "l2":
        scale = y.abs().amax(-1, keepdim=True).clamp(min=radius)  # whose squares are no numbers if they are large
        share = radius / scale
        return y * (share / torch.linalg.vector_norm(y / scale, dim=-1, keepdim=True).clamp(min=share))
    return torch.where(y.abs().sum() <= radius, y, y.sign() * simplex(y.abs(), radius))
