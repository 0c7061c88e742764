"""The reductions between classes of problems; the oracles against dense derivatives."""

import re
import runpy
from functools import partial

import numpy as np
import pytest
import torch
from support.command import ROOT
from support.derivatives import F64, central_differences, normal, quadratic, two_levels, whole
from torch.autograd.functional import hessian, jacobian

from fedopt.algorithms.fedmsa import chain_maps
from fedopt.errors import UserError
from fedopt.federation import inverse
from fedopt.federation.client import Client
from fedopt.federation.counting import Calls
from fedopt.federation.draws import Steps
from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.federation.memory import Memory
from fedopt.federation.oracles import Oracles
from fedopt.federation.round import Federation
from fedopt.federation.samples import Share
from fedopt.problems.classes import (
    Bilevel,
    Compositional,
    Hierarchical,
    KnownOuter,
    Minimax,
    Minimisation,
    TwoLevel,
    class_of,
)
from fedopt.problems.function import function
from fedopt.problems.hyper_representation import HyperRepresentation
from fedopt.problems.loss_tuning import LossTuning
from fedopt.problems.reductions import (
    MinimaxAsBilevel,
    MinimisationAsBilevel,
    MinimisationAsCompositional,
    TwoLevelAsBilevel,
    covered,
    reduce,
)
from fedopt.problems.supervised import SupervisedBilevel
from fedopt.testing.harness import pairs, small, steps
from fedopt.toolbox import bilevel_maps

pytestmark = pytest.mark.smoke

# Reductions


class Toy:
    """The parts of a problem that these tests do not use: a sample is whatever it is given."""

    splits = {}  # noqa: RUF012
    metrics = ()

    def __init__(self):
        super().__init__(world=None)

    def start(self):
        return (torch.full((3,), 2.0, dtype=F64),)

    def sample(self, client, rows):
        return rows

    def evaluate(self, *point):
        return {"first": float(point[0][0]), "variables": len(point)}


class ToySaddle(Toy, Minimax):
    """f_i = -(1/2 |y|^2 - b_i'y + y'A_i x) + lam/2 |x|^2; a sample is (A_i, b_i)."""

    lam = 3.0

    def start(self):
        return torch.ones(3, dtype=F64), torch.zeros(4, dtype=F64)

    def f(self, x, y, sample):
        A, b = sample
        return -(0.5 * y @ y - b @ y + y @ (A @ x)) + 0.5 * self.lam * x @ x


class TwoLevels(Toy, TwoLevel):
    """f_i^0(x) = tanh(A_i x), f_i^1(y) = 1/2 |y - b_i|^4; a sample is (A_i, b_i)."""

    dims = (3, 4)

    def level(self, n, z, sample):
        A, b = sample
        return torch.tanh(A @ z) if n == 0 else 0.5 * torch.sum((z - b) ** 2) ** 2


@pytest.fixture
def clients():
    """Five of them: A_i and b_i."""
    return list(zip(normal(5, 4, 3, seed=1), normal(5, 4, seed=2), strict=True))


def mean_over(clients, fn):
    return sum(fn(sample) for sample in clients) / len(clients)


def hypergradient(p, x, y, clients):
    """Of a bilevel problem with dense matrices: grad_x f - grad^2_xy g [grad^2_yy g]^-1 grad_y f, of the means."""

    def f(x, y):
        return mean_over(clients, lambda s: p.f(x, y, s))

    def g(x, y):
        return mean_over(clients, lambda s: p.g(x, y, s))

    f_x, f_y = jacobian(f, (x, y))
    (_, cross), (_, yy) = hessian(g, (x, y))
    return f_x - cross @ torch.linalg.solve(yy, f_y), cross, yy


def test_minimax_as_bilevel(clients):
    p = MinimaxAsBilevel(ToySaddle())
    x = normal(3, seed=3)
    A, b = (mean_over(clients, lambda s, j=j: s[j]) for j in (0, 1))
    y = b - A @ x  # the maximiser
    for seed in range(3):  # g is least where f is largest
        step = 0.1 * normal(4, seed=seed)
        assert mean_over(clients, lambda s: p.g(x, y, s)) < mean_over(clients, lambda s, d=step: p.g(x, y + d, s))
    gradient, cross, yy = hypergradient(p, x, y, clients)
    # phi(x) = max_y f = 1/2 |b - A x|^2 + lam/2 |x|^2
    torch.testing.assert_close(gradient, -A.T @ (b - A @ x) + 3.0 * x)
    torch.testing.assert_close(yy, torch.eye(4, dtype=F64))
    torch.testing.assert_close(cross, A.T)
    assert [len(v) for v in p.start()] == [3, 4]
    assert p.evaluate(x, y) == {"first": float(x[0]), "variables": 2}


