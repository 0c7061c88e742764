"""The answers of the clients in an exchange, and the new rows of their memory.

Answers are checked on the client. The server sums them, or keeps each one for a `combine` function.
"""

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
from fedopt.networks import depth


class Answers:
    """The answers of an exchange: either their weighted sum in double precision, or all answers, one row per client.

    Args:
        weights: The weight of each client's answer, ``[cohort]``. They are not normalised.
        idle: Whether this rank computes no client of the cohort, so that its answers are ignored.
        apart: Whether each answer is kept, for a server that combines the answers by a function other than the mean.
    """

    def __init__(self, weights: np.ndarray, idle: bool, apart: bool):
        self.weights, self.idle, self.apart = weights, idle, apart
        self.sums = list[Tensor]()
        self.one = list[Tensor]()  # one client's answer
        self.structure: Any = None

    def take(self, of_stack: Any, members: np.ndarray) -> None:
        """Add the answers of a stack of clients to the weighted sums, or store them if the server needs each of them.

        Args:
            of_stack: The answers: a (nested) tuple of tensors ``[stack, ...]``.
            members: The positions of these clients in the cohort, ``[stack]``.
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
            places = torch.from_numpy(members).to(leaves[0].device)
            pairs = zip(self.sums, leaves, strict=True)
            self.sums = [total.index_copy(0, places, leaf.double()) for total, leaf in pairs]
            return
        sums = [weighted_sum(self.weights[members], leaf) for leaf in leaves]
        self.sums = [total + more for total, more in zip(self.sums, sums, strict=True)] if self.sums else sums

    def mean(self, like: Tensor, combine: Callable[[Any, Tensor], Any] | None) -> Any:
        """Return the weighted sum of the answers of all ranks, or the result of ``combine``.

        The sum of floating-point answers has the dtype of the answers. The sum of integer answers has the dtype of ``like``,
        and so does every floating-point tensor in a result of ``combine`` whose structure differs from that of the answers.

        Args:
            like: A tensor with the dtype and the device of the run.
            combine: ``combine(answers, weights)``, where each tensor of the answers has the shape ``[cohort, ...]``. None: the
                weighted sum is returned.
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
    """Return the weighted sum of a stack's answers, ``[...]``.

    It is computed in double precision, so that the order of the clients makes no difference after rounding to float32.

    Args:
        weights: The weight of each client, ``[stack]``.
        answers: The answer of each client, ``[stack, ...]``.
    """
    on_cpu = answers.device.type == "cpu" and depth() == 0
    if on_cpu and answers.dtype in (torch.float32, torch.float64):  # makes no copy in double
        return torch.from_numpy(np.asarray(np.einsum("i,i...->...", weights, answers.detach().numpy())))
    return torch.tensordot(torch.from_numpy(weights).to(answers.device), answers.double(), 1)


def remembered(memory: Memory, cohort: np.ndarray, mine: np.ndarray, rows: list[Tensor], idle: bool) -> Memory:
    """Return the memory with the new rows of all clients of the cohort. Ranks exchange the rows that they computed.

    Args:
        memory: The memory before the exchange.
        cohort: The indices of the clients.
        mine: The positions in the cohort of the clients that this rank computed.
        rows: The new rows of these clients.
        idle: Whether this rank computes no client of the cohort, so that its rows are ignored.
    """
    if ranks.count() == 1:
        return memory.replaced(cohort[mine], rows)
    of_all = rows[0].new_zeros(len(cohort), *rows[0].shape)
    if not idle:
        of_all[mine.tolist()] = torch.stack(rows)
    # As bytes, which are 0 on other ranks, so that the sum is exact in any dtype
    (total,) = ranks.total([of_all.flatten().view(torch.uint8)])
    return memory.replaced(cohort, list(total.view(of_all.dtype).view(of_all.shape)))


def checked_answer(client_fn: ClientFn, pairs: bool, client: Client, message: Any) -> Any:
    """Call a client function, and return what it returns.

    Args:
        client_fn: The client function.
        pairs: Whether the function must return (answer, new row), because the exchange has a memory.
        client: The client, the function's first argument.
        message: The message, the function's second argument.

    Raises:
        UserError: The function does not return such a pair, or returns anything other than tensors.
    """
    answer = client_fn(client, message)
    if pairs and not (isinstance(answer, tuple) and len(answer) == 2):
        raise gives(client_fn, answer, "(answer, new row of its memory) in an exchange with memory=")
    for leaf in tree_leaves(answer):
        if not isinstance(leaf, Tensor):
            raise gives(client_fn, leaf, "a tensor, or a tuple of tensors")
    return answer


def versions(message: Any) -> list[int]:
    """Return the version counter of each tensor of a message. PyTorch increases it whenever the tensor is overwritten."""
    return [leaf._version for leaf in tree_leaves(message) if isinstance(leaf, Tensor)]
