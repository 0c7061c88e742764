"""Dropout whose masks are determined by a key."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

GOLDEN, FIRST, SECOND = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

_multi_head: Any = F.multi_head_attention_forward


class Dropout(TorchFunctionMode):
    """A context, `with Dropout(key):`, in which torch's dropout draws masks that the key determines, also under vmap.

    It covers `F.dropout`, `F.dropout1d` to `F.dropout3d`, `F.scaled_dot_product_attention`, and the modules that call them.
    The first dimension must be the batch; padding a batch does not change the masks of its other examples.
    key: an int64 scalar; for `kept` alone also several, [...]. drawn: how many masks were drawn.
    """

    def __init__(self, key: Tensor):
        self.key, self.drawn = key, 0
        self._keyed: dict[Any, Callable[..., Any]] = {
            F.dropout: self.of_numbers,
            **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), self.of_channels),
            F.scaled_dot_product_attention: self.attention,
            _multi_head: self.multi_head_attention,
        }

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._keyed.get(function, function)(*args, **(kwargs or {}))

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
        **options: Any,
    ) -> Tensor:
        """Compute torch's scaled_dot_product_attention on a batch, with keyed dropout.

        With dropout, the attention weights come from torch's own function, called with unit vectors as values.
        """
        if not dropout_p:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **options)
        unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device).expand(*key.shape[:-1], -1)
        weights = F.scaled_dot_product_attention(query, key, unit, attn_mask, 0.0, is_causal, **options)
        return self.of_numbers(weights, dropout_p) @ value

    def multi_head_attention(self, *given: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Compute torch's multi_head_attention_forward on a batch, with keyed dropout. Its arguments are torch's.

        With dropout, torch gives the weights [batch, heads, to, from], and the operations after them are done here.
        """
        *inputs, p, out, out_bias = given
        value, dim, heads, weight, bias = (inputs[i] for i in (2, 3, 4, 5, 6))
        if not p or not options["training"]:
            return _multi_head(*given, **options)
        whole = options | {"need_weights": True, "average_attn_weights": False}
        weights = self.of_numbers(_multi_head(*inputs, 0.0, out, out_bias, **whole)[1], p)
        of_value = options["v_proj_weight"] if options["use_separate_proj_weight"] else weight[-dim:]
        values = F.linear(value, of_value, None if bias is None else bias[-dim:])  # [from, batch, dim]
        mixed = weights @ values.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)  # [batch, heads, to, dim / heads]
        mean = weights.mean(1) if options["average_attn_weights"] else weights
        return F.linear(mixed.permute(2, 0, 1, 3).flatten(-2), out, out_bias), mean if options["need_weights"] else None

    def kept(self, shape: Sequence[int], p: float, device: torch.device) -> Tensor:
        """Draw the next mask: a bool tensor that is False with probability p; one for each key, if there are several.

        shape: the shape of a mask. device: the device on which it is made.
        """
        self.drawn += 1
        places = torch.arange(math.prod(shape), device=device) * GOLDEN
        start = mixed(mixed(self.key) + self.drawn)[..., None]
        uniform = (mixed(places + start) >> 40) & 0xFFFFFF
        return (uniform >= p * 2**24).view(*self.key.shape, *shape)

    def _dropped(self, input: Tensor, p: float, shape: Sequence[int]) -> Tensor:
        return input * self.kept(shape, p, input.device) * (1 / (1 - p) if p < 1 else 0.0)


def mixed(z: Tensor) -> Tensor:
    """Hash each int64 number to 64 well-mixed bits [splitmix64, Steele et al. 2014]."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * FIRST
    z = (z ^ ((z >> 27) & (2**37 - 1))) * SECOND
    return z ^ ((z >> 31) & (2**33 - 1))
