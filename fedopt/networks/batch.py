"""What a network is trained on: a minibatch, and the change of its logits."""

from typing import NamedTuple

from torch import Tensor

Tuning = tuple[Tensor, Tensor] | None  # scale and shift of the logits, [classes] each


class Batch(NamedTuple):
    """A minibatch.

    Args:
        x: ``[B, features]``, normalised, or token ids ``[B, length]``.
        y: ``[B]``, the classes, or targets that are real numbers.
        weight: ``[B]``, the weights of the examples in a mean. They sum to 1; padding has weight 0.
        rows: ``[B]``, the indices of the examples in their data set.
        keys: The key that determines the network's dropout masks; empty during evaluation.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    rows: Tensor
    keys: tuple[Tensor, ...] = ()
