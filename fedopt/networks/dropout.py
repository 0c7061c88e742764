"""Dropout whose masks are determined by a key."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

GOLDEN, FIRST, SECOND = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Dropout(TorchFunctionMode):
    """A context manager in which dropout masks are determined by a key, also under vmap.

    Within ``with Dropout(key):``, the functions `F.dropout` and `F.dropout1d` to `F.dropout3d`, and the modules that call
    them, use these masks; dropout inside attention does not. The first dimension of their inputs must be the batch. Padding
    a batch does not change the masks of its other examples.

    Args:
        key: Integer tensor (int64), a scalar. The method `kept` also accepts several keys, ``[...]``.

    Attributes:
        sampled: Number of masks sampled so far.
    """

    def __init__(self, key: Tensor):
        self.key, self.sampled = key, 0
        self._keyed: dict[Any, Any] = dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), self.of_channels)
        self._keyed[F.dropout] = self.of_numbers

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._keyed.get(function, function)(*args, **(kwargs or {}))

    def of_numbers(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Drop single numbers, as a replacement of `F.dropout` with the same arguments."""
        return self._dropped(input, p, input.shape) if training and p else input

    def of_channels(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Drop whole channels, as a replacement of `F.dropout1d` to `F.dropout3d` with the same arguments."""
        ones = (1,) * (input.ndim - 2)
        return self._dropped(input, p, (*input.shape[:2], *ones)) if training and p else input

    def kept(self, shape: Sequence[int], p: float, device: torch.device) -> Tensor:
        """Generate the next mask, a boolean tensor that is False with probability p.

        Args:
            shape: Shape of a mask.
            p: Dropout probability.
            device: Device of the mask.

        Returns:
            The mask, or one mask per key, ``[..., *shape]``, if there are several keys.
        """
        self.sampled += 1
        places = torch.arange(math.prod(shape), device=device) * GOLDEN
        start = mixed(mixed(self.key) + self.sampled)[..., None]
        uniform = (mixed(places + start) >> 40) & 0xFFFFFF
        return (uniform >= p * 2**24).view(*self.key.shape, *shape)

    def _dropped(self, input: Tensor, p: float, shape: Sequence[int]) -> Tensor:
        """Return the input with dropped entries set to 0 and the others scaled by ``1 / (1 - p)``.

        Args:
            input: The input.
            p: Dropout probability.
            shape: Shape of the mask, which is broadcast to the input.
        """
        return input * self.kept(shape, p, input.device) * (1 / (1 - p) if p < 1 else 0.0)


def mixed(z: Tensor) -> Tensor:
    """Hash each int64 number to 64 well-mixed bits [splitmix64, Steele et al. 2014]."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * FIRST
    z = (z ^ ((z >> 27) & (2**37 - 1))) * SECOND
    return z ^ ((z >> 31) & (2**33 - 1))
