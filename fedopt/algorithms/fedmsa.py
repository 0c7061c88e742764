"""FedMSA: federated multi-sequence stochastic approximation [Tarzanagh et al. 2023, Alg. 1].

Notation
    u = (x, Z), Z = (z^1, ..., z^N)      all variables; Z = (w, v) for bilevel problems, w where grad_x f is the hypergradient
    F = (P, S^1, ..., S^N)               the mappings whose common zero is sought [eq. 2, 3]
    d = (h, q^1, ..., q^N)               the directions, estimates of F(u) [eq. 5, 6]
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.errors import UserError
from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import size_in_bytes
from fedopt.oracles import msa_maps, msa_samples
from fedopt.problems.classes import Bilevel, Compositional
from fedopt.randomness import Purpose
from fedopt.schedules import Schedule

Vectors = tuple[Tensor, ...]


class State(NamedTuple):
    """u_drawn: the uniformly random iterate among the `iterates` so far."""

    r: int
    u: Vectors
    u_prev: Vectors
    d: Vectors
    u_drawn: Vectors
    iterates: int


def add(a: Vectors, b: Vectors, factor: float = 1.0) -> Vectors:
    return tuple(a_n.add(b_n, alpha=factor) for a_n, b_n in zip(a, b, strict=True))


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FedMSA:
    """alpha, beta: steps of x and of the z^n (one for all n, or a list of N); rho: momentum; K: local steps.

    B: examples for one evaluation of F on a client, or of each level of a composition; null for all it has.
    anchor: who takes part in exchange 1, all clients or a cohort of its own.
    warm_up: rounds at the start in which only Z moves, to where it belongs for the first x; 0 in the paper.
    damping: lambda in S_v = (grad^2_ww g + lambda I) v - grad_w f, 0 in the paper.
    iterate: the output, the last iterate or the uniformly random one of the theorem.
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

    def init(self, problem: Bilevel | Compositional, fed: Federation) -> State:
        start = problem.start()
        if isinstance(problem, Bilevel):
            u = (*start, 0 * start[1]) if problem.indirect else start  # v = 0
        else:
            u = (*start, *(start[0].new_zeros(d) for d in problem.dims[1:]))
        if isinstance(self.beta, list) and len(self.beta) != len(u) - 1:
            raise UserError(f"algo.beta: {len(self.beta)} step sizes, and this problem has {len(u) - 1} sequences z^n")
        return State(0, u, u, u, u, 0)

    def step(self, s: State, problem: Bilevel | Compositional, fed: Federation) -> State:
        rho, K = (1.0, 1) if s.r == 0 else (self.rho, self.K)
        keep = 0.0 if self._exact(fed) else 1 - rho
        n = msa_samples(problem)
        betas = self.beta if isinstance(self.beta, list) else [self.beta] * (len(s.u) - 1)
        alpha = self.alpha(s.r) if s.r >= self.warm_up else 0.0
        steps = (alpha, *(beta(s.r) for beta in betas))

        def F(u: Vectors, xi: Sequence[Any]) -> Vectors:
            return msa_maps(problem, u, xi, self.damping)

        def sample(client: Client, k: int) -> Sequence[Any]:
            """The k-th of the evaluations, k = 0, 1, ..."""
            return [client.sample(j) for j in range(k * n, (k + 1) * n)]

        def descend(u: Vectors, d: Vectors) -> Vectors:
            u = tuple(u_n.sub(d_n, alpha=step) for u_n, d_n, step in zip(u, d, steps, strict=True))
            return (u[0], problem.project(u[1]), *u[2:]) if isinstance(problem, Bilevel) else u

        def directions(client: Client, message: tuple[Vectors, ...]) -> Vectors:
            u, *u_prev = message
            xi = sample(client, 0)
            new = F(u, xi)
            return add(new, F(u_prev[0], xi), -keep) if keep else new  # the same sample twice

        def local_steps(client: Client, message: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            u, d = message
            drawn = u
            u_prev, u = u, descend(u, d)  # k = 1: x^0 = x^1, so h and q stay
            kept: Vectors = ()
            for k in range(2, K + 1):
                xi = sample(client, k - 2)
                if not (self.B is None and kept):  # d - F(u_prev) never changes while the sample does not
                    kept = add(d, F(u_prev, xi), -1)
                d = add(F(u, xi), kept)
                drawn = u if k == k_drawn else drawn
                u_prev, u = u, descend(u, d)
            return (u, drawn) if self.iterate == "random" else (u, ())

        # h_r = mean p^m(u_r) + (1 - rho_r) (h_{r-1} - mean p^m(u_{r-1})), likewise q_r
        anchor = fed.everyone() if self.anchor == "all" else fed.cohort()
        message = (s.u, s.u_prev) if keep else (s.u,)
        d = fed.round(directions, message, anchor, Minibatches(self.B, n))
        d = add(d, s.d, keep) if keep else d

        iterates = s.iterates + K
        draw = fed.rng(Purpose.OUTPUT)
        replace, k_drawn = draw.random() < K / iterates, int(draw.integers(1, K + 1))
        draws = Minibatches(self.B, n * (K - 1)) if K > 1 else None
        u, drawn = fed.round(local_steps, (s.u, d), fed.cohort(), draws)
        return State(s.r + 1, u, s.u, d, drawn if replace and drawn else s.u_drawn, iterates)

    def output(self, s: State) -> Vectors:
        return s.u if self.iterate == "last" else s.u_drawn

    def cost(self, s: State, problem: Bilevel | Compositional, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        M, m = problem.clients, len(fed.cohort())
        K = 1 if s.r == 0 else self.K
        twice = s.r > 0 and self.rho < 1 and not self._exact(fed)
        anchor = M if self.anchor == "all" else m
        local = 0 if K == 1 else K if self.B is None else 2 * (K - 1)
        evaluations = anchor * (1 + twice) + m * local
        v = int(isinstance(problem, Bilevel) and problem.indirect)
        grad, hvp, jvp = (2, v, v) if isinstance(problem, Bilevel) else (1, 0, len(problem.dims) - 1)
        size = size_in_bytes(s.u)
        return {
            "comm_rounds": 2,
            "bytes_down": size * (anchor * (1 + twice) + 2 * m),
            "bytes_up": size * (anchor + m * (2 if self.iterate == "random" else 1)),
            "grad_calls": grad * evaluations,
            "hvp_calls": hvp * evaluations,
            "jvp_calls": jvp * evaluations,
        }

    def _exact(self, fed: Federation) -> bool:
        """With the full data of all clients h_{r-1} = mean p^m(u_{r-1}): momentum has nothing to correct, and is skipped."""
        return self.B is None and (self.anchor == "all" or fed.complete)
