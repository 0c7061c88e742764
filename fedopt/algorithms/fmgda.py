"""FMGDA: a common descent direction of several objectives, from local steps on each one [Yang et al. 2023, NeurIPS].

Experimental: the equations are from the abstract and a third party's code, which also averages over clients before it weights.

Explained in docs/algorithms/fmgda.md.

Notation
    D_s    the mean over clients of x - u, where u is a client's point after local steps on objective s
    lam    the weights of the objectives, on the simplex
"""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.errors import UserError
from fedopt.federation import Client, Round, Sample, ratio
from fedopt.problems import MultiObjective, marked
from fedopt.toolbox import Tensors, moved

MOST = 12  # objectives; their subsets are all tried


class State(NamedTuple):
    x: Tensor


@dataclass(frozen=True)
class Fmgda:
    """FMGDA: the server moves along the shortest convex combination of the changes of all objectives.

    Args:
        eta: The local step size.
        gamma: The server's step size.
        tau: The amount of local work for each objective: a number of steps, or epochs such as '2 epochs'.
        B: The batch size of a step, which all objectives share. None: all examples of the client.
    """

    eta: Schedule
    gamma: Schedule
    tau: LocalWork
    B: PositiveInt | None

    solves: ClassVar = (MultiObjective,)
    uneven: ClassVar = "tau"

    def init(self, problem: MultiObjective) -> State:
        if (K := marked(problem)["h"]) > MOST:
            raise UserError(f"FMGDA solves problems with at most {MOST} objectives, not {K}; choose fewer")
        return State(*problem.start())

    def step(self, s: State, problem: MultiObjective, fed: Round) -> State:
        eta, K = self.eta(fed.r), marked(problem)["h"]

        def local_steps(client: Client, x: Tensor) -> Tensors:
            def step(u: Tensor, xi: Sample) -> Tensor:
                gradients = client.at_each(lambda u_s, w: client.h_vjp(u_s, w, xi), u, torch.eye(K).to(x))
                return moved(u, gradients, eta)

            return client.h_weighted(x - client.scan("local", step, x.expand(K, -1)))

        D = ratio(fed.exchange(local_steps, s.x, fed.cohort(), local=fed.local(self.tau, self.B)))
        return State(s.x - self.gamma(fed.r) * (shortest(D) @ D.nan_to_num()))

    def output(self, s: State) -> Tensors:
        return (s.x,)


def shortest(D: Tensor) -> Tensor:
    """Return the weights lam of the shortest convex combination sum_s lam_s D_s, ``[K]``.

    The shortest point in the affine hull of each subset is computed, and the shortest one among those in the simplex is chosen.

    Args:
        D: The vectors, ``[K, d]``. Rows of nan get the weight 0.
    """
    G, K = D.double() @ D.double().T, len(D)
    known = G.nan_to_num()
    subsets = torch.tensor([*product([0.0, 1.0], repeat=K)][1:]).to(G)
    inside = subsets[:, :, None] * subsets[:, None] > 0
    scaled = G / known.diagonal().amax().clamp(min=1e-30)
    # [[G, 1], [1', 0]] (lam, mu) = (0, 1) within the subset, lam = 0 elsewhere
    border = F.pad(subsets[:, None], (0, 1, K, 0))
    A = F.pad(torch.where(inside, scaled, torch.eye(K).to(G)), (0, 1, 0, 1)) + border + border.mT
    lam = torch.linalg.solve_ex(A, F.pad(G.new_ones(len(A), 1, 1), (0, 0, K, 0)))[0][:, :K, 0]
    possible = (lam > -1e-9).all(1)  # False for nan
    lam = torch.where(possible[:, None], lam, 1.0).clamp(min=0)
    lam = lam / lam.sum(1, keepdim=True)
    squares = torch.where(possible, ((lam @ known) * lam).sum(1), torch.inf)
    return lam.gather(0, squares.argmin().expand(1, K))[0].to(D)
