"""Local-SCGD and its family against NumPy derivations, closed forms and each other."""

import numpy as np
import pytest
import torch
from support.compositions import error, hand, maps, noises, states, unlike

from fedopt.algorithms.local_scgd import LocalScgd
from fedopt.config.schedules import Constant
from fedopt.errors import UserError
from fedopt.testing.harness import config, small, steps

FALLING = [("eta", 0.2, 0.75), ("alpha", 0.9, 0.5)]
ORDERS, BOTH = ["estimate_first", "step_first"], [True, False]


def method(eta=0.1, alpha=0.5, beta=0.5, I=1, share_u=True, at="new", order="estimate_first"):
    return LocalScgd(Constant(eta), Constant(alpha), Constant(beta), I, None, share_u, at, order)


def experiment(algo, *words):
    whole = ["partitioner.clients=3", "participation.cohort=null"]
    return small(algo, "quadratic_local_compositional", *whole, *words)


@pytest.mark.parametrize("share_u", BOTH)
@pytest.mark.parametrize("order", ORDERS)
def test_by_hand(order, share_u):
    """u and m at the start are 2 and 4: x = 1, 0.6, 0.24."""
    found, _ = states(method(order=order, share_u=share_u), hand(), 3)
    x = [float(s.x) for s in found]
    assert (x[2:] if order == "step_first" else x[1:3]) == pytest.approx([0.6, 0.24], abs=1e-15)
    last = found[3 if order == "step_first" else 2]
    u = last.u[0] if share_u else last.memory.tensor()[0]
    if order == "estimate_first":
        assert (float(u), float(last.m[0])) == pytest.approx((1.6, 3.6))


@pytest.mark.parametrize("share_u", BOTH)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("I", [1, 5])
def test_without_memory_it_is_local_gradient_descent(I, order, share_u):
    """alpha = beta = 1 on full batches. With step_first the averaged momentum makes the first of several local steps a common
    one."""
    words = [f"algo.I={I}", "algo.alpha=1", f"algo.order={order}", f"algo.share_u={str(share_u).lower()}"]
    late = order == "step_first"
    x = steps(experiment("local_scgd", "algo.B=null", *words), 3 + late)[-1].x
    other = steps(experiment("fedavg", "algo.B=null", f"algo.tau={I}"), 3)[-1].x
    assert torch.allclose(x, other, rtol=1e-12) is not (late and I == 5)


@pytest.mark.full
def test_shared_u_is_biased_and_each_clients_own_is_not():
    """At u_i = (1 - alpha) mean r + alpha r_i, from the limit 'mean u' to the exact solution."""
    p = unlike()
    A, c, Q, e = (part[0].numpy() for part in p.terms)
    for alpha in (0.4, 1.0):
        assert error(method(0.3, alpha, 1.0, share_u=False), p, 180) < 1e-9
        mixed = [(alpha * v + (1 - alpha) * v.mean(0)) for v in (A, c)]
        hessian = np.mean(A.swapaxes(1, 2) @ Q @ mixed[0], axis=0)
        linear = np.mean(A.swapaxes(1, 2) @ (e - (Q @ mixed[1][..., None])[..., 0])[..., None], axis=0)[:, 0]
        (*_, state), _ = states(method(0.3, alpha, 1.0), p, 180)
        np.testing.assert_allclose(state.x, np.linalg.solve(hessian, linear), atol=1e-9)
        assert (torch.linalg.norm(state.x - p.solution()[0]) > 0.05) is not (alpha == 1)


@pytest.mark.full
@pytest.mark.parametrize("share_u", BOTH)
def test_of_more_levels(share_u):
    """Three levels: without memory gradient descent; each client's own u is exact."""
    p = unlike(M=3, K=2)
    algorithm = method(0.3, 1.0, 1.0, share_u=share_u)
    assert error(algorithm, p, 180) < 1e-9
    if not share_u:
        assert error(method(0.3, 0.6, 0.7, share_u=False), p, 180) < 1e-9


