"""Dropout whose masks are functions of a key."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

GOLDEN, FIRST, SECOND = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_attention = F.scaled_dot_product_attention


class Dropout:
    """What replaces torch's dropout: masks that are functions of a key, the same for one client and for a stack of them.

    The first dimension must be the batch: padding it changes no other example's mask. drawn: how many masks there were.
    """

    def __init__(self, key: Tensor):
        self.key, self.drawn = key, 0

    def of_numbers(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return self._dropped(input, p, input.shape) if training and p else input

    def of_channels(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        ones = (1,) * (input.ndim - 2)
        return self._dropped(input, p, (*input.shape[:2], *ones)) if training and p else input

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if not dropout_p or enable_gqa:
            return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            allowed = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if allowed else scores + attn_mask
        return self.of_numbers(torch.softmax(scores, -1), dropout_p) @ value

    def kept(self, shape: Sequence[int], p: float, device: torch.device) -> Tensor:
        """The next mask: False with probability p."""
        self.drawn += 1
        places = torch.arange(math.prod(shape), device=device) * GOLDEN
        uniform = (mixed(places + mixed(mixed(self.key) + self.drawn)) >> 40) & 0xFFFFFF
        return (uniform >= p * 2**24).view(shape)

    def _dropped(self, input: Tensor, p: float, shape: Sequence[int]) -> Tensor:
        return input * self.kept(shape, p, input.device) * (1 / (1 - p) if p < 1 else 0.0)


def mixed(z: Tensor) -> Tensor:
    """64 bits of each whole number, well mixed [splitmix64, Steele et al. 2014]."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * FIRST
    z = (z ^ ((z >> 27) & (2**37 - 1))) * SECOND
    return z ^ ((z >> 31) & (2**33 - 1))
