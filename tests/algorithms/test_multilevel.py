"""The multi-level recursion against NumPy derivations, closed forms and its orders of averaging."""

import numpy as np
import pytest
import torch
from support.compositions import error, hand, maps, noises, states, unlike

from fedopt.algorithms.local_scgd import LocalScgd
from fedopt.algorithms.multilevel import Multilevel
from fedopt.config.schedules import Constant
from fedopt.federation.engines import Vectorised
from fedopt.federation.memory import Memory
from fedopt.federation.round import Federation
from fedopt.testing.harness import small, steps


def method(step=0.1, alpha=0.5, rho=0.5, tau=1, order="A", B=None):
    """With eta = 1, so that alpha and rho are the weights themselves."""
    return Multilevel(step, 1.0, alpha, rho, tau, B, None, order)


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("order", ["A", "B"])
def test_by_hand(order, rho):
    """r = 2x, f = u^2/2, from x = 1, h = 3, p = 6 = the gradient at h: x = 0.4, h = 1.3, p = 2.6, then x = 0.14."""
    p, algorithm = hand(), method(rho=rho, order=order)
    row = torch.tensor([1.0, 3.0, 6.0], dtype=torch.float64)
    state = algorithm.init(p)._replace(p=row[2:], memory=Memory([row]))
    federation = Federation(p, Vectorised(), 0)
    state = algorithm.step(state, p, federation.at(1))
    assert state.memory.tensor().tolist()[0] == pytest.approx([0.4, 1.3, 2.6])
    assert float(algorithm.step(state, p, federation.at(2)).x) == pytest.approx(0.14)


def test_full_batches_forget_a_wrong_start_at_a_known_rate():
    """h - r(x) = (1 - alpha)^t (h_0 - r(x_0)), whatever the steps."""
    p, algorithm = hand(), method(0.07, alpha=0.2, rho=0.6, tau=3, order="B")
    row = torch.tensor([1.0, 3.0, 6.0], dtype=torch.float64)
    state = algorithm.init(p)._replace(p=row[2:], memory=Memory([row]))
    state = algorithm.step(state, p, Federation(p, Vectorised(), 0).at(1))
    x, h, _ = state.memory.tensor()[0].tolist()
    assert h - 2 * x == pytest.approx(0.8**3, rel=1e-12)


@pytest.mark.parametrize("order", ["A", "B"])
@pytest.mark.parametrize(("alpha", "rho"), [(1.0, 0.0), (0.2, 0.05), (0.3, 1.0)])
def test_exchanging_at_every_step_is_exact(alpha, rho, order):
    """Four unlike clients, two levels before the outer one, full batches: the solution of the local problem."""
    assert error(method(0.3, alpha, rho, order=order), unlike(K=2), 100) < 1e-9


def bias(step, alpha, rho, order):
    p = unlike()
    p.x = p.solution()[0]
    return error(method(step, alpha, rho, tau=5, order=order), p, int(2 / step))


@pytest.mark.full
def test_without_forgetting_local_steps_are_exact():
    p = unlike()
    assert error(method(0.1, 0.4, 0.0, tau=5), p, 60) < 1e-9


@pytest.mark.full
def test_order_A_has_a_bias_of_the_order_of_the_step_for_every_alpha():
    biases = {a: bias(0.04, a, 0.3, "A") for a in (0.3, 1.0)}
    assert biases[0.3] == pytest.approx(biases[1.0], rel=1e-9)
    assert 1.8 < biases[1.0] / bias(0.02, 1.0, 0.3, "A") < 2.2
    assert bias(0.04, 1.0, 0.05, "A") < 0.4 * biases[1.0]


@pytest.mark.full
def test_order_B_is_worse_and_alpha_matters_to_it():
    of_B = {a: bias(0.04, a, 0.3, "B") for a in (0.3, 1.0)}
    assert of_B[1.0] > 1.5 * bias(0.04, 1.0, 0.3, "A")
    assert of_B[0.3] > 1.5 * of_B[1.0]


