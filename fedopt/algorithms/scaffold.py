"""SCAFFOLD: local steps corrected by control variates [Karimireddy et al. 2020, Alg. 1, option II].

Notation
    c, c_i    control variates of the server and of client i, estimates of grad f and of grad f_i; c = (1/M) sum c_i
    K_i       local steps of a client
"""

from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import exchange, size_in_bytes
from fedopt.problems.classes import Minimisation
from fedopt.schedules import LocalSteps, Schedule, check_either, values

Pair = tuple[Tensor, Tensor]


class State(NamedTuple):
    """memory: c_i of each client, [M, d]."""

    r: int
    x: Tensor
    c: Tensor
    memory: Tensor


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Scaffold:
    """eta, eta_g: steps of the clients, and of the server on their mean change.

    E: local epochs over batches of B examples (null: the full local data), or
    steps: local steps on independent batches instead, drawn with replacement.
    """

    eta: Schedule
    eta_g: Schedule
    E: PositiveInt | None
    steps: LocalSteps | None
    B: PositiveInt | None

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = True

    def __post_init__(self) -> None:
        check_either(self, "steps", "E")
        if 0 in values(self.eta):
            raise ValueError("eta must be greater than 0: the control variates are changes of iterates over eta")

    def init(self, problem: Minimisation, fed: Federation) -> State:
        (x,) = problem.start()
        return State(0, x, 0 * x, (0 * x).repeat(problem.clients, 1))

    def step(self, s: State, problem: Minimisation, fed: Federation) -> State:
        eta = self.eta(s.r)

        def local_steps(client: Client, message: Pair) -> tuple[Pair, Tensor]:
            x, c = message
            c_i = client.memory
            correction = c - c_i

            def step(y: Tensor, sample: Any) -> Tensor:
                return client.gradient_step(y, sample, eta, correction)

            y, K = client.scan(step, x), client.own_steps
            drift = (x - y) / eta / K.clamp(min=1)
            change = K.clamp(max=1) * (drift - c)  # of c_i: line 12, option II; a client without a step keeps its own
            return (y - x, change), c_i + change

        S = fed.cohort()
        message = (s.x, s.c)
        (dx, dc), memory = fed.round(local_steps, message, S, self._draws(s.r, fed), memory=s.memory)
        return State(s.r + 1, s.x + self.eta_g(s.r) * dx, s.c + len(S) / problem.clients * dc, memory)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.x,)

    def cost(self, s: State, problem: Minimisation, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        S = fed.cohort()
        size, steps = size_in_bytes((s.x, s.c)), self._draws(s.r, fed).steps_of(problem.splits, S)
        return exchange(len(S), size, size, steps.sum())

    def _draws(self, r: int, fed: Federation) -> Minibatches:
        steps = self.steps(r, fed.problem.clients) if self.steps else None
        return fed.local_draws(self.B, self.E, steps, replace=True)
