"""First-order bilevel methods: limits, and NumPy derivations of both estimators."""

import numpy as np
import pytest
import torch
from support.quadratics import ALL, EXACT, SMALL, hand_example, limit, noises, solution, terms

from fedopt.errors import UserError, WrongFunction
from fedopt.federation.client import Client
from fedopt.federation.draws import Steps
from fedopt.testing.harness import small, steps

SIZES = {"x": 0.02, "y": 0.01, "v": 0.1}
STEPS = [f"algo.{kind}_{name}={step}" for kind in ("eta", "gamma") for name, step in SIZES.items()]


def quadratic(*words):
    return small("first_order", "quadratic_bilevel", *EXACT, *SMALL, *words)


def penalty(m, z, noise, lam):
    (x, y, s), (c, d, e) = z, noise
    f_x = m["D"] @ x - m["d"] - d + m["G"] @ y
    f_y = m["F"] @ y - m["e"] - e + m["G"].T @ x
    g_y, g_s = (m["A"] @ point - m["B"] @ x - m["c"] - c for point in (y, s))
    return f_x + lam * m["B"].T @ (s - y), f_y + lam * g_y, g_s


def test_the_penalty_on_the_hand_example():
    """At x = 1, y = s = 0, lam = 3: f_x = 1, f_y = -1, g_y = -2 at both."""
    words = [f"algo.{kind}_{name}=0.1" for kind in ("eta", "gamma") for name in "xyv"]
    e = hand_example("first_order", *words, "algo.lam=3", "algo.growth=0", "algo.tau=1")
    one, two = (torch.cat(s.z).numpy() for s in steps(e, 2)[1:])
    np.testing.assert_allclose(one, [0.9, 0.7, 0.2], rtol=1e-14)
    # f_x = .9, lam (g_x(y) - g_x(s)) = 3 (-2)(.7 - .2) = -3; f_y + lam g_y = -.3 + 3 (-.4); g_y(s) = -1.4
    np.testing.assert_allclose(two, [0.9 + 0.21, 0.7 + 0.15, 0.2 + 0.14], rtol=1e-14)


def test_error_of_the_penalty_is_of_the_order_of_one_over_lam():
    errors = []
    for lam in (10, 100, 1000):
        e = quadratic("algo.tau=1", "algo.growth=0", f"algo.lam={lam}")
        x = limit(e).z[0].numpy()
        errors.append(lam * np.linalg.norm(x - solution(terms(e.problem))[0]))
    assert errors[0] > 0.01
    assert errors[0] / errors[1] == pytest.approx(1, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("delta", [1e-4, 1e-2, 1])
def test_differences_are_simfbo_where_g_is_quadratic(delta):
    words = ["algo.tau=3", "participation.work=[1,3,2,3]", "algo.radius=0.5", *STEPS]
    e = quadratic(*words, "algo.estimator=difference", f"algo.delta={delta}")
    simfbo = small("simfbo", "quadratic_bilevel", *EXACT, *SMALL, *words)
    for one, other in zip(steps(e, 4), steps(simfbo, 4), strict=True):
        torch.testing.assert_close(torch.cat(one.z), torch.cat(other.z), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("estimator", "calls"), [("penalty", 3), ("difference", 4)])
def test_takes_gradients_only(estimator, calls):
    e = small("first_order", "quadratic_bilevel", *SMALL, ALL, "algo.B=3", f"algo.estimator={estimator}")
    steps(e, 2)
    ledger = e.federation.ledger
    assert (ledger.calls.grad, ledger.calls.hvp, ledger.calls.jvp) == (2 * 4 * 5 * calls, 0, 0)
    assert ledger.comm_rounds == 2
    assert set(ledger.up) == {2 * 8 * (2 + 2 * 2)}


def test_second_derivatives_are_refused(monkeypatch):
    e = quadratic()
    monkeypatch.setattr(Client, "outer_gradients", lambda c, x, y, xi: (c.cross_product(x, y, y, xi), y))
    with pytest.raises(WrongFunction, match="first_order"):
        steps(e, 1)


def test_a_penalty_has_no_v_to_project():
    with pytest.raises(UserError, match=r"radius.*estimator=difference"):
        quadratic("algo.radius=1")


def test_golden_numbers_of_the_penalty():
    """lam = 2 + 0.5 r^2, batches of 3, two local steps, server steps of their own."""
    etas, gammas = (0.05, 0.04, 0.3), (0.02, 0.03, 0.2)
    chosen = zip([f"{kind}_{name}" for kind in ("eta", "gamma") for name in "xyv"], (*etas, *gammas), strict=True)
    words = [*(f"algo.{key}={value}" for key, value in chosen), "algo.lam=2", "algo.growth=0.5", "algo.power=2"]
    e = small("first_order", "quadratic_bilevel", *SMALL, ALL, *words, "algo.tau=2", "algo.B=3")
    x, y = e.problem.start()
    z = [x.numpy(), y.numpy(), y.numpy()]
    for r, state in enumerate(steps(e, 3)[1:]):
        Q = []
        for i in range(4):
            z_i, m = z, terms(e.problem, i)
            for noise in noises(e, r, i, "local", Steps(2, 3)):
                D = penalty(m, z_i, noise, 2 + 0.5 * r**2)
                Q.append(D)
                z_i = [a - eta * b for a, eta, b in zip(z_i, etas, D, strict=True)]
        z = [a - gamma * sum(q[n] for q in Q) / 4 for n, (a, gamma) in enumerate(zip(z, gammas, strict=True))]
        for ours, theirs in zip(state.z, z, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)
