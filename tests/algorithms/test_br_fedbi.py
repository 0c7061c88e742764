"""BR-FedBi: SimFBO as its limit, and what hostile clients can do. tests/federation/test_robust.py has its rules and attacks."""

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from support.quadratics import ALL, EXACT, SMALL, directions, noises, terms

from fedopt.errors import UserError
from fedopt.federation.draws import Steps
from fedopt.testing.harness import iterate, small, steps

SIX = "partitioner.clients=6"
RULES = ["median", "trimmed", "geometric"]


def br_fedbi(*words):
    return small("br_fedbi", "quadratic_bilevel", *SMALL, *words)


@pytest.mark.parametrize("cohort", ["null", "2"])
def test_the_mean_without_attack_is_simfbo_with_one_step(cohort):
    words = [f"participation.cohort={cohort}", "algo.B=3", "algo.radius=0.2", *(f"algo.gamma_{n}=0.1" for n in "xyv")]
    robust, simfbo = (
        br_fedbi(*words, "algo.rule=mean"),
        small("simfbo", "quadratic_bilevel", *SMALL, *words, "algo.tau=1"),
    )
    for one, other in zip(steps(robust, 4), steps(simfbo, 4), strict=True):
        torch.testing.assert_close(torch.cat(one.z), torch.cat(other.z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_large_answers_of_a_minority_do_not_leave_the_range_of_the_honest(rule):
    """Two out of six send 10^6; the mean follows them."""
    words = [*EXACT, *SMALL, SIX, "participation.hostile={who: 2, attack: large}", "algo.trim=2", "algo.iterations=60"]
    e = small("br_fedbi", "quadratic_bilevel", *words, f"algo.rule={rule}")
    gammas = [getattr(e.algorithm, f"gamma_{name}")(0) for name in "xyv"]
    slack = 0 if rule != "geometric" else 0.5
    states = steps(e, 20)
    for before, after in pairwise(states):
        honest = [directions(terms(e.problem, i), [part.numpy() for part in before.z]) for i in range(2, 6)]
        for n in range(3):
            of_all = np.array([D[n] for D in honest])
            Q = (before.z[n] - after.z[n]).numpy() / gammas[n]
            width = slack * np.ptp(of_all, axis=0).max()
            least, most = of_all.min(0) - width - 1e-9, of_all.max(0) + width + 1e-9
            np.testing.assert_array_equal(Q.clip(least, most), Q)
    ruined = steps(small("br_fedbi", "quadratic_bilevel", *words, "algo.rule=mean"), 1)[-1]
    assert ruined.z[0].abs().max() > 1e3


@pytest.mark.full
@pytest.mark.parametrize("attack", ["sign_flip", "ipm", "alie"])
def test_every_attack_moves_the_mean_further_than_the_median(attack):
    """Of clients that are nearly equal."""
    ends = {}
    for rule in ("mean", "median"):
        words = [
            *EXACT,
            *SMALL,
            SIX,
            "problem.heterogeneity=0.05",
            f"participation.hostile={{who: 2, attack: {attack}}}",
        ]
        e = small("br_fedbi", "quadratic_bilevel", *words, f"algo.rule={rule}", "algo.gamma_x=0.3", "algo.gamma_y=0.6")
        ends[rule] = e.problem.evaluate(*steps(e, 60)[-1].z)["distance"]
    assert ends["median"] < (ends["mean"] if attack != "alie" else 0.2)


def golden(e, rounds, answer):
    """Rounds of the mean of what clients answer: answer(i, r, D_i as a function of z and of a draw, z)."""
    x, y = e.problem.start()
    z = np.concatenate([x, y, 0 * y])
    for r, state in enumerate(islice(iterate(e, rounds), 1, None)):
        S = e.federation.at(r).cohort()

        def D(i, z, B, r=r):
            (noise,) = noises(e, r, i, "xi", Steps(1, B))
            return np.concatenate(directions(terms(e.problem, i), np.split(z, [2, 4]), noise))

        z = z - 0.1 * np.mean([answer(i, r, D, z) for i in S], axis=0)
        np.testing.assert_allclose(torch.cat(state.z).numpy(), z, rtol=1e-9, atol=1e-12)


MEAN = ["algo.rule=mean", "participation.cohort=2", "algo.B=3", *(f"algo.gamma_{n}=0.1" for n in "xyv")]


@pytest.mark.parametrize("p", [0.1, 1])
def test_page_with_full_batches_is_no_page(p):
    words = [*EXACT, *SMALL]
    plain, page = (
        steps(small(algo, "quadratic_bilevel", *words, *more), 4)[-1]
        for algo, more in (("br_fedbi", []), ("br_fedbi_p", [f"algo.p={p}"]))
    )
    torch.testing.assert_close(torch.cat(plain.z), torch.cat(page.z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_the_general_rule_is_its_own(rule):
    """Rules that take each entry by itself. SimFBO with one step and `participation.rule` is BR-FedBi."""
    words = [
        ALL,
        SIX,
        "algo.B=3",
        "participation.hostile={who: 2, attack: alie}",
        *(f"algo.gamma_{n}=0.1" for n in "xyv"),
    ]
    own = small("br_fedbi", "quadratic_bilevel", *SMALL, *words, f"algo.rule={rule}", "algo.trim=2")
    general = f"participation.rule={{kind: {rule}, f: 2}}"
    simfbo = small("simfbo", "quadratic_bilevel", *SMALL, *words, "algo.tau=1", "algo.radius=null", general)
    for one, other in zip(steps(own, 4), steps(simfbo, 4), strict=True):
        torch.testing.assert_close(torch.cat(one.z), torch.cat(other.z), rtol=1e-12, atol=1e-12)


def test_calls_and_bytes():
    e = br_fedbi(ALL, "algo.B=3", "algo.variance=page", "algo.p=1")
    steps(e, 2)
    ledger = e.federation.ledger
    assert ledger.comm_rounds == 2
    assert set(ledger.up) == set(ledger.down) == {2 * 8 * (2 + 2 * 2)}
    assert (ledger.calls.grad, ledger.calls.hvp, ledger.calls.jvp) == (2 * 4 * 2, 2 * 4, 2 * 4)


def test_a_trim_that_leaves_nothing():
    with pytest.raises(UserError, match="needs at least 5 clients"):
        steps(br_fedbi(ALL, "algo.rule=trimmed", "algo.trim=2"), 1)


def test_golden_numbers_of_momentum():
    """g_i = D_i where a client takes part for the first time."""
    g = {}

    def answer(i, r, D, z):
        new = D(i, z, 3)
        g[i] = 0.7 * g[i] + 0.3 * new if i in g else new
        return g[i]

    golden(br_fedbi(*MEAN, "algo.variance=momentum", "algo.momentum=0.7"), 6, answer)


def test_golden_numbers_of_page():
    e, g, coins = br_fedbi(*MEAN, "algo.variance=page", "algo.p=0.4", "algo.B_page=8"), {}, set()

    def answer(i, r, D, z):
        anew = r == 0 or e.federation.at(r).rng("coin").random() < 0.4
        coins.add(anew and r > 0)
        new = D(i, z, 8 if anew else 3)
        g[i] = (new if anew or i not in g else g[i][0] + new - D(i, g[i][1], 3)), z
        return g[i][0]

    golden(e, 8, answer)
    assert coins == {False, True}
