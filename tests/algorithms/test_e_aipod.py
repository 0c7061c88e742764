"""E-AiPOD against NumPy derivations, closed forms and counts of exchanges."""

from itertools import islice

import numpy as np
import pytest
import torch
from support.quadratics import EXACT, SMALL, inner, noises, solution, terms

from fedopt.federation.draws import Steps
from fedopt.testing.harness import iterate, small, steps

OUTER = ["algo.inverse=truncated", "algo.l=1", "algo.N=4"]
STILL = [*OUTER, "algo.N=1", "algo.alpha=0"]  # x stays


def quadratic(*words):
    return small("e_aipod", "quadratic_bilevel", *EXACT, *SMALL, *words)


def heads(e, r):
    """After which of the inner steps of round r there is a mean."""
    return e.federation.at(r).rng("coins").random(e.algorithm.S) < e.algorithm.p


def test_always_averaging_is_gradient_descent_on_the_mean():
    e = quadratic(*STILL, "algo.p=1", "algo.S=4", "algo.beta=0.3")
    m, (x, y) = terms(e.problem), (v.numpy() for v in e.problem.start())
    for state in steps(e, 3)[1:]:
        for _ in range(4):
            y = y - 0.3 * (m["A"] @ y - m["B"] @ x - m["c"])
        np.testing.assert_allclose(state.y.numpy(), y, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_inner_loop_is_exact_for_every_probability(p):
    """With x fixed y_i -> y*(x) of the mean g and c_i -> grad_y g_i(x, y*); sum c_i = 0 in every round."""
    e = quadratic(*STILL, f"algo.p={p}", "algo.S=60", "algo.beta=0.9")
    x = e.problem.start()[0].numpy()
    for state in iterate(e, 5):
        y, c = state.memory.tensor().numpy().reshape(4, 2, -1).swapaxes(0, 1)
        np.testing.assert_allclose(c.sum(0), 0, atol=1e-12)
    known = inner(terms(e.problem), x)
    np.testing.assert_allclose(y, [known] * 4, atol=1e-9)
    of_clients = [m["A"] @ known - m["B"] @ x - m["c"] for m in (terms(e.problem, i) for i in range(4))]
    np.testing.assert_allclose(c, of_clients, atol=1e-9)
    assert np.abs(of_clients).max() > 0.1


def test_exchanges_are_those_of_the_coins_and_of_the_outer_part():
    """N + 2 of the outer part: one of grad_y f, N products, one of h; the server takes the step, unless there are several."""
    for tau_out in (1, 2):
        e = quadratic(*OUTER, "algo.p=0.3", "algo.S=7", f"algo.tau_out={tau_out}")
        steps(e, 4)
        of_coins = sum(int(heads(e, r).sum()) for r in range(4))
        assert e.federation.ledger.comm_rounds == of_coins + 4 * (4 + 1 + tau_out)
    many = sum(heads(e, r).sum() for r in range(5000)) / 5000
    assert many == pytest.approx(0.3 * 7, rel=0.03)


def test_a_client_that_takes_its_own_head_is_not_sent_another():
    """Unless it has inner steps to take first."""
    downs = []
    for own_head in (False, True):
        e = quadratic(*OUTER, "algo.p=1", "algo.S=1", f"algo.own_head={own_head}")
        steps(e, 1)
        downs.append(e.federation.ledger.down[0])
    assert downs[0] - downs[1] == 8 * 2 * (4 + 2 - 1)  # y in all exchanges of the outer part except the first


@pytest.mark.full
@pytest.mark.parametrize("own_head", [False, True])
def test_reaches_the_solution(own_head):
    """The y_i agree in the limit, so that it does not depend on whose the outer part takes."""
    words = ["algo.N=14", "algo.S=8", "algo.p=0.3", "algo.beta=0.9", "algo.alpha=0.7", f"algo.own_head={own_head}"]
    e = quadratic(*OUTER, *words)
    x = steps(e, 20)[-1].x.numpy()
    known = solution(terms(e.problem))[0]
    assert np.linalg.norm(x - known) < 1e-3 * np.linalg.norm(e.problem.start()[0].numpy() - known)


@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("B", [None, 3])
def test_golden_numbers(own_head, B):
    """Three out of four clients take part in a round; the outer part has full batches."""
    beta, alpha, p, S, N = 0.4, 0.3, 0.4, 3, 4
    words = [f"algo.beta={beta}", f"algo.alpha={alpha}", f"algo.p={p}", f"algo.S={S}", f"algo.own_head={own_head}"]
    drawn = ["participation.cohort=3", f"algo.B={B or 'null'}", "algo.B_out=null", *words]
    e = small("e_aipod", "quadratic_bilevel", *SMALL, *OUTER, *drawn)
    x, ybar = (v.numpy() for v in e.problem.start())
    y, c, ms = [ybar] * 4, [0 * ybar] * 4, [terms(e.problem, i) for i in range(4)]
    ends = []
    for r, state in enumerate(islice(iterate(e, 5), 1, None)):
        cohort, exchange, since = e.federation.at(r).cohort(), 1, 0
        for last, coin in enumerate(heads(e, r)):
            since += 1
            if not (coin or last == S - 1):
                continue
            for i in cohort:
                for noise, _, _ in noises(e, r, i, "inner", Steps(since, B, split="train"), exchange):
                    y[i] = y[i] - beta * (ms[i]["A"] @ y[i] - ms[i]["B"] @ x - ms[i]["c"] - noise - c[i])
            exchange, since = exchange + 1, 0
            if coin:
                ybar = np.mean([y[i] for i in cohort], axis=0)
                for i in cohort:
                    c[i], y[i] = c[i] + p / beta * (ybar - y[i]), ybar
        ends.append(bool(coin))
        at = y if own_head else [ybar] * 4
        q = term = np.mean([ms[i]["F"] @ at[i] - ms[i]["e"] + ms[i]["G"].T @ x for i in cohort], axis=0)
        for _ in range(N):
            term = term - np.mean([ms[i]["A"] for i in cohort], axis=0) @ term
            q = q + term
        h = [ms[i]["D"] @ x - ms[i]["d"] + ms[i]["G"] @ at[i] + ms[i]["B"].T @ q for i in cohort]
        x = x - alpha * np.mean(h, axis=0)
        np.testing.assert_allclose(torch.cat([state.x, state.y]).numpy(), [*x, *ybar], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.memory.tensor().numpy(), np.hstack([y, c]), rtol=1e-9, atol=1e-12)
    assert set(ends) == {False, True}
