"""SimFBO, ShroFBO and FedBiO against NumPy derivations, hand examples and closed forms."""

from itertools import islice

import numpy as np
import pytest
import torch
from support.quadratics import (
    ALL,
    EXACT,
    SMALL,
    adjoint,
    directions,
    hand_example,
    inner,
    limit,
    noises,
    solution,
    terms,
)

from fedopt.algorithms.checks import first_state
from fedopt.federation.draws import Steps
from fedopt.testing.harness import iterate, small, steps

SIMFBO, FEDBIO = ("eta_x", "eta_y", "eta_v"), ("eta", "gamma", "tau")
SERVER = ("gamma_x", "gamma_y", "gamma_v")


def quadratic(algo, *words):
    return small(algo, "quadratic_bilevel", *EXACT, *SMALL, *words)


def stepped(keys, *values):
    """Words that set step sizes, in the order x, y, v; one value is that of all."""
    return [f"algo.{key}={value}" for key, value in zip(keys, values * (3 if len(values) == 1 else 1), strict=True)]


def distance(point, solved):
    return float(np.linalg.norm(np.concatenate([a.numpy() - b for a, b in zip(point, solved, strict=True)])))


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ("simfbo", [*stepped(SIMFBO + SERVER, *[0.1] * 6), "algo.tau=2"]),
        ("shrofbo", [*stepped(SIMFBO + SERVER, *[0.1] * 6), "algo.tau=2"]),
        ("fedbio", [*stepped(FEDBIO, 0.1), "algo.I=2"]),
    ],
)
def test_hand_example(algo, words):
    """All three move at the old point: two simultaneous steps of 0.1."""
    z = steps(hand_example(algo, *words), 1)[-1].z
    np.testing.assert_allclose(torch.cat(z).numpy(), [0.83, 0.34, -0.16], rtol=1e-14)


@pytest.mark.parametrize(("algo", "key"), [("simfbo", "tau"), ("shrofbo", "tau"), ("fedbio", "I")])
def test_one_local_step_is_exact(algo, key):
    e = quadratic(algo, f"algo.{key}=1")
    assert distance(limit(e).z, solution(terms(e.problem))) < 1e-11


def test_one_local_step_is_soba_on_the_mean_problem():
    e = quadratic("simfbo", *stepped(SERVER, 0.1, 0.2, 0.3), "algo.tau=1")
    x, y = e.problem.start()
    z, m = [x.numpy(), y.numpy(), 0 * y.numpy()], terms(e.problem)
    for state in islice(iterate(e, 5), 1, None):
        z = [z_n - step * D_n for z_n, step, D_n in zip(z, (0.1, 0.2, 0.3), directions(m, z), strict=True)]
        np.testing.assert_allclose(torch.cat(state.z).numpy(), np.concatenate(z), rtol=1e-12)


UNEVEN = "participation.work=[1,2,4,5]"


def test_uneven_work_weighs_clients_in_simfbo_and_not_in_shrofbo():
    """Exactly so where clients do not move, at local steps of 0."""
    still = [*stepped(SIMFBO, 0), *stepped(SERVER, 0.05), UNEVEN]
    e = quadratic("simfbo", *still)
    true, weighted = solution(terms(e.problem)), solution(terms(e.problem, weights=[1, 2, 4, 5]))
    assert distance(limit(e).z, weighted) < 1e-11
    assert distance(limit(quadratic("shrofbo", *still)).z, true) < 1e-11
    assert distance(limit(e).z, true) > 0.1


@pytest.mark.parametrize(("algo", "weights"), [("simfbo", [1, 2, 4, 5]), ("shrofbo", None)])
def test_uneven_work_with_local_steps_that_vanish(algo, weights):
    errors = []
    for eta in (0.01, 0.005):
        e = quadratic(algo, *stepped(SIMFBO, eta), UNEVEN)
        errors.append(distance(limit(e).z, solution(terms(e.problem, weights=weights))))
    assert 1.8 < errors[0] / errors[1] < 2.2


@pytest.mark.full
def test_bias_of_fedbio_is_of_the_order_of_its_steps():
    errors = {}
    for step, I in ((0.02, 5), (0.01, 5), (0.01, 3)):
        e = quadratic("fedbio", *stepped(FEDBIO, step), f"algo.I={I}")
        errors[step, I] = distance(limit(e).z, solution(terms(e.problem)))
    assert 1.8 < errors[0.02, 5] / errors[0.01, 5] < 2.2
    assert 1.8 < errors[0.01, 5] / errors[0.01, 3] < 2.2  # in proportion to I - 1


