"""How clients of unequal weights count where only a cohort takes part: drawn by weight, or weighted otherwise in the long run."""

import json
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.cases import few

import fedopt
from fedopt.config import Participation
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.federation.availability import Availability
from fedopt.federation.draws import Steps
from fedopt.federation.effective import effective_weights
from fedopt.federation.engines import OneByOne
from fedopt.federation.round import Federation, Round
from fedopt.problems import Problem
from fedopt.testing.harness import small, steps

P = np.array([0.5625, 0.25, 0.125, 0.0625])
ALL = ["partitioner.clients=4", "algo.B=null", "problem.noise=0", "preset=none"]


@pytest.fixture
def unequal(monkeypatch):
    monkeypatch.setattr(Problem, "weights", property(lambda self: P))


def federation(p=P, **who):
    p = np.array(p) / np.sum(p)
    problem, who = SimpleNamespace(weights=p, clients=len(p)), Participation(**who)
    return SimpleNamespace(problem=problem, participation=who, availability=Availability(problem, 0, who))


def point(e, state):
    return torch.cat([v.double() for v in e.algorithm.output(state)]).numpy()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_clients_are_drawn_by_their_weights(unequal, dropout):
    """The mean share of a client is its weight, also where draws are lost."""
    e = small("fedavg", "quadratic_minimisation", *ALL, "participation.cohort=3", "participation.sampling=by_weight")
    fed = Federation(e.problem, OneByOne(), 0, Participation(cohort=3, sampling="by_weight", dropout=dropout))
    shares, R = np.zeros((4000, 4)), 4000
    for r in range(R):
        of_round = fed.at(r)
        S = of_round.cohort()
        shares[r, S] = of_round.weights(S)
        np.testing.assert_array_equal(of_round.weights(S, unbiased=True), shares[r, S])
        assert (shares[r, S] > 0).all()
    np.testing.assert_allclose(shares.sum(1), 1)
    if not dropout:
        np.testing.assert_allclose(3 * shares, np.rint(3 * shares), atol=1e-12)
    assert (abs(shares.mean(0) - P) < 5 * shares.std(0) / np.sqrt(R)).all()


USUAL = ["fedavg", "local_sgda", "fedmsa", "soba", "simfbo", "fed_norm_sgda"]
OTHERS = [
    "ditto",
    "pfedme",
    "saba",
    "fess_gda",
    "fedbio",
    "local_scgd",
    "zo_hfl",
    "stsa",
    "fedgda_gt",
    "coda_plus",
    "fgdro",
]
CLASSES = {"local_sgda": "minimax", "fed_norm_sgda": "minimax", "fess_gda": "minimax", "fedgda_gt": "minimax"}
CLASSES |= {
    "coda_plus": "minimax",
    "local_scgd": "local_compositional",
    "zo_hfl": "hierarchical",
    "ditto": "minimisation",
}
CLASSES |= {"fedavg": "minimisation", "pfedme": "minimisation", "fgdro": "minimisation"}


@pytest.mark.parametrize("algo", few([*USUAL, *OTHERS, "pfedme algo.trained=all"], lambda algo: algo in USUAL))
def test_a_round_by_weight_is_unbiased(monkeypatch, unequal, algo):
    """The mean over all 16 pairs of draws, each by its probability, is the round in which everyone takes part."""
    algo, *words = algo.split()
    problem = f"quadratic_{CLASSES.get(algo, 'bilevel')}"
    words = [*ALL, *words, "participation.sampling=by_weight"]
    e = small(algo, problem, *words, "participation.cohort=null")
    everyone = point(e, steps(e, 1)[-1])
    e, mean = small(algo, problem, *words, "participation.cohort=2"), 0.0
    for pair in product(range(4), repeat=2):
        times = np.bincount(pair, minlength=4)
        S = np.flatnonzero(times)
        monkeypatch.setattr(Round, "drawn", lambda *_, S=S, times=times: (S.copy(), times[S] / 2))
        mean = mean + P[[*pair]].prod() * point(e, steps(e, 1)[-1])
    start = point(e, e.algorithm.init(e.problem))
    assert np.linalg.norm(mean - everyone) < 1e-12 * np.linalg.norm(everyone - start)


