"""FedMSA and FedNest where clients do unequal local work, and some none, against NumPy derivations."""

import numpy as np
import pytest

from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.testing.harness import small, steps

LATE = "participation.stragglers=0.34"  # one client of three
engines = pytest.mark.parametrize(
    "engine", [OneByOne(), Vectorised(), Vectorised(2)], ids=["one by one", "all", "stacks"]
)


def experiment(algo, engine, *words):
    three = ["partitioner.clients=3", "participation.cohort=null", *(f"algo.{key}=null" for key in ("B", "B_out"))]
    e = small(
        algo, "quadratic_bilevel", *(word for word in three if algo != "fedmsa" or "B_out" not in word), LATE, *words
    )
    e.federation.engine = engine
    return e, [{name: value[i].numpy() for name, value in e.problem.per_client.items()} for i in range(3)]


def f_x(m, x, y):
    return m["D"] @ x - m["d"] + m["G"] @ y


def f_y(m, x, y):
    return m["F"] @ y - m["e"] + m["G"].T @ x


def g_y(m, x, y):
    return m["A"] @ y - m["B"] @ x - m["c"]


def mean(parts):
    return np.mean([*parts], axis=0)


@engines
def test_fedmsa(engine):
    """K_i = 2, 3, 5 steps, one each in the first round; the straggler of a round sends back what it was sent."""
    e, clients = experiment("fedmsa", engine, "participation.work=[2,3,5]", "algo.alpha=0.05", "algo.beta=0.2")

    def F(m, u):
        x, y, v = np.split(u, [5, 13])
        return np.concatenate([f_x(m, x, y) + m["B"].T @ v, g_y(m, x, y), m["A"] @ v - f_y(m, x, y)])

    x, y = (z.numpy() for z in e.problem.start())
    u, alpha = np.concatenate([x, y, 0 * y]), np.repeat([0.05, 0.2], [5, 16])
    works = []
    for r, state in enumerate(steps(e, 5)[1:]):
        work = e.federation.at(r).work(5)
        works.append([min(K, 1) if r == 0 else K for K in work.tolist()])
        assert sorted(work)[0] == 0
        d, ends = mean(F(m, u) for m in clients), []
        for m, K in zip(clients, works[-1], strict=True):
            before, now, own = u, u - alpha * d if K else u, d
            for _ in range(K - 1):
                own = F(m, now) + own - F(m, before)
                before, now = now, now - alpha * own
            ends.append(now)
        u = mean(ends)
        np.testing.assert_allclose(np.concatenate([v.numpy() for v in state.u]), u, rtol=1e-10, atol=1e-12)
    assert len(np.unique(works)) == 5  # 0, 1, 2, 3, 5


@engines
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("algo", ["fednest", "lfednest"])
def test_fednest(algo, divided, engine):
    """From 1 to 4 inner and from 1 to 3 outer steps; the straggler keeps both points, and computes its parts of the anchors."""
    alpha, beta, l, N = 0.1, 0.3, 2.0, 3
    rates = [f"algo.alpha={alpha}", f"algo.beta={beta}", f"algo.l={l}", f"algo.N={N}", f"algo.divided={divided}"]
    work = ["algo.tau_in=4", "algo.tau_out=3", "participation.least=1", "algo.inverse=truncated"]
    e, clients = experiment(algo, engine, *rates, *work)

    def inverse(A):
        return sum(np.linalg.matrix_power(np.eye(len(A)) - A / l, n) for n in range(N + 1)) / l

    def step(size, taken):
        return size / taken if divided and taken else size

    x, y = (z.numpy() for z in e.problem.start())
    seen = set()
    for r, state in enumerate(steps(e, 4)[1:]):
        fed = e.federation.at(r)
        inner, outer = fed.work(4), fed.work(3)
        seen |= {*inner.tolist(), *outer.tolist()}
        q, ends = mean(g_y(m, x, y) for m in clients), []
        for m, taken in zip(clients, inner, strict=True):
            y_i = y
            for _ in range(taken):
                anchored = g_y(m, x, y_i) - g_y(m, x, y) + q
                y_i = y_i - step(beta, taken) * (anchored if algo == "fednest" else g_y(m, x, y_i))
            ends.append(y_i)
        y = mean(ends)
        p = inverse(mean(m["A"] for m in clients)) @ mean(f_y(m, x, y) for m in clients)
        h, ends = mean(f_x(m, x, y) + m["B"].T @ p for m in clients), []
        for m, taken in zip(clients, outer, strict=True):
            x_i = x
            for _ in range(taken):
                local = f_x(m, x_i, y) + m["B"].T @ inverse(m["A"]) @ f_y(m, x_i, y)
                anchored = f_x(m, x_i, y) - f_x(m, x, y) + h
                x_i = x_i - step(alpha, taken) * (anchored if algo == "fednest" else local)
            ends.append(x_i)
        x = mean(ends)
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(state.y.numpy(), y, rtol=1e-10, atol=1e-12)
    assert seen >= {0, 1, 2, 3}
