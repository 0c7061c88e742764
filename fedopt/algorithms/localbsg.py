"""LocalBSGM and LocalBSGVRM: local bilevel stochastic gradient descent with momentum, and with momentum-based variance reduction
[Gao 2022, Alg. 1, 2].

Explained in docs/algorithms/localbsg.md.

Notation
    x, y, u, v   the variables and their momenta; each client has its own until all four are averaged, every p iterations
    D, G         a client's estimates of the hypergradient [eq. 3.3] and of grad_y g
    xi           the samples of one iteration (xi-hat in the paper): one sample of f and g, one for each Hessian-vector product, and
                 one more for grad^2_xy g if f and g use the same examples
    theta, Q     the step size of the Neumann sum, and its number of Hessian-vector products
    t, r         the iteration, counted from 0 (from 1 in Alg. 2), and the round, which has p iterations
    K            the number of clients that take part
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from fedopt.federation import Client, Round, Sample, Steps
from fedopt.problems import Bilevel
from fedopt.randomness import Purpose
from fedopt.toolbox import (
    Averages,
    Pair,
    Storm,
    Tensors,
    Vectors,
    at_start,
    check_weights,
    descend,
    neumann_maps,
    neumann_samples,
    together,
)


@dataclass(frozen=True)
class Momentum:
    """The common part of LocalBSGM and LocalBSGVRM.

    Args:
        rho1: The step size of x is rho1 eta_t.
        rho2: The step size of y is rho2 eta_t.
        eta: The value of eta_t in every iteration t, unless LocalBSGVRM uses step_size=theorem.
        theta: The step size of the Neumann sum in the hypergradient.
        Q: The number of Hessian-vector products of the Neumann sum.
        p: The number of iterations per round.
        B: The batch size. None: all examples of the client.
    """

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

    def output(self, s: Pair | Averages) -> Tensors:
        return s.z


@dataclass(frozen=True)
class LocalBSGM(Momentum):
    """LocalBSGM: local bilevel SGD with momentum [Gao 2022, Alg. 1].

    It has the following hyperparameters in addition to the ones of `Momentum`.

    Args:
        alpha: The newest hypergradient has the weight alpha eta in the momentum of x. The weight must be at most 1 (ValueError
            otherwise).
        beta: The newest grad_y g has the weight beta eta in the momentum of y. The weight must be at most 1 (ValueError
            otherwise).
    """

    def __post_init__(self) -> None:
        check_weights({"alpha * eta": self.alpha * self.eta, "beta * eta": self.beta * self.eta})

    def init(self, problem: Bilevel) -> Pair:
        z = Vectors(problem.start())
        return Pair(z, 0 * z)

    def step(self, s: Pair, problem: Bilevel, fed: Round) -> Pair:
        eta, first, samples = self.eta, fed.r * self.p, neumann_samples(problem, self.Q)

        def iterations(client: Client, message: Pair) -> Pair:
            (x, y), (u, v) = message
            for t, xi in enumerate(client.steps("xi"), first):
                D, G = neumann_maps(client, Vectors((x, y)), xi, self.Q, self.theta)
                a, b = (self.alpha * eta, self.beta * eta) if t else (1.0, 1.0)
                u, v = torch.lerp(u, D, a), torch.lerp(v, G, b)  # (1 - a) u + a D and (1 - b) v + b G, eq. 3.4
                x = client.moved_(x, u, self.rho1 * eta)  # eq. 3.5
                y = client.project(client.moved_(y, v, self.rho2 * eta))
            return Pair(Vectors((x, y)), Vectors((u, v)))  # line 12 prints u_{t+1} and v_{t+1}, not yet computed

        return Pair(*fed.exchange(iterations, s, fed.cohort(), origin=(s.z, None), xi=Steps(self.p, self.B, samples)))


@dataclass(frozen=True)
class LocalBSGVRM(Momentum):
    """LocalBSGVRM: local bilevel SGD with momentum-based variance reduction [Gao 2022, Alg. 2].

    It has the following hyperparameters in addition to the ones of `Momentum`.

    Args:
        alpha: The newest hypergradient has the weight alpha eta_t^2 in the momentum of x. The weight must be at most 1 (ValueError
            otherwise).
        beta: The newest grad_y g has the weight beta eta_t^2 in the momentum of y. The weight must be at most 1 (ValueError
            otherwise).
        step_size: ``constant``: eta_t = eta. ``theorem``: the decaying eta_t of Theorem 2.
        L: The constant L-hat of the theorem, for step_size=theorem.
        L_Phi: The constant L_Phi of the theorem, for step_size=theorem.
        S: The number of samples over which the first hypergradient and the first grad_y g are averaged.
        warm_up: The number of rounds at the start in which x does not move, so that y approaches y*(x_1), where the paper starts.
        neumann: ``sum``: all Q + 1 terms of the Neumann sum. ``term``: a random term times Q + 1, chosen for each sample
            [Khanduri et al. 2021].
    """

    step_size: Literal["constant", "theorem"]
    L: PositiveFloat
    L_Phi: PositiveFloat
    S: PositiveInt
    warm_up: NonNegativeInt
    neumann: Literal["sum", "term"] = field(metadata={"before": "sum"})

    def __post_init__(self) -> None:
        largest = self.eta if self.step_size == "constant" else 1 / max(self.L * self.p, 2 * self.rho1 * self.L_Phi)
        check_weights({"alpha * eta_t^2": self.alpha * largest**2, "beta * eta_t^2": self.beta * largest**2})

    def eta_t(self, t: int, K: int) -> Any:
        """Return the step size of iteration t, which never increases with t.

        Args:
            t: The index of the iteration, from 0.
            K: The number of clients that take part.
        """
        if self.step_size == "constant":
            return self.eta
        # w_t + t of Theorem 2, whose t is t + 1 here
        w_plus_t = max(3 + t, K**2 * self.p**3, (2 * self.rho1 * self.L_Phi / self.L) ** 3 * K**2)
        return K ** (2 / 3) / self.L / w_plus_t ** (1 / 3)

    def init(self, problem: Bilevel) -> Averages:
        return at_start(Vectors(problem.start()), problem.clients)

    def step(self, s: Averages, problem: Bilevel, fed: Round) -> Averages:
        K, rho1_now = fed.cohort_size, 0.0 if fed.r < self.warm_up else self.rho1
        S = self.S if fed.r == 0 and (self.B is not None or problem.random) else 1  # all examples make one xi
        terms: list[int | None] = [None] * (S - 1 + self.p)
        if self.neumann == "term":
            terms = fed.rng(Purpose.ESTIMATOR).integers(self.Q + 1, size=len(terms)).tolist()

        def estimates(client: Client, z: Vectors, xi_and_term: Sample) -> Vectors:
            xi, term = xi_and_term
            return neumann_maps(client, z, xi, self.Q, self.theta, term)

        def move(client: Client, z: Vectors, d: Vectors, t: int) -> Vectors:  # eq. 3.5 with eta_t
            return descend(client, z, d, [rho * self.eta_t(t, K) for rho in (rho1_now, self.rho2)])

        def weights(t: int) -> list[float]:  # of D and G in eq. 3.8
            return [weight * self.eta_t(t, K) ** 2 for weight in (self.alpha, self.beta)]

        # The server averages after p iterations. Alg. 2, which counts from 1, does so first after p - 1 iterations
        xi = Steps(S - 1 + self.p, self.B, neumann_samples(problem, self.Q))
        with_terms = lambda client: zip(client.steps("xi"), terms, strict=True)  # noqa: E731
        return together(Storm(estimates, move, weights), s, fed, self.p, xi, S, with_terms)
