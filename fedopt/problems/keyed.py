"""Random numbers for the functions of a problem that are determined by a key.

They are the same whether clients are computed one by one or stacked. The first dimension of a shape must be the batch:
padding it does not change the numbers of other examples.
"""

import math

import torch
from torch import Tensor

from fedopt.networks import GOLDEN, mixed

BITS = 24  # random bits of a number, exact in float32


def uniform(key: Tensor, *shape: int) -> Tensor:
    """Return numbers between 0 and 1 (both excluded) that depend only on the key.

    Args:
        key: An integer tensor.
        shape: Shape of the result. Its first dimension must be the batch.
    """
    places = torch.arange(math.prod(shape), device=key.device) * GOLDEN
    whole = (mixed(places + mixed(mixed(key))) >> 40) & (2**BITS - 1)
    return ((whole + 0.5) / 2**BITS).view(shape)


def normal(key: Tensor, *shape: int) -> Tensor:
    """Return standard normal numbers that depend only on the key [Box and Muller 1958].

    Args:
        key: An integer tensor.
        shape: Shape of the result. Its first dimension must be the batch.
    """
    radius, angle = uniform(key, *shape, 2).unbind(-1)
    return torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * math.pi * angle)
