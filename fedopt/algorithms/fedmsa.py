"""FedMSA: federated multi-sequence stochastic approximation [Tarzanagh et al. 2023, Alg. 1].

Explained in docs/algorithms/fedmsa.md.

Notation
    u = (x, Z), Z = (z^1, ..., z^N)    all variables. For bilevel problems, Z = (w, v); if the hypergradient is grad_x f, Z = (w)
    F = (P, S^1, ..., S^N)             the mappings whose common zero is sought [eq. 2, 3]
    d = (h, q^1, ..., q^N)             the directions, which are estimates of F(u) [eq. 5, 6]
    p^m, s^{m,n}                       the values of P and S^n on a sample of client m
    xi                                 this sample; for a composition, one sample for each level
    r, k                               the round, and the local step in the round
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.errors import UserError
from fedopt.federation import Client, Round, Sample, Steps
from fedopt.problems import Bilevel, Compositional
from fedopt.toolbox import Vectors, bilevel_maps, bilevel_start, chain, descend, sampled_iterate

Iterates = tuple[Vectors, Vectors, Vectors, Vectors]  # u^{k-1}, u^k, d, and the random iterate


class State(NamedTuple):
    """The state of FedMSA.

    Attributes:
        u: The variables (x, Z) after this round.
        u_prev: The variables after the previous round.
        d: The last directions (h, q).
        sampled: An iterate that is sampled uniformly from all iterates so far, if iterate=random; otherwise empty.
    """

    u: Vectors
    u_prev: Vectors
    d: Vectors
    sampled: Vectors


@dataclass(frozen=True)
class FedMSA:
    """FedMSA: all variables move together along momentum-corrected directions.

    The variables are x and Z = (z^1, ..., z^N). In a bilevel problem, Z consists of the inner variable w and of v, which estimates
    [grad^2_ww g]^-1 grad_w f. In a composition, z^n estimates the value of level n.

    Args:
        alpha: The step size of x.
        beta: The step size of the z^n: one number for all n, or a list of N numbers (UserError for another length).
        rho: The momentum parameter. With 1, earlier directions are not used.
        K: The number of local steps. If it differs between clients, this is the largest number. If K = 1 for all clients, the
            server takes the step, and a round has one exchange.
        B: The batch size of each sample. None: all examples of the client.
        anchor: The clients that compute the directions at the start of a round (lines 5 to 8 of the algorithm): ``all`` clients, as
            in the paper, or a ``cohort`` that is sampled for this purpose. If the server takes the step, it is always a cohort.
        warm_up: The number of rounds at the start in which only Z moves, towards its solution at the initial x. The paper has 0.
        damping: The number lambda in the mapping of v, (grad^2_ww g + lambda I) v - grad_w f. The paper has 0.
        iterate: The output: the ``last`` iterate, or a uniformly ``random`` one of the iterates so far, as in the theorem.
    """

    alpha: Schedule
    beta: Schedule | list[Schedule]
    rho: Annotated[float, Field(ge=0, le=1)]
    K: PositiveInt
    B: PositiveInt | None
    anchor: Literal["all", "cohort"]
    warm_up: NonNegativeInt
    damping: NonNegativeFloat
    iterate: Literal["last", "random"]

    solves: ClassVar = (Bilevel, Compositional)
    uneven: ClassVar = "K"
    cohort_weights = property(lambda self: "corrected" if self.anchor == "all" and self.K > 1 else "mean")

    def init(self, problem: Bilevel | Compositional) -> State:
        if isinstance(problem, Bilevel):
            u = bilevel_start(problem)  # v = 0
        else:
            (x,) = problem.start()
            u = Vectors((x, *(x.new_zeros(d) for d in problem.dims[1:])))  # Z = 0
        if isinstance(self.beta, list) and len(self.beta) != len(u) - 1:
            raise UserError(f"algo.beta: has length {len(self.beta)}; give one number, or a list of {len(u) - 1}")
        return State(u, u, u, u if self.iterate == "random" else Vectors())

    def step(self, s: State, problem: Bilevel | Compositional, fed: Round) -> State:
        rho = self.rho if fed.r else 1.0
        same_xi = self.B is None and not problem.random  # all samples of a client are its full local data
        betas = self.beta if isinstance(self.beta, list) else [self.beta] * (len(s.u) - 1)
        step_sizes = (self.alpha(fed.r) if fed.r >= self.warm_up else 0.0, *(beta(fed.r) for beta in betas))
        bilevel = isinstance(problem, Bilevel)

        def F(client: Client, u: Vectors, xi: Sample) -> Vectors:
            return bilevel_maps(client, u, xi[0], self.damping) if bilevel else chain_maps(client, u, xi)

        def moved(space: Any, u: Vectors, d: Vectors) -> Vectors:
            # In a bilevel problem, w is projected onto Y, the constraint set of a minimax problem
            return descend(space, u, d, step_sizes) if bilevel else u.moved(d, step_sizes)

        def directions(client: Client, message: tuple[Vectors, ...]) -> Vectors:  # eq. 5, but for (1 - rho) d_{r-1}
            (u, *u_prev), xi = message, client.sample("xi")
            return F(client, u, xi) - (1 - rho) * F(client, u_prev[0], xi) if u_prev else F(client, u, xi)

        def local_steps(client: Client, message: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            u_prev, d = message
            known: Vectors | None = None  # F(u_prev; xi), which the last step has computed

            def step(carry: Iterates, xi: Sample, k: int) -> Iterates:
                nonlocal known
                u_prev, u, d, sampled = carry
                F_prev = F(client, u_prev, xi) if known is None else known
                F_u = F(client, u, xi)
                d, known = F_u + (d - F_prev), F_u if same_xi else None  # eq. 6
                return u, moved(client, u, d), d, u if k <= k_sampled else sampled

            steps = client.own_steps("K")
            # k = 1: x^0 = x^1, so that h and q stay; a straggler stays where it is
            u = Vectors(torch.where(steps > 0, *pair) for pair in zip(moved(client, u_prev, d), u_prev, strict=True))
            _, u, _, sampled = client.scan("xi", step, (u_prev, u, d, u_prev), lambda k: k + 2)
            return u, sampled if self.iterate == "random" else Vectors()

        def work(clients: np.ndarray) -> np.ndarray:  # K of each, 0 for a straggler; 1 in round 0
            steps = np.broadcast_to(fed.work(self.K, clients), clients.shape)
            return steps if fed.r else np.minimum(steps, 1)

        # h_r = mean p^m(u_r; xi) + (1 - rho_r) (h_{r-1} - mean p^m(u_{r-1}; xi)), likewise q_r [eq. 5]. With the full data of all
        # clients, and no dropout, h_{r-1} is that mean exactly, and the bracket is left out.
        samples = 1 if bilevel else len(problem.dims)  # type: ignore[union-attr]
        of_server = self.K == 1 and not fed.participation.uneven  # it knows u and d, and so the one step
        of_all = self.anchor == "all" and not of_server
        S = fed.everyone() if of_all else fed.cohort()
        exact = same_xi and (of_all or fed.complete) and fed.participation.punctual
        message = (s.u,) if exact or rho == 1 else (s.u, s.u_prev)
        d = fed.exchange(directions, message, S, xi=Steps(1, self.B, samples))
        d = d if exact or rho == 1 else d + (1 - rho) * s.d

        k_sampled = sampled_iterate(fed, self.K) if self.iterate == "random" else 0
        if of_server:
            u = moved(problem, s.u, d)
            return State(u, s.u, d, u if k_sampled else s.sampled)
        xi = Steps(lambda clients: np.maximum(work(clients) - 1, 0), self.B, samples)
        origin = (s.u, s.u if k_sampled else None)
        u, sampled = fed.exchange(local_steps, (s.u, d), fed.new_cohort(), origin=origin, xi=xi, K=Steps(work))
        return State(u, s.u, d, sampled if k_sampled else s.sampled)

    def output(self, s: State) -> Vectors:
        return s.u if self.iterate == "last" else s.sampled


def chain_maps(client: Client, u: Vectors, xi: Sequence[Sample]) -> Vectors:
    """Return the mappings (P, S^1, ..., S^N) of a composition at u = (x, z^1, ..., z^N), with the shapes of u [eq. 3, 11]::

        P = J f^0(x)' J f^1(z^1)' ... grad f^N(z^N)
        S^n = z^n - f^{n-1}(z^{n-1})

    It counts as one gradient call and N Jacobian-vector products.

    Args:
        client: The client, whose problem is a composition of the levels f^0, ..., f^N.
        u: The variables.
        xi: N + 1 samples, one for each level. If two levels shared a sample, the product of their derivatives would be biased.
    """
    s = list[Tensor]()

    def follow(n: int, value: Tensor) -> Tensor:
        s.append(u[n + 1] - value)
        return u[n + 1]

    _, p = chain(client, u[0], xi, follow)
    return Vectors((p, *s))
