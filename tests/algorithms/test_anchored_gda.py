"""FedGDA-GT, CD-MAGE, SAGDA and Catalyst-SCAFFOLD-S: their limits, and a derivation in NumPy."""

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

STEP = {"eta_x": 0.15, "eta_y": 0.15}


def test_one_client_and_one_step_is_descent_ascent():
    """At once in x and in y: 1/2 x² + x y - 1/2 y² from (1, 1)."""
    states = run(algorithm("fedgda_gt", K=1, eta_x=0.1, eta_y=0.1), scalar(1, 1, 1), 1)
    np.testing.assert_allclose(states[-1].w, [[0.8], [1.0]], rtol=1e-14)


def test_one_local_step_is_descent_ascent_on_the_mean_field():
    p = unlike()
    w = numpy_start(p)
    for state in run(algorithm("fedgda_gt", K=1, **STEP), p, 4)[1:]:
        w = w - 0.15 * np.mean([numpy_field(p, i, w) for i in range(4)], axis=0)
        np.testing.assert_allclose(np.concatenate(state.w), w, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("a", [1.0, 0.1])
def test_everyone_with_full_gradients_ends_at_the_saddle(a):
    """At a constant step, also where the anchor remembers."""
    p, method = unlike(), algorithm("fedgda_gt", a=a, **STEP)
    assert distance(method, run(method, p, 50)[-1], p) < 1e-12


@pytest.mark.full
def test_a_cohort_leaves_a_floor_that_memory_lowers():
    """An anchor of everyone leaves none."""
    p, floors = unlike(), {}
    for a, anchor in ((1.0, "cohort"), (0.1, "cohort"), (1.0, "all")):
        method = algorithm("fedgda_gt", a=a, anchor=anchor, **STEP)
        floors[a, anchor] = np.mean([distance(method, s, p) for s in run(method, p, 60, cohort=2)[-30:]])
    assert floors[1.0, "all"] < 1e-5 < 0.02 < floors[0.1, "cohort"] < 0.8 * floors[1.0, "cohort"]


def test_a_weight_beyond_one_is_one():
    """The published weight min(a0 / (r + 1)^(2e), 1) begins there."""
    p = unlike()
    a = {"kind": "inverse_power", "initial": 3.0, "power": 1.0}
    ends = [run(algorithm("cd_mage_vr", a=value, **STEP), p, 3, cohort=2)[-1].q for value in (a, 1.0, 0.5)]
    assert torch.equal(torch.cat(ends[0]), torch.cat(ends[1]))  # 3, 1.5, 1
    assert not torch.allclose(torch.cat(ends[1]), torch.cat(ends[2]))


@pytest.mark.full
@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_a_random_number_of_steps_ends_at_the_saddle(lam):
    """Also where stages pull: at the saddle w_s is the saddle, and there is no pull."""
    p, method = unlike(), algorithm("catalyst_scaffold_s", lam=lam, stage=5, anchor="all", B=None, **STEP)
    assert distance(method, run(method, p, 100)[-1], p) < 1e-9


def test_the_pull_of_a_long_stage_ends_at_the_saddle_of_its_objective():
    """Both variables are drawn to the stage's start w_s: F(u) + lam (u - w_s) = 0."""
    p = unlike()
    w = np.concatenate(run(algorithm("catalyst_scaffold_s", lam=0.7, stage=1000, B=None, **STEP), p, 60)[-1].w)
    F = np.mean([numpy_field(p, i, w) for i in range(4)], axis=0)
    np.testing.assert_allclose(F + 0.7 * (w - numpy_start(p)), 0, atol=1e-12)


def test_y_stays_in_its_set_after_every_local_step():
    """f = x y - 1/2 y² + 3 y, |y| <= 1: y = 1 in all local steps, so that x falls by eta in each."""
    p = scalar(0, 1, 1, e=3.0, box=1.0, w_0=(0.0, 1.0))
    (state,) = run(algorithm("fedgda_gt", K=4, eta_x=0.1, eta_y=0.9), p, 1)[1:]
    np.testing.assert_allclose(state.w, [[-0.4], [1.0]], rtol=1e-12)


@pytest.mark.slow
def test_on_the_quadratic_game_only_the_anchor_converges():
    """400 exchanges, K = 20: relative squared errors."""
    p = quadratic_game()
    ends = {}
    for name, rounds, more in (("fedgda_gt", 200, {"K": 20}), ("local_sgda", 400, {"tau": 20, "B": None})):
        method = algorithm(name, eta_x=0.1, eta_y=0.1, **more)
        ends[name] = distance(method, run(method, p, rounds)[-1], p) ** 2
    assert ends["fedgda_gt"] < 1e-20
    assert 1e-4 < ends["local_sgda"] < 1e-2


MEMBERS = {
    "fedgda_gt": {},
    "cd_mage_mb": {"B": 3},
    "cd_mage_vr": {"B": 3, "a": 0.3, "B_anchor": 4},
    "sagda": {"B": 3, "B_anchor": 4, "gamma_x": 0.7, "gamma_y": 0.9, "correction": "sample"},
    "sagda, kept": {"B": 3, "B_anchor": 4, "gamma_x": 0.7, "gamma_y": 0.9},
    "sagda, kept, all": {"B": 3, "B_anchor": 4, "anchor": "all", "a": 0.3, "lam": 0.4, "stage": 2},
    "catalyst_scaffold_s": {"B": 3, "lam": 0.4, "stage": 2},
}


@pytest.mark.full
def test_a_kept_gradient_lets_the_error_fall_with_the_local_steps():
    """f = 1/2 (x - xi)² - 1/2 (y - zeta)², one example a sample. The noise of one q rides on all K steps, or averages out."""
    spread = {}
    for correction in ("sample", "kept"):
        for K in (1, 16):
            words = [f"algo.correction={correction}", f"algo.K={K}", "algo.gamma_x=1", "algo.gamma_y=1"]
            sizes = [f"algo.eta_x={0.1 / K}", f"algo.eta_y={0.1 / K}", "algo.B=1", "algo.B_anchor=1"]
            e = small(
                "sagda", "quadratic_minimax", *words, *sizes, "participation.cohort=null", "partitioner.clients=2"
            )
            ends = [e.problem.evaluate(*state.w)["distance"] for state in steps(e, 120)[60:]]
            spread[correction, K] = np.mean(ends)
    assert spread["sample", 16] > 0.8 * spread["sample", 1]
    assert spread["kept", 16] < 0.5 * spread["kept", 1]


@pytest.mark.parametrize(("correction", "B", "calls"), [("sample", None, 1 + 4), ("sample", 2, 2 * 4), ("kept", 2, 4)])
def test_gradients_of_a_round(correction, B, calls):
    """Of four local steps; the gradient of the exchange of anchors is one more. Full ones at the anchor are computed once."""
    words = ["algo.K=4", f"algo.B={B or 'null'}", f"algo.correction={correction}", "participation.cohort=null"]
    e = small("fedgda_gt", "quadratic_minimax", *words)
    steps(e, 1)
    assert e.federation.ledger.calls.grad == 6 * (1 + calls)


@pytest.mark.parametrize("algo", MEMBERS)
def test_golden_numbers(algo):
    """Cohorts of 3 out of 6 with minibatches, three rounds of two exchanges, written out."""
    given = {"eta_x": 0.1, "eta_y": 0.2, "K": 3, **MEMBERS[algo]}
    e = small(algo.partition(",")[0], "quadratic_minimax", *(f"algo.{key}={value}" for key, value in given.items()))
    p, m, w = e.problem, e.algorithm, numpy_start(e.problem)
    eta = np.repeat([0.1, 0.2], [v.numel() for v in p.start()])
    gamma = np.repeat([m.gamma_x(0), m.gamma_y(0)], [v.numel() for v in p.start()])
    w_prev, q, w_s = w, 0 * w, w
    for r, state in enumerate(steps(e, 3)[1:]):
        fed = e.federation.at(r)
        w_s = w if r % m.stage == 0 else w_s
        local = fed.cohort()
        S = fed.everyone() if m.anchor == "all" else local
        now, before, v = [], [], {}
        for i in S:
            (noise,) = noise_of_draws(e, r, 1, i, anchor=Steps(1, m.B_anchor))["anchor"]
            now, before = [*now, numpy_field(p, i, w, noise)], [*before, numpy_field(p, i, w_prev, noise)]
            v[i] = now[-1]
        a = 1 if r == 0 else m.a(r)
        q = np.mean(now, axis=0) + (1 - a) * (q - np.mean(before, axis=0))
        K = fed.rng(Purpose.COIN).geometric(1 / m.K) if m.steps == "geometric" else m.K
        ends = []
        for i in local:
            u = w
            for noise in noise_of_draws(e, r, 2, i, local=Steps(K, m.B))["local"] * (1 if m.B else K):
                kept = v[i] if m.correction == "kept" else numpy_field(p, i, w, noise)
                F = numpy_field(p, i, u, noise) - kept
                u = u - eta * (F + q + m.lam * (u - w_s))
            ends.append(u)
        w_prev, w = w, w + gamma * (np.mean(ends, axis=0) - w)
        for computed, derived in ((state.w, w), (state.q, q), (state.w_s, w_s), (state.w_prev, w_prev)):
            np.testing.assert_allclose(np.concatenate(computed), derived, rtol=1e-9, atol=1e-12)
