"""The simulated federation: who takes part, what is drawn, and the one exchange between server and clients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedopt.errors import UserError
from fedopt.federation import ranks
from fedopt.federation.client import Client
from fedopt.federation.draws import Key, Minibatches, draw
from fedopt.federation.engines import Engine, Private
from fedopt.federation.ledger import Ledger, size_in_bytes
from fedopt.oracles import Calls
from fedopt.problems.classes import Problem
from fedopt.randomness import Purpose, keyed_rng
from fedopt.settings import Participation

ClientFn = Callable[[Client, Any], Any]
FULL = Participation()


class Federation:
    """M clients and a server.

    participation: which clients take part in a round, and how uneven their local work is; by default all, evenly.

    Where torch.distributed runs, the clients of an exchange are shared out over the ranks; every rank holds the same server.
    """

    def __init__(
        self,
        problem: Problem,
        engine: Engine,
        seed: int,
        participation: Participation = FULL,
    ):
        self.problem = problem
        self.engine = engine
        self.seed = seed
        self.participation = participation
        self.ledger = Ledger(problem.clients)
        self.begin(0)

    def begin(self, round: int) -> None:
        """Draws from here on belong to this round (0: initialisation)."""
        self._round = round
        self._exchange = 0
        self._cohorts = 0

    def rng(self, purpose: Purpose, client: int = 0) -> np.random.Generator:
        """A generator for the server's own draws of this round, or for those that it makes for a client."""
        return keyed_rng(self.seed, purpose, self._round, client=client)

    def everyone(self) -> np.ndarray:
        """All clients."""
        return np.arange(self.problem.clients)

    @property
    def cohort_size(self) -> int:
        """Of a cohort that nobody drops out of."""
        return self.participation.cohort or self.problem.clients

    @property
    def complete(self) -> bool:
        """Whether `cohort()` is all clients in every round."""
        return self.cohort_size == self.problem.clients and not self.participation.dropout

    def cohort(self) -> np.ndarray:
        """The clients that take part: `cohort_size` of them, uniformly without replacement, less those that drop out, but at
        least one; a new draw at each call."""
        if self.complete:
            return self.everyone()
        key = (self._round, self._cohorts)
        self._cohorts += 1
        rng = keyed_rng(self.seed, Purpose.COHORT, *key)
        chosen = np.sort(rng.choice(self.problem.clients, self.cohort_size, replace=False))
        dropout = self.participation.dropout
        if not dropout:
            return chosen
        luck = np.array([keyed_rng(self.seed, Purpose.DROPOUT, *key, int(i)).random() for i in chosen])
        return chosen[luck >= min(dropout, luck.max())]

    def work(self, most: int | np.ndarray) -> int | np.ndarray:
        """The local steps, or epochs, of this round of an algorithm that asks for `most` of them, one number or [M]: `most` where
        clients are even, else [M], of each client its entry of participation.work or a draw from {least..most}; 0 for stragglers.

        Raises UserError where least is more than `most`.
        """
        work = self._before_stragglers(most)
        stragglers = self.participation.stragglers
        if not stragglers:
            return work
        M = self.problem.clients
        late = keyed_rng(self.seed, Purpose.STRAGGLERS, self._round).permutation(M)[: round(stragglers * M)]
        return np.where(np.isin(np.arange(M), late), 0, work)

    def _before_stragglers(self, most: int | np.ndarray) -> int | np.ndarray:
        work, least = self.participation.work, self.participation.least
        if work is not None:
            return np.array(work)
        if least is None:
            return most
        if least > np.min(most):
            raise UserError(f"participation.least={least}: must be at most the algorithm's local work, {most}")
        M = self.problem.clients
        rngs = [keyed_rng(self.seed, Purpose.WORK, self._round, client=i) for i in range(M)]
        return np.array([rng.integers(least, m + 1) for rng, m in zip(rngs, np.broadcast_to(most, M), strict=True)])

    def local_draws(
        self, B: int | None, epochs: int | None, steps: int | np.ndarray | None, replace: bool = False
    ) -> Minibatches:
        """For so many local epochs, or else so many local steps on independent batches, as `work` has them. replace: of steps,
        see `Minibatches`."""
        if epochs is not None:
            return Minibatches(B, epochs=self.work(epochs))
        assert steps is not None
        return Minibatches(B, self.work(steps), replace=replace)

    def round(
        self,
        client_fn: ClientFn,
        message: Any,
        cohort: np.ndarray,
        draws: Minibatches | None = None,
        weights: np.ndarray | None = None,
        memory: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Any:
        """One exchange: send `message` to the cohort, run `client_fn(client, message)` on each, return the mean of the answers.

        draws: which of their examples the clients use, None where they use none.
        weights: [cohort], of the answers in the mean, used as they are; 1/|cohort| by default.
        memory: [M, d], a row for each client, seen as `client.memory`; client_fn then returns (answer, new row) and this
            returns (mean, new memory).
        own: [cohort, ...], a part of the message for each client alone, seen as `client.own`.

        Messages and answers are tensors or (nested) tuples of them. Bills one communication round.
        """
        self._exchange += 1
        key = Key(self.seed, self._round, self._exchange)
        weights = np.full(len(cohort), 1 / len(cohort)) if weights is None else weights
        like, splits = self.problem.start()[0], self.problem.splits
        sizes = (draws.sizes(splits) if draws else next(iter(splits.values())).sizes)[cohort]

        # Stacks of equally busy clients waste the least; a rank without clients computes one at weight zero, for the shapes.
        steps = draws.steps_of(splits, cohort) if draws else np.ones(len(cohort), dtype=np.int64)
        busy = np.lexsort((sizes, steps))[::-1]
        mine = busy[ranks.rank() :: ranks.count()]
        idle = len(mine) == 0
        mine, weights = (busy[:1], 0 * weights) if idle else (mine, weights)

        sums: list[Tensor] = []
        rows: list[Tensor] = []
        calls = Calls()
        for stack in self.engine.stacks(mine, steps[mine], size_in_bytes(message)):
            clients = cohort[stack]
            drawn = draw(draws, splits, clients, key, like) if draws else None
            private = Private(
                None if memory is None else memory[torch.from_numpy(clients)],
                None if own is None else own[stack.tolist()],
            )
            answers = self.engine.run(client_fn, message, self.problem, clients, drawn, private, calls)
            if memory is not None:
                answers, new_rows = answers
                rows.append(new_rows)
            leaves, structure = tree_flatten(answers)
            sums = sums or [torch.zeros_like(leaf[0], dtype=torch.float64) for leaf in leaves]
            for total, leaf in zip(sums, leaves, strict=True):
                for weight, answer in zip(weights[stack], leaf, strict=True):
                    total.add_(answer, alpha=weight)  # in double: the order of clients is lost in the rounding

        self._account(
            cohort,
            message if own is None else (message, own[0]),
            [leaf[0] for leaf in leaves],
            Calls() if idle else calls,
        )
        sums = [total.to(leaf.dtype) for total, leaf in zip(ranks.total(sums), leaves, strict=True)]
        mean = tree_unflatten(sums, structure)
        if memory is None:
            return mean
        return mean, _updated(memory, cohort[mine], torch.cat(rows), idle)

    def _account(self, cohort: np.ndarray, message: Any, answer: list[Tensor], calls: Calls) -> None:
        self.ledger.bill(cohort, size_in_bytes(message), size_in_bytes(answer))
        counted = torch.tensor([calls.grad, calls.hvp, calls.jvp], device=answer[0].device)
        grad, hvp, jvp = ranks.total([counted])[0].tolist()
        of_all = self.ledger.calls
        of_all.grad, of_all.hvp, of_all.jvp = of_all.grad + grad, of_all.hvp + hvp, of_all.jvp + jvp


def _updated(memory: Tensor, clients: np.ndarray, rows: Tensor, idle: bool) -> Tensor:
    """memory with new rows for these clients and, where ranks share the work, for those of the others."""
    change = torch.zeros_like(memory)
    if not idle:
        index = torch.from_numpy(clients)
        change[index] = rows - memory[index]
    return memory + ranks.total([change])[0]