@pytest.mark.parametrize(("algo", "at"), [("scgd", "new"), ("nasa", "old"), ("nasa", "new")])
def test_one_client(algo, at):
    """SCGD and NASA written out, on batches, with the weights and steps k^-1/2 and k^-3/4, k = 1, 2, ..."""
    falling = [f"algo.{key}={{kind: inverse_power, initial: {size}, power: {power}}}" for key, size, power in FALLING]
    e = experiment(algo, "partitioner.clients=1", "algo.B=4", f"algo.at={at}", *falling)
    assert config(f"algo={algo}")["algo"].get("at", "new") == ("old" if algo == "nasa" else "new")
    found = steps(e, 5)
    value, jacobian, gradient = maps(e.problem, 0)
    x = e.problem.start()[0].numpy()
    draws = [noises(e, r, 0, 1, 4)[0] for r in range(5)]
    eta, alpha = (size * np.arange(1, 6) ** -power for _, size, power in FALLING)
    u, z = value(x, draws[0][0]), None
    if algo == "scgd":
        for r, (xi, zeta) in enumerate(draws):
            u = (1 - alpha[r]) * u + alpha[r] * value(x, xi) if r else u
            x = x - eta[r] * jacobian.T @ gradient(u, zeta)
    else:
        z = jacobian.T @ gradient(u, draws[0][1])
        for r, (xi, zeta) in enumerate(draws[1:], 1):
            x, u_old = x - eta[r] * z, u
            u = (1 - alpha[r]) * u + alpha[r] * value(x, xi)
            z = 0.5 * z + 0.5 * jacobian.T @ gradient(u if at == "new" else u_old, zeta)
    np.testing.assert_allclose(found[-1].x, x, rtol=1e-12)


@pytest.mark.parametrize("key", ["alpha", "beta"])
def test_weights_of_means(key):
    for value in (1.5, "{kind: piecewise, values: [0.5, 2], boundaries: [3]}"):
        with pytest.raises(UserError, match=f"{key} must be at most 1"):
            experiment("local_scgd", f"algo.{key}={value}")
    with pytest.raises(UserError, match="must be greater than 0"):
        experiment("local_scgd", f"algo.{key}=0")


@pytest.mark.parametrize("share_u", BOTH)
@pytest.mark.parametrize(("algo", "vectors"), [("local_scgd", 1), ("local_scgdm", 2)])
def test_what_is_sent(algo, vectors, share_u):
    """x, m where there is a momentum, u where it is shared, once each way in I steps; one gradient and one product a step."""
    e = experiment(algo, f"algo.share_u={str(share_u).lower()}", "algo.I=4", "hardware.dtype=float64")
    steps(e, 2)
    floats, ledger = 5 * vectors + 8 * share_u, e.federation.ledger
    assert ledger.comm_rounds == 2
    assert ledger.down.tolist() == ledger.up.tolist() == [2 * 8 * floats] * 3
    assert (ledger.calls.grad, ledger.calls.hvp, ledger.calls.jvp) == (24, 0, 24)


@pytest.mark.parametrize("B", [None, 3])
@pytest.mark.parametrize("share_u", BOTH)
@pytest.mark.parametrize("order", ORDERS)
def test_golden_numbers(order, share_u, B):
    """Three clients, three rounds of two steps, written out."""
    eta, alpha, beta, I = 0.2, 0.4, 0.7, 2
    words = [f"algo.{name}={value}" for name, value in (("eta", eta), ("alpha", alpha), ("beta", beta), ("I", I))]
    words += [f"algo.share_u={str(share_u).lower()}", f"algo.order={order}", f"algo.B={B or 'null'}"]
    e = experiment("local_scgdm", *words)
    state = steps(e, 3)[-1]
    (x0,) = (v.numpy() for v in e.problem.start())
    x, m, u = [x0] * 3, [0 * x0] * 3, [np.zeros(8)] * 3
    for r in range(3):
        n = 1 if r == 0 and order == "step_first" else I
        for i in range(3):
            value, jacobian, gradient = maps(e.problem, i)
            for k, (xi, zeta) in enumerate(noises(e, r, i, n, B)):
                new = r == k == 0
                if order == "step_first" and not new:
                    x[i] = x[i] - eta * m[i]
                u[i] = value(x[i], xi) if new else (1 - alpha) * u[i] + alpha * value(x[i], xi)
                g = jacobian.T @ gradient(u[i], zeta)
                m[i] = g if new else (1 - beta) * m[i] + beta * g
                if order == "estimate_first":
                    x[i] = x[i] - eta * m[i]
        x, m = ([np.mean(v, axis=0)] * 3 for v in (x, m))
        u = [np.mean(u, axis=0)] * 3 if share_u else u
    np.testing.assert_allclose(state.x.numpy(), x[0], rtol=1e-11)
    np.testing.assert_allclose(state.m[0].numpy(), m[0], rtol=1e-10, atol=1e-13)
    computed = [state.u[0].numpy()] * 3 if share_u else state.memory.tensor().numpy()
    np.testing.assert_allclose(computed, u, rtol=1e-11)
