"""FedNest and its family: alternating local steps for the inner and the outer problem [Tarzanagh et al. 2022, Alg. 1-6, App.
H.1].

Explained in docs/algorithms/fednest.md.

Notation
    grad_y g_i              computed by client.inner_gradient
    grad_x f_i, grad_y f_i  computed by client.outer_gradient_x and client.outer_gradient_y
    q = mean grad_y g_i     the anchor of the inner local steps, at (x, y)
    h                       the anchor of the outer local steps, an estimate of the hypergradient
    p                       the estimate p_{N'} of [grad^2_yy g]^-1 grad_y f, which FedIHGP computes
    l                       the inverse of the step size of the Neumann series, l_{g,1} in the paper
    N'                      the number of Hessian-vector products of the randomised estimate, uniform in 0..N-1
    zeta, xi                a sample of g, and a sample of f. In the outer part, xi is a sample of both
    S, mean                 the clients that take part, and their mean weighted by p_i
    r                       the round, k in the paper
    y                       in the outer part, the y that the inner part returned, y^+ in the paper
    project                 the projection onto Y, which differs from the whole space only for minimax problems
    direct, indirect        whether grad_x f is not zero, and whether grad_y f is not zero at y*(x)
    identity                whether grad^2_yy g = I
    nested                  whether there is a y. Minimisation problems have none, and only the outer part remains [Sec. 3.3]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import Fixed, LocalWork, Schedule
from fedopt.federation import (
    Client,
    Inverse,
    Round,
    Sample,
    Steps,
    conjugate_gradients,
    neumann_sum,
    neumann_term,
)
from fedopt.problems import Bilevel
from fedopt.randomness import Purpose
from fedopt.toolbox import Tensors, hessian_product, inner_gradient, moved, outer_gradient_y


class State(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class FedNest:
    """FedNest and its variants.

    The table lists the published methods. Other combinations of the keys run too:

    method                        inner  outer   alternating  inverse     further keys
    FedNest                       svrg   svrg    true         randomised  cohorts=fresh
    FedNest, its public code      svrg   svrg    true         truncated   cohorts=one
    FedNest_SGD                   sgd    svrg    true         randomised
    LFedNest_SVRG                 svrg   sgd     true         randomised
    LFedNest                      sgd    sgd     true         randomised
    LFedNest-NonAlt               sgd    sgd     false        randomised
    ALSET, and TTSA with tau_in=1 sgd    server  true         randomised  T=1, tau_out=1
    BSA                           sgd    server  true         randomised  as ALSET, with tau_in=10 and N=10
    stocBiO                       sgd    server  true         truncated   as BSA

    Args:
        alpha: The step size of x.
        beta: The step size of y.
        T: The number of inner rounds per round.
        tau_in: The amount of local inner work: steps or epochs. If it differs between clients, this is the largest amount.
        tau_out: The amount of local outer work: steps or epochs. If it differs between clients, this is the largest amount.
        B: The batch size of an inner step. None: all examples of the client.
        B_anchor: The batch size for the anchor q, the clients' mean of grad_y g_i, which corrects inner steps with SVRG. None: all
            examples of the client.
        B_out: The batch size of each sample in the outer part. None: all examples of the client.
        N: The number of terms of the Neumann series, or of steps of conjugate gradients.
        l: The inverse of the step size of the Neumann series.
        inner: The local inner steps: ``svrg`` (FedInn) or ``sgd`` (LFedInn).
        outer: The local outer steps: ``svrg`` (FedOut) or ``sgd`` (LFedOut). ``server`` is svrg, but if tau_out is one step, the
            server takes it without an exchange.
        anchor: The clients that compute q: the ``cohort`` or ``all`` clients.
        inverse: The estimate of the inverse Hessian. ``randomised``: one random term of the Neumann series, as in the paper.
            ``truncated``: the sum of its first N + 1 terms. ``cg``: conjugate gradients, whose products must all use the same
            Hessian: set cohorts=one and B_out=null.
        cohorts: The clients in the exchanges of the estimate (FedIHGP). ``fresh``: each exchange samples a new cohort from all
            clients (in Alg. 3: from S). ``one``: all exchanges use the cohort S of the round.
        alternating: If false, the method is LFedNest-NonAlt: in one exchange, a client takes all its inner steps (T times as
            many) and then its outer steps at its own y_i. This needs inner=sgd and outer=sgd (ValueError otherwise).
        divided: Whether the step sizes of client i are alpha / tau_i and beta / tau_i, where tau_i is its number of local steps,
            as in Theorem 3.1.
    """

    alpha: Schedule
    beta: Schedule
    T: PositiveInt
    tau_in: LocalWork
    tau_out: LocalWork
    B: PositiveInt | None
    B_anchor: PositiveInt | None
    B_out: PositiveInt | None
    N: PositiveInt
    l: PositiveFloat
    inner: Literal["svrg", "sgd"]
    outer: Literal["svrg", "sgd", "server"]
    anchor: Literal["cohort", "all"]
    inverse: Literal["randomised", "truncated", "cg"]
    cohorts: Literal["fresh", "one"]
    alternating: bool
    divided: bool

    solves: ClassVar = (Bilevel,)
    uneven: ClassVar = ("tau_in", "tau_out")

    def __post_init__(self) -> None:
        if not self.alternating and (self.inner, self.outer) != ("sgd", "sgd"):
            raise ValueError("alternating=false needs inner=sgd and outer=sgd; set both")

    def init(self, problem: Bilevel) -> State:
        return State(*problem.start())

    def step(self, s: State, problem: Bilevel, fed: Round) -> State:
        """Run one round of FedNest [Alg. 1], in which steps of x follow the steps of y, and return the new state.

        Args:
            s: The state before the round.
            problem: The problem.
            fed: The round.
        """
        x, y = s
        if problem.nested and not self.alternating:
            return self.lfednest_non_alt(x, y, problem, fed)
        for _ in range(self.T if problem.nested else 0):
            y = self.inner_round(x, y, problem, fed)
        x = self.lfed_out(x, y, problem, fed) if self.outer == "sgd" else self.fed_out(x, y, problem, fed)
        return State(x, y)

    def output(self, s: State) -> Tensors:
        return s.x, s.y

    def inner_round(self, x: Tensor, y: Tensor, problem: Bilevel, fed: Round) -> Tensor:
        """Run local inner steps, with SVRG [FedInn, Alg. 4] or with SGD [LFedInn, Alg. 6], and return the new y, ``[dy]``.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            problem: The problem.
            fed: The round.
        """
        beta, S = self.step_of("inner", self.beta(fed.r)), fed.new_cohort()

        def local_steps(client: Client, message: Tensors) -> Tensor:
            return inner_steps(client, *message, beta=beta(client))

        message: Tensors = (x, y)
        if self.inner == "svrg":
            anchored = fed.everyone() if self.anchor == "all" else S
            q = fed.exchange(inner_gradient, (x, y), anchored, xi=Steps(1, self.B_anchor, split=problem.g_split))
            message = (x, y, q)
        inner = fed.local(self.tau_in, self.B, split=problem.g_split)
        return fed.exchange(local_steps, message, S, origin=y, inner=inner)

    def fed_out(self, x: Tensor, y: Tensor, problem: Bilevel, fed: Round) -> Tensor:
        """Run local outer steps with SVRG [Alg. 2], and return the new x, ``[dx]``.

        With outer=server, the server takes the step if all clients take exactly one.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            problem: The problem.
            fed: The round.
        """
        S, alpha = fed.new_cohort(), self.alpha(fed.r)
        p: Tensors = (self.fed_ihgp(x, y, S, problem, fed),) if problem.indirect else ()
        h = fed.exchange(h_i, (x, y, *p), S, anchor=Steps(1, self.B_out))
        if self.outer == "server" and self.tau_out == Fixed(1) and not fed.participation.uneven:
            return moved(x, h, alpha)
        outer = fed.local(self.tau_out, self.B_out, split=problem.f_split)
        return fed.exchange(svrg_steps(self.step_of("outer", alpha)), (x, y, h), S, origin=x, outer=outer)

    def fed_ihgp(self, x: Tensor, y: Tensor, S: np.ndarray, problem: Bilevel, fed: Round) -> Tensor:
        """Return the estimate p of [grad^2_yy g]^-1 grad_y f [FedIHGP, Alg. 3], ``[dy]``.

        For the Neumann series, clients send H_i p_{n-1}, and the server computes (lines 13, 15)::

            p_n = p_{n-1} - mean H_i p_{n-1} / l

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            S: The indices of the clients in the cohort.
            problem: The problem.
            fed: The round.
        """
        cohort = fed.new_cohort if self.cohorts == "fresh" else lambda: S

        def mean_product(p: Tensor, n: int) -> Tensor:
            return fed.exchange(hessian_product, (x, y, p), cohort(), xi=Steps(1, self.B_out, split=problem.g_split))

        b = fed.exchange(outer_gradient_y, (x, y), cohort(), xi=Steps(1, self.B_out, split=problem.f_split))
        return b if problem.identity else estimate(self.inverse, self.N, self.l, problem, fed)[1](mean_product, b)

    def lfed_out(self, x: Tensor, y: Tensor, problem: Bilevel, fed: Round) -> Tensor:
        """Run local outer steps with SGD, in which each client uses its own Hessian [Alg. 5], and return the new x, ``[dx]``.

        The randomised estimate of the inverse Hessian chooses its number of Hessian-vector products once per round, not for each
        client and step. The paper's listing prints grad_x f as its last factor; we use grad_y f.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            problem: The problem.
            fed: The round.
        """
        alpha = self.step_of("outer", self.alpha(fed.r))
        products, inverse = estimate(self.inverse, self.N, self.l, problem, fed)

        def local_steps(client: Client, message: Tensors) -> Tensor:
            x, y = message
            return hypergradient_descent(client, x, y, alpha(client), inverse)

        samples = problem.hypergradient_samples(products)
        outer = fed.local(self.tau_out, self.B_out, samples=samples, over=problem.f_split)
        return fed.exchange(local_steps, (x, y), fed.new_cohort(), origin=x, outer=outer)

    def lfednest_non_alt(self, x: Tensor, y: Tensor, problem: Bilevel, fed: Round) -> State:
        """Run one round of LFedNest-NonAlt [App. H.1], and return the new state.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            problem: The problem.
            fed: The round.
        """
        alpha, beta = self.step_of("outer", self.alpha(fed.r)), self.step_of("inner", self.beta(fed.r))
        products, inverse = estimate(self.inverse, self.N, self.l, problem, fed)

        def local_steps(client: Client, message: Tensors) -> Tensors:
            x, y = message
            y_i = inner_steps(client, x, y, beta=beta(client))
            return hypergradient_descent(client, x, y_i, alpha(client), inverse), y_i

        samples = problem.hypergradient_samples(products)
        outer = fed.local(self.tau_out, self.B_out, samples=samples, over=problem.f_split)
        inner = fed.local(self.tau_in, self.B, split=problem.g_split, times=self.T)
        return State(*fed.exchange(local_steps, (x, y), fed.cohort(), origin=(x, y), outer=outer, inner=inner))

    def step_of(self, work: str, step: float) -> Callable[[Client], float | Tensor]:
        """Return a function that maps a client to its local step size.

        With ``divided``, it is the step size divided by the client's number of local steps.

        Args:
            work: The name of the client's samples, ``inner`` or ``outer``.
            step: The step size, alpha or beta.
        """
        return lambda client: step / client.own_steps(work).clamp(min=1).double() if self.divided else step


def estimate(inverse: str, N: int, l: float, problem: Bilevel, fed: Round) -> tuple[int, Inverse]:
    """Return the number of Hessian-vector products of an estimate, and the function that estimates H^-1 b with them.

    The number is uniformly random in 0..N-1 for the randomised estimate, and N for the other estimates. It is 0 if the problem
    needs no products.

    Args:
        inverse: The estimate: ``randomised``, ``truncated`` or ``cg``.
        N: The number of terms of the Neumann series, or of steps of conjugate gradients.
        l: The inverse of the step size of the Neumann series.
        problem: The problem.
        fed: The round, which determines the random number.
    """
    products = int(fed.rng(Purpose.ESTIMATOR).integers(N)) if inverse == "randomised" else N
    of_b: dict[str, Inverse] = {
        "randomised": partial(neumann_term, N=N, l=l, chosen=products),
        "truncated": partial(neumann_sum, N=N, l=l),
        "cg": partial(conjugate_gradients, N=N),
    }
    return products if problem.indirect and not problem.identity else 0, of_b[inverse]


def h_i(client: Client, message: Tensors) -> Tensor:
    """Return the client's hypergradient on its sample ``anchor``, ``[dx]``. The mean over clients is the anchor h [Alg. 2].

    Args:
        client: The client.
        message: (x, y, p), where p estimates [grad^2_yy g]^-1 grad_y f, or (x, y) if grad_y f is zero.
    """
    (x, y, *p), xi = message, client.sample("anchor")
    f_x = client.outer_gradient_x(x, y, xi)
    return f_x - client.cross_product(x, y, p[0], xi) if p else f_x


def svrg_steps(alpha: Callable[[Client], float | Tensor]) -> Callable[[Client, Tensors], Tensor]:
    """Return the client function of the local outer steps with SVRG [Alg. 2].

    Its message is (x, y, h) with the anchor h, and its answer is the client's x after the steps.

    Args:
        alpha: A function that maps a client to its step size.
    """

    def local_steps(client: Client, message: Tensors) -> Tensor:
        (x, y, h), alpha_i = message, alpha(client)

        def step(x_i: Tensor, xi: Sample) -> Tensor:
            h_i_nu = client.outer_gradient_x(x_i, y, xi) - client.outer_gradient_x(x, y, xi) + h
            return moved(x_i, h_i_nu, alpha_i)

        # h_i_nu = h where x_i = x
        return client.scan("outer", step, unless_late(client, "outer", moved(x, h, alpha_i), x), skip=1)

    return local_steps


def unless_late(client: Client, work: str, after: Tensor, before: Tensor) -> Tensor:
    """Return the point after a client's first local step, or the point before it if the client takes no step.

    Args:
        client: The client.
        work: The name of the client's samples, which determine its number of steps.
        after: The point after the step.
        before: The point before the step.
    """
    return torch.where(client.own_steps(work) > 0, after, before)


def inner_steps(client: Client, x: Tensor, y: Tensor, q: Tensor | None = None, *, beta: float | Tensor) -> Tensor:
    """Run the client's inner steps on g_i(x, .) from y on its samples ``inner``, and return the new y, ``[dy]``.

    Args:
        client: The client.
        x: The outer variable, ``[dx]``.
        y: The initial point, ``[dy]``.
        q: The anchor at y for SVRG, ``[dy]``. None: SGD.
        beta: The step size.
    """
    client = client.hold(x)  # values that depend only on x are then computed once

    def sgd(y_i: Tensor, zeta: Sample) -> Tensor:
        return client.inner_step_(x, y_i, zeta, beta)

    def svrg(y_i: Tensor, zeta: Sample) -> Tensor:
        # y_i - beta q_i_nu, q_i_nu = grad_y g_i(x, y_i; zeta) - grad_y g_i(x, y; zeta) + q
        return client.inner_step_(x, y_i, zeta, beta, q, anchor=y)

    if q is None:
        return client.scan("inner", sgd, y)
    # q_i_nu = q where y_i = y
    return client.scan("inner", svrg, unless_late(client, "inner", client.project(moved(y, q, beta)), y), skip=1)


def hypergradient_descent(client: Client, x: Tensor, y: Tensor, alpha: float | Tensor, inverse: Inverse) -> Tensor:
    """Take the client's outer steps along its hypergradients, one step for each sample of ``outer``; return the new x, ``[dx]``.

    Args:
        client: The client.
        x: The initial point, ``[dx]``.
        y: The inner variable, ``[dy]``.
        alpha: The step size.
        inverse: The function that estimates H^-1 b; see `estimate`.
    """

    def step(x_i: Tensor, xi: Sequence[Sample]) -> Tensor:
        return moved(x_i, client.hypergradient(x_i, y, xi, inverse), alpha)

    return client.scan("outer", step, x)
