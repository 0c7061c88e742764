"""Hostile clients and robust rules: closed forms, every method's origin, engines, resuming, ranks, costs and metrics."""

import numpy as np
import pytest
import torch
from support.cases import few
from support.command import TINY, fedopt, torchrun, without_time

from fedopt.config import Hostile, Rule
from fedopt.errors import UserError, WrongFunction
from fedopt.federation.client import ratio
from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.federation.memory import Memory
from fedopt.federation.robust import attacked, combined, origins
from fedopt.problems import Problem
from fedopt.randomness import Purpose
from fedopt.results import Checkpoint
from fedopt.running.loop import point_of
from fedopt.running.together import at_once
from fedopt.testing import test_contract
from fedopt.testing.harness import class_at, composed, held_pairs, leaves, pairs, small, steps, tuned, usual_pairs

HOSTILE, MEDIAN = "participation.hostile={who: 2, attack: sign_flip}", "participation.rule={kind: median}"
EXACT = ["participation.cohort=null", "problem.noise=0", "algo.B=null"]
USUAL = dict(sorted(usual_pairs()))


def rows(n=7, d=5):
    return torch.from_numpy(np.random.default_rng(n).standard_normal((n, d)))


def equal(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def by(kind, b, weights=None, **more):
    return combined(b, equal(len(b)) if weights is None else weights, Rule(kind, **more)).numpy()


def sent(kind, b, f, scale=None):
    return attacked(b, np.arange(len(b)) < f, Hostile(kind, f, scale), None).numpy()


# Rules


@pytest.mark.parametrize("n", [5, 6])
def test_rules_that_become_others(n):
    """Trimmed: the mean without trimming, the median with most; multikrum of all, and clipping without bound: the mean."""
    b = rows(n)
    np.testing.assert_allclose(by("median", b), np.median(b, axis=0))
    np.testing.assert_allclose(by("trimmed", b, f=0), b.mean(0))
    np.testing.assert_allclose(by("trimmed", b, f=1), np.sort(b, axis=0)[1:-1].mean(0))
    np.testing.assert_allclose(by("trimmed", b, f=(n - 1) // 2), np.median(b, axis=0))
    np.testing.assert_allclose(by("multikrum", b, f=0), b.mean(0))
    np.testing.assert_allclose(by("clipping", b, tau=np.inf), b.mean(0))
    np.testing.assert_allclose(by("mean", b, torch.arange(n).double() / 9), np.arange(n) / 9 @ b.numpy())


def test_krum_against_its_definition():
    """The change whose n - f - 2 nearest others are nearest, by distances over all entries together."""
    for seed in range(20):
        b = torch.from_numpy(np.random.default_rng(seed).standard_normal((9, 4)))
        squares = ((b[:, None] - b) ** 2).sum(-1).numpy()
        for f in (1, 2, 3):
            scores = [np.sort(np.delete(squares[i], i))[: 9 - f - 2].sum() for i in range(9)]
            np.testing.assert_array_equal(by("krum", b, f=f), b[np.argmin(scores)])
            np.testing.assert_allclose(by("multikrum", b, f=f), b[np.argsort(scores)[: 9 - f]].mean(0))


def test_krum_takes_the_leaves_together():
    """By either of two leaves alone, it would take other clients."""
    b, found = rows(8, 2), []
    for columns in ([0], [1], [0, 1]):
        found.append(int(np.argmin(np.abs(b[:, columns].numpy() - by("krum", b[:, columns], f=1)).sum(1))))
    assert len({*found}) == 3


def test_geometric_median():
    """The unit vectors to the points sum to zero, and a triangle with sides 3, 4 and 5 has a known Fermat point."""
    away = rows().numpy() - by("geometric", rows(), passes=400)
    assert np.linalg.norm((away / np.linalg.norm(away, axis=1, keepdims=True)).sum(0)) < 1e-9
    triangle = torch.tensor([[0.0, 0], [4, 0], [0, 3]], dtype=torch.float64)
    np.testing.assert_allclose(by("geometric", triangle, passes=400), [0.69579, 0.75118], atol=1e-5)
    line, weights = torch.tensor([[0.0], [1], [5]], dtype=torch.float64), torch.tensor([0.1, 0.3, 0.6]).double()
    assert by("geometric", line, weights, passes=200).item() == pytest.approx(5, abs=1e-4)


@pytest.mark.parametrize("kind", ["median", "trimmed", "krum", "multikrum", "geometric", "clipping"])
def test_equivariant_but_for_clipping(kind):
    """Shifted answers shift the result, so an origin changes only clipping, whose differences are shortened."""
    b, more = rows(), {"tau": 1.0} if kind == "clipping" else {"f": 2}
    off = np.abs(by(kind, b + 6.2, **more) - by(kind, b, **more) - 6.2).max()
    assert (off > 1) if kind == "clipping" else (off < 1e-12)


@pytest.mark.parametrize("kind", ["median", "trimmed", "krum", "multikrum", "geometric", "clipping"])
def test_a_minority_far_off_is_bounded(kind):
    b, more = rows(9), {"tau": 1.0} if kind == "clipping" else {"f": 2}
    b[:2] = 1e6
    assert np.abs(by(kind, b, **more)).max() < 5
    assert by("mean", b).min() > 1e5


def test_ratios():
    """A rule that weighs whole answers gives a weighted mean of the clients' ratios; rules of single entries are refused."""
    rng = np.random.default_rng(0)
    v, c = rng.standard_normal((7, 3)), rng.uniform(0.1, 2, (7, 3))
    b = np.hstack([c * v, c])
    squares = ((b[:, None] - b) ** 2).sum(-1)
    order = np.argsort(np.sort(squares)[:, 1:4].sum(1))  # to the 7 - 2 - 2 nearest others
    for kind, more, weights in (
        ("krum", {"f": 2}, lambda z: np.isin(np.arange(7), order[:1])),
        ("multikrum", {"f": 2}, lambda z: np.isin(np.arange(7), order[:5])),
        ("geometric", {"passes": 400}, lambda z: 1 / np.linalg.norm(b - z, axis=1)),
        ("clipping", {"tau": 1.5}, lambda z: np.minimum(1, 1.5 / np.linalg.norm(b, axis=1))),
    ):
        z = by(kind, torch.from_numpy(b), **more)
        w = weights(z)[:, None] * c
        np.testing.assert_allclose(ratio(torch.from_numpy(z.reshape(2, 3)).unbind()), (w * v).sum(0) / w.sum(0))
    for algo, problem, name in (("fedsgm", "group_bounds", "FedSgm"), ("fmgda", "group_fair", "Fmgda")):
        for kind in ("median", "trimmed, f: 1"):
            with pytest.raises(UserError, match=rf"rule\.kind={kind[:6]}.* in the ratios that {name} averages"):
                small(algo, problem, f"participation.rule={{kind: {kind}}}")
        steps(small(algo, problem, "participation.rule={kind: geometric}"), 1)


def test_too_few_answers():
    with pytest.raises(UserError, match="needs at least 5 answers, but there are 4"):
        by("trimmed", rows(4), f=2)
    with pytest.raises(UserError, match="needs at least 5 answers"):
        by("krum", rows(4), f=2)
    for kind in ("krum", "clipping"):
        with pytest.raises(ValueError, match=f"kind={kind} needs"):
            Rule(kind)


# Attacks


def test_attacks():
    b, f = rows(7), 2
    honest, own = b[f:].numpy(), b[:f].numpy()
    for kind, expected in {
        "sign_flip": -own,
        "large": np.full_like(own, 1e6),
        "ipm": np.tile(-honest.mean(0) / 2, (2, 1)),
    }.items():
        np.testing.assert_allclose(sent(kind, b, f)[:f], expected)
        np.testing.assert_array_equal(sent(kind, b, f)[f:], honest)
    np.testing.assert_allclose(sent("sign_flip", b, f, 3.0)[:f], -3 * own)
    np.testing.assert_array_equal(sent("ipm", b, 7), np.tile(-b.mean(0) / 2, (7, 1)))  # nobody is honest


def test_ipm_scales_the_mean():
    """Of n equal changes by (n - f - scale f) / n."""
    b = torch.ones(10, 3, dtype=torch.float64)
    np.testing.assert_allclose(sent("ipm", b, 4).mean(0), 0.4)


@pytest.mark.parametrize(("n", "f", "z"), [(25, 5, 0.2533), (25, 11, 1.0676), (4, 1, 0)])
def test_alie_stays_unseen(n, f, z):
    b = rows(n)
    honest = b[f:].numpy()
    np.testing.assert_allclose(sent("alie", b, f)[0], honest.mean(0) - z * honest.std(0), atol=1e-4)
    np.testing.assert_allclose(sent("alie", b, f, 2.0)[0], honest.mean(0) - 2 * honest.std(0))


# Origins


def test_origins():
    x, d = torch.zeros(2), torch.zeros(3)
    assert origins(None, (x, (d, x))) == [None] * 3
    assert origins((x, None), (x, (d, x)))[1:] == [None, None]
    for wrong in ((x,), d, (d, None), (x, (d,)), x):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            origins(wrong, (x, (d, x)))
    e = small("fedavg", "quadratic_minimisation")
    x = e.problem.start()[0]
    with pytest.raises(WrongFunction, match="origin= unlike its answer"):
        e.federation.at(0).exchange(lambda client, x: (x, x), x, np.arange(3), origin=x)


# local_scgd and nasa estimate inner values from 0, and zo_hfl balances the clients' gradients by the server's
MOVING = "local_scgd", "nasa", "zo_hfl"
SOLVED = {
    algo: problem
    for algo, problem in reversed(pairs())
    if algo in USUAL
    and algo not in MOVING
    and problem in test_contract.CLOSED
    and (algo, problem) not in test_contract.LEFT
    and class_at("problem", problem).weigh is not Problem.weigh
    and problem != "pl_minimax"
}


@pytest.mark.parametrize("algo", few(sorted(SOLVED), ["fedavg", "simfbo"].count))
def test_no_change_is_not_flipped(algo, monkeypatch):
    """At the solution of equal clients nobody moves, so a flipped sign is no attack; an iterate without origin would be flipped."""
    monkeypatch.setattr(test_contract, "tuned", lambda *words: tuned(*words, HOSTILE))
    test_contract.test_solution_is_a_fixed_point(algo, SOLVED[algo], monkeypatch)


# The exchange


def gradient(problem, i, x):
    A, c = (problem.per_client[name][i].numpy() for name in "Ac")
    return A @ x - c


RECURSION = {
    "noise": lambda b, bad, e, r: attack_of_noise(b, bad, e, r),
    "sign_flip": lambda b, bad, e, r: -b[bad],
    "ipm": lambda b, bad, e, r: -0.5 * np.delete(b, bad, axis=0).mean(0),
}


def attack_of_noise(b, bad, e, r):
    rngs = [e.federation.at(r).rng(Purpose.HOSTILE, 1, int(i)) for i in bad]
    return b[bad] + np.stack([rng.standard_normal(b.shape[1]) for rng in rngs])


@pytest.mark.parametrize("attack", RECURSION)
@pytest.mark.parametrize("rule", ["null", "median", "trimmed"])
def test_fedavg_by_hand(attack, rule):
    """Hostile clients 1 and 4 of six change what they send, not where they start; without a rule, the weighted mean is taken."""
    words = [*EXACT, "algo.tau=3", "algo.eta=0.2", "algo.gamma=1", "partitioner.clients=6"]
    words += [f"participation.hostile={{who: [1, 4], attack: {attack}}}"]
    words += [f"participation.rule={{kind: {rule}, f: 2}}"] if rule != "null" else []
    e = small("fedavg", "quadratic_minimisation", *words)
    x, p, states = e.problem.start()[0].numpy(), e.federation.problem.weights, steps(e, 4)
    for r in range(4):
        b = []
        for i in range(6):
            y = x
            for _ in range(3):
                y = y - 0.2 * gradient(e.problem, i, y)
            b.append(y - x)
        b = np.array(b)
        b[[1, 4]] = RECURSION[attack](b, [1, 4], e, r)
        x = x + {"null": p @ b, "median": np.median(b, 0), "trimmed": np.sort(b, 0)[2:4].mean(0)}[rule]
        np.testing.assert_allclose(states[r + 1].x, x, atol=1e-12)


RULES = ["median", "trimmed, f: 1", "krum, f: 1", "multikrum, f: 1", "geometric", "clipping, tau: 0.1"]
METHODS = {"fedavg": "quadratic_minimisation", "fedmsa": "quadratic_bilevel"} | dict.fromkeys(
    ["scaffold", "drfa"], "classification"
)


def words_of(rule=None, attack="sign_flip"):
    return [
        f"participation.hostile={{who: [0], attack: {attack}}}",
        *([f"participation.rule={{kind: {rule}}}"] if rule else []),
    ]


@pytest.mark.parametrize("rule", RULES)
def test_engines_agree(rule):
    runs, attack = [], "alie, scale: 1.5" if rule == "median" else "noise"
    for engine in (OneByOne(), Vectorised(2)):
        e = small("fedmsa", "quadratic_bilevel", *words_of(rule, attack), "participation.cohort=5")
        e.federation.engine = engine
        runs.append(steps(e, 4)[-1])
    test_contract.close(*runs)


@pytest.mark.parametrize("algo", few(USUAL, METHODS.__contains__))
def test_an_attack_costs_nothing_and_a_rule_neither(algo):
    """Bytes, rounds and calls of every method are those of honest clients, and the engines agree on what it makes."""
    costs, ends = [], []
    known = ("quadratic_game", "pl_minimax", "saddle")  # refused, since their solutions are known for all clients only
    problem = "quadratic_minimax" if USUAL[algo] in known else USUAL[algo]
    for words, engine in (([], OneByOne()), (words_of(), OneByOne()), (words_of(), Vectorised(3))):
        e = small(algo, problem, *words)
        e.federation.engine = OneByOne() if e.problem.one_by_one else engine
        ends.append(steps(e, 2)[-1])
        costs.append(e.federation.ledger.columns())
    assert costs[0] == costs[1] == costs[2]
    test_contract.close(*ends[1:])
    moved = any(torch.dist(a.double(), b.double()) > 0 for a, b in zip(leaves(ends[0]), leaves(ends[1]), strict=True))
    assert moved == (algo not in ("local_only", "proxskip_gda"))  # they send nothing in two rounds


def test_rows_of_memory_stay_honest():
    """And the same clients lie in all exchanges of a round."""
    e = small("fedavg", "quadratic_minimisation", "participation.hostile={who: [1, 3], attack: large, scale: 7}")
    fed, x = e.federation.at(0), e.problem.start()[0]
    memory, heard = Memory(x.new_zeros(6, len(x))), []

    def all_answers(answers, weights):
        heard.append(answers.clone())
        return weights @ answers

    for S in (np.arange(6), np.array([0, 1, 3])):
        _, memory = fed.exchange(
            lambda client, x: (x + client.index, x + client.index), x, S, memory=memory, combine=all_answers, origin=x
        )
    for answers, S in zip(heard, (np.arange(6), np.array([0, 1, 3])), strict=True):
        expected = np.where(np.isin(S, [1, 3]), 7, S)[:, None] + x.numpy()
        np.testing.assert_allclose(answers, expected)
    np.testing.assert_allclose(memory.tensor(), x + torch.arange(6)[:, None])


@pytest.mark.parametrize("who", ["2", "0.34", "[0, 1]"])
def test_who_is_hostile(who):
    e = small("fedavg", "quadratic_minimisation", f"participation.hostile={{who: {who}, attack: ipm}}")
    assert np.flatnonzero(e.federation.lies).tolist() == [0, 1]
    assert "2 hostile (ipm)" in e.federation.participation.described(6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["participation.hostile={who: 6, attack: ipm}"], "some of the 6 clients, but not all"),
        (["participation.hostile={who: [6], attack: ipm}"], "some of the 6 clients"),
        (["participation.hostile={who: 0.01, attack: ipm}"], "some of the 6 clients"),
        (["participation.rule={kind: trimmed, f: 3}"], "needs at least 7 clients"),
        (["participation.rule={kind: trimmed, f: 1}", "participation.cohort=2"], "needs at least 3 clients"),
        (["participation.rule={kind: krum}"], "kind=krum needs f"),
        (["participation.rule={kind: median}", "participation.sampling=by_weight"], "draws twice"),
        (["participation.hostile={who: 1, attack: labels}"], "has no classes"),
    ],
)
def test_refused(words, message):
    with pytest.raises(UserError, match=message):
        small("fedavg", "quadratic_minimisation", *words)


def test_methods_with_a_rule_of_their_own():
    """Refuse another, and are attacked all the same."""
    with pytest.raises(UserError, match=r"participation\.rule\.kind=median: this method combines"):
        steps(small("drfa", "classification", MEDIAN), 1)
    steps(small("drfa", "classification", "participation.rule={kind: mean}"), 1)
    with pytest.raises(UserError, match="without some clients is unknown"):
        small("local_sgda", "pl_minimax", HOSTILE)


def test_the_mean_as_a_rule_is_no_rule():
    ends = [
        leaves(steps(small("fedavg", "classification", *words), 3)[-1])
        for words in ([], ["participation.rule={kind: mean}"])
    ]
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


# Metrics and data


@pytest.mark.parametrize("algo", METHODS)
def test_metrics_are_those_of_honest_clients(algo):
    """As if the weights of the others were 0, whatever the server knows: it weighs all clients."""
    plain, e = (
        small(algo, METHODS[algo], *words) for words in ([], ["participation.hostile={who: [0, 2], attack: ipm}"])
    )
    p = plain.problem.weights * np.isin(np.arange(6), [0, 2], invert=True)
    np.testing.assert_allclose(e.problem.weights, p / p.sum())
    np.testing.assert_array_equal(e.federation.problem.weights, plain.problem.weights)
    if algo == "fedavg":
        A, c = (np.tensordot(p / p.sum(), e.problem.per_client[name].numpy(), 1) for name in "Ac")
        np.testing.assert_allclose(e.problem.solution()[0], np.linalg.solve(A, c), rtol=1e-10)
        assert e.problem.evaluate(*e.problem.solution())["distance"] < 1e-12
        assert plain.problem.evaluate(*e.problem.solution())["distance"] > 0.01
    start = e.problem.start()
    assert all(torch.equal(*pair) for pair in zip(start, plain.problem.start(), strict=True))


@pytest.mark.parametrize(
    "problem", ["quadratic_bilevel", "quadratic_minimax", "linear_regression", "personalised_regression"]
)
def test_the_honest_solution_is_where_honest_clients_alone_end(problem):
    """The metrics of the honest clients' problem are least at its own solution."""
    algo = next(algo for algo, p in held_pairs() if p == problem)
    plain, e = (small(algo, problem, *words) for words in ([], ["participation.hostile={who: 2, attack: ipm}"]))
    assert torch.dist(e.problem.solution()[0], plain.problem.solution()[0]) > 1e-4
    key = "distance"
    assert e.problem.evaluate(*e.problem.solution())[key] < 1e-6 < plain.problem.evaluate(*e.problem.solution())[key]


def test_labels_are_turned_round_in_training_only():
    plain, e = (small("fedavg", "classification", *words) for words in ([], words_of(attack="labels")))
    split, classes = e.problem.splits["train"], e.problem.classes
    for i in range(6):
        before, after = (one.problem.train.y[split[i]] for one in (plain, e))
        assert torch.equal(after, classes - 1 - before if i == 0 else before)
    assert torch.equal(plain.problem.test_examples.y, e.problem.test_examples.y)
    x = e.problem.start()[0]
    honest = e.federation.at(0).exchange(lambda client, x: x + client.index, x, np.arange(2))
    torch.testing.assert_close(
        honest, plain.federation.at(0).exchange(lambda client, x: x + client.index, x, np.arange(2))
    )


def test_labels_that_fedopt_does_not_change_are_refused(monkeypatch):
    monkeypatch.setattr(class_at("problem", "quadratic_minimisation"), "labels", np.zeros(6, dtype=int))
    with pytest.raises(UserError, match="no classes of a data set"):
        small("fedavg", "quadratic_minimisation", *words_of(attack="labels"))


def test_personal_models_are_of_honest_answers():
    """They serve metrics, so nobody lies about them, and a rule does not refuse how they are gathered."""
    e = small("per_fedavg", "classification", HOSTILE, MEDIAN)
    state, honest = steps(e, 1)[-1], small("per_fedavg", "classification")
    at = point_of(e, state, 1)[-1]
    torch.testing.assert_close(at, point_of(honest, state, 1)[-1])


# Several rounds


def test_clipping_starts_where_it_ended(tmp_path):
    """v is 0 in the first round, then the last result, also after a checkpoint, for each exchange by its name."""
    words = words_of("clipping, tau: 0.05", "large")
    whole = steps(small("fedmsa", "quadratic_bilevel", *words), 5)
    e = small("fedavg", "quadratic_minimisation", *EXACT, *words, "algo.tau=1", "algo.eta=0.1", "algo.gamma=1")
    v, x, states = 0, e.problem.start()[0].numpy(), steps(e, 4)
    for state in states[1:]:
        b = np.array([-0.1 * gradient(e.problem, i, x) for i in range(6)])
        b[0] = 1e6
        v = v + np.mean([d * min(1, 0.05 / np.linalg.norm(d)) for d in b - v], axis=0)
        x = x + v
        np.testing.assert_allclose(state.x, x, atol=1e-11)
    before, after = (small("fedmsa", "quadratic_bilevel", *words) for _ in range(2))
    state = steps(before, 2)[-1]
    Checkpoint(tmp_path / "x", after.algorithm.init(after.problem)).store(state, before.federation.ledger, {})
    state, _ = Checkpoint(tmp_path / "x", after.algorithm.init(after.problem)).restore(after.federation.ledger)
    assert after.federation.ledger.centres
    for r in range(2, 5):
        state = after.algorithm.step(state, after.problem, after.federation.at(r))
    assert all(torch.equal(*pair) for pair in zip(leaves(state), leaves(whole[-1]), strict=True))


@pytest.mark.parametrize("rule", ["krum, f: 1", "clipping, tau: 0.1"])
def test_configurations_computed_together(rule):
    """They end where each ends alone; clipping, whose last result is of one configuration, runs alone and says so."""
    words = [
        "algo=fedmsa",
        "problem=quadratic_bilevel",
        *words_of(rule, "noise"),
        "budget.rounds=3",
        "participation.cohort=5",
        "hardware.dtype=float64",
    ]
    configs = [composed(*words, f"algo.alpha={alpha}") for alpha in (0.05, 0.1, 0.2, 0.3)]
    outcomes = at_once(configs)
    alone = [at_once([config])[0] for config in configs]
    for one, other in zip(outcomes, alone, strict=True):
        assert one.rows[-1]["distance"] == pytest.approx(other.rows[-1]["distance"], rel=1e-9)
        assert ("rule clipping" in one.alone) == (rule[0] == "c")


def test_resumed_and_on_two_ranks(monkeypatch, capsys, tmp_path):
    words = [*TINY[:-2], *words_of("clipping, tau: 0.2", "noise"), "participation.cohort=5", "partitioner.clients=8"]
    words += ["hardware.dtype=float64", "algo.K=2", "hardware.threads=1"]
    for name, rounds, *more in (("whole", 6), ("halves", 3), ("halves", 6, "resume=true")):
        assert (
            fedopt(monkeypatch, capsys, *words, f"budget.rounds={rounds}", f"output_dir={tmp_path / name}", *more).code
            == 0
        )
    torchrun("-m", "fedopt", *words, "budget.rounds=6", "output_dir=two", cwd=tmp_path)
    whole, halves, two = (without_time(tmp_path / name / "metrics.csv") for name in ("whole", "halves", "two"))
    assert whole == halves
    np.testing.assert_allclose(np.array(two[1:], dtype=float), np.array(whole[1:], dtype=float), rtol=1e-9)