@pytest.mark.parametrize("algo", few(["fedavg", "simfbo", "local_sgda", "soba"], lambda algo: algo == "fedavg"))
def test_the_mean_iterate_goes_to_the_solution_of_the_objective(unequal, algo):
    """With one of four clients a round. By uniform cohorts, methods that take the mean end at that of equal weights."""

    def end(*who):
        e = small(algo, f"quadratic_{CLASSES.get(algo, 'bilevel')}", *ALL, *who)
        return np.mean([point(e, s) for s in steps(e, 900)[300:]], axis=0)

    solution = end("participation.cohort=null")
    by_weight = end("participation.cohort=1", "participation.sampling=by_weight")
    uniform = end("participation.cohort=1")
    far = np.linalg.norm((by_weight if algo == "simfbo" else uniform) - solution)
    if algo == "simfbo":  # right by either
        assert max(far, np.linalg.norm(uniform - solution)) < 0.1 * np.linalg.norm(solution)
    else:
        assert np.linalg.norm(by_weight - solution) < 0.35 * far


@pytest.mark.parametrize("algo", ["scaffold", "codasca", "drfa", "afl", "e_aipod", "br_fedbi"])
def test_methods_for_which_draws_by_weight_are_not_defined_say_so(algo):
    problem = f"quadratic_{({'codasca': 'minimax'} | dict.fromkeys(['e_aipod', 'br_fedbi'], 'bilevel')).get(algo, 'minimisation')}"
    with pytest.raises(
        UserError, match=r"participation.sampling=by_weight: (Scaffold|Codasca|Drfa|EAiPOD|BRFedBi) is not defined"
    ):
        small(algo, problem, "participation.cohort=2", "participation.sampling=by_weight")


def test_own_weights_that_ignore_the_draws_are_refused(unequal):
    e = small("fedavg", "quadratic_minimisation", *ALL, "participation.cohort=2", "participation.sampling=by_weight")

    def gradient(client, x):
        return client.gradient(x, client.sample("xi"))

    (x,), fed = e.problem.start(), e.federation.at(0)
    S = fed.cohort()
    for cohort, weights in [(S, P[S]), (S.copy(), None), (np.array([0, 1]), None), (fed.drawn(P)[0], None)]:
        with pytest.raises(UserError, match=r"fed\.weights\(cohort\).*sampling=uniform"):
            fed.exchange(gradient, x, cohort, weights=weights, xi=Steps(1, None))
    fed.exchange(gradient, x, S, weights=2 * fed.weights(S), xi=Steps(1, None))
    fed.exchange(gradient, x, fed.everyone(), weights=P, xi=Steps(1, None))


def enumerated(p, cohort, dropout=0.0, chances=None, unbiased=False):
    """E[p_i 1(i in S) / p(S)], over who is there, who is asked and who stays, in loops."""
    p, M = np.array(p) / np.sum(p), len(p)
    w = np.zeros(M)
    for chance in [np.ones(M)] if chances is None else chances:
        for there in product([False, True], repeat=M):
            of_there = np.prod([c if t else 1 - c for c, t in zip(chance, there, strict=True)])
            A = np.flatnonzero(there)
            asked = [*combinations(A, min(cohort, len(A)))] if len(A) else [(i,) for i in range(M)]
            for S in asked if of_there else ():
                for stay in product([False, True], repeat=len(S)):
                    of_stay = np.prod([1 - dropout if yes else dropout for yes in stay])
                    left = [i for i, yes in zip(S, stay, strict=True) if yes]
                    for rest in [left] if left else [[i] for i in S]:
                        share = p[rest] * M / len(rest) if unbiased else p[rest] / p[rest].sum()
                        w[rest] += of_there / len(asked) * of_stay * share / (1 if left else len(S))
    return w / w.sum()


@pytest.mark.parametrize("cohort", [1, 2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_effective_weights_of_uniform_cohorts(cohort, dropout):
    found = effective_weights(federation(cohort=cohort, dropout=dropout))
    np.testing.assert_allclose(found, enumerated(P, cohort, dropout), atol=1e-6)
    if cohort == 2 and not dropout:
        np.testing.assert_allclose(found, [0.402, 0.296, 0.197, 0.105], atol=1e-3)


GROUPS = {"kind": "cyclic", "groups": [0, 0, 1, 1]}
MARKOV = {"kind": "markov", "on": [0.1, 0.2, 0.4, 0.3], "off": [0.3, 0.2, 0.1, 0.3]}
DIURNAL = {"kind": "diurnal", "share": 0.4, "depth": 1, "period": 4, "groups": [0, 1, 1, 1]}
PHASES = np.array([0, 0.5, 0.5, 0.5])
CHANCES = {
    "cyclic": [np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1])],
    "markov": [np.array([1 / 4, 1 / 2, 4 / 5, 1 / 2])],
    "diurnal": [0.4 * (1 + np.sin(2 * np.pi * (r / 4 + PHASES))) for r in range(4)],
}


