"""AdaFBiO and AdaFGDA against NumPy derivations, LocalBSGVRM and closed forms."""

from functools import cache

import numpy as np
import pytest
import torch
from support.games import noise_of_draws, numpy_field, numpy_start
from support.quadratics import ALL, EXACT, SMALL, noises, terms
from support.settled import settled

from fedopt.errors import UserError
from fedopt.federation.draws import Steps
from fedopt.testing.harness import small, steps

NESTED = {"adafbio": "quadratic_bilevel", "adafgda": "quadratic_minimax"}
PLAIN = ["algo.r=1", "algo.rho=1"]  # A = B = I
CONSTANT = ["algo.k=999999.999999999", "algo.n=1e18"]  # eta_t = 1 but for the last digits
SHORT = ["algo.Q=3", "algo.theta=0.7"]


def method(algo, *words):
    return small(algo, NESTED[algo], *SMALL, *(SHORT if algo == "adafbio" else []), *words)


def stride(gamma, lam):
    return [f"algo.gamma={gamma}", f"algo.lam={lam}"]


def numpy_directions(e, i, z, noise):
    """(w, v) of client i; the matrices have no noise, so neither has the Neumann sum of 3 products with step .7."""
    if len(noise) == 2:
        return numpy_field(e.problem, i, z, noise)
    m, (x, y), (c, d, f) = terms(e.problem, i), np.split(z, 2), noise
    H = 0.7 * sum(np.linalg.matrix_power(np.eye(len(y)) - 0.7 * m["A"], n) for n in range(4))
    f_x, f_y = m["D"] @ x - m["d"] - d + m["G"] @ y, m["F"] @ y - m["e"] - f + m["G"].T @ x
    return np.concatenate([f_x + m["B"].T @ H @ f_y, m["A"] @ y - m["B"] @ x - m["c"] - c])


@pytest.mark.full
@pytest.mark.parametrize("algo", ["adafbio", "adafgda"])
@pytest.mark.parametrize(("weight", "same"), [(1 - 2**-53, True), (0.3, False)])
def test_without_matrices_it_is_localbsgvrm_but_for_the_old_point(algo, weight, same):
    """LocalBSGVRM averages before it estimates, AdaFBiO after, so that its exchanges come one iteration later: after the first
    iteration, and after every q. Without memory there is no old point."""
    ours = method(
        algo, *EXACT, *PLAIN, *CONSTANT, *stride(0.1, 0.2), f"algo.c1={weight}", f"algo.c2={weight}", "algo.q=4"
    )
    words = ["algo.eta=0.5", "algo.rho1=0.2", "algo.rho2=0.4", f"algo.alpha={4 * weight}", f"algo.beta={4 * weight}"]
    theirs = [small("localbsgvrm", NESTED[algo], *SMALL, *SHORT, *EXACT, *words, f"algo.p={p}") for p in (1, 4)]
    state = theirs[0].algorithm.init(theirs[0].problem)
    for r in range(4):
        e = theirs[min(r, 1)]
        state = e.algorithm.step(state, e.problem, e.federation.at(r))
    adaptive = steps(ours, 3)[-1]
    z = [
        part - size * d for part, d, size in zip(adaptive.z, adaptive.d, (0.1, 0.2), strict=True)
    ]  # one iteration more
    far = float((torch.cat(z) - torch.cat(state.z[:2])).norm())
    assert far < 1e-13 if same else far > 1e-4


@pytest.mark.parametrize("kind", ["diagonal", "norm"])
def test_first_step_has_the_size_of_the_step(kind):
    """With r = 0 and a small rho: eta gamma for each coordinate, or for all of them together."""
    words = ["algo.r=0", "algo.rho=1e-14", "algo.q=1", "algo.k=1.5", "algo.n=27", *stride(0.02, 0.04)]
    before, after = steps(method("adafgda", *EXACT, *words, f"algo.A_of_x={kind}", f"algo.A_of_y={kind}"), 1)
    for was, now, size in zip(before.z, after.z, (0.01, 0.02), strict=True):
        moved = (now - was).abs() if kind == "diagonal" else (now - was).norm()
        torch.testing.assert_close(moved, torch.full_like(moved, size), rtol=1e-9, atol=0)


@cache
def floor(step, weight, *words):
    """The distance of the limit from the saddle, with 5 local steps and without matrices."""
    c = [f"algo.c1={weight}", f"algo.c2={weight}"]
    e = method("adafgda", *EXACT, *PLAIN, *CONSTANT, *stride(step, step), *c, "algo.q=5")
    return float((torch.cat(settled(e).z) - torch.cat(e.problem.solution())).norm())


def test_an_averaged_old_point_leaves_the_floor_of_local_sgda_for_every_weight():
    """What a client's own old point corrects, an averaged one does not: forgetting nothing is no longer exact."""
    forgets_nothing, has_no_memory = floor(0.02, 0), floor(0.02, 1)
    assert forgets_nothing > 1e-3
    assert 0.8 < forgets_nothing / has_no_memory < 1.25
    assert 1.8 < forgets_nothing / floor(0.01, 0) < 2.2


def test_one_local_step_is_exact_for_every_weight():
    e = method("adafgda", *EXACT, *PLAIN, *CONSTANT, *stride(0.1, 0.1), "algo.c1=0.3", "algo.c2=0.7", "algo.q=1")
    assert float((torch.cat(settled(e).z) - torch.cat(e.problem.solution())).norm()) < 1e-10


