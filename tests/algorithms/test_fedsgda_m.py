"""FedSGDA-M and Momentum Local SGDA against NumPy derivations, other methods and closed forms."""

from functools import cache

import numpy as np
import pytest
import torch
from support.games import algorithm, noise_of_draws, numpy_field, numpy_start, run, scalar, unlike
from support.quadratics import ALL, EXACT, SMALL
from support.settled import settled

from fedopt.errors import UserError
from fedopt.federation.draws import Steps
from fedopt.testing.harness import small, steps


def minimax(algo, *words):
    return small(algo, "quadratic_minimax", *SMALL, *words)


def points(states):
    return torch.stack([torch.cat(s.z if hasattr(s, "z") else (s.x, s.y)) for s in states])


def distance(e, state):
    return float((torch.cat(state.z) - torch.cat(e.problem.solution())).norm())


def points_first(eta_x, eta_y, weight):
    """FedBiOAcc at a constant step."""
    c = [f"algo.{key}={weight}" for key in ("c_x", "c_y", "c_u")]
    constant = ["algo.delta=1e6", "algo.u0=1e18", "algo.I=5"]
    return minimax("fedbioacc", *EXACT, f"algo.eta={eta_x}", f"algo.gamma={eta_y}", *c, *constant)


@cache
def floor(order, step, weight):
    """The distance of the limit from the saddle at a constant step, with 5 local steps."""
    if order == "points first":
        e = points_first(step, step, weight)
    else:
        keys = [f"algo.{key}={step}" for key in ("eta_x", "eta_y")] + [
            f"algo.{key}={weight}" for key in ("alpha", "beta")
        ]
        e = minimax("fedsgda_m", *EXACT, *keys, "algo.q=5")
    return distance(e, settled(e))


@pytest.mark.full
@pytest.mark.parametrize("order", ["together", "points first"])
def test_without_forgetting_the_limit_is_exact(order):
    assert floor(order, 0.02, 0) < 1e-9


@pytest.mark.full
def test_the_order_of_averaging_shows_in_the_floor():
    """It grows with the weight of the newest gradients, halves with the step, and is lower where points are averaged first."""
    weights = (0.05, 0.3, 0.999999)
    together, first = ([floor(order, 0.02, w) for w in weights] for order in ("together", "points first"))
    for floors in (together, first):
        assert 1e-4 < floors[0] < floors[1] / 3 < floors[2] / 5
    assert all(1.5 < later / earlier < 2.5 for later, earlier in zip(together, first, strict=True))
    assert 1.8 < together[1] / floor("together", 0.01, 0.3) < 2.2


def test_one_local_step_is_exact_for_every_weight():
    e = minimax("fedsgda_m", *EXACT, "algo.q=1", "algo.alpha=0.3", "algo.beta=0.7", "algo.eta_x=0.1", "algo.eta_y=0.1")
    assert distance(e, settled(e)) < 1e-10


LOCAL_SGDA = ["algo.eta_x=0.1", "algo.eta_y=0.2", "algo.tau=5"]


def test_without_memory_it_is_local_sgda():
    """Together with the order in which it is averaged: FedBiOAcc's without memory is something else."""
    words = ["algo.eta_x=0.1", "algo.eta_y=0.2", "algo.alpha=1", "algo.beta=1", "algo.q=5"]
    ours, theirs = steps(minimax("fedsgda_m", *EXACT, *words), 3), steps(minimax("local_sgda", *EXACT, *LOCAL_SGDA), 3)
    torch.testing.assert_close(points(ours), points(theirs), rtol=1e-12, atol=1e-13)
    first = steps(points_first(0.1, 0.2, 0.999999), 3)
    assert (points(first)[-1] - points(theirs)[-1]).norm() > 1e-3


def test_it_is_localbsgvrm_on_the_minimax_problem():
    """The same draws, so that batches may be small; rho eta is the step, and alpha eta² the weight."""
    common = ["algo.B=3", "algo.S=2", ALL]
    ours = minimax(
        "fedsgda_m", *common, "algo.eta_x=0.1", "algo.eta_y=0.2", "algo.alpha=0.2", "algo.beta=0.3", "algo.q=4"
    )
    theirs = minimax(
        "localbsgvrm",
        *common,
        "algo.eta=0.5",
        "algo.rho1=0.2",
        "algo.rho2=0.4",
        "algo.alpha=0.8",
        "algo.beta=1.2",
        "algo.p=4",
    )
    for one, other in zip(steps(ours, 3), steps(theirs, 3), strict=True):
        torch.testing.assert_close(torch.cat([*one.z, *one.d]), torch.cat([*other.z, *other.d]), rtol=1e-12, atol=1e-13)


