"""SCAFFOLD: local steps corrected by control variates [Karimireddy et al. 2020, Alg. 1, option II].

Explained in docs/algorithms/fedavg.md.

Notation
    c, c_i    the control variates of the server and of client i: estimates of grad f and of grad f_i, with c = sum_i p_i c_i
    p_i       the weight of client i in the objective, 1/M in the paper
    K         the number of local steps of a client
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule, values
from fedopt.federation import Client, Memory, Round, Sample
from fedopt.problems import Minimisation


class State(NamedTuple):
    """The state of SCAFFOLD.

    Attributes:
        x: The server's point, ``[d]``.
        c: The server's control variate, ``[d]``.
        memory: The control variate c_i of each client, ``[M, d]``.
    """

    x: Tensor
    c: Tensor
    memory: Memory


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD: local steps corrected by control variates.

    Args:
        eta: The clients' step size.
        eta_g: The server's step size along the mean change of the clients.
        tau: The amount of local work: epochs over batches of B examples, or steps on independent batches drawn with replacement.
        B: The batch size. None: all examples of the client.
    """

    eta: Schedule
    eta_g: Schedule
    tau: LocalWork
    B: PositiveInt | None

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = "tau"
    each_once: ClassVar = True  # c changes by the clients' changes of c_i, each of which must count once
    cohort_weights: ClassVar = "corrected"

    def __post_init__(self) -> None:
        if 0 in values(self.eta):
            raise ValueError("eta must be greater than 0, since the control variates are divided by it")

    def init(self, problem: Minimisation) -> State:
        (x,) = problem.start()
        return State(x, 0 * x, Memory([0 * x] * problem.clients))

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        eta = self.eta(fed.r)

        def local_steps(client: Client, message: tuple[Tensor, Tensor]) -> tuple[Any, Tensor]:
            x, c = message
            c_i = client.memory
            correction = c - c_i

            def step(y: Tensor, xi: Sample) -> Tensor:
                return client.gradient_step_(y, xi, eta, correction)  # y - eta (grad f_i(y) - c_i + c)

            y, K = client.scan("local", step, x), client.own_steps("local")
            # c_i^+ - c_i: line 12, option II; 0 if K = 0
            change = K.clamp(max=1) * ((x - y) / eta / K.clamp(min=1) - c)
            return (y - x, change), c_i + change

        S, p = fed.cohort(), problem.weights
        local = fed.local(self.tau, self.B, replace=True)
        (dx, dc), memory = fed.exchange(local_steps, (s.x, s.c), S, memory=s.memory, local=local)
        return State(s.x + self.eta_g(fed.r) * dx, s.c + float(p[S].sum()) * dc, memory)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.x,)