def test_two_levels_as_bilevel(clients):
    p = TwoLevelAsBilevel(TwoLevels())
    x = normal(3, seed=3)
    matrices, targets = (np.stack([s[j].numpy() for s in clients]) for j in (0, 1))

    def inner(x):
        return np.tanh(matrices @ np.asarray(x)).mean(0)

    def composed(x):
        return np.mean([0.5 * np.sum((inner(x) - b) ** 2) ** 2 for b in targets])

    y = torch.from_numpy(inner(x))
    gradient, cross, yy = hypergradient(p, x, y, clients)
    np.testing.assert_allclose(gradient, central_differences(composed, x), rtol=1e-6)
    torch.testing.assert_close(yy, torch.eye(4, dtype=F64))
    np.testing.assert_allclose(cross, -central_differences(inner, x).T, rtol=1e-6, atol=1e-9)
    inner_gradient = central_differences(lambda y: mean_over(clients, lambda s: p.g(x, y, s)), y)
    np.testing.assert_allclose(inner_gradient, 0, atol=1e-8)

    # The oracle says the same of one client: Hessian I, cross derivative -J'.
    sample = clients[0]
    v = normal(4, seed=4)
    client = Oracles(p)
    grad_y = client.inner_gradient(x, y, sample)
    cross_v, hessian_v = client.cross_product(x, y, v, sample), client.inner_hessian(x, y, sample)(v)
    J = central_differences(lambda x: np.tanh(matrices[0] @ np.asarray(x)), x)
    np.testing.assert_allclose(grad_y, y.numpy() - np.tanh(matrices[0] @ x.numpy()), rtol=1e-12)
    np.testing.assert_allclose(cross_v, -J.T @ v.numpy(), rtol=1e-6)
    torch.testing.assert_close(hessian_v, v)

    assert [variable.tolist() for variable in p.start()] == [[2.0] * 3, [0.0] * 4]
    assert p.evaluate(x, y) == {"first": float(x[0]), "variables": 2}  # the original ignores what is not its own
    of_quadratic = TwoLevelAsBilevel(two_levels())
    assert of_quadratic.evaluate(x, normal(5, seed=4)) == of_quadratic.original.evaluate(x)


class Minimised(Toy, Minimisation):
    """f(x) = sum(a x^3)."""

    def f(self, x, sample):
        return torch.sum(sample * x**3)


def test_minimisation_as_one_level():
    p = MinimisationAsCompositional(Minimised())
    a, x = normal(3, seed=1), normal(3, seed=2)
    assert p.dims == (3,)
    assert float(p.level(0, x, a)) == pytest.approx(float(np.sum(a.numpy() * x.numpy() ** 3)))
    (gradient,) = chain_maps(Oracles(p), (x,), [a])
    torch.testing.assert_close(gradient, 3 * a * x**2)


def test_minimisation_without_an_inner_problem():
    p = MinimisationAsBilevel(Minimised())
    a, (x, y) = normal(3, seed=1), p.start()
    x = normal(3, seed=2)
    client = Oracles(p)
    assert y.shape == client.inner_gradient(x, y, a).shape == (0,)
    torch.testing.assert_close(client.outer_gradient_x(x, y, a), 3 * a * x**2)
    assert [gradient.shape for gradient in client.inner_gradients(x, y, a)] == [x.shape, y.shape]
    assert client.inner_hessian(x, y, a)(y).shape == y.shape
    torch.testing.assert_close(client.cross_product(x, y, y, a), torch.zeros_like(x))
    assert client._counter.calls == Calls(grad=1)
    assert p.hypergradient_samples(0) == 1


def test_which_reduction():
    saddle, two, one = ToySaddle(), TwoLevels(), Minimised()
    assert reduce(two, (Compositional, Bilevel)) is two
    for problem, solves, expected in [
        (saddle, (Bilevel,), MinimaxAsBilevel),
        (two, (Bilevel,), TwoLevelAsBilevel),
        (one, (Bilevel, Compositional), MinimisationAsCompositional),
        (one, (Bilevel,), MinimisationAsBilevel),
    ]:
        reduced = reduce(problem, solves)
        assert type(reduced) is expected
        assert reduced.original is problem
        assert reduced.splits is problem.splits
    with pytest.raises(UserError, match=r"solves .*minimisation problems, and ToySaddle is minimax"):
        reduce(saddle, (Minimisation,))
    with pytest.raises(UserError, match=r"solves bilevel, .*two_level problems, and Chain is compositional"):
        reduce(Chain(3), (Bilevel,))
    assert [class_of(p) for p in (saddle, two, Minimised, MinimaxAsBilevel)] == [
        Minimax,
        TwoLevel,
        Minimisation,
        Bilevel,
    ]
    assert covered((Bilevel,)) == {"bilevel", "minimax", "two_level", "known_outer", "minimisation", "conditional"}
    assert covered((Bilevel, Compositional)) == covered((Bilevel,)) | {"compositional"}
    assert covered((KnownOuter,)) == {"known_outer"}
    assert covered((Hierarchical,)) == {"hierarchical"}


