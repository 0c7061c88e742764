"""Minibatches, and the scale and shift of a network's logits."""

from typing import NamedTuple

from torch import Tensor

Tuning = tuple[Tensor, Tensor] | None  # scale and shift of the logits, [classes] each


class Batch(NamedTuple):
    """A minibatch.

    Attributes:
        x: Normalised inputs, ``[B, features]``, or token ids, ``[B, length]``.
        y: Classes or regression targets, ``[B]``.
        weight: Weights of the examples in a mean, ``[B]``, with sum 1; padding has weight 0.
        rows: Indices of the examples in their data set, ``[B]``.
        keys: The key that determines the dropout masks, as a tuple with one element; empty during evaluation.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    rows: Tensor
    keys: tuple[Tensor, ...] = ()
