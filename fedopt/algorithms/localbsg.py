"""LocalBSGM and LocalBSGVRM: local bilevel stochastic gradient descent with momentum, and with momentum-based variance
reduction [Gao 2022, Alg. 1, 2].

Notation
    x, y, u, v   the variables and their momenta: each client's own, until all four are averaged every p iterations
    D, G         a client's estimates of the hypergradient [eq. 3.3] and of grad_y g
    xi           the samples of one iteration, of B examples each (null: all): one of f and g, and one for each Hessian product
    theta, Q     step and number of products of the Neumann sum
"""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.errors import UserError
from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import exchange, size_in_bytes
from fedopt.oracles import Product, inner_gradient, local_hypergradient, local_samples, neumann_sum
from fedopt.problems.classes import Bilevel

Vectors = tuple[Tensor, ...]


def start(problem: Bilevel) -> Vectors:
    x, y = problem.start()
    return x, y, torch.zeros_like(x), torch.zeros_like(y)


def products(problem: Bilevel, Q: int) -> int:
    """Hessian-vector products of one D."""
    return Q if problem.indirect and not problem.identity else 0


def samples(client: Client, k: int, n: int) -> list[Any]:
    """The k-th xi, of n draws."""
    return [client.sample(k * n + j) for j in range(n)]


def estimates(problem: Bilevel, x: Tensor, y: Tensor, xi: list[Any], theta: float, Q: int) -> tuple[Tensor, Tensor]:
    """(D, G)."""

    def inverse(product: Product, b: Tensor) -> Tensor:
        return neumann_sum(product, b, Q, 1 / theta)

    return local_hypergradient(problem, x, y, xi, inverse), inner_gradient(problem, x, y, xi[0])


def cost(problem: Bilevel, clients: int, message: Vectors, evaluations: int, Q: int) -> dict[str, int]:
    """What an exchange adds to the ledger in which each client takes so many (D, G)."""
    size, each = size_in_bytes(message), clients * evaluations
    return exchange(clients, size, size, 2 * each, products(problem, Q) * each, problem.indirect * each)