# Oracles against dense derivatives. Each is asked for four clients, one after another and stacked by vmap.

STACK = 4


def both_ways(p, fn, *stacked):
    """fn(oracles of p, a client's arguments) of every client, [(answers of all clients, calls)] of a loop and of vmap."""
    loop, vmapped = Calls(), Calls()
    answers = [fn(Oracles(p, loop), *arguments) for arguments in zip(*stacked, strict=True)]
    at_once = torch.func.vmap(partial(fn, Oracles(p, vmapped, STACK)))(*stacked)
    return [(tuple(torch.stack(answer) for answer in zip(*answers, strict=True)), loop), (at_once, vmapped)]


def assert_both_ways(p, fn, dense, calls, *stacked):
    expected = [dense(*arguments) for arguments in zip(*stacked, strict=True)]
    for answers, counted in both_ways(p, fn, *stacked):
        assert counted == calls
        for got, *wanted in zip(answers, *expected, strict=True):
            torch.testing.assert_close(got, torch.stack(wanted), rtol=1e-10, atol=1e-12)
            assert not got.requires_grad


class Network(Toy, Bilevel):
    """A 3-4-1 network w ([16]) on inputs scaled by x ([3]); a sample is (inputs [B, 3], targets [B])."""

    def output(self, w, inputs):
        return torch.tanh(inputs @ w[:12].view(4, 3).T) @ w[12:]

    def f(self, x, w, sample):
        inputs, targets = sample
        return torch.mean(torch.cos(self.output(w, inputs + x) - targets)) + torch.sum(x**3) * w[0]

    def g(self, x, w, sample):
        inputs, targets = sample
        ridge = torch.exp(x[0]) + 1
        return 0.5 * torch.mean((self.output(w, inputs * x) - targets) ** 2) + 0.5 * ridge * torch.sum(w**2)


class Flat(Toy, Bilevel):
    """What has no derivative of some kind: g = w'Bx is linear in w, f = c'w does not know x; a sample is (B, c)."""

    def f(self, x, w, sample):
        return sample[1] @ w

    def g(self, x, w, sample):
        return w @ (sample[0] @ x)


class Unconcerned(Network):
    """f knows neither variable, g does not know x."""

    def f(self, x, w, sample):
        return sample[1].sum()

    def g(self, x, w, sample):
        return torch.mean(self.output(w, sample[0]) ** 2)


class Constants(Flat):
    """f knows neither variable, and the gradient of g is constant."""

    def f(self, x, w, sample):
        return sample[1].sum()

    def g(self, x, w, sample):
        return sample[1] @ w


BILEVEL = [
    (Network(), 3, 16, normal(STACK, 6, 3, seed=5), normal(STACK, 6, seed=6)),
    (Flat(), 3, 2, normal(STACK, 2, 3, seed=5), normal(STACK, 2, seed=6)),
    (Constants(), 3, 2, normal(STACK, 2, 3, seed=5), normal(STACK, 2, seed=6)),
    (Unconcerned(), 3, 16, normal(STACK, 6, 3, seed=5), normal(STACK, 6, seed=6)),
]


def dense_bilevel(p, x, w, sample):
    def zero(grad, like):
        return torch.zeros_like(like) if grad is None else grad

    x, w = (v.clone().requires_grad_() for v in (x, w))
    value = p.f(x, w, sample)
    f = torch.autograd.grad(value, (x, w), allow_unused=True) if value.requires_grad else (None, None)
    g_w = jacobian(lambda w: p.g(x.detach(), w, sample), w.detach())
    (_, cross), (_, yy) = hessian(lambda x, w: p.g(x, w, sample), (x.detach(), w.detach()))
    return zero(f[0], x).detach(), zero(f[1], w).detach(), g_w, cross, yy


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize(("p", "dx", "dw", "first", "second"), BILEVEL)
def test_msa_maps_of_bilevel_problems(p, dx, dw, first, second, damping):
    def maps(client, x, w, v, *sample):
        return tuple(bilevel_maps(client, (x, w, v), sample, damping))

    def dense(x, w, v, *sample):
        f_x, f_w, g_w, cross, ww = dense_bilevel(p, x, w, sample)
        return f_x - cross @ v, g_w, ww @ v + damping * v - f_w

    variables = (normal(STACK, size, seed=j) for j, size in enumerate((dx, dw, dw)))
    calls = Calls(grad=2 * STACK, hvp=STACK, jvp=STACK)
    assert_both_ways(p, maps, dense, calls, *variables, first, second)