@pytest.mark.parametrize(("algo", "calls"), [("adafbio", (2, 3, 1)), ("adafgda", (1, 0, 0))])
def test_one_exchange_a_round(algo, calls):
    """Two points an iteration; z and its momenta, and down also a diagonal and a number; the first momenta are an exchange more."""
    e = method(algo, ALL, "algo.q=5", "algo.B=3", "algo.B1=3")
    steps(e, 3)
    ledger = e.federation.ledger
    assert ledger.comm_rounds == 4
    assert set(ledger.down) == {8 * (4 + 3 * (8 + 2 + 1))}
    assert set(ledger.up) == {8 * (4 + 3 * 8)}
    assert (ledger.calls.grad, ledger.calls.hvp, ledger.calls.jvp) == tuple(4 * (1 + 30) * n for n in calls)


def test_y_stays_within_its_constraint(monkeypatch):
    e = method("adafgda", *stride(0.1, 2.0), "algo.k=4", "algo.n=100", "algo.c1=1", "algo.c2=1", "algo.B=3")
    free = steps(e, 4)
    monkeypatch.setattr(type(e.problem), "project", lambda self, y: y.clamp(0.9, 1.1))
    assert any(((s.z[1] - 1).abs() > 0.11).any() for s in free)
    assert all(((s.z[1] - 1).abs() <= 0.1 + 1e-12).all() for s in steps(e, 4))


@pytest.mark.parametrize("words", [["algo.k=5", "algo.n=100"], ["algo.c1=9", "algo.k=2", "algo.n=100"]])
def test_shares_beyond_one(words):
    with pytest.raises(UserError, match="must be at most 1"):
        method("adafgda", *words)


def test_a_share_of_one_up_to_rounding():
    """eta_0 = 5 / 125^(1/3) and, with k = 1, c1 eta_0^2 = 25 / 125^(2/3)."""
    for words in (["algo.k=5", "algo.c1=1", "algo.c2=1"], ["algo.k=1", "algo.c1=25", "algo.c2=25"]):
        method("adafgda", "algo.n=125", *words)


@pytest.mark.parametrize(
    ("algo", "kinds", "M", "cohort"),
    [
        ("adafbio", ("diagonal", "norm"), 4, 2),
        ("adafgda", ("norm", "diagonal"), 4, 4),
        ("adafgda", ("diagonal", "norm"), 1, 1),  # BiAdam
    ],
)
def test_golden_numbers(algo, kinds, M, cohort):
    """Three rounds in NumPy: the matrices are made of the mean momenta, and a client's old point after an exchange is the mean."""
    gamma, lam, k, n, c, q, r, rho, B, B1 = 0.3, 0.4, 1.5, 12.0, (1.0, 2.0), 3, 0.8, 0.2, 3, 4
    words = [*stride(gamma, lam), f"algo.k={k}", f"algo.n={n}", f"algo.c1={c[0]}", f"algo.c2={c[1]}", f"algo.q={q}"]
    words += [f"algo.r={r}", f"algo.rho={rho}", f"algo.B={B}", f"algo.B1={B1}", f"partitioner.clients={M}"]
    words += [f"algo.A_of_x={kinds[0]}", f"algo.A_of_y={kinds[1]}", f"participation.cohort={cohort}"]
    e = method(algo, *words)

    def samples(r, exchange, i, name, count, B):
        if algo == "adafgda":
            return noise_of_draws(e, r, exchange, i, **{name: Steps(count, B)})[name]
        return noises(e, r, i, name, Steps(count, B, 1 + 3), exchange)[::4]  # the others are those of Hessians

    def eta(t):
        return k / (n + t) ** (1 / 3)

    z, a = numpy_start(e.problem), [0.0, 0.0]
    for number, state in enumerate(steps(e, 3)[1:]):
        fed, trips = e.federation.at(number), 1
        if number == 0:
            first = [numpy_directions(e, i, z, samples(0, 1, i, "first", 1, B1)[0]) for i in fed.cohort()]
            d, trips = np.mean(first, axis=0), 2
        parts, matrices = np.split(d, 2), []
        for j, kind in enumerate(kinds):
            a[j] = r * a[j] + (1 - r) * (parts[j] ** 2 if kind == "diagonal" else np.linalg.norm(parts[j]))
            matrices.append((np.sqrt(a[j]) if kind == "diagonal" else a[j]) + rho + np.zeros(2))
        size, answers = np.array([gamma, gamma, lam, lam]) / np.concatenate(matrices), []
        for i in fed.new_cohort():
            z_i, d_i = z, d
            for t, xi in enumerate(samples(number, trips, i, "xi", q, B), number * q):
                old, z_i = z_i, z_i - eta(t) * size * d_i
                weight = np.repeat(c, 2) * eta(t) ** 2
                d_i = numpy_directions(e, i, z_i, xi) + (1 - weight) * (d_i - numpy_directions(e, i, old, xi))
            answers.append((z_i, d_i))
        z, d = (np.mean(part, axis=0) for part in zip(*answers, strict=True))
        np.testing.assert_allclose(torch.cat([*state.z, *state.d]).numpy(), [*z, *d], rtol=1e-10, atol=1e-12)
        for ours, theirs in zip((state.a, state.b), a, strict=True):
            np.testing.assert_allclose(ours.numpy(), np.atleast_1d(theirs), rtol=1e-10)
