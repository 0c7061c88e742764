"""Exact Euclidean projections onto the sets Y of minimax problems. They give the same results under vmap."""

from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l1", "l2", "linf"]


def simplex(y: Tensor, total: float | Tensor = 1.0) -> Tensor:
    """Project a vector onto the simplex {z >= 0, sum z = total}.

    With the entries of y sorted in descending order, the projection is::

        max(y - t, 0)    with    t = max_k ((sum of the k largest entries) - total) / k

    The projection does not change if a number is added to all entries of y. Its largest entry is therefore shifted to 0
    first, because the total would be lost in sums of large numbers.

    Args:
        y: The vector.
        total: Sum of the entries of the projection, positive.

    Example:
        >>> fedopt.simplex(torch.tensor([0.5, 1.5]))
        tensor([0., 1.])
    """
    y = y - y.amax()
    falling = torch.sort(y, descending=True).values
    k = torch.arange(1, len(y) + 1, device=y.device, dtype=y.dtype)
    return torch.relu(y - ((falling.cumsum(0) - total) / k).amax())


def box(y: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Project y onto the box {low <= z <= high}.

    Args:
        y: The vector, or several vectors, ``[..., d]``.
        low: Lower bound of the entries.
        high: Upper bound of the entries.

    Example:
        >>> fedopt.box(torch.tensor([-2.0, 0.5]), low=-1.0, high=1.0)
        tensor([-1.0000,  0.5000])
    """
    return y.clamp(min=low).clamp(max=high)


def ball(y: Tensor, radius: float | Tensor, norm: Norm = "l2") -> Tensor:
    """Project y onto the ball of a given radius around 0.

    Args:
        y: A vector; for the norms ``l2`` and ``linf`` also several vectors, ``[..., d]``.
        radius: Radius of the ball, positive.
        norm: Norm of the ball.

    Example:
        >>> fedopt.ball(torch.tensor([3.0, 4.0]), radius=1.0)
        tensor([0.6000, 0.8000])
    """
    if norm == "linf":
        return box(y, -radius, radius)
    if norm == "l2":
        scale = y.abs().amax(-1, keepdim=True).clamp(min=radius)  # avoids overflow in the squares
        share = radius / scale
        return y * (share / torch.linalg.vector_norm(y / scale, dim=-1, keepdim=True).clamp(min=share))
    return torch.where(y.abs().sum() <= radius, y, y.sign() * simplex(y.abs(), radius))
