"""Fed-Norm-SGDA and Fed-Norm-SGDA+ [Sharma, Panda & Joshi 2023, Alg. 1], and the methods without normalisation: Local SGDA and
Local SGDA+ [Deng & Mahdavi 2021], and both with momentum [Sharma et al. 2022].

Explained in docs/algorithms/fed_norm_sgda.md.

Notation
    a_i, |a_i|_1    the weights of client i's local gradients in its last iterate, and the sum of these weights [App. A.1]
    tau_x, tau_y    tau_eff of x and of y: the weighted means of |a_i|_1 over clients. They differ if mu > 0 and eta_x != eta_y
    G_x, G_y        the weighted sums of a client's local gradients, sum_k a_i^k grad_k, which are -Delta in the paper. Without
                    projections, x_i = x - eta_x G_x and y_i = y + eta_y G_y
    u_i             y + eta_y G_y, the point that y_i would be without projections
    x_hat           in the "+" variants, the point x at which grad_y is taken: the server's x in the last round r with r mod S = 0
    p_i, C          the weights of the clients, with sum 1, and the clients that take part
    r, M            the round (t in the paper), and the number of clients (n in the paper)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.algorithms.solvers import Solver
from fedopt.config import LocalWork, Schedule, values
from fedopt.federation import Client, Round, Sample
from fedopt.problems import Minimax
from fedopt.toolbox import Tensors, sampled_iterate

Iterate = tuple[Tensor, Tensor, Tensor]  # x_i, y_i, u_i

NONEMPTY = Field(min_length=1)
Momentum = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(gt=0, le=1)]


class State(NamedTuple):
    """The state of Fed-Norm-SGDA and its variants.

    Attributes:
        x: The server's x, ``[dx]``.
        y: The server's y, ``[dy]``.
        x_hat: (x_hat,), the last snapshot of x, in the "+" variants, which set S; otherwise ().
        sampled: (x, y), sampled uniformly from the iterates so far, if iterate=random; otherwise ().
    """

    x: Tensor
    y: Tensor
    x_hat: Tensors
    sampled: Tensors


@dataclass(frozen=True)
class FedNormSgda:
    """Fed-Norm-SGDA and, with S, Fed-Norm-SGDA+. With aggregation=naive, they are Local SGDA and Local SGDA+.

    Args:
        eta_x: The clients' step size of x.
        eta_y: The clients' step size of y.
        gamma_x: The server's step size of x is gamma_x eta_x.
        gamma_y: The server's step size of y is gamma_y eta_y.
        tau: The amount of local work: epochs or steps. If it differs between clients, this is the largest amount.
        B: The batch size of a step. None: all examples of the client.
        S: The number of rounds between snapshots x_hat, at which grad_y is then taken ("+"). None: at the client's own x.
        rho: The momentum of the local solver; 0 for SGD.
        mu: The proximal coefficient of the local solver; 0 for SGD.
        decay: The factor of the step size from one local step to the next; 1 for SGD. If rho, mu or decay is a list of length L,
            client i uses the number at position i mod L.
        aggregation: ``normalised``: the change of each client is divided by |a_i|_1, the sum of the weights of its local gradients
            (for SGD, its number of steps). ``naive``: the mean of the changes of the cohort, weighted by p_i.
        tau_eff: The clients over which |a_i|_1 is averaged: ``all`` clients, or the ``cohort``. With the cohort, the solution is
            biased towards clients that do more work.
        iterate: The output: the ``last`` iterate, or a uniformly ``random`` one of all iterates so far (line 22).
    """

    eta_x: Schedule
    eta_y: Schedule
    gamma_x: Schedule
    gamma_y: Schedule
    tau: LocalWork
    B: PositiveInt | None
    S: PositiveInt | None
    rho: Momentum | Annotated[list[Momentum], NONEMPTY]
    mu: NonNegativeFloat | Annotated[list[NonNegativeFloat], NONEMPTY]
    decay: Decay | Annotated[list[Decay], NONEMPTY]
    aggregation: Literal["normalised", "naive"]
    tau_eff: Literal["all", "cohort"]
    iterate: Literal["last", "random"]

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = "tau"
    cohort_weights = property(lambda self: "unbiased" if self.aggregation == "normalised" else "mean")

    def __post_init__(self) -> None:
        mu = max(self.mu) if isinstance(self.mu, list) else self.mu
        if max(values(self.eta_x) + values(self.eta_y)) * mu > 1:
            raise ValueError("mu * eta_x and mu * eta_y must be at most 1; choose a smaller mu")

    def init(self, problem: Minimax) -> State:
        x, y = problem.start()
        return State(x, y, (x,) if self.S else (), (x, y) if self.iterate == "random" else ())

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        eta_x, eta_y = etas = self.eta_x(fed.r), self.eta_y(fed.r)
        normalised, plus = self.aggregation == "normalised", self.S is not None

        def local_steps(client: Client, message: Tensors) -> tuple[Tensor, Tensor]:
            x, y, *x_hat = message

            def gradients(x_i: Tensor, y_i: Tensor, xi: Sample) -> tuple[Tensor, Tensor]:
                if not plus:
                    return client.outer_gradients(x_i, y_i, xi)
                return client.outer_gradient_x(x_i, y_i, xi), client.outer_gradient_y(x_hat[0] if x_hat else x, y_i, xi)

            def sgd(carry: Iterate, xi: Sample) -> Iterate:
                x_i, y_i, u_i = carry
                g_x, g_y = gradients(x_i, y_i, xi)
                x_i, u_i = client.moved_(x_i, g_x, eta_x), client.moved_(u_i, g_y, -eta_y)
                return x_i, client.project(client.moved_(y_i, g_y, -eta_y)), u_i

            solver = self._solver(client.entry)
            if solver.is_sgd:
                a_x = a_y = client.own_steps("local")
                x_i, y_i, u_i = client.scan("local", sgd, (x, y, y))
            else:
                x_i, y_i, u_i, a_x, a_y = solver.local_steps(client, gradients, x, y, etas)
            if not normalised:
                return x - x_i, y_i - y
            # eta g_i, lines 15 to 17. A straggler's |a_i|_1 and G are 0
            return (x - x_i) / torch.where(a_x > 0, a_x, 1.0), (u_i - y) / torch.where(a_y > 0, a_y, 1.0)

        C, local = fed.cohort(), fed.local(self.tau, self.B)
        tau_x = tau_y = 1.0
        if normalised:
            of = fed.everyone() if self.tau_eff == "all" else C
            solver = self._solver(lambda values: np.take(values, of, mode="wrap"))
            norms = solver.norms(local.steps_of(problem.splits, of), etas)
            tau_x, tau_y = np.average(norms, axis=1, weights=fed.weights(of))
        weights = fed.weights(C, unbiased=True) if normalised else None  # eq. 3
        snapshot = plus and fed.r % (self.S or 1) == 0  # x_hat is x, which is not sent twice
        x_hat = (s.x,) if snapshot else s.x_hat
        message = (s.x, s.y) if snapshot else (s.x, s.y, *x_hat)
        g_x, g_y = fed.exchange(local_steps, message, C, weights=weights, local=local)
        x = s.x - tau_x * self.gamma_x(fed.r) * g_x  # line 20; gamma is relative to eta, which is in g
        y = problem.project(s.y + tau_y * self.gamma_y(fed.r) * g_y)
        sampled = (x, y) if self.iterate == "random" and sampled_iterate(fed) else s.sampled  # line 22
        return State(x, y, x_hat, sampled)

    def output(self, s: State) -> Tensors:
        return (s.x, s.y) if self.iterate == "last" else s.sampled

    def _solver(self, of_clients: Callable[[Any], Any]) -> Solver:
        """Return the local solver of one client, or of several.

        Args:
            of_clients: A function that maps a hyperparameter, a number or a list, to its value for the client, or to an array of
                its values for the clients.
        """
        return Solver(*map(of_clients, (self.rho, self.mu, self.decay)))
