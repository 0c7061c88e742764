"""FGDRO: federated learning that minimises a risk over clients, their conditional value at risk or a KL-robust mean [Guo & Yang
2024].

Zhishuai Guo and Tianbao Yang, "Communication-Efficient Federated Group Distributionally Robust Optimization", NeurIPS 2024 (arXiv
2410.06369). Reconstructed from reviews; we have not read the paper's algorithms. The clients' weights, the first round and the
smoothed hinge are derived here.

Explained in docs/algorithms/fgdro.md.

Notation
    p_i    the clients' weights in the objective
    cvar   min_{w, s} s + 1/alpha sum_i p_i max(0, f_i(w) - s), the mean loss of the worst share alpha of the clients. With mu the
           hinge is mu softplus(. / mu)
    kl     min_w lam log sum_i p_i exp(f_i(w) / lam), which s follows
    u_i    client i's estimate of f_i(w), before each of its steps w <- w - eta c_i grad f_i(w; xi):
           u_i <- (1 - gamma) u_i + gamma f_i(w; xi), and f_i(w; xi) the first time
    s      of round r, from the u_i of clients that took part. cvar: s <- s - eta_s (1 - sum_i p_i c_i), after round 0 the least
           u_i of the worst share alpha. kl: s <- lam log sum_i p_i exp(u_i / lam)
    c_i    what its gradient counts: 1/alpha [u_i > s], or 1/alpha sigmoid((u_i - s) / mu); exp((u_i - s) / lam) with kl; 1 in
           round 0
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import Minimisation
from fedopt.toolbox import Tensors, moved

Share = Annotated[float, Field(gt=0, le=1)]


class State(NamedTuple):
    """u: of each client (u_i, 1), or (0, 0) before it first takes part. Clients send u_i, so that the server knows it too."""

    w: Tensor
    s: Tensor
    u: Memory


@dataclass(frozen=True)
class Fgdro:
    """FGDRO: local steps on a risk over clients, whose weights follow from their losses without a second exchange.

    Args:
        eta, eta_s: The step sizes of w and, with risk=cvar, of s.
        gamma: The weight of a batch's loss in u_i.
        tau: The local steps.
        B: The examples of a batch; None for all of a client's.
        risk, alpha, mu, lam: As in the module's docstring.
    """

    eta: Schedule
    eta_s: Schedule
    gamma: Share
    tau: PositiveInt
    B: PositiveInt | None
    risk: Literal["cvar", "kl"]
    alpha: Share
    mu: NonNegativeFloat
    lam: PositiveFloat

    solves: ClassVar = (Minimisation,)

    def init(self, problem: Minimisation) -> State:
        (w,) = problem.start()
        return State(w, w.new_zeros(()), Memory([w.new_zeros(2)] * problem.clients))

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        eta, gamma, first, counts = self.eta(fed.r), self.gamma, fed.r == 0, self._counts

        def local_steps(client: Client, message: Tensors) -> tuple[Tensors, Tensor]:
            w, s = message

            def step(carry: Tensors, xi: Sample) -> Tensors:
                w, u, known = carry
                u = torch.lerp(u, client.f(w, xi), 1 - (1 - gamma) * known)
                c = torch.ones_like(u) if first else counts(u, s)
                return moved(w, client.gradient(w, xi), eta * c), u, torch.ones_like(u)

            w, u, known = client.scan("local", step, (w, *client.memory))
            return (w, u), torch.stack([u, known])

        local = Steps(self.tau, self.B, replace=True)
        (w, _), memory = fed.exchange(local_steps, (s.w, s.s), fed.cohort(), memory=s.u, local=local)
        u, known = memory.tensor().double().T
        p = known * torch.from_numpy(problem.weights).to(known)
        return State(w, self._threshold(s.s, u, p / p.sum(), fed).to(w), memory)

    def output(self, s: State) -> Tensors:
        return (s.w,)

    def _counts(self, u: Tensor, s: Tensor) -> Tensor:
        """Return c_i of clients with these u_i."""
        if self.risk == "kl":
            return torch.exp((u - s) / self.lam)
        return (torch.sigmoid((u - s) / self.mu) if self.mu else (u > s).to(u)) / self.alpha

    def _threshold(self, s: Tensor, u: Tensor, p: Tensor, fed: Round) -> Tensor:
        """Return the next s.

        kl: lam log sum_i p_i exp(u_i / lam). cvar: in round 0 the (1 - alpha)-quantile of the u_i, which minimises the objective
        in s for mu = 0; later s - eta_s (1 - sum_i p_i c_i).

        Args:
            s: s before.
            u: The clients' u_i, [M].
            p: The clients' weights, [M]: 0 for clients that never took part, with the sum 1.
        """
        if self.risk == "kl":
            return self.lam * torch.logsumexp(u / self.lam + p.log(), 0)
        if fed.r == 0:
            order = u.masked_fill(p == 0, -torch.inf).argsort(descending=True)
            return u.gather(0, order).gather(0, (p[order].cumsum(0) < self.alpha - 1e-9).sum()[None])[0]
        return s - self.eta_s(fed.r) * (1 - p @ self._counts(u, s))
