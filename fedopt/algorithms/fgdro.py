"""FGDRO: federated learning that minimises the conditional value at risk over clients, or their KL-robust mean [Guo & Yang 2024].

Zhishuai Guo and Tianbao Yang, "Communication-Efficient Federated Group Distributionally Robust Optimization", NeurIPS 2024 (arXiv
2410.06369). Reconstructed from reviews; we have not read the paper's algorithms. The clients' weights, the first round and the
smoothed hinge are derived here.

Explained in docs/algorithms/fgdro.md.

Notation
    p_i    the weight of client i in the objective
    cvar   the risk min_s s + 1/alpha sum_i p_i max(0, f_i(w) - s), the mean loss of the fraction alpha of the clients with the
           largest losses. If mu > 0, the hinge max(0, .) is replaced with mu softplus(. / mu)
    kl     the risk lam log sum_i p_i exp(f_i(w) / lam)
    u_i    the estimate of f_i(w) on client i
    s      the threshold on the server
    c_i    the factor of the gradient of client i

A round consists of
    u_i <- (1 - gamma) u_i + gamma f_i(w; xi)    before each local step; u_i <- f_i(w; xi) before the client's very first step
    w   <- w - eta c_i grad f_i(w; xi)           each local step, where c_i = 1 in round 0, and otherwise
                                                 cvar: c_i = 1/alpha [u_i > s], or 1/alpha sigmoid((u_i - s) / mu) if mu > 0
                                                 kl:   c_i = exp((u_i - s) / lam)
    s   <- s - eta_s (1 - sum_i p_i c_i)         cvar, on the server, over the clients that have taken part; in round 0, s becomes
                                                 the smallest u_i of the fraction alpha with the largest u_i
    s   <- lam log sum_i p_i exp(u_i / lam)      kl, on the server
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
    """The state of FGDRO.

    Attributes:
        w: The server's point, ``[d]``.
        s: The threshold of the risk, a scalar.
        u: One row per client: (u_i, 1) with its running estimate u_i of its loss, or (0, 0) if it has not taken part yet. Clients
            send u_i, so the server knows it too.
    """

    w: Tensor
    s: Tensor
    u: Memory


@dataclass(frozen=True)
class Fgdro:
    """FGDRO: local steps on a risk over clients. Clients are weighted by their losses, without a second exchange.

    Args:
        eta: The step size of w, the model.
        eta_s: The step size of the threshold s, above which losses count, for risk=cvar.
        gamma: The weight of the newest batch loss in u_i, the running estimate of client i's loss.
        tau: The number of local steps.
        B: The batch size. None: all examples of the client.
        risk: ``cvar``: the conditional value at risk. ``kl``: the KL-robust mean. The module's docstring has their formulas.
        alpha: The fraction of the clients with the largest losses that the risk averages, for risk=cvar.
        mu: The smoothing of the hinge, for risk=cvar. With 0, the hinge is not smoothed.
        lam: The temperature, for risk=kl.
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
        (w, _), memory = fed.exchange(
            local_steps, (s.w, s.s), fed.cohort(), memory=s.u, origin=(s.w, None), local=local
        )
        u, known = memory.tensor().double().T
        p = known * torch.from_numpy(problem.weights).to(known)
        return State(w, self._threshold(s.s, u, p / p.sum(), fed).to(w), memory)

    def output(self, s: State) -> Tensors:
        return (s.w,)

    def _counts(self, u: Tensor, s: Tensor) -> Tensor:
        """Return the factors c_i by which the clients' gradients are multiplied, with the shape of u.

        Args:
            u: The clients' estimates u_i.
            s: The threshold.
        """
        if self.risk == "kl":
            return torch.exp((u - s) / self.lam)
        return (torch.sigmoid((u - s) / self.mu) if self.mu else (u > s).to(u)) / self.alpha

    def _threshold(self, s: Tensor, u: Tensor, p: Tensor, fed: Round) -> Tensor:
        """Return the next threshold s, a scalar::

            kl      lam log sum_i p_i exp(u_i / lam)
            cvar    s - eta_s (1 - sum_i p_i c_i)

        c_i is the factor of client i's gradient (`_counts`), and mu is the smoothing of the hinge. In round 0, cvar returns the
        (1 - alpha)-quantile of the u_i instead, which minimises the objective in s for mu = 0.

        Args:
            s: The threshold before the round.
            u: The clients' u_i, ``[M]``.
            p: The clients' weights, ``[M]``. They sum to 1, and are 0 for clients that have never taken part.
            fed: The round.
        """
        if self.risk == "kl":
            return self.lam * torch.logsumexp(u / self.lam + p.log(), 0)
        if fed.r == 0:
            order = u.masked_fill(p == 0, -torch.inf).argsort(descending=True)
            return u.gather(0, order).gather(0, (p[order].cumsum(0) < self.alpha - 1e-9).sum()[None])[0]
        return s - self.eta_s(fed.r) * (1 - p @ self._counts(u, s))