@pytest.mark.parametrize(("p", "dx", "dw", "first", "second"), BILEVEL)
def test_gradients_and_products(p, dx, dw, first, second):
    def all_of_them(client, x, w, v, *sample):
        H = client.inner_hessian(x, w, sample)
        both = client.outer_gradients(x, w, sample)
        alone = client.outer_gradient_x(x, w, sample), client.outer_gradient_y(x, w, sample)
        inner = client.inner_gradient(x, w, sample), client.cross_product(x, w, v, sample)
        return *both, *alone, *inner, *client.inner_gradients(x, w, sample), H(v), H(torch.sin(v))

    def dense(x, w, v, *sample):
        f_x, f_w, g_w, cross, ww = dense_bilevel(p, x, w, sample)
        g_x = torch.autograd.functional.jacobian(lambda x: p.g(x, w, sample), x)
        return f_x, f_w, f_x, f_w, g_w, cross @ v, g_x, g_w, ww @ v, ww @ torch.sin(v)

    variables = (normal(STACK, size, seed=j) for j, size in enumerate((dx, dw, dw)))
    calls = Calls(grad=5 * STACK, hvp=2 * STACK, jvp=STACK)
    assert_both_ways(p, all_of_them, dense, calls, *variables, first, second)


def spd(dim, seed):
    A = normal(dim, dim, seed=seed)
    return A @ A.T / dim + torch.eye(dim, dtype=F64)


def test_estimators_of_the_inverse():
    """Against powers of a dense matrix: the sum, its terms, whose mean over the chosen number is the sum, and CG."""
    H, b, N, l = spd(6, seed=1), normal(6, seed=2), 5, 9.0
    powers = [torch.linalg.matrix_power(torch.eye(6, dtype=F64) - H / l, n) @ b / l for n in range(N + 1)]

    def product(v, n):
        return H @ v

    torch.testing.assert_close(inverse.neumann_sum(product, b, N, l), sum(powers))
    terms = [inverse.neumann_term(product, b, N, l, chosen) for chosen in range(N)]
    torch.testing.assert_close(sum(terms) / N, sum(powers[:N]))
    torch.testing.assert_close(inverse.conjugate_gradients(product, b, 6), torch.linalg.solve(H, b))
    torch.testing.assert_close(inverse.conjugate_gradients(product, b, 12), torch.linalg.solve(H, b))
    x1 = (b @ b) / (b @ H @ b) * b
    torch.testing.assert_close(inverse.conjugate_gradients(product, b, 1), x1)
    torch.testing.assert_close(inverse.conjugate_gradients(product, 0 * b, 3), 0 * b)
    torch.testing.assert_close(inverse.conjugate_gradients(lambda v, n: -v, b, 3), 0 * b)


def test_neumann_sum_takes_products_in_turn():
    """Of other samples: sum_q prod_{j <= q} (I - theta H_j) b, H_0 first [LocalBSG eq. 3.3]."""
    H, b, theta = [spd(4, seed=s) for s in range(3)], normal(4, seed=9), 0.1
    A = [torch.eye(4, dtype=F64) - theta * h for h in H]
    expected = theta * (b + A[0] @ b + A[1] @ A[0] @ b + A[2] @ A[1] @ A[0] @ b)
    torch.testing.assert_close(inverse.neumann_sum(lambda v, n: H[n] @ v, b, 3, 1 / theta), expected)


class Chain(Toy, Compositional):
    """f^n(z) = sin(A_n z) + b, the last one summed and squared; a sample is b, a number."""

    def __init__(self, N):
        super().__init__()
        self.dims = (3, 4, 2, 5)[: N + 1]
        sizes = (*self.dims[1:], 6)
        self.A = [normal(b, a, seed=n) for n, (a, b) in enumerate(zip(self.dims, sizes, strict=True))]

    def level(self, n, z, sample):
        out = torch.sin(self.A[n] @ z) + sample
        return torch.sum(out) ** 2 if n == len(self.dims) - 1 else out


