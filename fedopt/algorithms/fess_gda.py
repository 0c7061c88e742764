"""FESS-GDA: local descent-ascent whose server smooths the objective in x [Shen et al. 2024].

The equations come from a third party's note about the paper (in the repository `zij`); they are not compared with its text.

Explained in docs/algorithms/fess_gda.md.

Notation
    w, w_i       the point (x, y) on the server, and the point of client i during its local steps
    z            the point towards which the server pulls x, a slow moving average of x
    K            the number of local steps of a client; if it differs between clients, its mean over the cohort
    eta_l        the clients' step sizes (eta_x, eta_y), which the note calls eta_xl and eta_yl
    gamma        the server's step sizes (gamma_x, gamma_y), which the note calls eta_xg and eta_yg
    p, beta      the weight of the smoothing term p/2 |x - z|^2, and the step size of z
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Round
from fedopt.problems import Minimax
from fedopt.toolbox import Vectors, descend, descent_ascent_


class State(NamedTuple):
    w: Vectors
    z: Tensor


@dataclass(frozen=True)
class FessGda:
    """FESS-GDA: local steps on a smoothed saddle point problem.

    Args:
        eta_x: The clients' step size of x.
        eta_y: The clients' step size of y.
        gamma_x: The server's step size of x along the mean change of the clients.
        gamma_y: The server's step size of y along the mean change of the clients.
        tau: The amount of local work: epochs or steps.
        B: The batch size of a step. None: all examples of the client.
        p: The weight of the smoothing term p/2 |x - z|^2, where z is a slow average of x. With 0, there is no smoothing.
        beta: The step size of z. With 1, z = x, so there is no smoothing.
    """

    eta_x: Schedule
    eta_y: Schedule
    gamma_x: Schedule
    gamma_y: Schedule
    tau: LocalWork
    B: PositiveInt | None
    p: NonNegativeFloat
    beta: Annotated[float, Field(gt=0, le=1)]

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = "tau"

    def init(self, problem: Minimax) -> State:
        w = Vectors(problem.start())
        return State(w, w[0])

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        eta_l, gamma = (self.eta_x(fed.r), self.eta_y(fed.r)), (self.gamma_x(fed.r), self.gamma_y(fed.r))

        def local_steps(client: Client, w: Vectors) -> Vectors:
            return client.scan("local", lambda w_i, b: descent_ascent_(client, w_i, b, eta_l), w)

        S, local = fed.cohort(), fed.local(self.tau, self.B)
        mean = fed.exchange(local_steps, s.w, S, origin=s.w, local=local)
        K = float(np.average(local.steps_of(problem.splits, S), weights=fed.weights(S)))
        x, y = descend(problem, s.w, s.w - mean, gamma)  # w + gamma (mean w_i - w)
        x = x - eta_l[0] * gamma[0] * K * self.p * (s.w[0] - s.z)
        return State(Vectors((x, y)), s.z + self.beta * (x - s.z))

    def output(self, s: State) -> Vectors:
        return s.w
