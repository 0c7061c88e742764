"""The messages of the last rounds, which late clients answer."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


class Sent:
    """The messages of the last rounds.

    Each message belongs to an exchange: the names of its draws, and how many exchanges with these names the round made before.

    Attributes:
        tensors: All tensors, by names that begin with late.ROUND.EXCHANGE, as a checkpoint stores them.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def keep(self, message: Any, exchange: str, r: int, since: int) -> None:
        """Keep the message of an exchange in round r, and forget rounds before ``since``."""
        self.tensors = {name: t for name, t in self.tensors.items() if int(name.split(".")[1]) >= since}
        for k, leaf in enumerate(tree_leaves(message)):
            if isinstance(leaf, Tensor):
                kept = leaf.detach().clone(memory_format=torch.contiguous_format)
                self.tensors[f"late.{r}.{exchange}.{k}"] = kept

    def message(self, today: Any, exchange: str, r: int, since: int) -> Any:
        """Return the first message of an exchange since a round; if there is none before round r, today's, which is r's.

        A message with another shape than today's belongs to another exchange. So do messages of round 0, in which
        many methods begin differently. Numbers in a message are always today's: they are hyperparameters.
        """
        leaves, structure = tree_flatten(today)
        for q in range(max(since, 1), r):
            then = [self.tensors.get(f"late.{q}.{exchange}.{k}") for k in range(len(leaves))]
            if [getattr(old, "shape", None) for old in then] == [getattr(leaf, "shape", None) for leaf in leaves]:
                pairs = zip(then, leaves, strict=True)
                return tree_unflatten([leaf if old is None else old.to(leaf) for old, leaf in pairs], structure)
        return today
