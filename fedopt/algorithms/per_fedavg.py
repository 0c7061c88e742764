"""Per-FedAvg: a common point that each client adapts by one gradient step [Fallah, Mokhtari & Ozdaglar 2020, Alg. 1].

    min_w sum_i p_i f_i(w - alpha grad f_i(w)),   with the gradient (I - alpha grad^2 f_i(w)) grad f_i(w - alpha grad f_i(w))

Explained in docs/algorithms/per_fedavg.md.

Notation
    w, w_i          the server's point, and the point of client i during its local steps
    theta_i         the personal model of client i, w - alpha grad f_i(w), where the gradient uses all examples of the client
    xi, xi', xi''   the samples of the inner gradient, of the outer gradient, and of the Hessian
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Round, Sample, Steps
from fedopt.problems import Minimisation


class State(NamedTuple):
    w: Tensor


@dataclass(frozen=True)
class PerFedAvg:
    """Per-FedAvg: a common point that each client adapts by one gradient step.

    Args:
        alpha: The step size of the adaptation.
        beta: The local step size.
        gamma: The server's step size along the mean change of the clients.
        hessian: Whether the outer gradient is multiplied by I - alpha grad^2 f_i. If false, the method is first-order (FO).
        tau: The amount of local work: epochs, or steps on independent batches drawn with replacement.
        B: The batch size of each sample of a step. None: all examples of the client.
    """

    alpha: Schedule
    beta: Schedule
    gamma: Schedule
    hessian: bool
    tau: LocalWork
    B: PositiveInt | None

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = "tau"

    def init(self, problem: Minimisation) -> State:
        return State(*problem.start())

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        alpha, beta = self.alpha(fed.r), self.beta(fed.r)

        def local_steps(client: Client, w: Tensor) -> Tensor:
            def step(w_i: Tensor, xis: Sequence[Sample]) -> Tensor:
                xi, xi_outer, *xi_hessian = xis
                d = client.gradient(w_i - alpha * client.gradient(w_i, xi), xi_outer)
                for xi in xi_hessian:
                    gradient = lambda w, xi=xi: client.grad(client.f, w, xi)  # noqa: E731
                    _, product = client.vjp(gradient, w_i, hvp=1, sample=xi)
                    d = d - alpha * product(d)[0]
                return w_i - beta * d

            return client.scan("local", step, w)

        local = fed.local(self.tau, self.B, samples=3 if self.hessian else 2, replace=True)
        mean = fed.exchange(local_steps, s.w, fed.cohort(), origin=s.w, local=local)
        return State(s.w + self.gamma(fed.r) * (mean - s.w))

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.w,)

    def personal(self, s: State, problem: Minimisation, fed: Round) -> Tensor:
        alpha = self.alpha(fed.r)

        def adapted(client: Client, w: Tensor) -> Tensor:
            return w - alpha * client.gradient(w, client.sample("all"))

        theta: Tensor = fed.exchange(adapted, s.w, fed.everyone(), combine=lambda rows, _: rows, all=Steps(1, None))
        return theta
