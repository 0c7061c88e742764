"""FESS-GDA: its limits, and a derivation in NumPy."""

import numpy as np
import pytest
import torch
from support.games import algorithm, distance, noise_of_draws, numpy_field, run, scalar, unlike

from fedopt.federation.draws import Steps
from fedopt.testing.harness import small, steps

PLAIN = {"eta_x": 0.1, "eta_y": 0.1, "tau": 1, "B": None}


def test_two_rounds_by_hand():
    """1/2 x² + x y - 1/2 y² from (1, 1): x is drawn to z = .9 in the second round."""
    state = run(algorithm("fess_gda", p=2.0, beta=0.5, **PLAIN), scalar(1, 1, 1), 2)[-1]
    np.testing.assert_allclose([*state.w, state.z], [[0.64], [0.98], [0.77]], rtol=1e-14)


@pytest.mark.parametrize("unsmoothed", [{"p": 0.0, "beta": 0.3}, {"p": 1.7, "beta": 1.0}])
@pytest.mark.parametrize("participation", [[], ["participation.least=1", "participation.stragglers=0.34"]])
def test_without_smoothing_it_is_fsgda(unsmoothed, participation):
    """With p = 0, or with beta = 1, where z is x; also where local work is uneven."""
    words = ["algo.tau=4", "algo.B=3", "algo.gamma_x=0.8", "algo.gamma_y=1.1", "algo.eta_x=0.1", "algo.eta_y=0.05"]
    words += participation
    e = small("fess_gda", "quadratic_minimax", *words, *(f"algo.{k}={v}" for k, v in unsmoothed.items()))
    for ours, theirs in zip(steps(e, 4), steps(small("fsgda", "quadratic_minimax", *words), 4), strict=True):
        torch.testing.assert_close(ours.w, type(ours.w)((theirs.x, theirs.y)), rtol=1e-12, atol=1e-12)


@pytest.mark.full
def test_smoothing_ends_the_cycle_of_a_bilinear_game():
    """f = x y, |y| <= 1: descent-ascent goes round."""
    p, norms = scalar(0, 1, 0, box=1.0, w_0=(0.5, 0.5)), {}
    for weight in (0.0, 2.0):
        method = algorithm("fess_gda", p=weight, beta=0.1, **{**PLAIN, "eta_x": 0.2, "eta_y": 0.2})
        norms[weight] = float(torch.cat(run(method, p, 150)[-1].w).norm())
    assert norms[0.0] > 0.9
    assert norms[2.0] < 1e-2


@pytest.mark.full
@pytest.mark.parametrize("weight", [0.0, 1.5])
def test_smoothing_does_not_move_where_local_steps_end(weight):
    """At that of Local SGDA, with z = x there."""
    p, local = unlike(), {"eta_x": 0.15, "eta_y": 0.15, "tau": 5, "B": None}
    end = torch.cat(run(algorithm("local_sgda", **local), p, 60)[-1][:2])
    state = run(algorithm("fess_gda", p=weight, beta=0.5, **local), p, 110)[-1]
    torch.testing.assert_close(torch.cat(state.w), end, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(state.z, state.w[0], rtol=1e-7, atol=1e-7)
    assert distance(algorithm("fess_gda"), state, p) > 1e-2


def test_y_stays_in_its_set_after_every_local_step():
    """f = x y + 3 y, |y| <= 1, from (0, 1): y = 1 in all local steps, so that x falls by eta in each."""
    p = scalar(0, 1, 0, e=3.0, box=1.0, w_0=(0.0, 1.0))
    state = run(algorithm("fess_gda", **{**PLAIN, "tau": 4}), p, 1)[-1]
    np.testing.assert_allclose(state.w, [[-0.4], [1.0]], rtol=1e-12)


def test_golden_numbers():
    """Cohorts of 3 out of 6 with minibatches, three rounds of two local steps, written out."""
    p_, beta, gamma, eta, K = 1.2, 0.3, (0.8, 1.1), (0.1, 0.2), 2
    words = [f"p={p_}", f"beta={beta}", f"gamma_x={gamma[0]}", f"gamma_y={gamma[1]}", "eta_x=0.1", "eta_y=0.2", "tau=2"]
    e = small("fess_gda", "quadratic_minimax", "algo.B=3", *(f"algo.{word}" for word in words))
    sizes = [v.numel() for v in e.problem.start()]
    x, y = (v.numpy() for v in e.problem.start())
    z = x
    for r, state in enumerate(steps(e, 3)[1:]):
        ends = []
        for i in e.federation.at(r).cohort():
            w_i = np.concatenate([x, y])
            for noise in noise_of_draws(e, r, 1, i, local=Steps(K, 3))["local"]:
                w_i = w_i - np.repeat(eta, sizes) * numpy_field(e.problem, i, w_i, noise)
            ends.append(w_i)
        x_mean, y_mean = np.split(np.mean(ends, axis=0), sizes[:1])
        x_new = x + gamma[0] * (x_mean - x) - eta[0] * gamma[0] * K * p_ * (x - z)
        y = y + gamma[1] * (y_mean - y)
        z = z + beta * (x_new - z)
        x = x_new
        for computed, derived in zip((*state.w, state.z), (x, y, z), strict=True):
            np.testing.assert_allclose(computed, derived, rtol=1e-10, atol=1e-12)
