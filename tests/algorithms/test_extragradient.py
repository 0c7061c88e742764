"""Local extragradient and FeDualEx: their limits, and a derivation in NumPy."""

import numpy as np
import pytest
import torch
from support.games import algorithm, game, noise_of_draws, numpy_field, numpy_start, run, scalar, unlike

from fedopt.federation.draws import Steps
from fedopt.testing.harness import small, steps

BOTH = pytest.mark.parametrize("algo", ["local_eg", "fedualex"])


def plain(eta, K=1, **more):
    return {"eta_x": eta, "eta_y": eta, "K": K, "B": None, **more}


@BOTH
def test_one_step_by_hand(algo):
    """1/2 x² + x y - 1/2 y² from (1, 1)."""
    method = algorithm(algo, **plain(0.1))
    np.testing.assert_allclose(method.output(run(method, scalar(1, 1, 1), 1)[-1]), [[0.82], [0.98]], rtol=1e-14)


@BOTH
@pytest.mark.parametrize("K", [1, 3])
def test_a_bilinear_game_contracts_as_in_closed_form(algo, K):
    """f = x y: a step multiplies the squared norm by 1 - eta² + eta⁴, and one of descent-ascent by 1 + eta²."""
    method, p, eta = algorithm(algo, **plain(0.3, K)), scalar(0, 1, 0), 0.3
    squares = [float(sum(v @ v for v in method.output(s))) for s in run(method, p, 3)]
    factor = (1 - eta**2 + eta**4) ** K
    np.testing.assert_allclose(squares, 2 * factor ** np.arange(4), rtol=1e-12)


@pytest.mark.parametrize("eta_s", [1.0, 0.6])
def test_without_terms_fedualex_is_local_extragradient(eta_s):
    words = ["algo.eta_x=0.1", "algo.eta_y=0.05", f"algo.eta_s={eta_s}", "algo.K=3", "algo.B=3"]
    dual, primal = (small(algo, "quadratic_minimax", *words) for algo in ("fedualex", "local_eg"))
    for ours, theirs in zip(steps(dual, 4), steps(primal, 4), strict=True):
        torch.testing.assert_close(ours.z, theirs.w, rtol=1e-12, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("K", [1, 5])
@pytest.mark.parametrize("eta_s", [0.5, 1.0])
def test_equal_clients_end_at_the_composite_saddle(K, eta_s):
    """-F is in lam d|z|: minus lam times the sign where z is not zero, and no more than lam where it is."""
    one = unlike(clients=1, dx=4, dy=4, seed=1)
    p = game([t.repeat(3, *[1] * (t.dim() - 1)) for t in one.per_client.values()], one.w_0)
    lam, rounds = 0.5, 250 // K + 50
    z = np.concatenate(run(algorithm("fedualex", **plain(0.2, K, lam=lam, eta_s=eta_s)), p, rounds)[-1].z)
    F = numpy_field(p, 0, z)
    assert 0 < np.count_nonzero(z == 0) < len(z)
    np.testing.assert_allclose(F[z != 0], -lam * np.sign(z[z != 0]), atol=1e-9)
    assert np.abs(F[z == 0]).max() <= lam


def test_the_box_holds():
    """A saddle beyond it: all entries within [-.5, .5], and at an end where F points out of it."""
    p = unlike(clients=1, seed=2)
    z = np.concatenate(run(algorithm("fedualex", **plain(0.2, D=0.5)), p, 60)[-1].z)
    np.testing.assert_allclose(z, np.clip(z - numpy_field(p, 0, z), -0.5, 0.5), atol=1e-5)
    assert 0 < np.count_nonzero(np.abs(z) == 0.5) < len(z)


@pytest.mark.full
def test_unlike_clients_leave_a_bias_at_one_step_too():
    """In proportion to the step: each client's half point follows its own field."""
    p, ends = unlike(), {}
    for eta, rounds in ((0.04, 150), (0.02, 300)):
        p.w_0 = p.solution()
        ends[eta] = float(
            (torch.cat(run(algorithm("local_eg", **plain(eta)), p, rounds)[-1].w) - torch.cat(p.w_0)).norm()
        )
    assert ends[0.02] > 1e-4
    assert 1.8 < ends[0.04] / ends[0.02] < 2.2


def test_the_point_of_the_theorem_is_the_mean_of_the_half_points():
    """f = x y, one client, two steps a round, written out in complex numbers: F is multiplication by -i."""
    states = run(algorithm("fedualex", **plain(0.2, 2, iterate="mean")), scalar(0, 1, 0), 3)
    u, halves = 1 + 1j, []
    for state in states[1:]:
        for _ in range(2):
            halves.append(u + 0.2j * u)
            u = u + 0.2j * halves[-1]
        mean = np.mean(halves)
        np.testing.assert_allclose(np.concatenate(state.mean), [mean.real, mean.imag], rtol=1e-12)
        np.testing.assert_allclose(np.concatenate(state.z), [u.real, u.imag], rtol=1e-12)


def test_local_extragradient_projects_steps_and_no_half_points():
    """f = x y + 3 y, |y| <= 1, from (0, 1), eta = .1: the half point (-.1, 1.3), from which x falls by .13; and then y is 1."""
    state = run(algorithm("local_eg", **plain(0.1, 2)), scalar(0, 1, 0, e=3.0, box=1.0, w_0=(0.0, 1.0)), 1)[-1]
    x = -0.1 * 1.3
    x = x - 0.1 * (1 + 0.1 * (x + 3))
    np.testing.assert_allclose(state.w, [[x], [1.0]], rtol=1e-12)


@BOTH
def test_golden_numbers(algo):
    """Cohorts of 3 out of 6 with two fresh minibatches a step, three rounds, written out."""
    K, eta_s, lam, D = 2, 0.7, (0.8 if algo == "fedualex" else 0.0), (1.2 if algo == "fedualex" else np.inf)
    words = ["eta_x=0.1", "eta_y=0.2", "eta_s=0.7", "K=2", "B=3", *(["lam=0.8", "D=1.2"] if lam else [])]
    e = small(algo, "quadratic_minimax", *(f"algo.{word}" for word in words))
    p, o = e.problem, numpy_start(e.problem)
    eta = np.repeat([0.1, 0.2], [v.numel() for v in p.start()])

    def T(o, t):
        return np.clip(np.sign(o) * np.maximum(np.abs(o) - t * eta * lam, 0), -D, D)

    for r, state in enumerate(steps(e, 3)[1:]):
        ends, t = [], eta_s * r * K
        for i in e.federation.at(r).cohort():
            o_i, noises = o, noise_of_draws(e, r, 1, i, local=Steps(K, 3, samples=2))["local"]
            for k in range(K):
                half = T(o_i - eta * numpy_field(p, i, T(o_i, t + k), noises[2 * k]), t + k + 1)
                o_i = o_i - eta * numpy_field(p, i, half, noises[2 * k + 1])
            ends.append(o_i)
        o = o + eta_s * (np.mean(ends, axis=0) - o)
        z = T(o, eta_s * (r + 1) * K)
        np.testing.assert_allclose(np.concatenate(e.algorithm.output(state)), z, rtol=1e-9, atol=1e-12)
    assert not lam or (np.count_nonzero(z == 0) > 0 and np.count_nonzero(z) > 0)
