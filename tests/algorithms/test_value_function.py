"""F2SA and BOME against hand examples, NumPy derivations and closed forms."""

import dataclasses

import numpy as np
import pytest
import torch
from support.one_machine import Written, by_hand, on_quadratic

from fedopt.algorithms.value_function import BOME, F2SA
from fedopt.config.schedules import Constant, InversePower
from fedopt.federation.draws import Steps
from fedopt.testing.harness import config, steps

STEP = Constant(0.1)
ETA_X, ETA_Y, ETA_S = 0.1, 0.03, 0.4
batches = pytest.mark.parametrize("B", ["null", "3"])


def same(state, written, rtol=1e-10):
    for computed, derived in zip(state, written, strict=False):
        np.testing.assert_allclose(computed, derived, rtol=rtol, atol=1e-12)


def size_of(B):
    return None if B == "null" else int(B)


# Hand examples


def test_a_step_of_f2sa_by_hand():
    """y = 0.1 (1 + 2 2), s = 0.1 2, x = 1 - 0.1 (1 + 2 (1 - 1.6)); then lam = 2 + 0.5."""
    same(by_hand(F2SA(STEP, STEP, STEP, 2.0, Constant(0.5), 1, None), 1), (1.02, 0.5, 0.2, 2.5))


def test_a_step_of_bome_by_hand():
    """y_n = 0.2; grad f = (1, -1), grad q = (2 - 1.6, -2), so that <grad f, grad q> = 2.4 and |grad q|^2 = 4.16."""
    lam = (4.16 - 2.4) / 4.16
    same(by_hand(BOME(STEP, STEP, 1.0, 1, None), 1), (1 - 0.1 * (1 + 0.4 * lam), 0.1 * (1 + 2 * lam)))
    same(by_hand(BOME(STEP, STEP, 0.5, 1, None), 1), (0.9, 0.1))  # phi = 2.08 < 2.4: f falls along q fast enough


# Written out in NumPy, two clients


# Limits


def error_of_f2sa(lam):
    """Of the direction of x from the hypergradient, where y and s have converged."""
    words = [
        "algo.eta_x=0",
        f"algo.eta_y={0.9 / lam}",
        "algo.eta_s=0.9",
        f"algo.lam={lam}",
        "algo.delta=0",
        "algo.n=40",
    ]
    e = on_quadratic("f2sa", *words, "algo.B=null", "problem.conditioning=2", clients=1)
    settled = steps(e, 1)[-1]
    moved = dataclasses.replace(e.algorithm, eta_x=Constant(1.0)).step(settled, e.problem, e.federation.at(1))
    return float(torch.linalg.norm(settled.x - moved.x - e.problem.hypergradient(settled.x)))


@pytest.mark.full
def test_the_bias_of_f2sa_is_of_the_order_of_one_over_lam():
    errors = [error_of_f2sa(lam) for lam in (20, 40, 80)]
    assert 1.8 <= errors[0] / errors[1] <= 2.2
    assert 1.8 <= errors[1] / errors[2] <= 2.2
    assert errors[2] > 1e-4


def test_lam_of_f2sa_grows_by_default_like_a_seventh_power_and_leaves_the_step_bounded():
    """lam eta_y never exceeds its first value, which it does where lam grows like the reference solver's."""
    values = config("algo=f2sa")["algo"]
    delta, eta_y = InversePower(**values["delta"]), InversePower(**values["eta_y"])

    def lams(delta, rounds=5000):
        return values["lam"] + np.cumsum([0.0, *(delta(r) for r in range(rounds - 1))])

    assert lams(delta)[-1] / lams(delta)[499] == pytest.approx(10 ** (1 / 7), rel=0.05)
    steps_of_y = np.array([eta_y(r) for r in range(5000)])
    assert (lams(delta) * steps_of_y).max() <= values["lam"] * eta_y(0)
    faster = lams(InversePower(1.43, power=1 / 7)) * steps_of_y
    assert (lams(delta) * steps_of_y)[-1] < (lams(delta) * steps_of_y)[500]
    assert faster[-1] > faster[500]


