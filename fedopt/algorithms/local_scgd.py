"""Local-SCGD and Local-SCGDM: local compositional descent with estimates u of the inner functions, and with momentum [Gao et al.
2022]. With one client they are SCGD [Wang, Fang & Liu 2017] and NASA without a constraint [Ghadimi et al. 2020].

Follows public code (Federated-Minimax-and-Conditional-Stochastic-Optimization); order=step_first and share_u=false follow the
text of FedCoMuon (arXiv 2608.12710). More than two levels are derived here.

Explained in docs/algorithms/local_scgd.md.

Notation
    r_i^1, ..., r_i^K, f_i    the levels of client i's composition f_i(r_i^K(... r_i^1(x))); K = 1 in the paper
    u = (u^1, ..., u^K)       estimates of the values of the levels: u^k estimates r^k(u^(k-1)), with u^0 = x
    m                         the momentum, a moving average of the gradients J r^1(x)' ... J r^K(u^(K-1))' grad f(u^K)
    xi                        the samples of one step, one for each level
    t, I                      the index of the step, and the number of steps between exchanges
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import Constant, Schedule, values
from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import LocalCompositional
from fedopt.toolbox import Tensors, chain, check_weights

Sent = tuple[Tensor, Tensors, Tensors]  # x, (m,) and u; the second and the third may be ()


class State(NamedTuple):
    """The state of Local-SCGD and Local-SCGDM.

    Attributes:
        x: The server's point, ``[d]``.
        m: (m,) with the momentum, ``[d]``; () if beta = 1 and order=estimate_first, since each step then computes a new one.
        u: The mean over the clients of their estimates of the inner functions' values, one per level except the last, if share_u
            is true; otherwise ().
        memory: Each client's estimates as one vector, ``[d_1 + ... + d_K]`` (d_k: dimension of estimate k), if share_u is false;
            otherwise empty.
    """

    x: Tensor
    m: Tensors
    u: Tensors
    memory: Memory


@dataclass(frozen=True)
class LocalScgd:
    """Local-SCGD and Local-SCGDM: local steps on a client's own composition.

    Args:
        eta: The step size.
        alpha: The weight of the newest values in u, the estimates of the values of the inner functions.
        beta: The weight of the newest gradient in the momentum m, along which x moves. With 1, there is no momentum.
        I: The number of local steps.
        B: The batch size of each sample. None: all examples of the client.
        share_u: Whether u is averaged with x and m. If false, each client keeps its own u.
        at: Whether the gradient is taken at the ``new`` u, or at the ``old`` u before this step.
        order: ``estimate_first``: a step computes u and m, and then moves x. ``step_first``: a step moves x first. With step_first,
            the first round only computes the initial estimates.
    """

    eta: Schedule
    alpha: Schedule
    beta: Schedule
    I: PositiveInt
    B: PositiveInt | None
    share_u: bool
    at: Literal["new", "old"] = field(metadata={"before": "new"})
    order: Literal["estimate_first", "step_first"]

    solves: ClassVar = (LocalCompositional,)

    def __post_init__(self) -> None:
        check_weights({"alpha": max(values(self.alpha)), "beta": max(values(self.beta))})
        if 0 in values(self.alpha) + values(self.beta):
            raise ValueError("alpha and beta must be greater than 0, since the estimates would never change otherwise")

    def init(self, problem: LocalCompositional) -> State:
        (x,) = problem.start()
        u = tuple(x.new_zeros(d) for d in problem.dims[1:])
        m = (0 * x,) if self.beta != Constant(1) or self.order == "step_first" else ()
        own = x.new_zeros(0 if self.share_u else sum(problem.dims[1:]))
        return State(x, m, u if self.share_u else (), Memory([own] * problem.clients))

    def step(self, s: State, problem: LocalCompositional, fed: Round) -> State:
        eta, step_first, sizes, share_u = self.eta(fed.r), self.order == "step_first", problem.dims[1:], self.share_u
        first, momentum, alpha, beta, old = fed.r == 0, bool(s.m), self.alpha(fed.r), self.beta(fed.r), self.at == "old"

        def local_steps(client: Client, message: Sent) -> tuple[Sent, Tensor]:
            x, (*m_sent,), u = message
            m = m_sent[0] if m_sent else 0 * x
            u = u or client.memory.split(sizes)
            for t, xi in enumerate(client.steps("xi")):
                begins = first and t == 0
                a, b = (1.0, 1.0) if begins else (alpha, beta)
                if step_first:
                    x = client.moved_(x, m, eta)  # m = 0 at the very first one
                u, gradient = estimated(client, x, u, xi, a, old and not begins)
                m = gradient if b == 1 else torch.lerp(m, gradient, b)  # (1 - b) m + b gradient
                if not step_first:
                    x = client.moved_(x, m, eta)
            own = client.memory if share_u else torch.cat(u)
            return (x, (m,) if momentum else (), u if share_u else ()), own

        xi = Steps(1 if first and step_first else self.I, self.B, samples=len(problem.dims))
        S = fed.everyone() if first and not share_u else fed.cohort()  # each client has its u from the start
        (x, m, u), memory = fed.exchange(local_steps, s[:3], S, memory=s.memory, origin=(s.x, None, s.u), xi=xi)
        return State(x, m, u, memory)

    def output(self, s: State) -> Tensors:
        return (s.x,)


def estimated(client: Client, x: Tensor, u: Tensors, xi: Sample, a: float, old: bool) -> tuple[Tensors, Tensor]:
    """Return the new estimates u of a client's levels, and an estimate of the gradient of its composition, ``[d]``.

    The new estimates are::

        u^k <- (1 - a) u^k + a r^k(u^(k-1)),    k = 1, ..., K

    It counts as one gradient call and K Jacobian-vector products.

    Args:
        client: The client.
        x: The point u^0, ``[d]``.
        u: The old estimates (u^1, ..., u^K).
        xi: K + 1 samples, one for each level.
        a: The weight of the newest values.
        old: Whether the old estimates replace the new ones as u^(k-1) in this formula, and as the point of the gradient.
    """
    new = list[Tensor]()

    def follow(k: int, r: Tensor) -> Tensor:
        new.append(torch.lerp(u[k], r, a))
        return u[k] if old else new[k]

    _, gradient = chain(client, x, xi, follow)
    return tuple(new), gradient
