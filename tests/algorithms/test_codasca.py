"""CODA+ and CODASCA: their limits, and a derivation in NumPy."""

import numpy as np
import pytest
import torch
from support.games import algorithm, distance, noise_of_draws, numpy_field, numpy_start, run, scalar, unlike

from fedopt.federation.draws import Steps
from fedopt.testing.harness import small, steps

PLAIN = {"eta_x": 0.15, "eta_y": 0.15, "decay": 1.0, "lam": 0.0, "B": None}


def test_coda_plus_without_pull_and_stages_is_local_sgda():
    words = ["algo.eta_x=0.1", "algo.eta_y=0.05", "algo.B=3"]
    coda = small("coda_plus", "quadratic_minimax", *words, "algo.K=4", "algo.lam=0", "algo.decay=1")
    local = small("local_sgda", "quadratic_minimax", *words, "algo.tau=4")
    for ours, theirs in zip(steps(coda, 4), steps(local, 4), strict=True):
        torch.testing.assert_close(ours.w, type(ours.w)((theirs.x, theirs.y)), rtol=1e-12, atol=1e-12)


def test_without_pull_the_control_variates_are_those_of_scaffold():
    """Option II on (x, y) and the field, cohorts of 2 out of 4: c_i - c + (w - u) / (K eta) is the mean of the gradients."""
    p, eta, K = unlike(), 0.15, 3
    states = run(algorithm("codasca", K=K, **PLAIN), p, 5, cohort=2)
    e = small("codasca", "quadratic_minimax", "partitioner.clients=4", "participation.cohort=2", "seed=0")
    w = numpy_start(p)
    c, c_of = 0 * w, np.zeros((4, len(w)))
    for r in range(5):
        dw, dc = 0, 0
        for i in e.federation.at(r).cohort():
            u = w
            for _ in range(K):
                u = u - eta * (numpy_field(p, i, u) - c_of[i] + c)
            c_plus = c_of[i] - c + (w - u) / (K * eta)
            dw, dc, c_of[i] = dw + (u - w) / 2, dc + (c_plus - c_of[i]) / 4, c_plus
        w, c = w + dw, c + dc
        state = states[r + 1]
        np.testing.assert_allclose(np.concatenate(state.w), w, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(np.concatenate(state.c), c, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(state.memory.tensor(), c_of, rtol=1e-10, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize(
    ("cohort", "more"),
    [
        (None, {}),
        (None, {"lam": 0.4, "stage": 4}),
        (None, {"lam": 0.4, "stage": 4, "stage_point": "last"}),
        (2, {"restart": False}),  # the mean of a stage is farther off than its end
    ],
)
def test_codasca_ends_at_the_saddle(cohort, more):
    """K = 5, constant steps: also where only 2 of 6 take part, and where stages pull."""
    p, method = unlike(clients=6), algorithm("codasca", **{**PLAIN, **more})
    assert distance(method, run(method, p, 120 if cohort else 80, cohort)[-1], p) < (1e-4 if cohort else 1e-7)


def test_the_pull_of_a_long_stage_ends_at_the_saddle_of_its_objective():
    """Only x is drawn to the stage's point."""
    p = unlike()
    method = algorithm("codasca", **{**PLAIN, "lam": 0.7, "stage": 1000})
    w = np.concatenate(run(method, p, 80)[-1].w)
    pulled = np.mean([numpy_field(p, i, w) for i in range(4)], axis=0) + 0.7 * (w - numpy_start(p)) * [1, 1, 1, 0, 0]
    np.testing.assert_allclose(pulled, 0, atol=1e-7)


def test_control_variates_average_to_the_servers():
    """At every exchange, with cohorts, minibatches and a pull."""
    e = small("codasca", "quadratic_minimax", "algo.B=3", "algo.lam=0.3", "algo.stage=2")
    for state in steps(e, 5):
        torch.testing.assert_close(state.memory.tensor().mean(0), torch.cat(state.c), rtol=1e-10, atol=1e-13)
    assert float(torch.cat(state.c).norm()) > 0.01


@pytest.mark.parametrize("control", ["none", "gradients"])
def test_one_client_and_one_step_is_descent_ascent(control):
    """1/2 x² + x y - 1/2 y² from (1, 1)."""
    given = {**PLAIN, "eta_x": 0.1, "eta_y": 0.1, "K": 1, "control": control}
    state = run(algorithm("codasca", **given), scalar(1, 1, 1), 1)[-1]
    np.testing.assert_allclose(state.w, [[0.8], [1.0]], rtol=1e-14)


def test_y_stays_in_its_set_after_every_local_step():
    """f = x y + 3 y, |y| <= 1, from (0, 1): y = 1 in all local steps, so that x falls by eta in each."""
    p = scalar(0, 1, 0, e=3.0, box=1.0, w_0=(0.0, 1.0))
    state = run(algorithm("codasca", **{**PLAIN, "eta_x": 0.1, "K": 4}), p, 1)[-1]
    np.testing.assert_allclose(state.w, [[-0.4], [1.0]], rtol=1e-12)


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("stage_point", ["last", "mean"])
@pytest.mark.parametrize("control", ["none", "gradients"])
def test_golden_numbers(control, stage_point, restart):
    """Cohorts of 3 out of 6 with minibatches, five rounds in stages of two, written out.

    A stage starts at its point, or goes on from the last one and is only drawn to it.
    """
    lam, gamma, K, eta_0 = 0.6, 0.8, 2, (0.1, 0.2)
    words = ["eta_x=0.1", "eta_y=0.2", f"gamma={gamma}", "K=2", "B=3", "stage=2", "decay=3", f"lam={lam}"]
    words += [f"stage_point={stage_point}", f"control={control}", f"restart={restart}"]
    e = small("codasca", "quadratic_minimax", *(f"algo.{word}" for word in words))
    p, w = e.problem, numpy_start(e.problem)
    dx, dy = (v.numel() for v in p.start())
    primal = np.repeat([1.0, 0.0], [dx, dy])
    c, c_of, x_s, xs = 0 * w, np.zeros((6, dx + dy)), w, []
    for r, state in enumerate(steps(e, 5)[1:]):
        eta = np.repeat(eta_0, [dx, dy]) / 3 ** (r // 2)
        if r and r % 2 == 0:
            x_s, xs = xs[-1] if stage_point == "last" else np.mean(xs, axis=0), []
            w = x_s if restart else w
        ends, dc = [], 0
        for i in e.federation.at(r).cohort():
            u, Gs = w, []
            for noise in noise_of_draws(e, r, 1, i, local=Steps(K, 3))["local"]:
                Gs.append(numpy_field(p, i, u, noise))
                u = u - eta * (Gs[-1] - c_of[i] + c + lam * primal * (u - x_s))
            if control != "none":
                c_plus = np.mean(Gs, axis=0)
                dc, c_of[i] = dc + (c_plus - c_of[i]) / 6, c_plus
            ends.append(u)
        w, c = w + gamma * (np.mean(ends, axis=0) - w), c + dc
        xs.append(w)
        ends = restart and stage_point == "mean" and r % 2  # the stage after it starts at the mean
        np.testing.assert_allclose(np.concatenate(state.w), np.mean(xs, axis=0) if ends else w, rtol=1e-9, atol=1e-12)
        if control != "none":
            np.testing.assert_allclose(np.concatenate(state.c), c, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(state.memory.tensor(), c_of, rtol=1e-9, atol=1e-12)