def test_momentum_local_sgda_without_memory_is_sgda_for_one_step_and_not_for_more():
    """Every first step after an exchange is along the mean of the momenta: two steps a round are one of SGDA, and one local."""
    words = ["algo.alpha=1", "algo.beta_x=1", "algo.beta_y=1", "algo.eta_x=0.1", "algo.eta_y=0.2"]
    sgda = points(steps(minimax("local_sgda", *EXACT, "algo.eta_x=0.1", "algo.eta_y=0.2", "algo.tau=1"), 4))
    one = points(steps(minimax("momentum_local_sgda", *EXACT, *words, "algo.tau=1"), 4))
    torch.testing.assert_close(one, sgda, rtol=1e-12, atol=1e-13)
    two = points(steps(minimax("momentum_local_sgda", *EXACT, *words, "algo.tau=2"), 2))
    assert (two[1] - sgda[2]).norm() < 1e-12 < 1e-4 < (two[2] - sgda[4]).norm()


@pytest.mark.full
def test_averaged_momenta_lower_the_floor_of_local_sgda():
    """The more so the longer they remember; it halves with the step."""
    floors = {}
    for step, beta in ((0.02, 1), (0.02, 0.1), (0.01, 0.1)):
        words = [f"algo.eta_x={step}", f"algo.eta_y={step}", f"algo.beta_x={beta}", f"algo.beta_y={beta}"]
        e = minimax("momentum_local_sgda", *EXACT, *words, "algo.alpha=1", "algo.tau=5")
        floors[step, beta] = distance(e, settled(e))
    assert floors[0.02, 0.1] < floors[0.02, 1] / 3
    assert 1.8 < floors[0.02, 0.1] / floors[0.01, 0.1] < 2.2


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedsgda_m", {"alpha": 0.3, "beta": 0.3, "q": 3}),
        ("momentum_local_sgda", {"alpha": 1.0, "beta_x": 1.0, "beta_y": 1.0, "tau": 3}),
    ],
)
def test_one_client_with_full_batches_goes_along_its_gradients(name, changes):
    """H2: (1, 1), then (.8, 1), then (.8, 1) - .1 (1.8, .2)."""
    method = algorithm(name, eta_x=0.1, eta_y=0.1, B=None, **changes)
    state = run(method, scalar(1, 1, 1), 1)[-1]
    x, y = 1.0, 1.0
    for _ in range(3):
        x, y = x - 0.1 * (x + y), y + 0.1 * (x - y)
    np.testing.assert_allclose(torch.cat(state.z).numpy(), [x, y], rtol=1e-12)


@pytest.mark.parametrize("name", ["fedsgda_m", "momentum_local_sgda"])
def test_y_stays_within_its_constraint(name):
    method = algorithm(name, eta_x=0.1, eta_y=1.0, B=None)
    game = unlike()
    free = run(method, game, 4)
    game.box = 0.05
    game.w_0 = (game.w_0[0], 0 * game.w_0[1])
    assert max(float(s.z[1].abs().max()) for s in free) > 0.2
    assert all(float(s.z[1].abs().max()) <= 0.05 for s in run(method, game, 4))


@pytest.mark.parametrize(
    ("algo", "key", "trips", "calls"), [("fedsgda_m", "q", 3, 5 + 14 * 2), ("momentum_local_sgda", "tau", 4, 1 + 15)]
)
def test_one_exchange_a_round(algo, key, trips, calls):
    """One gradient call gives both gradients; FedSGDA-M takes it at two points, except for the first, means over S samples."""
    e = small(algo, "quadratic_minimax", ALL, "partitioner.clients=4", f"algo.{key}=5", "algo.B=3")
    steps(e, 3)
    ledger = e.federation.ledger
    assert ledger.comm_rounds == trips
    assert set(ledger.down) == {8 * 7 * (3 * 2 + trips - 3)}
    assert (ledger.calls.grad, ledger.calls.hvp, ledger.calls.jvp) == (4 * calls, 0, 0)