@pytest.mark.parametrize("tau", [1, 4])
def test_without_memory_it_is_local_compositional_descent(tau):
    """alpha = rho = 1, full batches, order B: Local-SCGDM without memory that moves x first."""
    p = unlike(K=2)
    (*_, one), _ = states(method(0.1, 1.0, 1.0, tau, "B"), p, 4)
    (*_, other), _ = states(
        LocalScgd(Constant(0.1), Constant(1), Constant(1), tau, None, False, "new", "step_first"), p, 4
    )
    torch.testing.assert_close(one.x, other.x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("order", "down", "exchanges"), [("A", 3, 2), ("B", 2, 1)])
def test_what_is_sent(order, down, exchanges):
    e = small(
        "multilevel", "quadratic_local_compositional", "participation.cohort=null", f"algo.order={order}", "algo.tau=4"
    )
    steps(e, 3)
    X, ledger = 8 * 5, e.federation.ledger
    assert ledger.comm_rounds == 1 + 2 * exchanges
    assert ledger.down.tolist() == [X * (1 + 2 * down)] * 6
    assert ledger.up.tolist() == [X * (1 + 2 * 2)] * 6
    assert ledger.calls.grad == ledger.calls.jvp == 6 * (1 + 2 * 8)


@pytest.mark.parametrize("key", ["alpha", "rho"])
def test_weights_beyond_one(key):
    with pytest.raises(ValueError, match=rf"{key} \* eta"):
        Multilevel(**{**vars(method()), key: 1.1})


@pytest.mark.parametrize("B", [None, 3])
@pytest.mark.parametrize("order", ["A", "B"])
def test_golden_numbers(order, B):
    """Three clients, a start and two rounds of two steps, written out, with samples used twice."""
    gamma, eta, alpha, rho, tau = 0.5, 0.6, 1.2, 0.9, 2
    words = [f"algo.{k}={v}" for k, v in (("gamma", gamma), ("eta", eta), ("alpha", alpha), ("rho", rho), ("tau", tau))]
    words += [f"algo.B={B or 'null'}", f"algo.B_start={B or 'null'}", f"algo.order={order}"]
    e = small(
        "multilevel", "quadratic_local_compositional", "partitioner.clients=3", "participation.cohort=null", *words
    )
    state = steps(e, 3)[-1]
    a, b = alpha * eta**2, rho * eta**2
    x = [e.problem.start()[0].numpy()] * 3
    h, p = [0] * 3, [0] * 3
    for i in range(3):
        value, jacobian, gradient = maps(e.problem, i)
        ((xi, zeta),) = noises(e, 0, i, 1, B)
        h[i] = value(x[i], xi)
        p[i] = jacobian.T @ gradient(h[i], zeta)
    p = [np.mean(p, axis=0)] * 3

    def estimated(i, new, xi, zeta):
        value, jacobian, gradient = maps(e.problem, i)
        h_new = value(new, xi) + (1 - a) * (h[i] - value(x[i], xi))
        p[i] = jacobian.T @ gradient(h_new, zeta) + (1 - b) * (p[i] - jacobian.T @ gradient(h[i], zeta))
        h[i], x[i] = h_new, new

    for r in (1, 2):
        for i in range(3):
            for xi in noises(e, r, i, tau - (order == "A"), B):
                estimated(i, x[i] - gamma * eta * p[i], *xi)
        if order == "A":
            mean = np.mean([x[i] - gamma * eta * p[i] for i in range(3)], axis=0)
            for i in range(3):
                estimated(i, mean, *noises(e, r, i, 1, B, exchange=2)[0])
        x, p = ([np.mean(v, axis=0)] * 3 for v in (x, p))
    np.testing.assert_allclose(state.x, x[0], rtol=1e-11)
    np.testing.assert_allclose(state.p, p[0], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(state.memory.tensor()[:, 5:13], h, rtol=1e-11)