@pytest.mark.parametrize("N", [0, 1, 3])
def test_msa_maps_of_chains(N):
    """Each level of a sample of its own."""
    p = Chain(N)

    def maps(client, b, *u):
        return tuple(chain_maps(client, u, list(b)))

    def dense(b, *u):
        product = jacobian(lambda z: p.level(N, z, b[N]), u[N])
        for n in reversed(range(N)):
            product = jacobian(lambda z, n=n: p.level(n, z, b[n]), u[n]).T @ product
        return product, *(u[n] - p.level(n - 1, u[n - 1], b[n - 1]) for n in range(1, N + 1))

    u = [normal(STACK, size, seed=10 + n) for n, size in enumerate(p.dims)]
    assert_both_ways(p, maps, dense, Calls(grad=STACK, jvp=N * STACK), normal(STACK, N + 1, seed=3), *u)


@pytest.mark.parametrize("N", [1, 3])
def test_msa_maps_of_a_consistent_chain_are_the_chain_rule(N):
    p, x, b = Chain(N), normal(3, seed=1), torch.tensor(0.3, dtype=F64)
    u = [x]
    for n in range(N):
        u.append(p.level(n, u[-1], b))

    def composed(x):
        for n in range(N + 1):
            x = p.level(n, x, b)
        return x

    gradient, *consistency = chain_maps(Oracles(p), u, [b] * (N + 1))
    np.testing.assert_allclose(gradient, central_differences(composed, x), rtol=1e-6, atol=1e-8)
    assert all(not s.any() for s in consistency)


class OwnGradient(Minimised):
    """Has a gradient of its own, which is twice that of f so that it shows, and a step, which is three times as long."""

    @function
    def f(self, x, sample):
        return super().f(x, sample)

    @f.gradient
    def f(self, x, sample):
        return 6 * sample * x**2

    @f.step
    def f(self, x, sample, eta, plus, anchor):
        return x.sub_(9 * sample * x**2, alpha=eta)


class Constant(Minimised):
    def f(self, x, sample):
        return sample.sum()


@pytest.mark.parametrize(("p", "factor"), [(Minimised(), 3), (OwnGradient(), 6), (Constant(), 0)])
def test_gradient(p, factor):
    def of_client(client, a, x):
        return (client.gradient(x, a),)

    a, x = normal(STACK, 3, seed=1), normal(STACK, 3, seed=2)
    assert_both_ways(p, of_client, lambda a, x: (factor * a * x**2,), Calls(grad=STACK), a, x)


def alone(problem, calls, rows):
    """Client 0, without draws."""
    return Client(problem, calls, {}, Share(0, torch.tensor(0), rows, {}, {}, None, None, None), hash)


def test_a_function_that_is_overridden_loses_what_was_written_for_it():
    """The gradient of another function would be a wrong result without a word."""

    class Sum(OwnGradient):
        def f(self, x, sample):
            return sample @ x

    class SumToo(Sum):
        pass

    class Decorated(OwnGradient):
        @function
        def f(self, x, sample):
            return sample @ x

    class OtherGradient(OwnGradient):
        @OwnGradient.f.gradient
        def f(self, x, sample):
            return a[0]

    class Half(HyperRepresentation):
        def f(self, x, y, sample):
            return 0.5 * HyperRepresentation.f(self, x, y, sample)

    class Weighted(HyperRepresentation):
        def g(self, x, y, sample):
            return x[0] * super().g(x, y, sample)

    a, x = normal(STACK, 3, seed=1), normal(STACK, 3, seed=2)
    for p in (Sum(), SumToo(), Decorated(), OtherGradient()):
        client = Oracles(p)
        assert torch.equal(client.gradient(x[0], a[0]), a[0])
        if not isinstance(p, OtherGradient):
            stepped = client.gradient_step_(client.gradient_step_(x[0], a[0], 1.0), a[0], 1.0)
            torch.testing.assert_close(stepped, x[0] - 2 * a[0])
    torch.testing.assert_close(Oracles(OwnGradient()).gradient(x[0], a[0]), 6 * a[0] * x[0] ** 2)
    p = small("fednest", "hyper_representation").problem
    assert all(hasattr(p.g, form) for form in ("gradient", "step"))
    assert hasattr(p, "hold")
    assert HyperRepresentation.g is LossTuning.g is SupervisedBilevel.g
    for cls, kept in ((Half, True), (Weighted, False)):
        p.__class__ = cls
        assert hasattr(p.g, "gradient") == hasattr(p.g, "step") == kept
        assert not hasattr(p, "hold")
        (x, y), rows = p.start(), {name: whole(split[0]) for name, split in p.splits.items()}
        client, sample = alone(p, Calls(), rows), p.sample(0, rows)
        assert client.hold(x) is client
        automatic = torch.func.grad(lambda y, p=p, x=x, sample=sample: p.g(x, y, sample))(y)
        torch.testing.assert_close(client.inner_gradient(x, y, sample), automatic)


