"""Run the clients of an exchange in parallel, vectorised by vmap, or one by one. The results agree up to rounding."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from fedopt.errors import UserError
from fedopt.federation.client import Client, ClientFn
from fedopt.federation.counting import Calls
from fedopt.federation.draws import Drawn
from fedopt.federation.samples import Share
from fedopt.problems import Problem

# Total size of the messages in a stack: bounds memory; larger stacks are not faster (scripts/bench stacks)
STACK_BYTES = 64 * 2**20
LARGEST_STACK = 256
# The overhead of a step of a stack, as a number of clients that take as long: 4 (MLP) to 9 (softmax), measured on one thread
STEP_OVERHEAD = 8
LARGEST_VECTOR, LARGEST_VECTOR_THREADED = 3 * 2**19, 4 * 2**20  # bytes, with one thread and with several
LARGEST_CONVOLUTIONAL = 24 * 2**20  # bytes, on a GPU


class Stack(NamedTuple):
    """The n clients that are computed in parallel.

    Attributes:
        clients: The indices of the clients, ``[n]``.
        drawn: Name of a draw -> the samples drawn for the clients.
        share: What differs between the clients: tensors with a leading dimension ``[n]``.
        key: A function from a name to a number, from which clients derive their random numbers.
    """

    clients: np.ndarray
    drawn: dict[str, Drawn]
    share: Share
    key: Callable[[str], int]


class OneByOne:
    """Computes one client after the other, without vmap."""

    def stacks(self, clients: np.ndarray, steps: np.ndarray, message_bytes: int) -> list[np.ndarray]:
        """Cut a list of clients into stacks, and return the positions of each stack's clients in the cohort.

        This engine makes stacks of one client.

        Args:
            clients: The positions of the clients in the cohort.
            steps: The number of local steps of each client, in descending order.
            message_bytes: The size of a message to one client, in bytes.
        """
        return list(clients[:, None])

    def run(self, client_fn: ClientFn, message: Any, problem: Problem, stack: Stack, calls: Calls) -> Any:
        """Run the client function on a stack of n clients, and return the answers, tensors with a leading dimension ``[n]``.

        Args:
            client_fn: ``client_fn(client, message)``, which returns one client's answer.
            message: The message to every client.
            problem: The problem.
            stack: The clients.
            calls: The oracle calls of the exchange, to which the calls of these clients are added.
        """
        first: Share = tree_map(lambda t: None if t is None else t[0], stack.share)
        share = first._replace(client=int(stack.clients[0]))
        return tree_map(
            lambda leaf: leaf[None], client_fn(Client(problem, calls, stack.drawn, share, stack.key), message)
        )


class Vectorised:
    """Computes the clients of a stack in parallel, under torch.func.vmap.

    Args:
        stack: The largest number of clients in a stack. None: it depends on the size of a message, which bounds memory.
    """

    def __init__(self, stack: int | None = None):
        self.stack = stack

    def stacks(self, clients: np.ndarray, steps: np.ndarray, message_bytes: int) -> list[np.ndarray]:
        size = self.stack or largest_stack(message_bytes)
        groups = np.split(clients, equally_busy(steps))
        return [stack for group in groups for stack in np.array_split(group, -(-len(group) // size))]

    def run(self, client_fn: ClientFn, message: Any, problem: Problem, stack: Stack, calls: Calls) -> Any:
        def one(share: Share) -> Any:
            return client_fn(Client(problem, calls, stack.drawn, share, stack.key, len(stack.share.place)), message)

        dims = Share(*(None if part is None else 0 for part in stack.share))  # type: ignore[arg-type]
        return torch.func.vmap(one, (dims,))(stack.share)


Engine = OneByOne | Vectorised


def largest_stack(message_bytes: int) -> int:
    """Return the largest number of clients, or of configurations, that are computed together.

    Args:
        message_bytes: The size of a message to one client, in bytes.
    """
    return min(max(STACK_BYTES // max(message_bytes, 1), 1), LARGEST_STACK)


def equally_busy(steps: np.ndarray) -> list[int]:
    """Return the indices at which to cut the list of clients into stacks so that the total time is as short as possible.

    Larger stacks have less overhead, but all clients of a stack wait for the client with the most steps.

    Args:
        steps: The number of local steps of each client, in descending order.
    """
    n, first = np.arange(1, len(steps)), STEP_OVERHEAD + len(steps)
    costs = np.append(steps[0] * first, steps[0] * (STEP_OVERHEAD + n) + steps[1:] * (first - n))
    cut = int(costs.argmin())
    if cut == 0:
        return []
    return [*equally_busy(steps[:cut]), cut, *(cut + c for c in equally_busy(steps[cut:]))]


def choose(engine: str, stack: int | None, problem: Problem, cohort: int) -> Engine:
    """Return an engine.

    Args:
        engine: ``one_by_one``, ``vectorised``, or ``auto`` for the one that `vectorising_wins` expects to be faster.
        stack: The largest number of clients in a stack. None: it depends on the size of a message.
        problem: The problem.
        cohort: The number of clients in a cohort.

    Raises:
        UserError: ``engine`` is ``vectorised``, and the problem cannot be vectorised.
    """
    if engine == "vectorised" and problem.one_by_one:
        why = f"torch.vmap cannot run this problem ({problem.one_by_one})"
        raise UserError(f"hardware.engine=vectorised: {why}; use hardware.engine=one_by_one")
    if engine == "one_by_one" or (engine == "auto" and not vectorising_wins(problem, cohort)):
        return OneByOne()
    return Vectorised(stack)


def vectorising_wins(problem: Problem, cohort: int) -> bool:
    """Return whether the clients of a cohort are expected to run faster in parallel than one by one.

    The result is False for a problem that vmap cannot run. Otherwise, vectorising saves the overhead of separate calls for each
    client. On a CPU it is slower for convolutional networks, if the vectors of one client fill the cache, or if the cohort has
    at most two clients (measured by scripts/bench engines, see scripts/engines.txt). On a GPU it is slower only for large
    convolutional networks: an H200 took twice as long for vectorised VGG-11 networks (37 MB), and three quarters of the time
    for networks of 19 MB.

    Args:
        problem: The problem.
        cohort: The number of clients in a cohort.
    """
    start = problem.start()
    largest = max(v.numel() * v.element_size() for v in start)
    limit = LARGEST_VECTOR if torch.get_num_threads() == 1 else LARGEST_VECTOR_THREADED
    if problem.one_by_one:
        return False
    if start[0].device.type != "cpu":
        return not problem.convolutional or largest <= LARGEST_CONVOLUTIONAL
    return not problem.convolutional and largest <= limit and cohort > 2
