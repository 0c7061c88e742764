"""ProxSkip-GDA: its limits, and a derivation in NumPy."""

import numpy as np
import pytest
import torch
from support.games import (
    algorithm,
    distance,
    noise_of_draws,
    numpy_field,
    numpy_start,
    quadratic_game,
    run,
    scalar,
    unlike,
)

from fedopt.federation.draws import Steps
from fedopt.randomness import Purpose
from fedopt.testing.harness import small, steps


def control_variates(method, state):
    """h_i of each client once w has come, [clients, dx + dy]."""
    sizes = [v.numel() for v in state.w]
    of = torch.cat(
        [torch.full((n,), method.p / g) for n, g in zip(sizes, (method.gamma_x, method.gamma_y), strict=True)]
    )
    return of * (torch.cat(state.w) - state.memory.tensor())


def test_one_client_with_an_exchange_after_each_step_is_descent_ascent():
    """1/2 x² + x y - 1/2 y² from (1, 1)."""
    state = run(algorithm("proxskip_gda", gamma_x=0.1, gamma_y=0.1, p=1.0), scalar(1, 1, 1), 1)[-1]
    np.testing.assert_allclose(state.w, [[0.8], [1.0]], rtol=1e-14)


def test_an_exchange_after_each_step_is_descent_ascent_on_the_mean_field():
    p = unlike()
    w = numpy_start(p)
    for state in run(algorithm("proxskip_gda", gamma_x=0.2, gamma_y=0.2, p=1.0), p, 5)[1:]:
        w = w - 0.2 * np.mean([numpy_field(p, i, w) for i in range(4)], axis=0)
        np.testing.assert_allclose(np.concatenate(state.w), w, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("probability", [1.0, 0.5, 0.2])
def test_ends_at_the_saddle_whatever_the_probability(probability):
    """There h_i is F_i(w*); their sum is zero all the time."""
    p, method = unlike(), algorithm("proxskip_gda", gamma_x=0.3, gamma_y=0.3, p=probability)
    states = run(method, p, 90)
    for state in states[::10]:
        torch.testing.assert_close(control_variates(method, state).sum(0), torch.zeros(5).double(), rtol=0, atol=1e-12)
    assert distance(method, states[-1], p) < 1e-8
    F = [numpy_field(p, i, np.concatenate(p.solution())) for i in range(4)]
    np.testing.assert_allclose(control_variates(method, states[-1]), F, atol=1e-6)
    assert np.abs(F).max() > 0.1


@pytest.mark.full
def test_ends_at_the_saddle_of_a_constrained_game():
    """With y in a box that binds the control variates no longer sum to zero: F(w*) points out of the box."""
    p, method = unlike(), algorithm("proxskip_gda", gamma_x=0.3, gamma_y=0.3, p=0.4)
    p.box = 0.2
    w = np.concatenate(run(method, p, 90)[-1].w)
    F = np.mean([numpy_field(p, i, w) for i in range(4)], axis=0)
    ahead = np.concatenate([w[:3] - F[:3], np.clip(w[3:] - F[3:], -0.2, 0.2)])
    np.testing.assert_allclose(w, ahead, atol=1e-8)
    assert np.abs(F[3:]).max() > 0.1


def test_a_round_is_the_iterations_until_heads():
    """Their mean number is 1 / p."""
    method, e = algorithm("proxskip_gda", p=0.25), small("proxskip_gda", "quadratic_minimax", "algo.p=0.25")
    counts = [e.federation.at(r).rng(Purpose.COIN).geometric(method.p) for r in range(400)]
    assert min(counts) == 1
    assert np.mean(counts) == pytest.approx(4, rel=0.15)
    steps(e, 5)
    assert e.federation.ledger.calls.grad == 6 * sum(counts[:5])
    assert e.federation.ledger.comm_rounds == 5


@pytest.mark.slow
def test_on_the_quadratic_game():
    """400 exchanges with the published step and probability."""
    p = quadratic_game()
    A, B, D = (p.per_client[name] for name in "ABD")
    M = torch.cat([torch.cat([A, B], 2), torch.cat([-B.mT, D], 2)], 1)  # F_i is M_i w - ...
    # u'M u >= |M u|² / l where M + M' - 2 M'M / l is positive semidefinite
    inverse = torch.linalg.inv(M)
    least = torch.linalg.eigvalsh((inverse + inverse.mT) / 2)[:, 0].min()
    mu = torch.linalg.eigvalsh((M.mean(0) + M.mean(0).T) / 2)[0]
    gamma = float(least)
    method = algorithm("proxskip_gda", gamma_x=gamma, gamma_y=gamma, p=float((gamma * mu) ** 0.5))
    assert distance(method, run(method, p, 400)[-1], p) ** 2 < 1e-25


@pytest.mark.parametrize("B", [None, 3])
def test_golden_numbers(B):
    """Four exchanges, the iterations and the coin written out: after heads h_i += (p / gamma) (mean w_i - w_i), w_i = mean w_i."""
    e = small(
        "proxskip_gda",
        "quadratic_minimax",
        "algo.gamma_x=0.1",
        "algo.gamma_y=0.2",
        "algo.p=0.4",
        f"algo.B={B or 'null'}",
    )
    p, w = e.problem, numpy_start(e.problem)
    gamma = np.repeat([0.1, 0.2], [v.numel() for v in p.start()])
    h = np.zeros((6, len(w)))
    for r, state in enumerate(steps(e, 4)[1:]):
        n, ends = e.federation.at(r).rng(Purpose.COIN).geometric(0.4), []
        for i in range(6):
            w_i, noises = w, noise_of_draws(e, r, 1, i, local=Steps(n, B))["local"]
            for k in range(n):
                w_i = w_i - gamma * (numpy_field(p, i, w_i, noises[k if B else 0]) - h[i])
            ends.append(w_i)
        w = np.mean(ends, axis=0)
        h = h + 0.4 / gamma * (w - ends)
        np.testing.assert_allclose(np.concatenate(state.w), w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(control_variates(e.algorithm, state), h, rtol=1e-9, atol=1e-9)
