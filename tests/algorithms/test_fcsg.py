"""FCSG, FCSG-M and Acc-FCSG-M against NumPy derivations and each other."""

import numpy as np
import pytest
import torch
from support.compositions import states
from support.derivatives import F64
from support.samples import rows_of, sampling

from fedopt.algorithms.fcsg import Fcsg
from fedopt.config.schedules import Constant
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.federation.draws import Steps, draw
from fedopt.problems.classes import Conditional
from fedopt.testing.harness import small, steps

METHODS = ["fcsg", "fcsg_m", "acc_fcsg_m"]


def method(momentum="average", alpha=1.0, eta=1.0, I=1, B=None):
    return Fcsg(Constant(eta), alpha, momentum, I, B)


class Products(Conditional):
    """f(u) = u^2/2, r(x) = eta'x, eta ~ N(mu, s^2 I): `inner` draws of eta for each of the outer samples."""

    metrics = ()

    def __init__(self, inner, count=40000, s=1.5):
        self.world, self.inner, self.s = World(0, Iid(2), dtype=F64), inner, s
        rng = np.random.default_rng(inner)
        self.splits, self.mu = self.world.split(count), torch.tensor([0.5, -1.0, 0.25], dtype=F64)
        noise = torch.from_numpy(rng.standard_normal((count, inner, 3)))
        self.eta = self.mu + s * noise

    def start(self):
        return (torch.tensor([1.0, 2.0, -1.0], dtype=F64),)

    def sample(self, client, rows):
        index, weight = rows["train"]
        return self.eta[index], weight

    def f(self, x, sample):
        eta, weight = sample
        return weight @ (0.5 * (eta.mean(-2) @ x) ** 2)

    def evaluate(self, *point):
        return {}


@pytest.mark.parametrize("inner", [1, 4])
def test_bias_of_the_plug_in(inner):
    """E G - (mu'x) mu = s^2 x / m."""
    p = Products(inner)
    (x,) = p.start()
    (_, state), _ = states(method(), p, 1)
    G = x - state.x
    error = 5 * 3 * (1 + p.s**2) / np.sqrt(40000)
    torch.testing.assert_close(G - (p.mu @ x) * p.mu, p.s**2 * x / inner, rtol=0, atol=error)
    assert (p.s**2 * x / inner).abs().min() > 2 * error


def experiment(algo, *words):
    whole = ["partitioner.clients=3", "participation.cohort=null"]
    return small(algo, "quadratic_minimisation", *whole, *words)


def point(e, rounds):
    return e.algorithm.output(steps(e, rounds)[-1])[0]


def test_without_memory_all_are_one():
    """alpha = 1, on batches: to the last bit."""
    x, *others = [point(experiment(algo, "algo.alpha=1", "algo.B=4"), 4) for algo in METHODS]
    assert all(torch.equal(x, other) for other in others)


@pytest.mark.parametrize("alpha", [0.05, 0.6])
def test_on_full_batches_storm_is_exact(alpha):
    """I = 1: Acc-FCSG-M is FCSG for every alpha, and FCSG-M is not."""
    full = ["algo.B=null", "algo.I=1"]
    x, averaged, storm = (
        point(experiment(algo, *full, *more), 8)
        for algo, *more in (("fcsg",), ("fcsg_m", f"algo.alpha={alpha}"), ("acc_fcsg_m", f"algo.alpha={alpha}"))
    )
    torch.testing.assert_close(storm, x, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(averaged, x, rtol=1e-3)


def test_comfedl_is_fcsg_at_every_step():
    x, other = (point(experiment(*words), 6) for words in (("comfedl",), ("fcsg", "algo.I=1")))
    assert torch.equal(x, other)


def batch(e, r, i, k, steps_of_round, B):
    draws = {"xi": Steps(steps_of_round, B)}
    whole, drawn = draw(
        draws, e.problem.splits, np.array([i]), sampling(e.federation.seed, r, 1), torch.zeros((), dtype=F64)
    )
    rows, weight = (t[0] for t in rows_of(whole, drawn["xi"], "train"))
    return e.problem.sample(i, {"train": (rows[k if B else 0], weight[k if B else 0])})


@pytest.mark.parametrize(("algo", "vectors", "gradients"), [("fcsg", 1, 8), ("fcsg_m", 2, 8), ("acc_fcsg_m", 2, 15)])
def test_what_is_sent(algo, vectors, gradients):
    """x, and m where there is one, once each way in I steps; Acc-FCSG-M takes two gradients a step, one at the very first."""
    e = experiment(algo, "algo.I=4")
    steps(e, 2)
    d, ledger = e.problem.start()[0].numel(), e.federation.ledger
    assert ledger.comm_rounds == 2
    assert ledger.down.tolist() == ledger.up.tolist() == [2 * 8 * d * vectors] * 3
    assert ledger.calls.grad == 3 * gradients


@pytest.mark.full
@pytest.mark.parametrize("algo", METHODS)
def test_a_cohort_reaches_the_solution_of_equal_clients(algo):
    """Three of eight, full batches."""
    words = [
        "partitioner.clients=8",
        "participation.cohort=3",
        "problem.heterogeneity=0",
        "algo.B=null",
        "algo.eta=0.5",
    ]
    e = small(algo, "quadratic_minimisation", *words)
    assert e.problem.evaluate(*e.algorithm.output(steps(e, 80)[-1]))["distance"] < 1e-4


@pytest.mark.parametrize("B", [None, 3])
@pytest.mark.parametrize("algo", ["fcsg_m", "acc_fcsg_m"])
def test_golden_numbers(algo, B):
    """Three clients, three rounds of two steps, written out; x_prev stays each client's own."""
    eta, alpha, I = 0.3, 0.4, 2
    e = experiment(algo, f"algo.eta={eta}", f"algo.alpha={alpha}", f"algo.I={I}", f"algo.B={B or 'null'}")
    state = steps(e, 3)[-1]
    x0 = e.problem.start()[0]
    x, m, x_prev = [x0] * 3, [0 * x0] * 3, [x0] * 3
    for r in range(3):
        for i in range(3):
            for k in range(I):
                xi = batch(e, r, i, k, I, B)

                def gradient(x, xi=xi):
                    return torch.func.grad(e.problem.f)(x, xi)

                if r == k == 0:
                    m[i] = gradient(x[i])
                elif algo == "fcsg_m":
                    m[i] = (1 - alpha) * m[i] + alpha * gradient(x[i])
                else:
                    m[i] = gradient(x[i]) + (1 - alpha) * (m[i] - gradient(x_prev[i]))
                x_prev[i], x[i] = x[i], x[i] - eta * m[i]
        x, m = ([sum(v) / 3] * 3 for v in (x, m))
    computed = (state.x, state.m[0]) if algo == "fcsg_m" else (state.z[0], state.d[0])
    torch.testing.assert_close(computed, (x[0], m[0]), rtol=1e-11, atol=1e-13)
