"""FedNest and its family: alternating local steps for the inner and the outer problem [Tarzanagh et al. 2022, Alg. 1-6, App. H.1].

Notation
    G_i(y) = grad_y g_i(x, y)              F_i(x) = grad_x f_i(x, y)
    q = mean G_i(y), h                     the anchors of the inner and of the outer local steps
    p                                      an estimate of [grad^2_yy g]^-1 grad_y f (FedIHGP)
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import ConfigDict, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import exchange, size_in_bytes
from fedopt.oracles import (
    cross_product,
    inner_gradient,
    inner_hessian,
    inverse_product,
    local_hypergradient,
    local_samples,
    outer_gradient_x,
    outer_gradient_y,
)
from fedopt.problems.classes import Bilevel
from fedopt.randomness import Purpose
from fedopt.schedules import Schedule, check_either

Pair = tuple[Tensor, Tensor]


class State(NamedTuple):
    r: int
    x: Tensor
    y: Tensor


def one_sample(oracle: Callable[..., Tensor], problem: Bilevel) -> Callable[[Client, Pair], Tensor]:
    """A client's answer to (x, y): the oracle there."""
    return lambda client, message: oracle(problem, *message, client.sample())


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FedNest:
    """alpha, beta: steps of x and y; T: inner rounds.

    tau_in, E_in: local inner steps, or epochs of them; tau_out, E_out: local outer steps, or epochs.
    N: terms of the Neumann series, or steps of conjugate gradients; 1/l: the Neumann step.
    B: examples for an inner step; B_anchor: for q; B_out: for all that the outer part evaluates; null for all a client has.
    inner, outer: svrg (FedInn, FedOut) or sgd (LFedInn, LFedOut).
    anchor: who computes q, the cohort or all clients.
    inverse: randomised, one term of the series (the paper's); truncated, the sum of 1 + N; cg, conjugate gradients, which take H to
        be the same in every product: with cohorts=one and B_out=null it is.
    cohorts: fresh, a new cohort for each exchange of FedIHGP, or one.
    alternating: False is LFedNest-NonAlt: a client's inner steps, then its outer steps on its own y_i, in one exchange.
    """

    alpha: Schedule
    beta: Schedule
    T: PositiveInt
    tau_in: PositiveInt | None
    E_in: PositiveInt | None
    tau_out: PositiveInt | None
    E_out: PositiveInt | None
    B: PositiveInt | None
    B_anchor: PositiveInt | None
    B_out: PositiveInt | None
    N: PositiveInt
    l: PositiveFloat
    inner: Literal["svrg", "sgd"]
    outer: Literal["svrg", "sgd"]
    anchor: Literal["cohort", "all"]
    inverse: Literal["randomised", "truncated", "cg"]
    cohorts: Literal["fresh", "one"]
    alternating: bool

    solves: ClassVar = (Bilevel,)

    def __post_init__(self) -> None:
        for steps, epochs in (("tau_in", "E_in"), ("tau_out", "E_out")):
            check_either(self, steps, epochs)
        if not self.alternating and (self.inner, self.outer, self.T, self.E_out) != ("sgd", "sgd", 1, None):
            raise ValueError("alternating=false goes with inner=sgd, outer=sgd, T=1 and tau_out")
        if not self.alternating and self.B_out != self.B:
            raise ValueError("alternating=false draws all samples at once: B_out must be B")

    def init(self, problem: Bilevel, fed: Federation) -> State:
        return State(0, *problem.start())

    def step(self, s: State, problem: Bilevel, fed: Federation) -> State:
        x, y = s.x, s.y
        alpha, beta = self.alpha(s.r), self.beta(s.r)
        if not self.alternating:
            return State(s.r + 1, *self._non_alternating(x, y, alpha, beta, problem, fed))
        inner = self._fed_inn if self.inner == "svrg" else self._lfed_inn
        outer = self._fed_out if self.outer == "svrg" else self._lfed_out
        for _ in range(self.T):
            y = inner(x, y, beta, problem, fed)
        return State(s.r + 1, outer(x, y, alpha, problem, fed), y)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return s.x, s.y

    def _fed_inn(self, x: Tensor, y: Tensor, beta: float, problem: Bilevel, fed: Federation) -> Tensor:
        """Alg. 4."""

        def local_steps(client: Client, message: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            x, y, q = message

            def step(y_i: Tensor, zeta: Any) -> Tensor:
                correction = q - inner_gradient(problem, x, y, zeta)
                return problem.project(client.inner_gradient_step(x, y_i, zeta, beta, correction))

            return client.hold(x).scan(
                step, problem.project(y.sub(q, alpha=beta)), first=1
            )  # y_i = y at first: q_i = q

        S = fed.cohort()
        anchored = fed.everyone() if self.anchor == "all" else S
        draws = Minibatches(self.B_anchor, split=problem.g_split)
        q = fed.round(one_sample(inner_gradient, problem), (x, y), anchored, draws)
        return fed.round(local_steps, (x, y, q), S, self._inner_draws(problem))

    def _lfed_inn(self, x: Tensor, y: Tensor, beta: float, problem: Bilevel, fed: Federation) -> Tensor:
        """Alg. 6."""

        def local_steps(client: Client, message: Pair) -> Tensor:
            x, y = message
            return client.hold(x).scan(self._inner_step(client, problem, x, beta), y)

        return fed.round(local_steps, (x, y), fed.cohort(), self._inner_draws(problem))

    def _fed_out(self, x: Tensor, y: Tensor, alpha: float, problem: Bilevel, fed: Federation) -> Tensor:
        """Alg. 2."""

        def hypergradient(client: Client, message: tuple[Tensor, ...]) -> Tensor:
            x, y, *p = message
            xi = client.sample()
            direct = outer_gradient_x(problem, x, y, xi) if problem.direct else torch.zeros_like(x)
            return direct - cross_product(problem, x, y, p[0], xi) if p else direct

        def local_steps(client: Client, message: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            x, y, h = message

            def step(x_i: Tensor, xi: Any) -> Tensor:
                if not problem.direct:
                    return x_i.sub(h, alpha=alpha)
                h_i = outer_gradient_x(problem, x_i, y, xi) - outer_gradient_x(problem, x, y, xi) + h
                return x_i.sub(h_i, alpha=alpha)

            return client.scan(step, x.sub(h, alpha=alpha), first=1)  # x_i = x at first: h_i = h

        S = fed.cohort()
        p = (self._fed_ihgp(x, y, S, problem, fed),) if problem.indirect else ()
        h = fed.round(hypergradient, (x, y, *p), S, Minibatches(self.B_out))
        return fed.round(local_steps, (x, y, h), S, self._outer_draws(problem))

    def _fed_ihgp(self, x: Tensor, y: Tensor, S: Any, problem: Bilevel, fed: Federation) -> Tensor:
        """Alg. 3: every product with the Hessian is an exchange."""

        def product(client: Client, message: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            x, y, p = message
            return inner_hessian(problem, x, y, client.sample())(p)

        def mean_product(p: Tensor, n: int) -> Tensor:
            return fed.round(product, (x, y, p), cohort(), Minibatches(self.B_out, split=problem.g_split))

        def cohort() -> Any:
            return fed.cohort() if self.cohorts == "fresh" else S

        draws = Minibatches(self.B_out, split=problem.f_split)
        b = fed.round(one_sample(outer_gradient_y, problem), (x, y), cohort(), draws)
        if problem.identity:
            return b
        return inverse_product(self.inverse, self.N, self.l, self._products(problem, fed))(mean_product, b)

    def _lfed_out(self, x: Tensor, y: Tensor, alpha: float, problem: Bilevel, fed: Federation) -> Tensor:
        """Alg. 5. (It prints grad_x f as the last factor: it is grad_y f.)"""
        products = self._products(problem, fed)
        samples = local_samples(problem, products)

        def local_steps(client: Client, message: Pair) -> Tensor:
            x, y = message
            return client.scan(self._outer_step(problem, y, alpha, products), x, samples=samples)

        return fed.round(local_steps, (x, y), fed.cohort(), self._local_outer_draws(problem, samples))

    def _non_alternating(
        self, x: Tensor, y: Tensor, alpha: float, beta: float, problem: Bilevel, fed: Federation
    ) -> Pair:
        """LFedNest-NonAlt [App. H.1]."""
        products = self._products(problem, fed)
        samples = local_samples(problem, products)
        draws = self._non_alternating_draws(samples)

        def local_steps(client: Client, message: Pair) -> Pair:
            x, y = message
            y_i = client.hold(x).scan(self._inner_step(client, problem, x, beta), y, first=draws.extra)
            outer_step = self._outer_step(problem, y_i, alpha, products)
            return client.scan(outer_step, x, last=draws.extra, samples=samples), y_i

        return fed.round(local_steps, (x, y), fed.cohort(), draws)

    def _inner_step(self, client: Client, problem: Bilevel, x: Tensor, beta: float) -> Callable[..., Tensor]:
        return lambda y_i, zeta: problem.project(client.inner_gradient_step(x, y_i, zeta, beta))

    def _outer_step(self, problem: Bilevel, y: Tensor, alpha: float, products: int) -> Callable[..., Tensor]:
        """With the client's own Hessian."""
        inverse = inverse_product(self.inverse, self.N, self.l, products)
        return lambda x_i, *xi: x_i.sub(local_hypergradient(problem, x_i, y, xi, inverse), alpha=alpha)

    def _products(self, problem: Bilevel, fed: Federation) -> int:
        """How many Hessian-vector products the estimate takes: N', uniform in 0..N-1, for the randomised one, else N."""
        if problem.identity or not problem.indirect:
            return 0
        return int(fed.rng(Purpose.ESTIMATOR).integers(self.N)) if self.inverse == "randomised" else self.N

    def _inner_draws(self, problem: Bilevel) -> Minibatches:
        return Minibatches(self.B, self.tau_in or 1, self.E_in, split=problem.g_split)

    def _outer_draws(self, problem: Bilevel) -> Minibatches:
        return Minibatches(self.B_out, self.tau_out or 1, self.E_out, split=problem.f_split)

    def _local_outer_draws(self, problem: Bilevel, samples: int) -> Minibatches:
        """samples: of a step."""
        epochs = None if self.E_out is None else self.E_out * samples
        return Minibatches(self.B_out, (self.tau_out or 1) * samples, epochs, passes=problem.f_split)

    def _non_alternating_draws(self, samples: int) -> Minibatches:
        return Minibatches(self.B, self.tau_in or 1, self.E_in, extra=(self.tau_out or 1) * samples)

    def cost(self, s: State, problem: Bilevel, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        M, m = problem.clients, fed.cohort_size
        products, indirect, direct = self._products(problem, fed), problem.indirect, problem.direct
        samples = local_samples(problem, products)
        X, Y = (size_in_bytes(v) for v in (s.x, s.y))

        def steps(draws: Minibatches, extra: int = 0) -> int:  # of the next cohort, over all its clients
            return int(draws.steps_of(problem.splits, fed.cohort()).sum()) - m * extra

        total: Counter[str] = Counter()

        def add(*of_exchange: int, **calls: int) -> None:
            total.update(exchange(*of_exchange, **calls))

        if not self.alternating:
            draws = self._non_alternating_draws(samples)
            inner, outer = steps(draws, draws.extra), m * (self.tau_out or 1)
            add(m, X + Y, X + Y, inner + outer, outer * products, outer * indirect)
            return total
        for _ in range(self.T):
            if self.inner == "sgd":
                add(m, X + Y, Y, steps(self._inner_draws(problem)))
            else:
                local = 2 * (steps(self._inner_draws(problem)) - m)
                clients = M if self.anchor == "all" else m
                add(clients, X + Y, Y, clients)
                add(m, X + 2 * Y, Y, local)
        if self.outer == "sgd":
            local = steps(self._local_outer_draws(problem, samples)) // samples
            add(m, X + Y, X, local, local * products, local * indirect)
            return total
        local = 2 * (steps(self._outer_draws(problem)) - m) * direct
        if indirect:
            add(m, X + Y, Y, m)
        for _ in range(products):
            add(m, X + 2 * Y, Y, hvp=m)
        add(m, X + Y * (1 + indirect), X, m * direct, jvp=m * indirect)
        add(m, 2 * X + Y, X, local)
        return total
