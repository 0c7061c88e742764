"""The answers of an exchange: checked on the client, summed or kept on the server, and the rows that clients remember."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedopt.errors import gives
from fedopt.federation import ranks
from fedopt.federation.client import Client, ClientFn
from fedopt.federation.memory import Memory


class Answers:
    """The answers of an exchange: their weighted sum in double precision, or all of them, one row each.

    Args:
        weights: ``[cohort]``, used as they are.
        idle: Whether this rank has no client of the cohort, so that no answer counts.
        apart: Whether each answer is kept, for a server that does not take their mean.
    """

    def __init__(self, weights: np.ndarray, idle: bool, apart: bool):
        self.weights, self.idle, self.apart = weights, idle, apart
        self.sums = list[Tensor]()
        self.one = list[Tensor]()  # one client's answer
        self.structure: Any = None

    def take(self, of_stack: Any, members: np.ndarray) -> None:
        """Add the answers of a stack of clients.

        Args:
            of_stack: Tensors ``[stack, ...]``.
            members: The clients' places in the cohort.
        """
        leaves, self.structure = tree_flatten(of_stack)
        if not self.one:
            rows = (len(self.weights),) if self.apart else ()
            self.one = [leaf[0] for leaf in leaves]
            if self.apart or self.idle:
                self.sums = [leaf.new_zeros((*rows, *leaf.shape), dtype=torch.float64) for leaf in self.one]
        if self.idle:
            return
        if self.apart:
            for total, leaf in zip(self.sums, leaves, strict=True):
                for place, answer in zip(members.tolist(), leaf, strict=True):
                    total[place] = answer
            return
        sums = [weighted_sum(self.weights[members], leaf) for leaf in leaves]
        self.sums = [total.add_(more) for total, more in zip(self.sums, sums, strict=True)] if self.sums else sums

    def mean(self, like: Tensor, combine: Callable[[Any, Tensor], Any] | None) -> Any:
        """Return the weighted sum of the answers of all ranks, or the result of ``combine``.

        Floating-point tensors get the dtypes of the answers, or of ``like``: if answers are integers, since their mean is
        not, and in a result of ``combine`` that has another structure than the answers.

        combine: as in `Round.exchange`; None for the sum.
        """
        dtypes = [one.dtype if one.is_floating_point() else like.dtype for one in self.one]
        values, structure = ranks.total(self.sums), self.structure
        if combine is not None:
            weights = torch.from_numpy(self.weights).to(like.device)
            values, structure = tree_flatten(combine(tree_unflatten(values, structure), weights))
            dtypes = dtypes if structure == self.structure else [like.dtype] * len(values)
        real = [isinstance(value, Tensor) and value.is_floating_point() for value in values]
        typed = zip(values, dtypes, real, strict=True)
        return tree_unflatten([value.to(dtype) if is_real else value for value, dtype, is_real in typed], structure)


def weighted_sum(weights: np.ndarray, answers: Tensor) -> Tensor:
    """Return the weighted sum of a stack's answers in double precision: the order of clients is lost in the rounding.

    Args:
        weights: [stack].
        answers: [stack, ...].
    """
    if answers.device.type == "cpu" and answers.dtype in (torch.float32, torch.float64):  # makes no copy in double
        return torch.from_numpy(np.asarray(np.einsum("i,i...->...", weights, answers.detach().numpy())))
    return torch.tensordot(torch.from_numpy(weights).to(answers.device), answers.double(), 1)


def remembered(memory: Memory, cohort: np.ndarray, mine: np.ndarray, rows: list[Tensor], idle: bool) -> Memory:
    """Return the memory with the new rows of all clients of the cohort. Ranks exchange the rows that they computed.

    mine, rows: the places in the cohort that this rank computed, and their new rows.
    idle: whether this rank has no client of the cohort, so that its rows do not count.
    """
    if ranks.count() == 1:
        return memory.replaced(cohort[mine], rows)
    of_all = rows[0].new_zeros(len(cohort), *rows[0].shape)
    if not idle:
        of_all[mine.tolist()] = torch.stack(rows)
    (total,) = ranks.total(
        [of_all.flatten().view(torch.uint8)]
    )  # as bytes, which are 0 on other ranks: exact in any dtype
    return memory.replaced(cohort, list(total.view(of_all.dtype).view(of_all.shape)))


def checked_answer(client_fn: ClientFn, pairs: bool, client: Client, message: Any) -> Any:
    """Call a client function, and return what the client sends back.

    pairs: whether it must return (answer, new row). Raises UserError if it does not, or returns anything but tensors.
    """
    answer = client_fn(client, message)
    if pairs and not (isinstance(answer, tuple) and len(answer) == 2):
        raise gives(client_fn, answer, "(answer, new row of its memory) in an exchange with memory=")
    for leaf in tree_leaves(answer):
        if not isinstance(leaf, Tensor):
            raise gives(client_fn, leaf, "a tensor, or a tuple of tensors")
    return answer


def versions(message: Any) -> list[int]:
    """Return a version count of each tensor of a message, which grows each time the tensor is written over."""
    return [leaf._version for leaf in tree_leaves(message) if isinstance(leaf, Tensor)]
