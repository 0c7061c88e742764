"""Fed-Norm-SGDA and Fed-Norm-SGDA+ [Sharma, Panda & Joshi 2023, Alg. 1], and what they are without normalisation: Local SGDA and
Local SGDA+ [Deng & Mahdavi 2021], and both with momentum [Sharma et al. 2022].

Notation
    a_i, |a_i|_1    the weights of client i's gradients in its last iterate, and their sum [App. A.1]
    tau_x, tau_y    tau_eff of x and of y, the weighted means of |a_i|_1; with mu they differ, since eta_x and eta_y do
    G               sum_k a_i^k grad_k (Delta but for its sign): x_i = x - eta_x G_x, and y_i = y + eta_y G_y but for projections
    u_i             y + eta_y G_y, which moves as y_i does, and is not projected
    x_hat           with "+", the x at which grad_y is taken: the server's of the last round r with r mod S = 0
    p_i, C          the weight of a client, sum 1; who takes part
    r, M            the round (t in the paper), and the number of clients (n)
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule, values
from fedopt.federation import Client, Round
from fedopt.problems import Minimax
from fedopt.randomness import Purpose
from fedopt.toolbox import Tensors, Vectors, minimax_field, moved

Momentum = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(gt=0, le=1)]


class State(NamedTuple):
    """x_hat: (x_hat,) with "+", else (). drawn: (x, y) drawn uniformly from the iterates so far; () unless iterate=random."""

    x: Tensor
    y: Tensor
    x_hat: Tensors
    drawn: Tensors


class Solver(NamedTuple):
    """A local solver; each value is a number, or [M]. SGD is (0, 0, 1).

    rho: its momentum. mu: its proximal coefficient. decay: the factor of its step size from one step to the next.
    """

    rho: Any
    mu: Any
    decay: Any

    @property
    def is_sgd(self) -> bool:
        """Tell whether this is plain SGD, which keeps nothing from step to step: |a|_1 is the number of steps."""
        return all(isinstance(value, float) for value in self) and tuple(self) == (0, 0, 1)

    def moved_(self, client: Client, z: Tensor, start: Tensor, d: Tensor, k: int, eta: float) -> Tensor:
        """Return z after local step k = 0, 1, ... along -d, [d]. It may overwrite z, as `Client.moved_`.

        start: z before step 0, to which the proximal term draws. eta: the step size without decay.
        """
        if self.is_sgd:
            return client.moved_(z, d, eta)
        drawn = z if isinstance(self.mu, float) and self.mu == 0 else start + (1 - eta * self.mu) * (z - start)
        return client.moved_(drawn, d, eta * self.decay**k)

    def weighed(self, norm: Any, m: Any, k: int, eta: Any) -> tuple[Any, Any]:
        """Return |a|_1 and the momentum buffer after local step k, both 0 at first: G and d of gradients that are all 1."""
        m = self.rho * m + 1
        return (1 - eta * self.mu) * norm + self.decay**k * m, m


@dataclass(frozen=True)
class FedNormSgda:
    """Fed-Norm-SGDA and, with S, Fed-Norm-SGDA+; Local SGDA and Local SGDA+ with aggregation=naive.

    eta_x, eta_y: the clients' step sizes. gamma_x, gamma_y: the server's step sizes are gamma_x eta_x and gamma_y eta_y.
    tau: the local work, in epochs or in steps; the largest amount if clients are uneven.
    B: the examples of a step; None for all of a client's.
    S: the rounds between snapshots x_hat ("+"); None takes grad_y at the client's own x.
    rho, mu, decay: the local solver's momentum, proximal coefficient, and factor of the step size from one step to the next.
        SGD is 0, 0, 1. A list mixes solvers: client i has the entry i mod its length.
    aggregation: normalised, each client's change divided by its |a_i|_1; or naive, the mean of the cohort's changes, weighted
        by p_i.
    tau_eff: the mean of |a_i|_1 over all clients (all), or over the cohort (cohort), which biases the solution towards
        clients that do more work.
    iterate: the output: the last iterate (last), or a uniformly random one of all iterates so far, line 22 (random).
    """

    eta_x: Schedule
    eta_y: Schedule
    gamma_x: Schedule
    gamma_y: Schedule
    tau: LocalWork
    B: PositiveInt | None
    S: PositiveInt | None
    rho: Momentum | list[Momentum]
    mu: NonNegativeFloat | list[NonNegativeFloat]
    decay: Decay | list[Decay]
    aggregation: Literal["normalised", "naive"]
    tau_eff: Literal["all", "cohort"]
    iterate: Literal["last", "random"]

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = "tau"
    cohort_weights = property(lambda self: "unbiased" if self.aggregation == "normalised" else "mean")

    def __post_init__(self) -> None:
        if [] in (self.rho, self.mu, self.decay):
            raise ValueError("rho, mu and decay must each be a number, or a list with at least one entry")
        mu = max(self.mu) if isinstance(self.mu, list) else self.mu
        if max(values(self.eta_x) + values(self.eta_y)) * mu > 1:
            raise ValueError(
                "mu * eta_x and mu * eta_y must be at most 1, else gradients get negative weights; make mu smaller"
            )

    def init(self, problem: Minimax) -> State:
        x, y = problem.start()
        return State(x, y, (x,) if self.S else (), (x, y) if self.iterate == "random" else ())

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        eta_x, eta_y = self.eta_x(fed.r), self.eta_y(fed.r)
        normalised = self.aggregation == "normalised"

        def local_steps(client: Client, message: Tensors) -> Tensors:
            x, y = message[:2]
            x_i, y_i, u_i, norms = self._solve(client, message, eta_x, eta_y)
            if not normalised:
                return x - x_i, y_i - y
            # A straggler's |a_i|_1 and G are 0
            a_x, a_y = (torch.where(norm > 0, norm, 1.0) for norm in norms)
            return (x - x_i) / a_x, (u_i - y) / a_y  # eta g_i, lines 15 to 17

        C, local = fed.cohort(), fed.local(self.tau, self.B)
        tau_x = tau_y = 1.0
        if normalised:
            of = fed.everyone() if self.tau_eff == "all" else C
            norms = self._norms((eta_x, eta_y), local.steps_of(problem.splits, of), of)
            tau_x, tau_y = np.average(norms, axis=1, weights=fed.weights(of))
        weights = fed.weights(C, unbiased=True) if normalised else None  # eq. 3
        message, x_hat = self._message(s, fed.r)
        g_x, g_y = fed.exchange(local_steps, message, C, weights=weights, local=local)
        x = s.x - tau_x * self.gamma_x(fed.r) * g_x  # line 20; gamma is relative to eta, which is in g
        y = problem.project(s.y + tau_y * self.gamma_y(fed.r) * g_y)
        drawn = (x, y) if self.iterate == "random" and self._replaces(fed) else s.drawn
        return State(x, y, x_hat, drawn)

    def output(self, s: State) -> Tensors:
        return (s.x, s.y) if self.iterate == "last" else s.drawn

    def _replaces(self, fed: Round) -> bool:
        """Draw whether the iterate after this round replaces the drawn one, with probability 1 / (r + 1).

        So the drawn one is uniform over all iterates, as in line 22.
        """
        return bool(fed.rng(Purpose.OUTPUT).random() * (fed.r + 1) < 1)

    def _solve(
        self, client: Client, message: Tensors, eta_x: float, eta_y: float
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Take a client's local steps. Return x_i, y_i, and if changes are normalised u_i, and |a_i|_1 of x and of y.

        message: (x, y), or (x, y, x_hat). eta_x, eta_y: the client's step sizes.
        """
        normalised = self.aggregation == "normalised"
        x, y = message[:2]
        x_hat = message[-1] if len(message) > 2 else x  # in the round of a snapshot they are one; unused without "+"
        solver = Solver(client.entry(self.rho), client.entry(self.mu), client.entry(self.decay))

        def step(carry: tuple[Any, ...], xi: Any, k: int) -> tuple[Any, ...]:
            x_i, y_i, u_i, kept = carry
            if solver.is_sgd and not self.S:
                x_i, g_y = client.outer_step_(x_i, y_i, xi, eta_x)
                d_y = -g_y
            else:
                if self.S:
                    d_x, d_y = client.outer_gradient_x(x_i, y_i, xi), -client.outer_gradient_y(x_hat, y_i, xi)
                else:
                    d_x, d_y = minimax_field(client, Vectors((x_i, y_i)), xi)
                if kept:
                    before_x, before_y, *norms = kept
                    d_x, d_y = moved(d_x, before_x, -solver.rho), moved(d_y, before_y, -solver.rho)
                    etas = zip(norms, (eta_x, eta_y), strict=False)
                    kept = d_x, d_y, *(solver.weighed(norm, m, k, eta) for (norm, m), eta in etas)
                x_i = solver.moved_(client, x_i, x, d_x, k, eta_x)
            y_i = client.project(solver.moved_(client, y_i, y, d_y, k, eta_y))
            return x_i, y_i, solver.moved_(client, u_i, y, d_y, k, eta_y) if normalised else u_i, kept

        # Of x and of y: |a|_1 and its momentum buffer, if they are needed
        norms = [(y.new_zeros(()),) * 2] * 2 if normalised else []
        kept = () if solver.is_sgd else (0 * x, 0 * y, *norms)
        x_i, y_i, u_i, kept = client.scan("local", step, (x, y, y, kept), lambda k: k)
        K = client.own_steps("local")
        return x_i, y_i, u_i, tuple(norm for norm, _ in kept[2:]) or (K, K)

    def _message(self, s: State, r: int) -> tuple[Tensors, Tensors]:
        """Return the message of round r, and (x_hat,), or () without "+".

        Every S rounds x_hat is x. The message is then (x, y), since x is not sent twice; in other rounds it is (x, y, x_hat).
        """
        if self.S is None:
            return (s.x, s.y), ()
        return ((s.x, s.y), (s.x,)) if r % self.S == 0 else ((s.x, s.y, *s.x_hat), s.x_hat)

    def _norms(self, etas: tuple[float, float], steps: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Return |a_i|_1 for x and for y, [2, n].

        etas: the step sizes of x and y. steps: the local steps of each of the n clients. clients: their indices.
        """
        solver = Solver(*(np.take(value, clients, mode="wrap") for value in (self.rho, self.mu, self.decay)))
        eta, norm, m = np.array(etas)[:, None], np.zeros((2, len(steps))), np.zeros(len(steps))
        for k in range(steps.max()):
            new, m = solver.weighed(norm, m, k, eta)
            norm = np.where(k < steps, new, norm)
        return norm