def test_fedbio_is_simfbo_at_equal_steps_of_clients_and_server():
    values = (0.1, 0.2, 0.3)
    simfbo = quadratic("simfbo", *stepped(SIMFBO, *values), *stepped(SERVER, *values), "algo.tau=4")
    fedbio = quadratic("fedbio", *stepped(FEDBIO, *values), "algo.I=4")
    for one, other in zip(steps(simfbo, 3), steps(fedbio, 3), strict=True):
        torch.testing.assert_close(torch.cat(one.z), torch.cat(other.z), rtol=1e-15, atol=1e-15)


def test_shrofbo_is_simfbo_where_work_is_even():
    one, other = (steps(small(algo, "quadratic_bilevel", "algo.B=3"), 3)[-1] for algo in ("simfbo", "shrofbo"))
    torch.testing.assert_close(torch.cat(one.z), torch.cat(other.z), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("algo", ["simfbo", "shrofbo", "fedbio"])
def test_v_stays_in_its_ball(algo):
    free, bound = (steps(small(algo, "quadratic_bilevel", "algo.B=3", f"algo.radius={r}"), 5) for r in ("null", 0.01))
    assert max(float(s.z[2].norm()) for s in free) > 0.1
    assert all(float(s.z[2].norm()) <= 0.01 * (1 + 1e-12) for s in bound)


@pytest.mark.parametrize(("algo", "calls"), [("simfbo", (2, 1, 1)), ("fedbio", (3, 1, 1))])
def test_one_exchange_of_x_and_two_y(algo, calls):
    """Calls of a local step, as (gradients, Hessian products, cross products)."""
    e = small(algo, "quadratic_bilevel", ALL, "partitioner.clients=4", "algo.B=3")
    steps(e, 3)
    ledger = e.federation.ledger
    assert ledger.comm_rounds == 3
    assert set(ledger.up) == set(ledger.down) == {3 * 8 * (5 + 2 * 8)}
    assert (ledger.calls.grad, ledger.calls.hvp, ledger.calls.jvp) == tuple(3 * 4 * 5 * n for n in calls)


# FedBiO-Local


def local(*words):
    return small("fedbio_local", "quadratic_local_bilevel", *EXACT, *SMALL, *words)


@pytest.mark.full
def test_fedbio_local_leads_to_the_solution_of_local_lower_levels():
    """And FedBiO, on the same numbers, to that of the common one."""
    e, common = local("algo.I=1"), quadratic("fedbio", "algo.I=1")
    (x,), memory = limit(e)
    (known,), (pooled, *_) = e.problem.solution(), common.problem.solution()
    torch.testing.assert_close(x, known, rtol=0, atol=1e-11)
    torch.testing.assert_close(limit(common).z[0], pooled, rtol=0, atol=1e-11)
    assert torch.linalg.norm(known - pooled) > 0.05
    for i, row in enumerate(memory.tensor().numpy()):
        m = terms(e.problem, i)
        y = inner(m, known.numpy())
        np.testing.assert_allclose(row, [*y, *adjoint(m, known.numpy(), y)], atol=1e-10)


@pytest.mark.parametrize("algo", ["fedbio_local", "fedbioacc_local"])
def test_a_run_accepts_the_point_x_alone(algo):
    e = small(algo, "quadratic_local_bilevel")
    (x,) = e.algorithm.output(first_state(e.algorithm, e.problem))
    assert torch.equal(x, e.problem.start()[0])


def test_only_x_crosses():
    e = small("fedbio_local", "quadratic_local_bilevel", ALL, "partitioner.clients=4", "algo.B=3")
    steps(e, 3)
    assert set(e.federation.ledger.up) == set(e.federation.ledger.down) == {3 * 8 * 5}


@pytest.mark.parametrize("algo", ["simfbo", "shrofbo"])
def test_golden_numbers(algo):
    """Cohorts of 2 out of 4, batches of 3, uneven work, one straggler, a ball that v meets: six rounds in NumPy."""
    etas, gammas, r = (0.2, 0.3, 0.4), (0.1, 0.25, 0.35), 0.3
    e = small(
        algo,
        "quadratic_bilevel",
        *SMALL,
        *stepped(SIMFBO, *etas),
        *stepped(SERVER, *gammas),
        "participation.cohort=2",
        "participation.work=[1,2,2,3]",
        "participation.stragglers=0.25",
        "algo.B=3",
        f"algo.radius={r}",
    )
    x, y = e.problem.start()
    z, norms, done = [x.numpy(), y.numpy(), 0 * y.numpy()], [], set()
    for number, state in enumerate(islice(iterate(e, 6), 1, None)):
        S, work, answers = e.federation.at(number).cohort(), e.federation.at(number).work(3), []
        done |= {int(work[i]) for i in S}
        for i in S:
            z_i, q = z, [0, 0, 0]
            for noise in noises(e, number, i, "local", Steps(work[i], 3)):
                D = directions(terms(e.problem, i), z_i, noise)
                q = [q_n + D_n for q_n, D_n in zip(q, D, strict=True)]
                z_i = [z_n - eta * D_n for z_n, eta, D_n in zip(z_i, etas, D, strict=True)]
            answers.append((work[i], q))
        a = np.mean([tau for tau, _ in answers])
        for n in range(3):
            if algo == "simfbo":
                Q = sum(q[n] for _, q in answers) / len(S)
            else:
                Q = a * sum(q[n] / max(tau, 1) for tau, q in answers) / len(S)
            z = [*z[:n], z[n] - gammas[n] * Q, *z[n + 1 :]]
        norms.append(np.linalg.norm(z[2]))
        z[2] = z[2] * min(1, r / norms[-1])
        for ours, theirs in zip(state.z, z, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)
    assert min(norms) < r < max(norms)
    assert done == {0, 1, 2, 3}


def test_golden_numbers_of_fedbio():
    """Cohorts of 2 out of 4; three samples an iteration, one for each of Dx, Dy and Du; u meets its ball on the clients."""
    values, I, r = (0.2, 0.3, 0.4), 3, 0.25
    e = small(
        "fedbio",
        "quadratic_bilevel",
        *SMALL,
        *stepped(FEDBIO, *values),
        "participation.cohort=2",
        f"algo.I={I}",
        f"algo.radius={r}",
        "algo.B=3",
    )
    x, y = e.problem.start()
    z, norms = [x.numpy(), y.numpy(), 0 * y.numpy()], []
    for number, state in enumerate(islice(iterate(e, 4), 1, None)):
        answers = []
        for i in e.federation.at(number).cohort():
            z_i, m, drawn = z, terms(e.problem, i), noises(e, number, i, "xi", Steps(I, 3, samples=3))
            for t in range(I):
                D = [directions(m, z_i, drawn[3 * t + n])[n] for n in range(3)]
                z_i = [z_n - step * D_n for z_n, step, D_n in zip(z_i, values, D, strict=True)]
                norms.append(np.linalg.norm(z_i[2]))
                z_i[2] = z_i[2] * min(1, r / norms[-1])
            answers.append(z_i)
        z = [np.mean(parts, axis=0) for parts in zip(*answers, strict=True)]
        for ours, theirs in zip(state.z, z, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)
    assert min(norms) < r < max(norms)


def test_golden_numbers_of_fedbio_local():
    """Cohorts of 2 out of 4: x is averaged, y_i and u_i stay, those of the absent unchanged."""
    values, I = (0.2, 0.3, 0.4), 2
    words = [*SMALL, *stepped(FEDBIO, *values), "participation.cohort=2", f"algo.I={I}", "algo.B=3"]
    e = small("fedbio_local", "quadratic_local_bilevel", *words)
    x, y = (v.numpy() for v in e.problem.start())
    rows = [[y, 0 * y] for _ in range(4)]
    for number, state in enumerate(islice(iterate(e, 4), 1, None)):
        answers = []
        for i in e.federation.at(number).cohort():
            z, m, drawn = [x, *rows[i]], terms(e.problem, i), noises(e, number, i, "xi", Steps(I, 3, samples=3))
            for t in range(I):
                D = [directions(m, z, drawn[3 * t + n])[n] for n in range(3)]
                z = [z_n - step * D_n for z_n, step, D_n in zip(z, values, D, strict=True)]
            answers.append(z[0])
            rows[i] = z[1:]
        x = np.mean(answers, axis=0)
        np.testing.assert_allclose(state.z[0].numpy(), x, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(state.memory.tensor().numpy(), np.reshape(rows, (4, -1)), rtol=1e-10, atol=1e-12)
