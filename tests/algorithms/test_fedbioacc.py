"""FedBiOAcc and FedBiOAcc-Local against NumPy derivations, hand examples and closed forms."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from support.quadratics import ALL, EXACT, SMALL, directions, hand_example, limit, noises, solution, terms
from support.settled import settled

from fedopt.errors import UserError
from fedopt.federation.draws import Steps
from fedopt.federation.inverse import neumann_sum
from fedopt.federation.oracles import Oracles
from fedopt.testing.harness import iterate, small, steps

STEPS, WEIGHTS = ("eta", "gamma", "tau"), ("c_x", "c_y", "c_u")
CONSTANT = ["algo.delta=1e6", "algo.u0=1e18"]  # alpha_t = 1 to rounding
LOCAL = "fedbioacc_local"
NESTED = {"fedbioacc": "quadratic_bilevel", LOCAL: "quadratic_local_bilevel", "fedbio": "quadratic_bilevel"}


def chosen(keys, *values):
    return [f"algo.{key}={value}" for key, value in zip(keys, values * (3 if len(values) == 1 else 1), strict=True)]


def full(algo, *words):
    return small(algo, NESTED[algo], *EXACT, *SMALL, *words)


def distance(point, known):
    return float(np.linalg.norm(np.concatenate([a.numpy() - np.asarray(b) for a, b in zip(point, known, strict=True)])))


@pytest.mark.parametrize("c", [0, 0.4])
def test_hand_example(c):
    """With one client and full batches m is D whatever c is: two simultaneous steps of 0.1."""
    e = hand_example("fedbioacc", *chosen(STEPS, 0.1), *chosen(WEIGHTS, c), *CONSTANT, "algo.I=2")
    state = steps(e, 1)[-1]
    np.testing.assert_allclose(torch.cat(state.z).numpy(), [0.83, 0.34, -0.16], rtol=1e-9)


@pytest.mark.parametrize("c", [0, 0.3, 0.999])
def test_one_iteration_a_round_is_fedbio_for_every_c(c):
    sizes = (0.1, 0.2, 0.3)
    acc = full("fedbioacc", *chosen(STEPS, *sizes), *chosen(WEIGHTS, c), *CONSTANT, "algo.I=1")
    plain = full("fedbio", *chosen(STEPS, *sizes), "algo.I=1")
    for one, other in zip(steps(acc, 4), steps(plain, 4), strict=True):
        torch.testing.assert_close(torch.cat(one.z), torch.cat(other.z), rtol=1e-12, atol=1e-12)


@cache
def floor(step, c, algo="fedbioacc"):
    """The distance of the limit at a constant step from the solution, with I = 5."""
    if algo == "fedbio":
        e = full(algo, *chosen(STEPS, step), "algo.I=5")
        return distance(limit(e).z, solution(terms(e.problem)))
    e = full(algo, *chosen(STEPS, step), *chosen(WEIGHTS, c), *CONSTANT, "algo.I=5")
    known = e.problem.solution()
    return distance(settled(e).z, known)


@pytest.mark.full
def test_without_forgetting_the_limit_is_exact():
    assert floor(0.02, 0) < 1e-11


@pytest.mark.full
def test_the_floor_grows_with_c_and_halves_with_the_step():
    floors = [floor(0.02, c) for c in (0.05, 0.3, 0.999999)]
    assert 1e-5 < floors[0] < floors[1] / 3 < floors[2] / 6
    assert 1.8 < floors[1] / floor(0.01, 0.3) < 2.2


def test_memory_is_averaged_after_it_was_estimated_at_the_mean():
    """Without memory the first step after an exchange is still a step along the mean, which FedBiO's is not."""
    assert 0.5 < floor(0.02, 0.999999) / floor(0.02, None, "fedbio") < 0.7


# The lower level of each client


@pytest.mark.full
def test_local_levels_have_another_solution_and_one_iteration_finds_it():
    e = full(LOCAL, *chosen(STEPS, 0.1), *chosen(WEIGHTS, 0.5), *CONSTANT, "algo.I=1")
    (local,) = e.problem.solution()
    assert distance(settled(e).z, (local,)) < 1e-10
    assert distance((full("fedbio").problem.solution()[0],), (local,)) > 0.05


