"""The messages of recent rounds, to which late clients respond."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


class Sent:
    """The messages of recent rounds.

    An exchange is identified by its name and the number of earlier exchanges of this name in the round.

    Attributes:
        tensors: The tensors of all messages. Their names begin with late.ROUND.EXCHANGE, as in a checkpoint.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def keep(self, message: Any, exchange: str, r: int, since: int) -> None:
        """Store the message of an exchange, and delete the messages of old rounds.

        Args:
            message: The message: a tensor or a (nested) tuple of tensors and numbers.
            exchange: The identifier of the exchange within its round.
            r: The index of the round.
            since: The first round whose messages are kept.
        """
        self.tensors = {name: t for name, t in self.tensors.items() if int(name.split(".")[1]) >= since}
        for k, leaf in enumerate(tree_leaves(message)):
            if isinstance(leaf, Tensor):
                kept = leaf.detach().clone(memory_format=torch.contiguous_format)
                self.tensors[f"late.{r}.{exchange}.{k}"] = kept

    def message(self, today: Any, exchange: str, r: int, since: int) -> Any:
        """Return the oldest message of an exchange from the rounds ``since`` to r - 1, or the message of round r.

        Messages whose shape differs from the message of round r are skipped, since they belong to another exchange. Messages of
        round 0 are skipped too, since many methods start differently. Numbers in a message are hyperparameters, so they are
        always taken from round r.

        Args:
            today: The message of round r.
            exchange: The identifier of the exchange within its round.
            r: The index of the current round.
            since: The first round whose message may be returned.
        """
        leaves, structure = tree_flatten(today)
        for q in range(max(since, 1), r):
            then = [self.tensors.get(f"late.{q}.{exchange}.{k}") for k in range(len(leaves))]
            if [getattr(old, "shape", None) for old in then] == [getattr(leaf, "shape", None) for leaf in leaves]:
                pairs = zip(then, leaves, strict=True)
                return tree_unflatten([leaf if old is None else old.to(leaf) for old, leaf in pairs], structure)
        return today
