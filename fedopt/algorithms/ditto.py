"""Ditto: personal models that are pulled towards the model of FedAvg [Li, Hu, Beirami & Smith 2021, Alg. 1].

    theta_i = argmin f_i(theta) + lam/2 |theta - w|^2,    where w is the model of FedAvg, which does not depend on the theta_i

Explained in docs/algorithms/ditto.md.

Notation
    w, w_i      the server's point, and the point of client i during its local steps
    theta_i     the personal model of client i, which stays on the client
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Memory, Round, Sample
from fedopt.problems import Minimisation


class State(NamedTuple):
    """The state of Ditto.

    Attributes:
        w: The server's point, ``[d]``.
        theta: The personal model of each client, ``[M, d]``.
    """

    w: Tensor
    theta: Memory


@dataclass(frozen=True)
class Ditto:
    """Ditto: personal models that are pulled towards the model of FedAvg.

    Args:
        lam: The strength with which the personal model theta_i of client i is pulled towards the server's point w. With 0, each
            client trains alone.
        eta: The step size of w_i, the client's copy of w.
        eta_theta: The step size of theta_i.
        gamma: The server's step size along the mean change of the clients.
        tau: The amount of local work: epochs, or steps on independent batches drawn with replacement. Each step moves w_i and
            theta_i on the same batch.
        B: The batch size. None: all examples of the client.
    """

    lam: NonNegativeFloat
    eta: Schedule
    eta_theta: Schedule
    gamma: Schedule
    tau: LocalWork
    B: PositiveInt | None

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = "tau"

    def init(self, problem: Minimisation) -> State:
        (w,) = problem.start()
        return State(w, Memory([w] * problem.clients))

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        eta, eta_theta = self.eta(fed.r), self.eta_theta(fed.r)

        def local_steps(client: Client, w: Tensor) -> tuple[Tensor, Tensor]:
            def step(carry: tuple[Tensor, Tensor], xi: Sample) -> tuple[Tensor, Tensor]:
                w_i, theta = carry
                theta = client.gradient_step_(theta, xi, eta_theta, self.lam * (theta - w))
                return client.gradient_step_(w_i, xi, eta), theta

            return client.scan("local", step, (w, client.memory))

        local = fed.local(self.tau, self.B, replace=True)
        mean, theta = fed.exchange(local_steps, s.w, fed.cohort(), memory=s.theta, origin=s.w, local=local)
        return State(s.w + self.gamma(fed.r) * (mean - s.w), theta)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.w,)

    def personal(self, s: State, problem: Minimisation, fed: Round) -> Tensor:
        return s.theta.tensor()
