"""MFCGD and AdaMFCGD against NumPy derivations and each other."""

import dataclasses

import numpy as np
import pytest
import torch
from support.compositions import error, maps, noises, states, unlike

from fedopt.algorithms.local_scgd import LocalScgd
from fedopt.algorithms.mfcgd import LARGEST, Mfcgd
from fedopt.config.schedules import Constant
from fedopt.errors import UserError
from fedopt.testing.harness import small, steps

STILL = 1e30  # with an n like this eta_t stays k / n^(1/3)


def method(eta=0.5, gamma=0.4, c=(1.0, 1.0, 1.0), **changes):
    """With a constant eta."""
    fields = {
        "adaptive": "none",
        "theta": 0.9,
        "rho": 1e-3,
        "C_f": None,
        "C_g": None,
        "I": 1,
        "B": None,
        "B_start": None,
    }
    return Mfcgd(gamma, eta * STILL ** (1 / 3), STILL, *c, **{**fields, **changes})


@pytest.mark.parametrize("c", [(0.01, 1.0, 2.0), (4.0, 0.3, 0.02)])
def test_exchanging_at_every_step_is_gradient_descent_for_every_c(c):
    """A = I, full batches, unlike clients: the three estimates are exact; the first round has them at the start alone."""
    p = unlike()
    found, _ = states(method(c=c), p, 5)
    hessian, linear = normal_equations(p)
    x = np.zeros(4)
    for _ in range(4):
        x = x - 0.5 * 0.4 * (hessian @ x - linear)
    np.testing.assert_allclose(found[-1].x, x, rtol=1e-11)
    assert error(method(1.0, 0.3, c=(0.2, 0.1, 0.4)), p, 120) < 1e-9


def normal_equations(p):
    """Of the gradient of the local problem."""
    (A,), (c,), (Q,), (e,) = [[v.numpy() for v in part] for part in p.terms]
    hessian = np.mean([A[i].T @ Q[i] @ A[i] for i in range(p.clients)], axis=0)
    return hessian, np.mean([A[i].T @ (e[i] - Q[i] @ c[i]) for i in range(p.clients)], axis=0)


@pytest.mark.parametrize("I", [1, 4])
def test_without_memory_it_is_local_scgdm_that_moves_x_first(I):
    """c eta^2 = 1."""
    p = unlike()
    (*_, one), _ = states(method(c=(4.0, 4.0, 4.0), I=I), p, 4)
    (*_, other), _ = states(
        LocalScgd(Constant(0.2), Constant(1), Constant(1), I, None, False, "new", "step_first"), p, 4
    )
    torch.testing.assert_close(one.x, other.x, rtol=1e-12, atol=1e-14)


def test_first_adaptive_step():
    """theta = 0 and rho near 0: eta gamma in every coordinate, against the sign of the gradient, or in norm."""
    p = unlike()
    _, linear = normal_equations(p)
    (*_, diagonal), _ = states(method(adaptive="diagonal", theta=0.0, rho=1e-12), p, 2)
    np.testing.assert_allclose(diagonal.x, 0.2 * np.sign(linear), rtol=1e-9)
    (*_, norm), _ = states(method(adaptive="norm", theta=0.0, rho=1e-12), p, 2)
    np.testing.assert_allclose(norm.x, 0.2 * linear / np.linalg.norm(linear), rtol=1e-9)


def test_projections():
    """Large radii change nothing; small ones bound U and v always."""
    p = unlike()
    plain, large, small_ones = (states(method(I=3, C_f=radius, C_g=radius), p, 4)[0] for radius in (None, 1e6, 0.3))
    assert torch.equal(plain[-1].x, large[-1].x)
    assert not torch.allclose(plain[-1].x, small_ones[-1].x)
    for state in small_ones[1:]:
        _, U, v = state.memory.tensor().split([4, 16, 4], dim=1)
        for norms in (U.norm(dim=1), v.norm(dim=1)):
            assert (norms <= 0.3 * (1 + 1e-12)).all()