@pytest.mark.parametrize("plus", [None, 0.3])
def test_steps_of_sgd(plus):
    """A step along a gradient, and something added to it; of a bilevel problem, along that of g."""
    a, x = normal(STACK, 3, seed=1), normal(STACK, 3, seed=2)

    def step(client, a, x):
        return (client.gradient_step_(x, a, 0.2, None if plus is None else plus * a),)

    def dense(a, x):
        return (x - 0.2 * (3 * a * x**2 + (plus or 0) * a),)

    assert_both_ways(Minimised(), step, dense, Calls(grad=STACK), a, x)
    p, dx, dw, first, second = BILEVEL[0]
    point = normal(STACK, dx, seed=3), normal(STACK, dw, seed=4)

    def inner_step(client, x, w, *sample):
        return (client.inner_step_(x, w, sample, 0.2),)

    def dense_inner(x, w, *sample):
        return (w - 0.2 * dense_bilevel(p, x, w, sample)[2],)

    assert_both_ways(p, inner_step, dense_inner, Calls(grad=STACK), *point, first, second)

    def anchored(client, x, w, *sample):
        return (client.inner_step_(x, w, sample, 0.2, plus and plus * w, anchor=2 * w),)

    def dense_anchored(x, w, *sample):
        difference = dense_bilevel(p, x, w, sample)[2] - dense_bilevel(p, x, 2 * w, sample)[2]
        return (w - 0.2 * (difference + (plus or 0) * w),)

    assert_both_ways(p, anchored, dense_anchored, Calls(grad=2 * STACK), *point, first, second)


def test_calls_count_for_all_of_a_stack():
    """Each with a counter of its own, or with none."""
    p, x, calls, others = Minimised(), torch.ones(3), Calls(), Calls()
    of_seven, of_two = Oracles(p, calls, 7), Oracles(p, others, 2)
    for client in (of_seven, of_two, of_seven, Oracles(p)):
        client.gradient(x, x)
    assert (calls, others) == (Calls(grad=14), Calls(grad=2))


@pytest.mark.parametrize("engine", [OneByOne(), Vectorised()])
def test_calls_count_for_those_who_still_work(engine):
    """Four clients with 1, 4, 2 and 0 local steps: a scan counts for those who take a step, and what follows it for all."""
    p = quadratic()

    def local_steps(client, message):
        x, y = message
        y = client.scan("local", lambda y, xi: y - 0.1 * client.inner_gradient(x, y, xi), y)
        client.cross_product(x, y, y, client.sample("last"))
        return y

    federation = Federation(p, engine, 0)
    fed = federation.at(0)
    draws = {"local": Steps(np.array([1, 4, 2, 0]), B=3), "last": Steps(B=2)}
    fed.exchange(local_steps, p.start(), fed.everyone(), **draws)
    assert federation.ledger.calls == Calls(grad=7, jvp=4)


@pytest.mark.parametrize("engine", [OneByOne(), Vectorised()])
def test_entries_of_a_list_go_round_the_clients(engine):
    """Client i has entry i, and from the first again; a number is everyone's."""
    p = quadratic()

    def entries(client, x):
        own = torch.stack([client.entry([0.5, 2, 7]), client.entry((3.0, 1.0)), 0 * x[0] + client.entry(0.9)])
        return x, own

    fed = Federation(p, engine, 0).at(0)
    _, seen = fed.exchange(entries, p.start()[0], np.array([1, 2, 3]), memory=Memory(torch.zeros(4, 3, dtype=F64)))
    assert seen.tensor().tolist() == [[0, 0, 0], [2, 1, 0.9], [7, 3, 0.9], [0.5, 1, 0.9]]


# General derivatives