def test_weights_beyond_one():
    with pytest.raises(UserError, match=r"beta_y \* alpha"):
        minimax("momentum_local_sgda", "algo.alpha=0.5", "algo.beta_y=2.5")


@pytest.mark.parametrize("cohort", [4, 2])
def test_golden_numbers_of_fedsgda_m(cohort):
    """Three rounds in NumPy: x, y, u and v are averaged at once, and a client's old point is its own, or the last cohort's mean."""
    eta, weight, q, B, S = np.array([0.2, 0.2, 0.3, 0.3]), np.array([0.3, 0.3, 0.6, 0.6]), 3, 3, 4
    words = [
        "algo.eta_x=0.2",
        "algo.eta_y=0.3",
        "algo.alpha=0.3",
        "algo.beta=0.6",
        f"algo.q={q}",
        f"algo.B={B}",
        f"algo.S={S}",
    ]
    e = minimax("fedsgda_m", *words, f"participation.cohort={cohort}")
    z, d, before = numpy_start(e.problem), None, np.tile(numpy_start(e.problem), (4, 1))
    for r, state in enumerate(steps(e, 3)[1:]):
        answers = []
        for i in (clients := e.federation.at(r).cohort()):
            noise = noise_of_draws(e, r, 1, i, xi=Steps(q + (S - 1 if r == 0 else 0), B))["xi"]
            z_i, d_i, old = z, d, before[i]
            for k in range(q):
                if r == k == 0:
                    d_i, noise = (
                        np.mean([numpy_field(e.problem, i, z_i, xi) for xi in noise[:S]], axis=0),
                        noise[S - 1 :],
                    )
                else:
                    new, last = (numpy_field(e.problem, i, w, noise[k]) for w in (z_i, old))
                    d_i = new + (1 - weight) * (d_i - last)
                old, z_i = z_i, z_i - eta * d_i
            answers.append((z_i, d_i, old))
        z, d, mean = (np.mean(part, axis=0) for part in zip(*answers, strict=True))
        before = np.array([old for _, _, old in answers]) if cohort == 4 else np.tile(mean, (4, 1))
        np.testing.assert_allclose(torch.cat([*state.z, *state.d]).numpy(), [*z, *d], rtol=1e-10, atol=1e-12)
        assert len(clients) == cohort


@pytest.mark.parametrize("cohort", [4, 2])
def test_golden_numbers_of_momentum_local_sgda(cohort):
    """Three rounds in NumPy: plain momentum, taken at the new point, and averaged with it."""
    eta, beta, alpha, tau, B = np.array([0.2, 0.2, 0.3, 0.3]), np.array([0.5, 0.5, 0.8, 0.8]), 0.6, 3, 3
    words = ["algo.eta_x=0.2", "algo.eta_y=0.3", "algo.beta_x=0.5", "algo.beta_y=0.8", f"algo.alpha={alpha}"]
    e = minimax("momentum_local_sgda", *words, f"algo.tau={tau}", f"algo.B={B}", f"participation.cohort={cohort}")
    z, M = numpy_start(e.problem), e.problem.clients
    for r, state in enumerate(steps(e, 3)[1:]):
        fed = e.federation.at(r)
        if r == 0:
            noise = [noise_of_draws(e, 0, 1, i, xi=Steps(1, B))["xi"][0] for i in range(M)]
            d = np.mean([numpy_field(e.problem, i, z, noise[i]) for i in fed.cohort()], axis=0)
        answers = []
        for i in fed.new_cohort():
            z_i, d_i = z, d
            for xi in noise_of_draws(e, r, 2 if r == 0 else 1, i, xi=Steps(tau, B))["xi"]:
                z_i = z_i - alpha * eta * d_i
                d_i = (1 - beta * alpha) * d_i + beta * alpha * numpy_field(e.problem, i, z_i, xi)
            answers.append((z_i, d_i))
        z, d = (np.mean(part, axis=0) for part in zip(*answers, strict=True))
        np.testing.assert_allclose(torch.cat([*state.z, *state.d]).numpy(), [*z, *d], rtol=1e-10, atol=1e-12)
