"""FESS-GDA: local descent-ascent whose server smooths the objective in x [Shen et al. 2024].

The equations come from a third party's note about the paper (in the repository `zij`); they are not compared with its text.

Explained in docs/algorithms/fess_gda.md.

Notation
    w, w_i       (x, y) of the server and of client i
    z            where the server draws x to, a slow average of it
    K            the local steps of a client; where they are uneven, the cohort's mean
    eta_l        (eta_x, eta_y), the clients' steps (eta_xl, eta_yl in the note)
    gamma        the server's steps (eta_xg, eta_yg)
    p, beta      weight of the smoothing term p/2 |x - z|^2, and step of z
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
        eta_x, eta_y: The clients' step sizes.
        gamma_x, gamma_y: The server's step sizes along the clients' mean change.
        tau: The local work, in epochs or in steps.
        B: The examples of a step; None for all of a client's.
        p, beta: The weight of the smoothing, and the step size of z. There is no smoothing with p = 0, or with beta = 1,
            since then z = x.
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
        mean = fed.exchange(local_steps, s.w, S, local=local)
        K = float(np.average(local.steps_of(problem.splits, S), weights=fed.weights(S)))
        x, y = descend(problem, s.w, s.w - mean, gamma)  # w + gamma (mean w_i - w)
        x = x - eta_l[0] * gamma[0] * K * self.p * (s.w[0] - s.z)
        return State(Vectors((x, y)), s.z + self.beta * (x - s.z))

    def output(self, s: State) -> Vectors:
        return s.w
