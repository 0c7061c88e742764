"""ZO-HFL: zeroth-order hierarchical federated learning [Qiu, Kim & Yousefian 2025, Alg. 1, 2].

Notation
    v, eta      directions on the unit sphere, for each client its own, and the smoothing radius
    y+, y-      what a client's local steps find at z = x + eta v and at z = x - eta v, begun at z
    H           local steps of a client in a round; 0 for a straggler
    n           the dimension of x
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import ConfigDict, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import exchange, size_in_bytes
from fedopt.oracles import at_each, local_gradients, server_gradient
from fedopt.problems.classes import Hierarchical
from fedopt.randomness import Purpose
from fedopt.schedules import LocalSteps, Schedule


class State(NamedTuple):
    r: int
    x: Tensor


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ZoHfl:
    """gamma: the server's step; gamma_local: the clients', a schedule of the local step t = 0, 1, ...; steps: H.

    B, B_server: examples of a local step, and of the server's gradient; null for all there are.
    directions: v a client and round, over which the estimate is averaged; null: the axes, which leave no chance.
    """

    gamma: Schedule
    gamma_local: Schedule
    eta: PositiveFloat
    steps: LocalSteps
    B: PositiveInt | None
    B_server: PositiveInt | None
    directions: PositiveInt | None

    solves: ClassVar = (Hierarchical,)
    uneven: ClassVar = True

    def init(self, problem: Hierarchical, fed: Federation) -> State:
        return State(0, *problem.start())

    def step(self, s: State, problem: Hierarchical, fed: Federation) -> State:
        eta, n = self.eta, s.x.numel()

        def estimate(client: Client, x: Tensor) -> Tensor:
            v = client.own
            z = torch.cat([x + eta * v, x - eta * v])  # the 2 D points of Alg. 1, line 5, are worked on together
            of_f2 = client.sample(0)

            # Alg. 2; zeta is that of z = x + eta v and of z = x - eta v
            def step(y: Tensor, k: int, zeta: Any) -> Tensor:
                y = y.sub(local_gradients(problem, z, y, zeta), alpha=self.gamma_local(k - 1))
                return problem.project(z, y, zeta)

            y = client.scan(step, z, first=1, numbered=True)
            plus, minus = at_each(lambda z, y: problem.f2(z, y, of_f2), z, y).chunk(2)
            return n / (2 * eta * len(v)) * (plus - minus) @ v

        S = fed.cohort()
        g = fed.round(estimate, s.x, S, self._draws(s.r, fed), own=self._directions(s.x, S, fed))
        xi = problem.server_sample(fed.rng(Purpose.SERVER), self.B_server)
        return State(s.r + 1, s.x - self.gamma(s.r) * (server_gradient(problem, s.x, xi) + g))

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.x,)

    def cost(self, s: State, problem: Hierarchical, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        S, D = fed.cohort(), self.directions or s.x.numel()
        size, steps = size_in_bytes(s.x), self._draws(s.r, fed).steps_of(problem.splits, S) - 1
        return exchange(len(S), (1 + D) * size, size, 2 * D * steps.sum())

    def _directions(self, x: Tensor, S: np.ndarray, fed: Federation) -> Tensor:
        """[cohort, D, n]."""
        n = x.numel()
        if self.directions is None:
            return torch.eye(n, device=x.device, dtype=x.dtype).expand(len(S), n, n)
        normal = np.stack([fed.rng(Purpose.DIRECTIONS, int(i)).standard_normal((self.directions, n)) for i in S])
        return torch.from_numpy(normal / np.linalg.norm(normal, axis=2, keepdims=True)).to(x)

    def _draws(self, r: int, fed: Federation) -> Minibatches:
        """The first one is for f2."""
        return Minibatches(self.B, fed.work(self.steps(r, fed.problem.clients)), extra=1, replace=True)
