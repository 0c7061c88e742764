"""Random numbers that are functions of a key, for the functions of a problem: the same in one client as in a stack of them.

The first dimension of a shape must be the batch: padding it changes no other example's numbers.
"""

import math

import torch
from torch import Tensor

from fedopt.networks import GOLDEN, mixed

BITS = 24  # of a number, so that float32 holds them


def uniform(key: Tensor, *shape: int) -> Tensor:
    """Return numbers between 0 and 1, both excluded, of this shape. They depend on the key, an integer, alone.

    shape: its first dimension must be the batch.
    """
    places = torch.arange(math.prod(shape), device=key.device) * GOLDEN
    whole = (mixed(places + mixed(mixed(key))) >> 40) & (2**BITS - 1)
    return ((whole + 0.5) / 2**BITS).view(shape)


def normal(key: Tensor, *shape: int) -> Tensor:
    """Return standard normal numbers of this shape [Box and Muller 1958]. key, shape: as in `uniform`."""
    radius, angle = uniform(key, *shape, 2).unbind(-1)
    return torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * math.pi * angle)