@pytest.mark.parametrize(("adaptive", "of_a"), [("none", 0), ("diagonal", 5), ("norm", 1)])
def test_what_is_sent(adaptive, of_a):
    """x and w, and what A is made of down; a Jacobian is d_1 products."""
    words = ["participation.cohort=null", f"algo.adaptive={adaptive}", "algo.I=3"]
    e = small("mfcgd", "quadratic_local_compositional", *words)
    steps(e, 3)
    ledger = e.federation.ledger
    assert ledger.comm_rounds == 3
    assert ledger.down.tolist() == [8 * (5 + 2 * (10 + of_a))] * 6
    assert ledger.up.tolist() == [8 * 3 * 10] * 6
    assert ledger.calls.grad == 6 * (1 + 2 * 3 * 2)
    assert ledger.calls.jvp == 8 * ledger.calls.grad


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"c2 \* eta_0\^2"):
        method(c=(1.0, 4.1, 1.0))
    p = unlike()
    p.dims = (4, LARGEST + 1)
    with pytest.raises(UserError, match="Jacobian"):
        method().init(p)
    with pytest.raises(UserError, match="two levels"):
        method().init(unlike(K=2))
    assert dataclasses.replace(method(), k=1.0, n=8.0).eta(19) == pytest.approx(1 / 3)


@pytest.mark.parametrize("B", [None, 3])
@pytest.mark.parametrize("adaptive", ["none", "diagonal", "norm"])
def test_golden_numbers(adaptive, B):
    """Three clients, a start and two rounds of two iterations, written out, with one xi and one zeta used twice."""
    e = small(
        "mfcgd",
        "quadratic_local_compositional",
        "partitioner.clients=3",
        "participation.cohort=null",
        *(f"algo.{key}={value}" for key, value in (("gamma", 0.4), ("k", 1.5), ("n", 9), ("c1", 1.1), ("c2", 0.7))),
        *(
            f"algo.{key}={value}"
            for key, value in (("c3", 1.4), ("theta", 0.6), ("rho", 0.2), ("C_f", 2), ("C_g", 1.9))
        ),
        *(f"algo.{key}={B or 'null'}" for key in ("B", "B_start")),
        *("algo.I=2", f"algo.adaptive={adaptive}"),
    )
    state = steps(e, 3)[-1]

    def ball(value, radius):
        return value * min(1, radius / np.linalg.norm(value))

    M = range(3)
    x, h, U, v = [e.problem.start()[0].numpy()] * 3, [0] * 3, [0] * 3, [0] * 3
    for i in M:
        value, jacobian, gradient = maps(e.problem, i)
        ((xi, zeta),) = noises(e, 0, i, 1, B)
        h[i], U[i] = value(x[i], xi), ball(jacobian, 1.9)
        v[i] = ball(gradient(h[i], zeta), 2)
    a, t = 0, 0
    for r in (1, 2, 3):
        w = [np.mean([U[i].T @ v[i] for i in M], axis=0)] * 3
        x = [np.mean(x, axis=0)] * 3
        if r == 3:
            break
        a = 0.6 * a + 0.4 * (np.linalg.norm(w[0]) if adaptive == "norm" else w[0] ** 2)
        A = {"none": 1, "diagonal": np.sqrt(a) + 0.2, "norm": a + 0.2}[adaptive]
        for i in M:
            value, jacobian, gradient = maps(e.problem, i)
            for k, (xi, zeta) in enumerate(noises(e, r, i, 2, B)):
                eta = 1.5 / (9 + t + k) ** (1 / 3)
                old, old_h = x[i], h[i]
                x[i] = x[i] - eta * 0.4 * w[i] / A
                h[i] = value(x[i], xi) + (1 - 1.1 * eta**2) * (h[i] - value(old, xi))
                U[i] = ball(jacobian + (1 - 0.7 * eta**2) * (U[i] - jacobian), 1.9)
                v[i] = ball(gradient(h[i], zeta) + (1 - 1.4 * eta**2) * (v[i] - gradient(old_h, zeta)), 2)
                w[i] = U[i].T @ v[i]
        t += 2
    np.testing.assert_allclose(state.x, x[0], rtol=1e-10)
    np.testing.assert_allclose(state.w, w[0], rtol=1e-9, atol=1e-12)
    if adaptive != "none":
        np.testing.assert_allclose(state.a[0], np.atleast_1d(a), rtol=1e-9)
    kept = state.memory.tensor()
    np.testing.assert_allclose(kept, [np.concatenate([h[i], U[i].ravel(), v[i]]) for i in M], rtol=1e-9, atol=1e-12)
