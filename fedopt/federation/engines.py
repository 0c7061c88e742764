"""How the clients of an exchange are run: all at once, stacked by vmap, or one by one. They agree to rounding."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedopt.errors import UserError
from fedopt.federation.client import Client
from fedopt.federation.derivatives import Calls
from fedopt.federation.draws import Drawn, Weighted
from fedopt.problems.classes import Problem

# Messages in a stack: bounds memory; larger stacks gain nothing more (scripts/bench stacks)
STACK_BYTES = 64 * 2**20
LARGEST_STACK = 256
# What a step of a stack costs besides its clients, in clients: 4 (MLP) to 9 (softmax) measured on one thread
STEP_OVERHEAD = 8
LARGEST_VECTOR, LARGEST_VECTOR_THREADED = 3 * 2**19, 4 * 2**20  # bytes, with one thread and with several


class Stack(NamedTuple):
    """Clients that are run at once.

    clients: their numbers, [n]. whole, drawn: as `draws.draw` gives them. memory, own: the rows of the memory and the parts of the
    message that belong to each of them, [n, ...]; None where there are none. keys: of their random numbers, [n].
    """

    clients: np.ndarray
    whole: dict[str, Weighted]
    drawn: dict[str, Drawn]
    memory: Tensor | None
    own: Tensor | None
    keys: Tensor | None = None

    def shares(self, device: torch.device) -> dict[str, Any]:
        """What belongs to each client alone, as `Client` takes it: tensors with a leading dimension [n]."""
        uneven = {name: drawn.steps for name, drawn in self.drawn.items() if np.ptp(drawn.steps)}
        share: dict[str, Any] = {
            "index": torch.from_numpy(self.clients).to(device),
            "place": torch.arange(len(self.clients), device=device),
            "whole": self.whole,
            "positions": {name: drawn.positions for name, drawn in self.drawn.items()},
            "steps": {name: torch.from_numpy(steps).to(device) for name, steps in uneven.items()},
        }
        given = {"memory": self.memory, "own": self.own, "key": None if self.keys is None else self.keys.to(device)}
        return share | {name: value for name, value in given.items() if value is not None}


ClientFn = Callable[[Client, Any], Any]


class OneByOne:
    """A plain loop: stacks of one client, without vmap."""

    def stacks(self, clients: np.ndarray, steps: np.ndarray, message_bytes: int) -> list[np.ndarray]:
        """Cut a list of clients into those that are run at once. clients: places in the cohort. steps: of each of them, falling."""
        return list(clients[:, None])

    def run(self, client_fn: ClientFn, message: Any, problem: Problem, stack: Stack, calls: Calls) -> Any:
        """The answers of one stack, tensors with a leading dimension [n]; oracle calls are added to `calls`."""
        share = tree_map(lambda t: t[0], stack.shares(torch.device("cpu"))) | {"index": int(stack.clients[0])}
        return tree_map(lambda leaf: leaf[None], client_fn(Client(problem, calls, stack.drawn, share), message))


class Vectorised:
    """As `OneByOne`, with stacks of clients under torch.func.vmap. stack: how many at once, None for as many as fit the cache."""

    def __init__(self, stack: int | None = None):
        self.stack = stack

    def stacks(self, clients: np.ndarray, steps: np.ndarray, message_bytes: int) -> list[np.ndarray]:
        size = self.stack or min(max(STACK_BYTES // max(message_bytes, 1), 1), LARGEST_STACK)
        groups = np.split(clients, equally_busy(steps))
        return [stack for group in groups for stack in np.array_split(group, -(-len(group) // size))]

    def run(self, client_fn: ClientFn, message: Any, problem: Problem, stack: Stack, calls: Calls) -> Any:
        def one(share: dict[str, Any]) -> Any:
            return client_fn(Client(problem, calls, stack.drawn, share, len(stack.clients)), message)

        return torch.func.vmap(one)(stack.shares(problem.start()[0].device))


Engine = OneByOne | Vectorised


def equally_busy(steps: np.ndarray) -> list[int]:
    """Where to cut clients with so many local steps, falling, so that they take the least time together: in a stack all wait for
    the busiest, and every step of a stack has its overhead."""
    n, first = np.arange(1, len(steps)), STEP_OVERHEAD + len(steps)
    costs = np.append(steps[0] * first, steps[0] * (STEP_OVERHEAD + n) + steps[1:] * (first - n))
    cut = int(costs.argmin())
    if cut == 0:
        return []
    return [*equally_busy(steps[:cut]), cut, *(cut + c for c in equally_busy(steps[cut:]))]


def choose(engine: str, stack: int | None, problem: Problem, cohort: int) -> Engine:
    """The engine by its name; `auto` takes the faster one, by the rule of `vectorising_wins`.

    Raises UserError where all at once is asked for, and the problem cannot be run so.
    """
    if engine == "vectorised" and problem.alone:
        raise UserError(f"hardware.engine=vectorised: {problem.alone}; hardware.engine=one_by_one needs no vmap")
    if engine == "one_by_one" or (engine == "auto" and not vectorising_wins(problem, cohort)):
        return OneByOne()
    return Vectorised(stack)


def vectorising_wins(problem: Problem, cohort: int) -> bool:
    """Stacking saves the cost of a call for each client, and loses where grouped convolutions take over, where one client's
    vectors fill the cache, and where there is hardly anyone to stack (scripts/bench engines; measured: scripts/engines.txt).
    """
    start = problem.start()
    largest = max(v.numel() * v.element_size() for v in start)
    limit = LARGEST_VECTOR if torch.get_num_threads() == 1 else LARGEST_VECTOR_THREADED
    if problem.alone:
        return False
    return start[0].device.type != "cpu" or (not problem.convolutional and largest <= limit and cohort > 2)
