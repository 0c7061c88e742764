"""pFedMe: personal models by Moreau envelopes [Dinh, Tran & Nguyen 2020, Alg. 1].

    min_w sum_i p_i F_i(w),   F_i(w) = min_theta f_i(theta) + lam/2 |theta - w|^2,   grad F_i(w) = lam (w - theta_i(w))

Explained in docs/algorithms/pfedme.md.

Notation
    w, w_i      the server's point, and the point of client i during its local rounds
    theta_i     the personal model of client i, which approximates the minimiser in F_i(w_i) by K gradient steps
    R           the number of local rounds per communication round. A local round uses one batch for its K steps
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Memory, Round, Sample
from fedopt.problems import Minimisation


class State(NamedTuple):
    """The state of pFedMe.

    Attributes:
        w: The server's point, ``[d]``.
        theta: The personal model of each client after its last round, ``[M, d]``.
    """

    w: Tensor
    theta: Memory


@dataclass(frozen=True)
class PFedMe:
    """pFedMe: personal models by Moreau envelopes.

    Args:
        lam: The strength with which the personal model theta_i of client i is pulled towards w_i, the client's copy of w.
        eta: The local step size of w_i, which moves by w_i <- w_i - lam eta (w_i - theta_i).
        delta: The step size of theta_i.
        K: The number of steps of theta_i on one batch.
        beta: The server's step size along the mean change of the clients.
        R: The number of local rounds per communication round, each with one batch. It is a number of epochs, or of independent
            batches drawn with replacement.
        B: The batch size. None: all examples of the client.
        trained: The clients that train: the ``cohort``, or ``all`` clients, although the server averages only the cohort.
    """

    lam: PositiveFloat
    eta: Schedule
    delta: Schedule
    beta: Schedule
    R: LocalWork
    K: PositiveInt
    B: PositiveInt | None
    trained: Literal["cohort", "all"]

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = "R"

    def init(self, problem: Minimisation) -> State:
        (w,) = problem.start()
        return State(w, Memory([w] * problem.clients))

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        lam, eta, delta = self.lam, self.eta(fed.r), self.delta(fed.r)

        def local_rounds(client: Client, w: Tensor) -> tuple[Tensor, Tensor]:
            def local_round(carry: tuple[Tensor, Tensor], xi: Sample) -> tuple[Tensor, Tensor]:
                w_i, theta = carry
                for _ in range(self.K):  # on f_i(theta; xi) + lam/2 |theta - w_i|^2
                    theta = client.gradient_step_(theta, xi, delta, lam * (theta - w_i))
                return w_i - lam * eta * (w_i - theta), theta

            w_i, theta = client.scan("local", local_round, (w, w))
            return w_i, torch.where(client.own_steps("local") > 0, theta, client.memory)

        S = fed.cohort()
        trained = S if self.trained == "cohort" else fed.everyone()
        p = np.zeros(problem.clients)
        p[S] = fed.weights(S)
        weights, local = p[trained] / p[trained].sum(), fed.local(self.R, self.B, replace=True)
        mean, theta = fed.exchange(local_rounds, s.w, trained, weights=weights, memory=s.theta, origin=s.w, local=local)
        return State(s.w + self.beta(fed.r) * (mean - s.w), theta)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.w,)

    def personal(self, s: State, problem: Minimisation, fed: Round) -> Tensor:
        return s.theta.tensor()