@pytest.mark.parametrize("stack", [None, STACK])
def test_general_derivatives(stack):
    """Of any function; nested, also by another variable, where they are parts of one derivative."""
    p, calls = Network(), Calls()
    client, n = Oracles(p, calls, stack), stack or 1
    x, w, v, sample = (
        normal(3, seed=1),
        normal(16, seed=2),
        normal(16, seed=3),
        (normal(6, 3, seed=4), normal(6, seed=5)),
    )
    f_x, f_w, g_w, cross, ww = dense_bilevel(p, x, w, sample)

    def counted(**expected):
        found, calls.grad, calls.hvp, calls.jvp = Calls(calls.grad, calls.hvp, calls.jvp), 0, 0, 0
        return found == Calls(**{name: n * count for name, count in expected.items()})

    torch.testing.assert_close(client.grad(client.g, x, w, sample), g_w)
    torch.testing.assert_close(client.grad(lambda x, xi: client.f(x, w, xi), x, sample), f_x)
    assert counted(grad=2)
    value, product = client.vjp(lambda x, w: client.f(x, w, sample), x, w, grad=1)
    torch.testing.assert_close(value, p.f(x, w, sample))
    for factor in (1.0, 2.0):
        torch.testing.assert_close(product(factor * torch.ones_like(value)), (factor * f_x, factor * f_w))
    assert counted(grad=2)

    def slope(x, xi):
        return client.grad(client.g, x, w, xi) @ v

    torch.testing.assert_close(client.grad(slope, x, sample), cross @ v)
    _, product = client.vjp(lambda w: client.grad(client.g, x, w, sample), w, hvp=3, jvp=1)
    torch.testing.assert_close(product(v)[0], ww @ v)
    assert counted(grad=1, hvp=3, jvp=1)

    def pulled(x, xi):  # a vjp inside of a gradient, by another variable
        value, product = client.vjp(lambda w: client.g(x, w, xi), w, grad=1)
        return product(torch.ones_like(value))[0] @ v

    torch.testing.assert_close(client.grad(pulled, x, sample), cross @ v)
    assert counted(grad=1)

    points = torch.stack([x, 2 * x, -x]), torch.stack([w, w, 3 * w])
    expected = torch.stack([dense_bilevel(p, *point, sample)[2] for point in zip(*points, strict=True)])
    torch.testing.assert_close(client.gradients(client.g, *points, sample), expected)
    assert counted(grad=3)
    values = client.at_each(lambda x, w: client.f(x, w, sample), *points)
    torch.testing.assert_close(values, torch.stack([p.f(*point, sample) for point in zip(*points, strict=True)]))
    assert counted()


class OwnGradients(Minimised):
    """Its gradient is four times that of f, so that it shows; it has it where `own` is true."""

    own = True

    @function(where=lambda problem: problem.own)
    def f(self, x, sample):
        return super().f(x, sample)

    @f.gradient
    def f(self, x, sample):
        return 12 * sample * x**2


def test_where_a_function_has_its_forms():
    p, calls = OwnGradients(), Calls()
    a, x = normal(3, seed=1), normal(3, seed=2)
    torch.testing.assert_close(Oracles(p, calls).grad(p.f, x, a), 12 * a * x**2)
    p.own = False
    assert not hasattr(p.f, "gradient")
    torch.testing.assert_close(Oracles(p, calls).grad(p.f, x, a), 3 * a * x**2)
    assert calls == Calls(grad=2)


# What FedMSA does not compute twice


@pytest.mark.parametrize("engine", ["vectorised", "one_by_one"])
@pytest.mark.parametrize(("problem", "calls_of_a_map"), [("quadratic_bilevel", 2), ("mco", 1)])
def test_fedmsa_with_and_without_memory(problem, calls_of_a_map, engine):
    """With full local batches the value at the previous iterate is known: the same numbers from half of the calls."""
    settings = ["algo.K=5", "algo.rho=1", "participation.cohort=2", f"hardware.engine={engine}"]
    runs = []
    for B in ("null", 1000):
        e = small("fedmsa", problem, *settings, f"algo.B={B}")
        runs.append((steps(e, 2)[-1], e.federation.ledger.calls.grad))
    (with_memory, calls), (without, all_calls) = runs
    torch.testing.assert_close(with_memory, without, rtol=0, atol=0)
    assert all_calls - calls == 6 * calls_of_a_map


def test_oracles_of_a_problem_under_vmap():
    """The client's number and its examples are tensors there."""
    p = quadratic()
    splits = {name: [whole(split[i][:5]) for i in range(4)] for name, split in p.splits.items()}
    rows = {name: tuple(torch.stack(t) for t in zip(*of_clients, strict=True)) for name, of_clients in splits.items()}
    x, w, v = normal(3, seed=1), normal(4, 5, seed=2), normal(4, 5, seed=3)

    def one(client, w, v, rows):
        return bilevel_maps(Oracles(p, stack=4), (x, w, v), p.sample(client, rows))

    stacked = torch.func.vmap(one)(torch.arange(4), w, v, rows)
    for i in range(4):
        sample = p.sample(i, {name: splits[name][i] for name in splits})
        f_x, f_w, g_w, cross, ww = dense_bilevel(p, x, w[i], sample)
        for got, expected in zip(stacked, (f_x - cross @ v[i], g_w, ww @ v[i] - f_w), strict=True):
            torch.testing.assert_close(got[i], expected, rtol=1e-10, atol=1e-12)


