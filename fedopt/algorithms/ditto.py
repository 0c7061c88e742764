"""Ditto: personal models drawn to the model of FedAvg [Li, Hu, Beirami & Smith 2021, Alg. 1].

    theta_i = argmin f_i(theta) + lam/2 |theta - w|^2,   w as FedAvg finds it, without regard to the theta_i

Explained in docs/algorithms/ditto.md.

Notation
    w, w_i      the server's point, and client i's in its local steps
    theta_i     client i's personal model, which stays at the client
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Memory, Round, Sample
from fedopt.problems import Minimisation


class State(NamedTuple):
    """w: the server's point. theta: the personal model of each client."""

    w: Tensor
    theta: Memory


@dataclass(frozen=True)
class Ditto:
    """Ditto: personal models drawn to the model of FedAvg.

    Args:
        lam: The strength of the pull of theta_i to w; 0 leaves each client alone.
        eta, eta_theta: The step sizes of w_i and of theta_i.
        gamma: The server's step along the clients' mean change.
        tau: The local work, in epochs, or in steps on independent batches drawn with replacement. A step moves both on one
            batch.
        B: The examples of a batch; None for all of a client's.
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
        mean, theta = fed.exchange(local_steps, s.w, fed.cohort(), memory=s.theta, local=local)
        return State(s.w + self.gamma(fed.r) * (mean - s.w), theta)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.w,)

    def personal(self, s: State, problem: Minimisation, fed: Round) -> Tensor:
        return s.theta.tensor()