def test_mean_of_own_hypergradients_is_the_gradient():
    """At y_i*(x), with the inverse of each client's Hessian, as LocalBSG estimates it."""
    e = full(LOCAL)
    x = e.problem.start()[0] + 0.3
    inverse, total = partial(neumann_sum, N=200, l=1.0), 0.0
    for i in range(4):
        m = e.problem.per_client
        y = torch.linalg.solve(m["A"][i], m["B"][i] @ x + m["c"][i])
        xi = e.problem.sample(i, {})
        total = total + Oracles(e.problem).hypergradient(x, y, [xi] * 201, inverse) / 4
    torch.testing.assert_close(total, e.problem.hypergradient(x), rtol=1e-10, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("c", [0, 0.3])
def test_local_levels_without_heterogeneity_are_the_global_one(c):
    words = [*chosen(STEPS, 0.1), *chosen(WEIGHTS, c), "problem.heterogeneity=0"]
    local, common = (steps(full(algo, *words), 3)[-1] for algo in (LOCAL, "fedbioacc"))
    torch.testing.assert_close(local.z[0], common.z[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("algo", "floats"), [("fedbioacc", 5 + 2 * 8), (LOCAL, 5)])
def test_two_exchanges_a_round(algo, floats):
    """The first m is one more; three gradients and one product of each kind at two points an iteration."""
    e = small(algo, NESTED[algo], ALL, "partitioner.clients=4", "algo.B=3", "algo.I=5")
    steps(e, 3)
    ledger = e.federation.ledger
    assert ledger.comm_rounds == 7
    assert set(ledger.down) == {8 * floats * (1 + 3 * 3)}
    assert set(ledger.up) == {8 * floats * (1 + 3 * 2)}
    assert (ledger.calls.grad, ledger.calls.hvp, ledger.calls.jvp) == tuple(4 * (1 + 30) * n for n in (3, 1, 1))


def test_weights_beyond_one():
    with pytest.raises(UserError, match=r"c_u \* alpha_0\^2"):
        full("fedbioacc", *CONSTANT, *chosen(WEIGHTS, 0.9, 0.9, 1.1))


def test_a_weight_of_one_up_to_rounding():
    """c alpha_0^2 = 25 (0.2)^2, with alpha_0 = 1 / 125^(1/3)."""
    assert 25 * (1 / 125 ** (1 / 3)) ** 2 > 1
    full("fedbioacc", "algo.delta=1", "algo.u0=125", *(f"algo.c_{name}=25" for name in "xyu"))


@pytest.mark.parametrize(("algo", "cohort"), [("fedbioacc", 2), (LOCAL, 4), (LOCAL, 2)])
def test_golden_numbers(algo, cohort):
    """Three rounds in NumPy: two exchanges each, after one for m_0. Three samples an iteration, each at both points."""
    sizes, delta, u0, c, I, B, B1 = (0.2, 0.3, 0.4), 2.0, 5.0, (0.2, 0.4, 0.7), 3, 3, 5
    words = [*chosen(STEPS, *sizes), *chosen(WEIGHTS, *c), f"algo.delta={delta}", f"algo.u0={u0}", f"algo.I={I}"]
    e = small(algo, NESTED[algo], *SMALL, *words, f"algo.B={B}", f"algo.B1={B1}", f"participation.cohort={cohort}")
    n = 3 if algo == "fedbioacc" else 1  # variables that are averaged

    def D(i, z, drawn):
        return [directions(terms(e.problem, i), z, drawn[k])[k] for k in range(3)]

    def mean(parts):
        return [np.mean(part, axis=0) for part in zip(*parts, strict=True)]

    def moved(z, m, t):
        return [part - size * delta / (u0 + t) ** (1 / 3) * d for part, size, d in zip(z, sizes, m, strict=True)]

    def recursion(i, z, z_prev, m, drawn, t):
        now, before = D(i, z, drawn), D(i, z_prev, drawn)
        alpha = delta / (u0 + t) ** (1 / 3)
        return [new + (1 - w * alpha**2) * (d - old) for w, new, d, old in zip(c, now, m, before, strict=True)]

    x, y = (v.numpy() for v in e.problem.start())
    z = [[x, y, 0 * y] for _ in range(4)]
    m = [D(i, z[i], noises(e, 0, i, "first", Steps(1, B1, 3), 1)) for i in range(4)]
    z_mean, m_mean = z[0][:n], mean(part[:n] for part in m)
    for r, state in enumerate(iterate(e, 3)):
        if r == 0:
            continue
        S, own_old = e.federation.at(r - 1).cohort(), {}
        for i in S:
            z[i], m[i] = [*z_mean, *z[i][n:]], [*m_mean, *m[i][n:]]
            drawn = noises(e, r - 1, i, "xi", Steps(I - 1, B, 3), 2 if r == 1 else 1)
            for k in range(I):
                t = (r - 1) * I + k
                own_old[i], z[i] = z[i], moved(z[i], m[i], t)
                if k < I - 1:
                    m[i] = recursion(i, z[i], own_old[i], m[i], drawn[3 * k : 3 * k + 3], t)
        z_mean = mean(z[i][:n] for i in S)
        for i in S:
            z[i] = [*z_mean, *z[i][n:]]
            m[i] = recursion(
                i, z[i], own_old[i], m[i], noises(e, r - 1, i, "last", Steps(1, B, 3), 3 if r == 1 else 2), t
            )
        m_mean = mean(m[i][:n] for i in S)
        for ours, theirs in zip((*state.z, *state.d), (*z_mean, *m_mean), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)