def test_bome_falls_along_q_at_least_at_the_rate_phi(monkeypatch):
    seen, right = [], BOME.penalty

    def penalty(self, f, q):
        lam = right(self, f, q)
        along = sum(float(q_n @ (f_n + lam * q_n)) for f_n, q_n in zip(f, q, strict=True))
        seen.append((float(lam), along, self.eta * sum(float(q_n @ q_n) for q_n in q)))
        return lam

    monkeypatch.setattr(BOME, "penalty", penalty)
    e = on_quadratic("bome", "algo.eta=0.1", "algo.n=3")
    steps(e, 40)
    assert all(along >= phi * (1 - 1e-9) for _, along, phi in seen)
    assert {lam > 0 for lam, *_ in seen} == {True, False}


def test_bome_has_no_penalty_where_there_is_nothing_to_fall_along():
    """At y*(x), where grad q = 0, the direction is grad f and not 0 / 0."""
    e = on_quadratic("bome", "algo.n=1", clients=1)
    x, _ = e.problem.start()
    y = e.problem.inner_solution(x)
    zero = (0 * x, 0 * y)
    assert float(e.algorithm.penalty((x, y), zero)) == 0


F2SA_WORDS = ["algo.lam=100", "algo.delta=0", "algo.eta_x=0.2", "algo.eta_y=0.005", "algo.eta_s=0.5"]


@pytest.mark.full
@pytest.mark.parametrize(("algo", "words", "end"), [("f2sa", F2SA_WORDS, 0.01), ("bome", ["algo.n=10"], 0.1)])
def test_both_come_near_the_solution_by_gradients_alone(algo, words, end):
    e = on_quadratic(algo, *words, "algo.B=null", "problem.conditioning=2", clients=1)
    state = steps(e, 55)[-1]
    assert e.problem.evaluate(*e.algorithm.output(state))["distance"] < end
    calls = e.federation.ledger.calls
    assert calls.grad > 0
    assert calls.hvp == calls.jvp == 0
    assert e.federation.first_order


@batches
def test_golden_numbers_of_f2sa(B):
    """Independent samples for y and for s, in each step; lam grows."""
    n, xi = 2, Steps(1, size_of(B), samples=2)
    words = [f"algo.eta_x={ETA_X}", f"algo.eta_y={ETA_Y}", f"algo.eta_s={ETA_S}", "algo.lam=5", "algo.delta=0.7"]
    e = on_quadratic("f2sa", *words, f"algo.n={n}", f"algo.B={B}")
    w, lam = Written(e), 5.0
    x, y, v = w.start()
    s, B_mean = y, w.m["B"].mean(0)
    for r in range(3):
        for k in range(n):
            g_y, *_, f_y = w.mean((x, y, v), w.noise(r, 1 + k, xi))
            g_s = w.mean((x, s, v), w.noise(r, 1 + k, xi, 1))[0]
            y, s = y - ETA_Y * (f_y + lam * g_y), s - ETA_S * g_s
        f_x = w.mean((x, y, v), w.noise(r, n + 1, xi))[3]
        x = x - ETA_X * (f_x - lam * B_mean.T @ (y - s))  # grad_x g = -B'y has no noise
        lam += 0.7
    same(steps(e, 3)[-1], (x, y, s, lam))


@batches
def test_golden_numbers_of_bome(B):
    n, eta, xi = 2, 0.5, Steps(1, size_of(B))
    words = [f"algo.eta_x={ETA_X}", f"algo.eta_y={ETA_S}", f"algo.eta={eta}"]
    e = on_quadratic("bome", *words, f"algo.n={n}", f"algo.B={B}")
    w, lams = Written(e), []
    (x, y, v), B_mean = w.start(), w.m["B"].mean(0)
    for r in range(6):
        y_n = y
        for k in range(n):
            y_n = y_n - ETA_S * w.mean((x, y_n, v), w.noise(r, 1 + k, xi))[0]
        q_y, _, _, f_x, f_y = w.mean((x, y, v), w.noise(r, n + 1, xi))
        q_x = -B_mean.T @ (y - y_n)
        square = q_x @ q_x + q_y @ q_y
        lams.append(max(eta * square - f_x @ q_x - f_y @ q_y, 0) / square)
        x, y = x - ETA_X * (f_x + lams[-1] * q_x), y - ETA_S * (f_y + lams[-1] * q_y)
    assert max(lams) > 0
    same(steps(e, 6)[-1], (x, y))
