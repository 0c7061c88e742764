"""Fed-Norm-SGDA and Fed-Norm-SGDA+ [Sharma, Panda & Joshi 2023, Alg. 1], and what they are without normalisation: Local SGDA and
Local SGDA+ [Deng & Mahdavi 2021], and both with momentum [Sharma et al. 2022].

Notation
    a_i, |a_i|_1    the weights of client i's gradients in its last iterate, and their sum [App. A.1]
    tau_eff         the weighted mean of |a_i|_1
    G_x, G_y        sum_k a_i^k grad_k, so that x_i = x - eta_x G_x, and y_i = y + eta_y G_y but for projections
    x_hat           the x at which grad_y is taken: the client's own, or with "+" the server's of up to S rounds ago
    p_i, C          the weight of a client, sum 1; who takes part
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import exchange, size_in_bytes
from fedopt.oracles import outer_gradient_x, outer_gradient_y, outer_gradients
from fedopt.problems.classes import Minimax
from fedopt.schedules import Schedule, check_either, values

Momentum = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(gt=0, le=1)]
Vectors = tuple[Tensor, ...]


class State(NamedTuple):
    """x_hat: (x_hat,) with "+", else ()."""

    r: int
    x: Tensor
    y: Tensor
    x_hat: Vectors


class Progress(NamedTuple):
    """Of a local solver: G = sum_k a^k grad_k over the gradients so far, and its momentum d."""

    G: Any
    d: Any

    def add(self, grad: Any, rho: Any, rate: Any, keep: Any) -> "Progress":
        """With one more gradient. rate: eta_k / eta_0; keep: 1 - eta mu, what the pull to the start leaves of G."""
        d = rho * self.d + grad
        return Progress(keep * self.G + rate * d, d)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FedNormSgda:
    """eta_x, eta_y: the clients' steps; gamma_x, gamma_y: the server's, relative to them.

    E, tau: local epochs, or local steps, the most of them where clients are uneven.
    B: examples of a step, null for all a client has.
    S: rounds between snapshots x_hat ("+"); null: grad_y is taken at the client's own x.
    rho, mu, decay: the local solver: momentum, proximal coefficient, factor of the local steps' sizes from one to the next;
        SGD is 0, 0, 1. A list mixes solvers: client i has its entry i, and from the first again.
    aggregation: normalised by |a_i|_1, or naive: the mean of the cohort's changes, weighted by p_i.
    tau_eff: a mean over all clients, or over the cohort, which makes a step the longer the more work those drawn have done, and
        so draws the solution towards them.
    weighting: p_i by numbers of examples, or uniform.
    """

    eta_x: Schedule
    eta_y: Schedule
    gamma_x: Schedule
    gamma_y: Schedule
    E: PositiveInt | None
    tau: PositiveInt | None
    B: PositiveInt | None
    S: PositiveInt | None
    rho: Momentum | list[Momentum]
    mu: NonNegativeFloat | list[NonNegativeFloat]
    decay: Decay | list[Decay]
    aggregation: Literal["normalised", "naive"]
    tau_eff: Literal["all", "cohort"]
    weighting: Literal["samples", "uniform"]

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = True

    def __post_init__(self) -> None:
        check_either(self, "tau", "E")
        if [] in (self.rho, self.mu, self.decay):
            raise ValueError("rho, mu and decay need at least one entry")
        mu = max(self.mu) if isinstance(self.mu, list) else self.mu
        if max(values(self.eta_x) + values(self.eta_y)) * mu > 1:
            raise ValueError("mu times eta_x and times eta_y must be at most 1: weights a_i would be negative")

    def init(self, problem: Minimax, fed: Federation) -> State:
        x, y = problem.start()
        return State(0, x, y, (x,) if self.S else ())

    def step(self, s: State, problem: Minimax, fed: Federation) -> State:
        eta_x, eta_y = self.eta_x(s.r), self.eta_y(s.r)
        plus = self.S is not None
        C, draws, p = fed.cohort(), self._draws(fed), self._p(problem)
        if self.aggregation == "normalised":
            norms = self._norms((eta_x, eta_y), draws.steps_of(problem.splits, fed.everyone()))
            of = fed.everyone() if self.tau_eff == "all" else C
            tau_x, tau_y = np.average(norms[:, of], axis=1, weights=p[of])
            weights = p[C] * problem.clients / len(C)  # eq. 3
        else:
            norms, tau_x, tau_y = np.ones((2, problem.clients)), 1.0, 1.0
            weights = p[C] / p[C].sum()
        divisors = s.x.new_tensor(np.where(norms > 0, norms, 1))  # of a straggler all is zero
        solvers = s.x.new_tensor(self._solvers(problem.clients))

        def local_steps(client: Client, message: Vectors) -> Vectors:
            x, y = message[:2]
            x_hat = message[-1] if len(message) > 2 else x  # in the round of a snapshot they are one
            rho, mu, decay = solvers[:, client.index]
            keep_x, keep_y = 1 - eta_x * mu, 1 - eta_y * mu

            def step(carry: tuple[Any, ...], xi: Any) -> tuple[Any, ...]:
                of_x, of_y, y_i, rate = carry
                x_i = x - eta_x * of_x.G
                if plus:
                    g_x, g_y = outer_gradient_x(problem, x_i, y_i, xi), outer_gradient_y(problem, x_hat, y_i, xi)
                else:
                    g_x, g_y = outer_gradients(problem, x_i, y_i, xi)
                of_x = of_x.add(g_x, rho, rate, keep_x)
                of_y = of_y.add(g_y, rho, rate, keep_y)
                y_i = problem.project(y + keep_y * (y_i - y) + eta_y * rate * of_y.d)
                return of_x, of_y, y_i, decay * rate

            none = [Progress(torch.zeros_like(v), torch.zeros_like(v)) for v in (x, y)]
            of_x, of_y, y_i, _ = client.scan(step, (*none, y, torch.ones_like(rho)))
            by_x, by_y = divisors[:, client.index]
            change_y = eta_y * of_y.G if self.aggregation == "normalised" else y_i - y
            return eta_x * of_x.G / by_x, change_y / by_y

        message, x_hat = self._message(s)
        g_x, g_y = fed.round(local_steps, message, C, draws, weights)
        x = s.x - tau_x * self.gamma_x(s.r) * g_x
        y = problem.project(s.y + tau_y * self.gamma_y(s.r) * g_y)
        return State(s.r + 1, x, y, x_hat)

    def output(self, s: State) -> Vectors:
        return s.x, s.y

    def cost(self, s: State, problem: Minimax, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        C = fed.cohort()
        steps = self._draws(fed).steps_of(problem.splits, C).sum()
        down, up = size_in_bytes(self._message(s)[0]), size_in_bytes((s.x, s.y))
        return exchange(len(C), down, up, steps if self.S is None else 2 * steps)

    def _message(self, s: State) -> tuple[Vectors, Vectors]:
        """What is sent, and x_hat of this round: x itself, which is not sent twice, every S rounds."""
        if self.S is None:
            return (s.x, s.y), ()
        return ((s.x, s.y), (s.x,)) if s.r % self.S == 0 else ((s.x, s.y, *s.x_hat), s.x_hat)

    def _solvers(self, clients: int) -> np.ndarray:
        """rho, mu and decay of each client, [3, clients]."""
        return np.stack([np.resize(value, clients) for value in (self.rho, self.mu, self.decay)])

    def _norms(self, etas: tuple[float, float], steps: np.ndarray) -> np.ndarray:
        """|a_i|_1 for x and for y, what the solver makes of so many gradients that are all one; [2, clients]."""
        rho, mu, decay = self._solvers(len(steps))
        keep, rate = 1 - np.outer(etas, mu), np.ones(len(steps))
        ones = Progress(0 * keep, 0 * rho)
        for k in range(steps.max()):
            more = ones.add(1.0, rho, rate, keep)
            ones, rate = Progress(np.where(k < steps, more.G, ones.G), more.d), decay * rate
        return ones.G

    def _p(self, problem: Minimax) -> np.ndarray:
        n = problem.sizes() if self.weighting == "samples" else np.ones(problem.clients)
        return n / n.sum()

    def _draws(self, fed: Federation) -> Minibatches:
        return fed.local_draws(self.B, self.E, self.tau)