ASKED = {  # each oracle that a client has, on a problem, with its arguments; P = 1 point, one product of the inverse
    "gradient": ("classification", lambda c, x, y, xi: c.gradient(x, xi)),
    "gradient_step_": ("classification", lambda c, x, y, xi: c.gradient_step_(x, xi, 0.1)),
    "inner_step_": ("quadratic_bilevel", lambda c, x, y, xi: c.inner_step_(x, y, xi, 0.1)),
    "outer_step_": ("quadratic_minimax", lambda c, x, y, xi: c.outer_step_(x, y, xi, 0.1)),
    "lower_step_": (
        "quadratic_hierarchical",
        lambda c, x, y, xi: c.lower_step_(x[None], c.lower_step_(x[None], y[None], xi, 0.1), xi, 0.1),
    ),
    "outer_gradients": ("quadratic_bilevel", lambda c, x, y, xi: c.outer_gradients(x, y, xi)),
    "outer_gradient_x": ("quadratic_bilevel", lambda c, x, y, xi: c.outer_gradient_x(x, y, xi)),
    "outer_gradient_y": ("quadratic_minimax", lambda c, x, y, xi: c.outer_gradient_y(x, y, xi)),
    "inner_gradient": ("quadratic_bilevel", lambda c, x, y, xi: c.inner_gradient(x, y, xi)),
    "inner_gradients": ("quadratic_bilevel", lambda c, x, y, xi: c.inner_gradients(x, y, xi)),
    "inner_hessian": ("quadratic_bilevel", lambda c, x, y, xi: c.inner_hessian(x, y, xi)(y)),
    "inner_second": ("quadratic_bilevel", lambda c, x, y, xi: c.inner_second(x, y, y, xi)),
    "cross_product": ("quadratic_bilevel", lambda c, x, y, xi: c.cross_product(x, y, y, xi)),
    "hypergradient": (
        "quadratic_bilevel",
        lambda c, x, y, xi: c.hypergradient(x, y, [xi, xi], partial(inverse.neumann_sum, N=1, l=1.0)),
    ),
    "project": ("quadratic_bilevel", lambda c, x, y, xi: c.project(y)),
}
COUNTED = {
    "one gradient call, one jacobian-vector product and the hessian-vector products of": Calls(1, 1, 1),
    "one gradient call, one hessian-vector and one jacobian-vector product": Calls(1, 1, 1),
    "one gradient call": Calls(1),
    "p gradient calls": Calls(2),  # it is asked for two steps at P = 1 point
    "each use: one hessian-vector product": Calls(hvp=1),
    "one jacobian-vector product": Calls(jvp=1),
    "nothing": Calls(),
}


def test_each_oracle_counts_what_the_page_says():
    table = "\n".join(runpy.run_path(str(ROOT / "scripts" / "docs"))["oracles"]())
    rows = dict(re.findall(r"^\| `client\.(\w+)\(.*\| ([^|]*) \|$", table, re.MULTILINE))
    assert rows.keys() == ASKED.keys()
    for oracle, (name, ask) in ASKED.items():
        problem = small(next(a for a, p in pairs() if p == name), name).original
        calls, x, y = Calls(), problem.start()[0], problem.start()[-1]
        rows_of = {split: whole(of[0]) for split, of in problem.splits.items()}
        ask(alone(problem, calls, rows_of), x, y, problem.sample(0, rows_of))
        said = next(words for words in COUNTED if rows[oracle].lower().startswith(words))
        assert calls == COUNTED[said], oracle


@pytest.mark.parametrize("stacked", [False, True])
def test_moves_write_over_their_own_results_alone(stacked):
    x, d = normal(STACK, 3, seed=1), normal(STACK, 3, seed=2)

    def moves(x, d):
        client = Oracles(Minimised(), stack=STACK if stacked else None)
        once = client.moved_(x, d, 0.5)
        result = once.clone(), client.moved_(once, d, 0.5), client.moved_(x, d, torch.tensor(2.0))
        assert result[1] is once
        return result

    before = x.clone()
    once, twice, other = torch.func.vmap(moves)(x, d) if stacked else moves(x[0], d[0])
    assert torch.equal(x, before)
    start, direction = (x, d) if stacked else (x[0], d[0])
    torch.testing.assert_close(
        (once, twice, other), (start - 0.5 * direction, start - direction, start - 2 * direction)
    )
