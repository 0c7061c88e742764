"""Multi-level composition with variance reduction of the levels and of the gradient.

The recursion follows the text of Gao (NeurIPS 2025, smoothed multi-level minimax), which is for a single machine. Its federated
form is derived here from the abstract of Gao (ICML 2024), so it is not named after a paper.

Explained in docs/algorithms/multilevel.md.

Notation
    r_i^1, ..., r_i^K, f_i    the levels of client i's composition f_i(r_i^K(... r_i^1(x)))
    h = (h^1, ..., h^K)       estimates of the values of the levels: h^k estimates r^k(h^(k-1)), with h^0 = x
    G(h; xi)                  the gradient J r^1(h^0)' ... J r^K(h^(K-1))' grad f(h^K) on the samples xi
    p                         the estimate of the gradient of the composition, along which x moves
    xi                        the samples of one step, one for each level
    x', h', p'                the new values of x, h and p
    tau                       the number of steps between exchanges
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import LocalCompositional
from fedopt.toolbox import Tensors, chain, check_weights, moved

Estimates = tuple[Tensor, Tensors, Tensor]  # x, h, p


class State(NamedTuple):
    """The state of Multilevel.

    Attributes:
        x: The mean of x over clients, ``[d_0]``.
        p: The mean of the gradient estimate p over clients, ``[d_0]``.
        memory: The x, the estimates h of the values of the levels, and the p of each client as one vector,
            ``[2 d_0 + d_1 + ... + d_K]``.
    """

    x: Tensor
    p: Tensor
    memory: Memory


@dataclass(frozen=True)
class Multilevel:
    """Multi-level composition with variance-reduced estimates of the levels and of the gradient.

    Args:
        gamma: The step size of x is gamma eta.
        eta: The second factor of the step size of x, which also enters the following two weights.
        alpha: The newest values in the estimates of the levels have the weight alpha eta^2, which must be at most 1 (ValueError
            otherwise).
        rho: The newest gradient in the estimate of the gradient has the weight rho eta^2, which must be at most 1 (ValueError
            otherwise).
        tau: The number of local steps per round.
        B: The batch size of each sample. None: all examples of the client.
        B_start: The batch size of the first samples. None: all examples of the client.
        order: ``A``: the estimates of the last step of a round are computed at the mean of x, in a second exchange. ``B``: they are
            computed at each client's own x.
    """

    gamma: PositiveFloat
    eta: PositiveFloat
    alpha: PositiveFloat
    rho: NonNegativeFloat
    tau: PositiveInt
    B: PositiveInt | None
    B_start: PositiveInt | None
    order: Literal["A", "B"]

    solves: ClassVar = (LocalCompositional,)

    def __post_init__(self) -> None:
        check_weights({"alpha * eta^2": self.alpha * self.eta**2, "rho * eta^2": self.rho * self.eta**2})

    def init(self, problem: LocalCompositional) -> State:
        (x,) = problem.start()
        row = x.new_zeros(2 * len(x) + sum(problem.dims[1:]))
        return State(x, 0 * x, Memory([row] * problem.clients))

    def step(self, s: State, problem: LocalCompositional, fed: Round) -> State:
        step, at_mean, sizes = self.gamma * self.eta, self.order == "A", [*problem.dims, problem.dims[0]]

        def start(client: Client, x: Tensor) -> Tensors:
            h, p = chain(client, x, client.sample("xi"), lambda k, r: r)
            return p, torch.cat([x, *h, p])

        def local_steps(client: Client, message: Tensors) -> tuple[Tensor | Tensors, Tensor]:
            (x, p), (_, *h, _) = message, client.memory.split(sizes)
            now: Estimates = x, tuple(h), p
            for xi in client.steps("xi"):
                now = self.estimates(client, moved(now[0], now[2], step), now, xi)
            x, h, p = now
            return moved(x, p, step) if at_mean else (x, p), torch.cat([x, *h, p])

        def at_mean_x(client: Client, x: Tensor) -> Tensors:
            x_old, *h, p = client.memory.split(sizes)
            x, h, p = self.estimates(client, x, (x_old, tuple(h), p), client.sample("xi"))
            return p, torch.cat([x, *h, p])

        levels = len(problem.dims)
        if fed.r == 0:  # each client has its h and p from the start
            xi = Steps(1, self.B_start, levels)
            p, memory = fed.exchange(start, s.x, fed.everyone(), memory=s.memory, name="start", xi=xi)
            return State(s.x, p, memory)
        S, xi = fed.cohort(), Steps(self.tau - at_mean, self.B, levels)
        origin = s.x if at_mean else (s.x, None)
        answer, memory = fed.exchange(local_steps, (s.x, s.p), S, memory=s.memory, origin=origin, xi=xi)
        if not at_mean:
            x, p = answer
            return State(x, p, memory)
        p, memory = fed.exchange(at_mean_x, answer, S, memory=memory, xi=Steps(1, self.B, levels))
        return State(answer, p, memory)

    def estimates(self, client: Client, x: Tensor, old: Estimates, xi: Sequence[Sample]) -> Estimates:
        """Update the estimates of a client after a step of x, and return (x, h, p) with the new x and the new estimates.

        The estimates h of the levels and p of the gradient use the same samples at the new x and at the old x.

        Args:
            client: The client.
            x: The new point, ``[d_0]``.
            old: The values (x, h, p) before the step.
            xi: K + 1 samples, one for each level.
        """
        x_old, h, p = old
        r_old = list[Tensor]()

        def known(k: int, r: Tensor) -> Tensor:
            r_old.append(r)
            return h[k]

        _, G_old = chain(client, x_old, xi, known)
        keep = max(1 - self.alpha * self.eta**2, 0)
        h_new, G = chain(client, x, xi, lambda k, r: r + keep * (h[k] - r_old[k]))
        return x, h_new, moved(G, p - G_old, -max(1 - self.rho * self.eta**2, 0))

    def output(self, s: State) -> Tensors:
        return (s.x,)