@pytest.mark.parametrize("pattern", [GROUPS, MARKOV, DIURNAL], ids=lambda pattern: pattern["kind"])
@pytest.mark.parametrize("who", [{}, {"cohort": 1}, {"cohort": 2, "dropout": 0.2}], ids=str)
def test_effective_weights_of_patterns(pattern, who):
    expected = enumerated(P, who.get("cohort", 4), who.get("dropout", 0.0), CHANCES[pattern["kind"]])
    np.testing.assert_allclose(effective_weights(federation(pattern=pattern, **who)), expected, atol=1e-6)
    unbiased = enumerated(P, who.get("cohort", 4), who.get("dropout", 0.0), CHANCES[pattern["kind"]], unbiased=True)
    found = effective_weights(federation(pattern=pattern, **who), "unbiased")
    np.testing.assert_allclose(P if found is None else found, unbiased, atol=1e-6 if found else 4e-3)
    by_weight = effective_weights(federation(pattern=pattern, sampling="by_weight", **who))
    np.testing.assert_allclose(by_weight, enumerated(P, 4, 0, CHANCES[pattern["kind"]]), atol=1e-6)


def test_effective_weights_of_unequal_groups():
    np.testing.assert_allclose(
        effective_weights(federation([1] * 3, pattern=GROUPS | {"groups": [0, 0, 1]})), [1 / 4, 1 / 4, 1 / 2]
    )
    sizes = np.sort(effective_weights(federation([1] * 12, cohort=2, pattern=GROUPS | {"groups": 5})))
    np.testing.assert_allclose(sizes, np.sort([1 / 10] * 6 + [1 / 15] * 6), atol=1e-6)
    assert effective_weights(federation([1] * 4, pattern=GROUPS)) is None


@pytest.mark.parametrize(("cohort", "dropout"), [(2, 0.0), (3, 0.3)])
def test_more_clients_are_drawn(cohort, dropout):
    p = np.random.default_rng(1).random(13)
    found = np.array(effective_weights(federation(p, cohort=cohort, dropout=dropout)))
    assert abs(found / enumerated(p, cohort, dropout) - 1).max() < 0.01


def test_effective_weights_are_those_of_the_rounds():
    """Against the rounds themselves, of 15 clients in patterns."""
    p = np.random.default_rng(2).random(15)
    world = World(0, Iid(15))
    for pattern in (
        {"kind": "markov", "on": 0.2, "off": [*np.linspace(0.1, 0.9, 15)]},
        {"kind": "cyclic", "groups": 4},
    ):
        fed = federation(p, cohort=2, pattern=pattern, dropout=0.2)
        problem = SimpleNamespace(clients=15, weights=fed.problem.weights, splits=world.split(15))
        rounds, w = Federation(problem, OneByOne(), 0, fed.participation), np.zeros(15)
        for r in range(3000):
            S = rounds.at(r).cohort()
            w[S] += rounds.at(r).weights(S) / rounds.at(r).weights(S).sum() / 3000
        assert abs(effective_weights(fed) - w).max() < 5 * np.sqrt(0.07 / 3000)


def test_the_weights_of_the_objective_are_not_recorded():
    assert effective_weights(federation()) is None
    assert effective_weights(federation([1] * 50, cohort=7)) is None
    assert effective_weights(federation(cohort=2), "unbiased") is None
    assert effective_weights(federation(cohort=2), "corrected") is None
    for dropout in (0.0, 0.5):
        assert effective_weights(federation(cohort=2, sampling="by_weight", dropout=dropout)) is None
    assert effective_weights(federation(np.arange(1, 40), cohort=5, sampling="by_weight")) is None


def test_a_run_records_its_weights(tmp_path, monkeypatch):
    """Of one client in four they are equal, whatever problem.weighting says; with draws by weight they are the objective's."""
    monkeypatch.chdir(tmp_path)
    words = "problem=classification problem.model=linear dataset=digits partitioner=dirichlet partitioner.clients=4 budget.rounds=1"
    found = {}
    for algo, sampling in [("fedavg", "uniform"), ("scaffold", "uniform"), ("fedavg", "by_weight")]:
        run = fedopt.run(words, algo=algo, participation={"cohort": 1, "sampling": sampling}, quiet=True)
        found[algo, sampling] = json.loads((run.folder / "run.json").read_text())["effective_weights"]
    assert found == {("fedavg", "uniform"): [0.25] * 4, ("scaffold", "uniform"): None, ("fedavg", "by_weight"): None}
