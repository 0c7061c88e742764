"""ZO-HFL: zeroth-order hierarchical federated learning [Qiu, Kim & Yousefian 2025, Alg. 1, 2].

Explained in docs/algorithms/zo_hfl.md.

Notation
    v, eta      a random direction on the unit sphere, which each client has for itself, and the smoothing radius
    z           one of the two points x + eta v and x - eta v
    y+, y-      the client's inner variables after its local steps at z = x + eta v, and at z = x - eta v
    g           the estimate of the gradient of the smoothed implicit function
    tau         the number of local steps of a client at each point z, H in the paper; 0 for a straggler
    n           the dimension of x

A round consists of
    y <- project(y - gamma_t grad_y h_i(z, y; zeta_t))                      tau local steps t at each z, which start from y = z
    g  = mean of n / (2 eta) (f_2(x + eta v, y+) - f_2(x - eta v, y-)) v    over the clients and their directions
    x <- x - gamma_r (grad f_1(x) + g)                                      on the server, in round r
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Round, Sample, Steps
from fedopt.problems import Hierarchical
from fedopt.randomness import Purpose


class State(NamedTuple):
    x: Tensor


@dataclass(frozen=True)
class ZoHfl:
    """ZO-HFL: zeroth-order hierarchical federated learning.

    Args:
        gamma: The server's step size.
        gamma_local: The clients' step size, a schedule over the local steps t = 0, 1, ...
        eta: The smoothing radius. Clients take their local steps at x + eta v and at x - eta v, for the server's point x and random
            unit vectors v.
        tau: The amount of local work at each of the two points: steps or epochs.
        B: The batch size of a local step. None: all examples of the client.
        B_server: The number of examples for the server's gradient. None: all examples of the server.
        directions: The number of random unit vectors v per client and round, whose estimates are averaged. None: the n coordinate
            axes are used, without randomness.
    """

    gamma: Schedule
    gamma_local: Schedule
    eta: PositiveFloat
    tau: LocalWork
    B: PositiveInt | None
    B_server: PositiveInt | None
    directions: PositiveInt | None

    solves: ClassVar = (Hierarchical,)
    uneven: ClassVar = "tau"
    cohort_weights: ClassVar = "unbiased"

    def init(self, problem: Hierarchical) -> State:
        return State(*problem.start())

    def step(self, s: State, problem: Hierarchical, fed: Round) -> State:
        eta, n = self.eta, s.x.numel()

        def estimate(client: Client, x: Tensor) -> Tensor:
            v: Tensor = client.own
            # The local steps at all points x +- eta v (Alg. 1, line 5), [2 D, n], are taken together
            z = torch.cat([x.add(v, alpha=eta), x.sub(v, alpha=eta)])

            def step(y: Tensor, zeta: Sample, gamma: float) -> Tensor:  # Alg. 2, with the same zeta at all points z
                return client.lower_step_(z, y, zeta, gamma)

            y, xi = client.scan("local", step, z, self.gamma_local), client.sample("outer")
            plus, minus = client.at_each(lambda z, y: client.f2(z, y, xi), z, y).chunk(2)
            return n / (2 * eta * len(v)) * (plus - minus) @ v

        S = fed.cohort()
        weights = fed.weights(S, unbiased=True)
        outer, local = Steps(B=self.B, replace=True), fed.local(self.tau, self.B, replace=True)
        own = self._directions(s.x, S, fed)
        g = fed.exchange(estimate, s.x, S, weights=weights, own=own, outer=outer, local=local)
        return State(s.x - self.gamma(fed.r) * (fed.server_gradient(s.x, self.B_server) + g))

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.x,)

    def _directions(self, x: Tensor, S: np.ndarray, fed: Round) -> Tensor:
        """Return D unit vectors v for each client in a cohort, ``[clients, D, n]``. If they are the coordinate axes, D = n.

        Args:
            x: The point, ``[n]``.
            S: The indices of the clients.
            fed: The round.
        """
        n = x.numel()
        if self.directions is None:
            return torch.eye(n, device=x.device, dtype=x.dtype).expand(len(S), n, n)
        v = np.stack([fed.rng(Purpose.DIRECTIONS, client=int(i)).standard_normal((self.directions, n)) for i in S])
        v /= np.sqrt(np.einsum("idn,idn->id", v, v))[..., None]
        return torch.from_numpy(v).to(x)
