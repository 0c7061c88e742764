"""Single-machine first-order bilevel methods, which pull y towards the minimiser of g: F2SA [Kwon et al. 2023] and BOME [Ye et
al. 2022]. No second derivative is taken.

The server has all variables, and clients answer with gradients at the points that it sends. All answers are linear in f_i and g_i,
so the iterates are the same as on a single machine with the data of all clients. With one client, they are the papers' methods.

Explained in docs/algorithms/value_function.md.

Notation
    y, s          in F2SA, the approximate minimisers of f + lam g and of g
    y_n           in BOME, the point after n gradient steps on g from y
    q             in BOME, the function q(x, y) = g(x, y) - g(x, y_n), whose gradient is taken with y_n held constant
    eta_x, ...    the step sizes of x, of y and, in F2SA, of s
    lam           the coefficient of the penalty
    xi, zeta      two samples of each client, which are independent of each other and of all other samples
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Round, Steps
from fedopt.problems import Bilevel
from fedopt.toolbox import Tensors, Vectors, inner_gradient


class Penalised(NamedTuple):
    x: Tensor
    y: Tensor
    s: Tensor
    lam: Tensor


@dataclass(frozen=True)
class F2SA:
    """F2SA: n steps of y and s, which approach the minimisers of f + lam g and of g, followed by one step of x.

        n times   y -= eta_y (grad_y f + lam grad_y g)(x, y),   s -= eta_s grad_y g(x, s)
        then      x -= eta_x (grad_x f(x, y) + lam (grad_x g(x, y) - grad_x g(x, s))),   lam += delta

    Args:
        eta_x: The step size of x.
        eta_y: The step size of y.
        eta_s: The step size of s.
        lam: The penalty in the first round.
        delta: The increase of the penalty in each round. With a constant penalty, the limit has an error of O(1 / lam).
        n: The number of inner steps per round.
        B: The batch size. None: all examples of the client.

    Unverified: reconstructed without the paper's text. In the paper, the step size of x decays with the power 5/7 of the round;
    by default, the power here is 4/7, as in the public code benchmark_bilevel. That code takes the gradients of f at s instead
    of y and lets lam eta_y grow like t^(1/7), so it must diverge eventually.
    """

    eta_x: Schedule
    eta_y: Schedule
    eta_s: Schedule
    lam: PositiveFloat
    delta: Schedule
    n: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Bilevel,)
    first_order: ClassVar = True

    def init(self, problem: Bilevel) -> Penalised:
        x, y = problem.start()
        return Penalised(x, y, y, torch.tensor(self.lam, dtype=x.dtype))  # on the CPU, where every step reads it

    def step(self, state: Penalised, problem: Bilevel, fed: Round) -> Penalised:
        (x, y, s, _), lam = state, float(state.lam)
        S, samples = fed.cohort(), Steps(1, self.B, samples=2)
        eta_x, eta_y, eta_s = self.eta_x(fed.r), self.eta_y(fed.r), self.eta_s(fed.r)
        pulled = problem.indirect  # if false, grad_y f is zero at y*(x), and y needs no pull towards it

        def inner(client: Client, point: Tensors) -> Tensors:
            (x, y, s), (xi, zeta) = point, client.sample("xi")
            D_y = lam * client.inner_gradient(x, y, xi)
            return D_y + client.outer_gradient_y(x, y, xi) if pulled else D_y, client.inner_gradient(x, s, zeta)

        def outer(client: Client, point: Tensors) -> Tensor:
            (x, y, s), (xi, zeta) = point, client.sample("xi")
            change = client.inner_gradients(x, y, xi)[0] - client.inner_gradients(x, s, zeta)[0]
            return client.outer_gradient_x(x, y, xi) + lam * change

        for _ in range(self.n):
            D_y, D_s = fed.exchange(inner, (x, y, s), S, xi=samples)
            y, s = problem.project(y - eta_y * D_y), problem.project(s - eta_s * D_s)
        x = x - eta_x * fed.exchange(outer, (x, y, s), S, xi=samples)
        return Penalised(x, y, s, state.lam + self.delta(fed.r))

    def output(self, state: Penalised) -> Tensors:
        return state.x, state.y


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class BOME:
    """BOME: n steps from y to y_n, followed by one step of x and y.

        (x, y) -= steps (grad f + lam grad q),    q(x, y) = g(x, y) - g(x, y_n)
        lam = max(phi - <grad f, grad q>, 0) / |grad q|^2,    phi = eta |grad q|^2

    So q decreases at a rate of at least phi. The solution is not a fixed point, because grad q = 0 at the solution, and grad_y f
    moves y away from y*(x).

    Args:
        eta_x: The step size of x.
        eta_y: The step size of y, also for the n steps to y_n.
        eta: The factor in phi.
        n: The number of steps from y to y_n.
        B: The batch size. None: all examples of the client, as in the paper, which uses exact gradients. With smaller batches, the
            ratio in lam is biased.

    It follows the public code benchmark_bilevel, whose phi uses the gradient. It has not been compared with the paper's text.
    """

    eta_x: Schedule
    eta_y: Schedule
    eta: NonNegativeFloat
    n: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Bilevel,)
    first_order: ClassVar = True

    def init(self, problem: Bilevel) -> Point:
        return Point(*problem.start())

    def step(self, state: Point, problem: Bilevel, fed: Round) -> Point:
        (x, y), S, xi = state, fed.cohort(), Steps(1, self.B)
        eta_x, eta_y, y_n = self.eta_x(fed.r), self.eta_y(fed.r), state.y

        def gradients(client: Client, point: Tensors) -> tuple[Vectors, Vectors]:
            (x, y, y_n), xi = point, client.sample("xi")
            (g_x, g_y), (g_x_n, _) = client.inner_gradients(x, y, xi), client.inner_gradients(x, y_n, xi)
            return Vectors(client.outer_gradients(x, y, xi)), Vectors((g_x - g_x_n, g_y))

        for _ in range(self.n):
            y_n = problem.project(y_n - eta_y * fed.exchange(inner_gradient, (x, y_n), S, xi=xi))
        f, q = fed.exchange(gradients, (x, y, y_n), S, xi=xi)
        d = f + self.penalty(f, q) * q
        return Point(x - eta_x * d[0], problem.project(y - eta_y * d[1]))

    def penalty(self, f: Vectors, q: Vectors) -> Tensor:
        """Return the coefficient lam of the penalty in BOME, a scalar; 0 if grad q is 0.

        Args:
            f: The gradients of f with respect to x and y.
            q: The gradients of q(x, y) = g(x, y) - g(x, y_n) with respect to x and y.
        """
        square = sum((q_n @ q_n for q_n in q), 0 * q[0].sum())
        product = sum((f_n @ q_n for f_n, q_n in zip(f, q, strict=True)), 0 * square)
        return torch.where(square > 0, (self.eta * square - product).clamp(min=0) / square, 0.0)

    def output(self, state: Point) -> Tensors:
        return state
