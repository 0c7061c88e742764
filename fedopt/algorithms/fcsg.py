"""FCSG, FCSG-M and Acc-FCSG-M: local steps along plug-in gradients of conditional problems [Wu et al. 2023], and ComFedL [Huang, Li
& Huang 2021], whose text was not at hand: FCSG with I = 1 is a reading of it, not compared.

Read in public code (Federated-Minimax-and-Conditional-Stochastic-Optimization).

Notation
    G                J r(x)' grad f(u), u the mean of r over the inner samples of an outer sample: the gradient of the problem's f
    m                the momentum; m = G where alpha = 1
    x_prev, G_old    client i's own previous point, and G there on the same samples
    xi               the samples of one step: outer ones, each with inner ones
    t, I             the step, and the number of steps between exchanges
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.algorithms.vectors import Tensors
from fedopt.config.schedules import Schedule
from fedopt.federation.client import Client
from fedopt.federation.draws import Steps
from fedopt.federation.memory import Memory
from fedopt.federation.round import Round
from fedopt.problems.classes import Minimisation


class State(NamedTuple):
    """m: (m,), or () where alpha = 1; memory: x_prev of each client, [M, d], () where it is not needed."""

    x: Tensor
    m: Tensors
    memory: Any


@dataclass(frozen=True)
class Fcsg:
    """eta: the step size; alpha: weight of the newest G in m.

    momentum: how m is made: average, m = (1 - alpha) m + alpha G, or storm, m = G + (1 - alpha) (m - G_old).
    I: local steps; B: outer samples of a step, None for all that a client has.
    """

    eta: Schedule
    alpha: Annotated[float, Field(gt=0, le=1)]
    momentum: Literal["average", "storm"]
    I: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Minimisation,)

    def init(self, problem: Minimisation) -> State:
        (x,) = problem.start()
        storm = self.momentum == "storm" and self.alpha < 1
        return State(x, (0 * x,) if self.alpha < 1 else (), Memory([x] * problem.clients) if storm else ())

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        eta, alpha, storm, first = self.eta(fed.r), self.alpha, s.memory != (), fed.r == 0

        def local_steps(client: Client, message: tuple[Tensor, Tensors]) -> Any:
            x, m = message
            x_prev = client.memory if storm else x
            for t, xi in enumerate(client.steps("xi")):
                G = client.gradient(x, xi)
                if m and first and t == 0:
                    m = (G,)
                elif m and storm:
                    m = (G + (1 - alpha) * (m[0] - client.gradient(x_prev, xi)),)
                elif m:
                    m = ((1 - alpha) * m[0] + alpha * G,)
                x_prev, x = x, x - eta * (m[0] if m else G)
            return ((x, m), x_prev) if storm else (x, m)

        draws = Steps(self.I, self.B)
        if storm:
            (x, m), memory = fed.exchange(local_steps, s[:2], fed.cohort(), memory=s.memory, xi=draws)
            return State(x, m, memory)
        x, m = fed.exchange(local_steps, s[:2], fed.cohort(), xi=draws)
        return State(x, m, ())

    def output(self, s: State) -> Tensors:
        return (s.x,)