class StateM(NamedTuple):
    """t: iterations so far; z: the averages of (x, y, u, v)."""

    t: int
    z: Vectors


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LocalBSGM:
    """rho1, rho2: steps of x and y in units of eta; alpha, beta: weights of the newest D and G in units of 1 / eta."""

    rho1: PositiveFloat
    rho2: PositiveFloat
    eta: PositiveFloat
    alpha: PositiveFloat
    beta: PositiveFloat
    theta: PositiveFloat
    Q: NonNegativeInt
    p: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Bilevel,)

    def __post_init__(self) -> None:
        for name, weight in (("alpha", self.alpha), ("beta", self.beta)):
            if weight * self.eta >= 1:
                raise ValueError(f"{name} * eta must be less than 1, and is {weight:g} * {self.eta:g}")

    def init(self, problem: Bilevel, fed: Federation) -> StateM:
        return StateM(0, start(problem))

    def step(self, s: StateM, problem: Bilevel, fed: Federation) -> StateM:
        eta, n = self.eta, local_samples(problem, products(problem, self.Q))

        def iterations(client: Client, z: Vectors) -> Vectors:
            x, y, u, v = z
            for k in range(self.p):
                D, G = estimates(problem, x, y, samples(client, k, n), self.theta, self.Q)
                a, b = (1.0, 1.0) if s.t + k == 0 else (self.alpha * eta, self.beta * eta)
                u, v = (1 - a) * u + a * D, (1 - b) * v + b * G  # eq. 3.4
                x, y = x - self.rho1 * eta * u, problem.project(y - self.rho2 * eta * v)  # eq. 3.5
            return x, y, u, v  # line 12 has u_{t+1}, v_{t+1}, which do not exist yet

        z = fed.round(iterations, s.z, fed.cohort(), Minibatches(self.B, self.p * n))
        return StateM(s.t + self.p, z)

    def output(self, s: StateM) -> Vectors:
        return s.z[:2]

    def cost(self, s: StateM, problem: Bilevel, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        return cost(problem, len(fed.cohort()), s.z, self.p, self.Q)


class StateVRM(NamedTuple):
    """memory: (x_{t-1}, y_{t-1}) of each client, [M, dx + dy], or their average [dx + dy] where the cohort changes."""

    t: int
    z: Vectors
    memory: Tensor


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LocalBSGVRM:
    """rho1, rho2: steps of x and y in units of eta_t; alpha, beta: weights of the newest D and G in units of 1 / eta_t^2.

    eta_t = eta where step_size is constant, Theorem 2's with its constants L, L_Phi where it is theorem.
    S: how many xi the first D and G are means over.
    warm_up: rounds at the start in which x stays, so that y comes near y*(x_1), where the paper starts.
    """

    rho1: PositiveFloat
    rho2: PositiveFloat
    step_size: Literal["constant", "theorem"]
    eta: PositiveFloat
    L: PositiveFloat
    L_Phi: PositiveFloat
    alpha: PositiveFloat
    beta: PositiveFloat
    theta: PositiveFloat
    Q: NonNegativeInt
    p: PositiveInt
    B: PositiveInt | None
    S: PositiveInt
    warm_up: NonNegativeInt

    solves: ClassVar = (Bilevel,)

    def eta_t(self, t: int, K: int) -> float:
        """Of iteration t = 1, 2, ... with K clients; it never grows."""
        if self.step_size == "constant":
            return self.eta
        w_plus_t = max(2 + t, K**2 * self.p**3, (2 * self.rho1 * self.L_Phi / self.L) ** 3 * K**2)
        return K ** (2 / 3) / self.L / w_plus_t ** (1 / 3)

    def init(self, problem: Bilevel, fed: Federation) -> StateVRM:
        eta_1 = self.eta_t(1, fed.cohort_size)
        for name, weight in (("alpha", self.alpha), ("beta", self.beta)):
            if weight * eta_1**2 >= 1:
                raise UserError(f"algo.{name} * eta_1^2 must be less than 1, and is {weight:g} * {eta_1:g}^2")
        z = start(problem)
        point = torch.cat(z[:2])
        return StateVRM(0, z, point.repeat(problem.clients, 1) if self._all(problem, fed) else point)

    def step(self, s: StateVRM, problem: Bilevel, fed: Federation) -> StateVRM:
        K, S = fed.cohort_size, self._first_draws(s)
        n = local_samples(problem, products(problem, self.Q))
        rho1 = 0.0 if s.t < self.warm_up * self.p else self.rho1

        # After a communication x_t, y_t, u_{t-1}, v_{t-1} are averages, and x_{t-1}, y_{t-1} still the client's own: they are
        # not replaced. Where cohorts change, who is new has none: there their averages are sent with the rest.
        def iterations(client: Client, message: Vectors) -> tuple[Vectors, Tensor]:
            x, y, u, v, *averaged = message
            x_prev, y_prev = (averaged[0] if averaged else client.memory).split([len(x), len(y)])
            for k in range(self.p):
                t = s.t + k + 1
                xis = [samples(client, j, n) for j in range(S)] if t == 1 else [samples(client, k + S - 1, n)]
                new = [estimates(problem, x, y, xi, self.theta, self.Q) for xi in xis]
                D, G = (sum(part) / len(part) for part in zip(*new, strict=True))
                if t == 1:
                    u, v = D, G
                else:
                    D_prev, G_prev = estimates(problem, x_prev, y_prev, xis[0], self.theta, self.Q)  # the same xi
                    a, b = (weight * self.eta_t(t - 1, K) ** 2 for weight in (self.alpha, self.beta))
                    u, v = (1 - a) * (u - D_prev) + D, (1 - b) * (v - G_prev) + G  # eq. 3.8
                x_prev, y_prev = x, y
                x, y = x - rho1 * self.eta_t(t, K) * u, problem.project(y - self.rho2 * self.eta_t(t, K) * v)
            return (x, y, u, v), torch.cat([x_prev, y_prev])

        draws = Minibatches(self.B, (S - 1 + self.p) * n)
        own = s.memory if self._all(problem, fed) else None
        z, memory = fed.round(iterations, self._message(s, problem, fed), fed.cohort(), draws, memory=own)
        return StateVRM(
            s.t + self.p, z, memory
        )  # Alg. 2 counts t from 1 and so averages first after p - 1: here after p

    def output(self, s: StateVRM) -> Vectors:
        return s.z[:2]

    def cost(self, s: StateVRM, problem: Bilevel, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        evaluations = 2 * self.p + (self._first_draws(s) - 2 if s.t == 0 else 0)
        return cost(problem, len(fed.cohort()), self._message(s, problem, fed), evaluations, self.Q)

    def _all(self, problem: Bilevel, fed: Federation) -> bool:
        """Whether every client takes part in every round, as in the paper."""
        return fed.complete

    def _message(self, s: StateVRM, problem: Bilevel, fed: Federation) -> Vectors:
        return s.z if self._all(problem, fed) else (*s.z, s.memory)

    def _first_draws(self, s: StateVRM) -> int:
        """S in the first round, where the first iteration takes so many xi, else 1; all examples make one xi."""
        return self.S if s.t == 0 and self.B is not None else 1
