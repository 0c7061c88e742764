"""How the clients of an exchange are run: in parallel, stacked by vmap, or one by one. The results agree up to rounding."""

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

# Messages in a stack: bounds memory; larger stacks gain nothing more (scripts/bench stacks)
STACK_BYTES = 64 * 2**20
LARGEST_STACK = 256
# What a step of a stack costs besides its clients, in clients: 4 (MLP) to 9 (softmax) measured on one thread
STEP_OVERHEAD = 8
LARGEST_VECTOR, LARGEST_VECTOR_THREADED = 3 * 2**19, 4 * 2**20  # bytes, with one thread and with several
LARGEST_CONVOLUTIONAL = 24 * 2**20  # bytes, on a GPU


class Stack(NamedTuple):
    """The n clients that are computed in parallel.

    Attributes:
        clients: Their indices.
        drawn: Their draws.
        share: What differs between them, tensors with a leading dimension [n].
    """

    clients: np.ndarray
    drawn: dict[str, Drawn]
    share: Share


class OneByOne:
    """Computes one client after the other, without vmap."""

    def stacks(self, clients: np.ndarray, steps: np.ndarray, message_bytes: int) -> list[np.ndarray]:
        """Cut a list of clients into stacks, and return each stack's places in the cohort. Here each stack has one client.

        Args:
            clients: The clients' places in the cohort.
            steps: The local steps of each, in falling order.
            message_bytes: The bytes of one message.
        """
        return list(clients[:, None])

    def run(self, client_fn: ClientFn, message: Any, problem: Problem, stack: Stack, calls: Calls) -> Any:
        """Return the answers of one stack, tensors with a leading dimension [n]. Oracle calls are added to `calls`.

        client_fn, message: as in `Round.exchange`.
        """
        first: Share = tree_map(lambda t: None if t is None else t[0], stack.share)
        share = first._replace(client=int(stack.clients[0]))
        return tree_map(lambda leaf: leaf[None], client_fn(Client(problem, calls, stack.drawn, share), message))


class Vectorised:
    """Computes the clients of a stack in parallel, under torch.func.vmap.

    Args:
        stack: The number of clients in a stack; None chooses it by the bytes of a message, which bounds memory.
    """

    def __init__(self, stack: int | None = None):
        self.stack = stack

    def stacks(self, clients: np.ndarray, steps: np.ndarray, message_bytes: int) -> list[np.ndarray]:
        size = self.stack or min(max(STACK_BYTES // max(message_bytes, 1), 1), LARGEST_STACK)
        groups = np.split(clients, equally_busy(steps))
        return [stack for group in groups for stack in np.array_split(group, -(-len(group) // size))]

    def run(self, client_fn: ClientFn, message: Any, problem: Problem, stack: Stack, calls: Calls) -> Any:
        def one(share: Share) -> Any:
            return client_fn(Client(problem, calls, stack.drawn, share, len(stack.share.place)), message)

        dims = Share(*(None if part is None else 0 for part in stack.share))  # type: ignore[arg-type]
        return torch.func.vmap(one, (dims,))(stack.share)


Engine = OneByOne | Vectorised


def equally_busy(steps: np.ndarray) -> list[int]:
    """Return the places at which to cut clients into stacks so that all stacks together take the least time.

    In a stack all wait for the busiest client, and every step of a stack has its overhead.

    Args:
        steps: The local steps of each client, in falling order.
    """
    n, first = np.arange(1, len(steps)), STEP_OVERHEAD + len(steps)
    costs = np.append(steps[0] * first, steps[0] * (STEP_OVERHEAD + n) + steps[1:] * (first - n))
    cut = int(costs.argmin())
    if cut == 0:
        return []
    return [*equally_busy(steps[:cut]), cut, *(cut + c for c in equally_busy(steps[cut:]))]


def choose(engine: str, stack: int | None, problem: Problem, cohort: int) -> Engine:
    """Return the engine of that name: one_by_one, vectorised, or auto, the faster one by `vectorising_wins`.

    stack: as in `Vectorised`. cohort: the number of clients in a cohort. Raises UserError if `vectorised` is asked for and
        the problem cannot be vectorised.
    """
    if engine == "vectorised" and problem.one_by_one:
        raise UserError(
            f"hardware.engine=vectorised: torch.vmap cannot run this problem ({problem.one_by_one}); use "
            f"hardware.engine=one_by_one"
        )
    if engine == "one_by_one" or (engine == "auto" and not vectorising_wins(problem, cohort)):
        return OneByOne()
    return Vectorised(stack)


def vectorising_wins(problem: Problem, cohort: int) -> bool:
    """Tell whether a cohort is computed faster in parallel than one by one. cohort: its number of clients.

    It is False for a problem that vmap cannot run (``alone``). Stacking saves the cost of a call for each client. On a CPU it
    loses if grouped convolutions take over, if one client's vectors fill the cache, or if the cohort is tiny (scripts/bench
    engines; measured in scripts/engines.txt). On a GPU it loses for large convolutional networks alone: an H200 took twice as
    long for stacked VGG-11s, 37 MB, and three quarters of the time for networks of 19 MB.
    """
    start = problem.start()
    largest = max(v.numel() * v.element_size() for v in start)
    limit = LARGEST_VECTOR if torch.get_num_threads() == 1 else LARGEST_VECTOR_THREADED
    if problem.one_by_one:
        return False
    if start[0].device.type != "cpu":
        return not problem.convolutional or largest <= LARGEST_CONVOLUTIONAL
    return not problem.convolutional and largest <= limit and cohort > 2
