"""Which clients are there in a round, and what becomes of methods when not all are: closed forms, chances, resuming, mistakes."""

import runpy

import numpy as np
import pytest
import torch
from support.cases import few
from support.command import ROOT, TINY, fedopt, without_time

from fedopt.config import Participation, compose
from fedopt.errors import UserError
from fedopt.randomness import Purpose, keyed_rng
from fedopt.results.identity import stamp
from fedopt.running import assemble
from fedopt.testing.harness import composed, leaves, small, steps, usual_pairs

SCRIPT, PAGE = runpy.run_path(str(ROOT / "docs" / "studies" / "cyclic.py")), ROOT / "docs" / "availability.md"
TWO = "participation.pattern={kind: cyclic, groups: [0,1,0,1,1,0]}"
PATTERNS = [
    "{kind: cyclic, groups: 3, stay: 2}",
    "{kind: markov, on: 0.2, off: 0.4}",
    "{kind: diurnal, share: 0.5, depth: 1, period: 6}",
]


def pattern(words):
    return f"participation.pattern={words}"


# What methods make of it


def affine_round(problem, clients, eta):
    """J and b of a round of descent-ascent, w -> J w + b: the mean over some clients of w - eta (grad_x f_i, -grad_y f_i)."""
    A, B, D, c, e = (problem.per_client[name][clients].mean(0).numpy() for name in "ABDce")
    return np.eye(len(A) + len(D)) - eta * np.block([[A, B], [-B.T, D]]), eta * np.concatenate([c, e])


def two_round_limit(problem, eta):
    """The fixed point of rounds of the clients 0, 2, 5 and 1, 3, 4 in turn: w = J_1 (J_0 w + b_0) + b_1."""
    (J_0, b_0), (J_1, b_1) = (affine_round(problem, clients, eta) for clients in ([0, 2, 5], [1, 3, 4]))
    return np.linalg.solve(np.eye(len(b_0)) - J_1 @ J_0, J_1 @ b_0 + b_1)


@pytest.mark.parametrize("eta", [0.1, 0.05])
def test_descent_ascent_ends_at_the_fixed_point_of_two_rounds(eta):
    """With one local step. Two rounds lead back to it, one does not; from elsewhere rounds lead there."""
    words = ["participation.cohort=null", "algo.tau=1", "algo.B=null", "problem.noise=0"]
    e = small("local_sgda", "quadratic_minimax", TWO, *words, f"algo.eta_x={eta}", f"algo.eta_y={eta}")
    limit = torch.from_numpy(two_round_limit(e.problem, eta))

    def after(rounds, w):
        x, y = w.split([4, 3])
        state = e.algorithm.init(e.problem)._replace(x=x, y=y)
        for r in range(rounds):
            state = e.algorithm.step(state, e.problem, e.federation.at(r))
        return torch.cat(e.algorithm.output(state))

    torch.testing.assert_close(after(2, limit), limit, rtol=0, atol=1e-13)
    assert torch.dist(after(1, limit), limit) > 0.01
    assert torch.dist(after(100, limit + 1), limit) < 1


def test_the_fixed_point_is_off_the_saddle_by_the_order_of_the_step():
    """Though every client takes part equally often."""
    problem = small("local_sgda", "quadratic_minimax").problem
    saddle = torch.cat(problem.solution()).numpy()
    off = [np.linalg.norm(two_round_limit(problem, eta) - saddle) for eta in (0.1, 0.05)]
    assert off[0] > 0.01
    assert 1.8 < off[0] / off[1] < 2.2


@pytest.mark.full
@pytest.mark.parametrize("title", SCRIPT["METHODS"])
def test_methods_end_where_the_page_says(title):
    """As the page's table has it, and as the closed form of docs/studies/cyclic.py, which takes the clients' matrices alone."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {title} |"))
    for (e, exact, solution), cell in zip(SCRIPT["columns"](title), line.split(" | ")[2:], strict=True):
        np.testing.assert_allclose(SCRIPT["measured"](e), exact, atol=1e-9)
        assert cell.strip(" |") == f"{np.linalg.norm(exact - solution):.4f}"


FIRST_ASKS_ALL = {"adamfcgd", "fedbioacc", "fedbioacc_local", "fedxl", "mfcgd", "multilevel", "srba"}
ASKS_ALL = {"fedgda_gt", "fedmsa"}
USUAL = {algo: problem for algo, problem in sorted(usual_pairs()) if algo != "proxskip_gda"}


@pytest.mark.parametrize("algo", few(USUAL, ["adamfcgd", "fedmsa", "scaffold"].count))
def test_methods_ask_those_who_are_there(algo):
    """Those that ask all clients in a round, or in the first, are the ones that the page names or describes."""
    e = small(algo, USUAL[algo], TWO, "participation.cohort=2")
    state, groups = e.algorithm.init(e.problem), [{0, 2, 5}, {1, 3, 4}]
    for r in range(3):
        before = e.federation.ledger.down.copy()
        state = e.algorithm.step(state, e.problem, e.federation.at(r))
        asked = {*np.flatnonzero(e.federation.ledger.down > before)}
        all_asked = algo in ASKS_ALL or (algo in FIRST_ASKS_ALL and r == 0)
        assert asked == {*range(6)} if all_asked else asked <= groups[r % 2]
    assert all(leaf.isfinite().all() for leaf in leaves(e.algorithm.output(state)))


def test_draws_by_probabilities_are_of_those_who_are_there():
    fed = small("drfa", "classification", TWO, "participation.cohort=null").federation.at(0)
    S, shares = fed.drawn(np.array([0.1, 0.5, 0.3, 0, 0, 0]))
    assert (S.tolist(), shares.tolist()) == ([0, 2], pytest.approx([0.25, 0.75]))
    S, shares = fed.drawn(np.array([0, 0.5, 0, 0.5, 0, 0]))
    assert (S.tolist(), shares.tolist()) == ([0, 2, 5], pytest.approx([1 / 3] * 3))


def test_a_method_for_all_clients_says_so():
    words = ["algo=proxskip_gda", "problem=quadratic_minimax", pattern("{kind: cyclic, groups: 2}")]
    with pytest.raises(UserError, match=r"participation\.pattern=null"):
        steps(assemble.assemble(composed(*words)), 1)


# Who is there


@pytest.mark.parametrize("words", PATTERNS)
def test_availability_is_a_function_of_seed_client_and_round(words):
    """Not of the cohort, the engine, the order in which rounds are asked for, nor the method and its draws."""
    e = small("scaffold", "classification", pattern(words), "participation.cohort=2")
    asked = [e.federation.at(r).available.tolist() for r in range(40)]
    for algo, *others in (
        ("scaffold", "participation.cohort=null", "hardware.engine=one_by_one"),
        ("fedavg", "participation.cohort=1", "participation.dropout=0.5"),
    ):
        again = small(algo, "classification", pattern(words), *others).federation
        for r in reversed(range(40)):
            assert again.at(r).available.tolist() == asked[r]
            assert {*again.at(r).cohort()} <= {*asked[r]}
    other = small("fedavg", "classification", pattern(words), "seed=1").federation
    assert [other.at(r).available.tolist() for r in range(40)] != asked


@pytest.mark.parametrize("words", PATTERNS)
def test_a_resumed_run_is_an_undisturbed_one(words, monkeypatch, capsys, tmp_path):
    words = [*TINY[:-2], pattern(words), "participation.cohort=2", "partitioner.clients=8", "hardware.threads=1"]
    for name, rounds, *more in (("whole", 9), ("parts", 4), ("parts", 9, "resume=true")):
        assert (
            fedopt(monkeypatch, capsys, *words, f"budget.rounds={rounds}", f"output_dir={tmp_path / name}", *more).code
            == 0
        )
    assert without_time(tmp_path / "whole" / "metrics.csv") == without_time(tmp_path / "parts" / "metrics.csv")


def test_groups_are_of_equal_size_and_stay():
    fed = small(
        "fedavg", "quadratic_minimisation", "partitioner.clients=8", pattern("{kind: cyclic, groups: 3, stay: 2}")
    ).federation
    groups = [{*fed.at(r).available} for r in range(12)]
    assert groups[0::2] == groups[1::2]
    assert groups[:6] == groups[6:]
    assert sorted(map(len, groups[::2][:3])) == [2, 3, 3]
    assert set.union(*groups) == {*range(8)}


def test_groups_by_label():
    """Three classes of digits a client: those whose most frequent class is low come first."""
    e = small("fedavg", "classification", "partitioner=shards", pattern("{kind: cyclic, groups: 2, by: label}"))
    usual = [np.bincount(e.problem.labels[rows]).argmax() for rows in e.problem.splits["train"]]
    low, high = (e.federation.at(r).available for r in range(2))
    assert (len(low), len(high)) == (3, 3)
    assert max(usual[i] for i in low) <= min(usual[i] for i in high)
    assert len({*usual}) > 2


def presence(words, rounds, *others):
    """[rounds, clients], whether each client is there, without the one that is drawn if nobody is."""
    e = small("fedavg", "quadratic_minimisation", "problem.examples=400", pattern(words), *others)
    availability = e.federation.availability
    return np.array(
        [availability.pattern.available(r, availability._groups, availability._uniform) for r in range(rounds)]
    )


@pytest.mark.parametrize(("on", "off"), [(0.2, 0.1), (0.9, 0.7)])
def test_a_markov_chain_is_stationary_from_the_start(on, off):
    """Mean, variance over clients and correlation between rounds: pi, pi (1 - pi), and (1 - on - off)^k."""
    there = presence(f"{{kind: markov, on: {on}, off: {off}}}", 300, "partitioner.clients=400")
    pi, few = on / (on + off), 5 * np.sqrt(0.25 / 400)
    assert abs(there.mean(1) - pi).max() < few
    assert there[0].mean() == pytest.approx(pi, abs=few)
    assert there.mean() == pytest.approx(pi, abs=0.01)
    for k in (1, 2, 3):
        covariance = np.mean((there[k:] - pi) * (there[:-k] - pi)) / (pi * (1 - pi))
        assert covariance == pytest.approx((1 - on - off) ** k, abs=0.02)
    assert np.mean(there[1:][~there[:-1]]) == pytest.approx(on, abs=0.01)
    assert np.mean(~there[1:][there[:-1]]) == pytest.approx(off, abs=0.01)


def test_a_markov_chain_is_the_one_that_goes_forward():
    """From the start on, by the same numbers: what composing maps backwards must give."""
    words, others = "{kind: markov, on: [0.3,0.9,1,1,0.01,0.5], off: [0.2,0.8,1,0.3,0.02,1]}", ["partitioner.clients=6"]
    on, off = np.array([0.3, 0.9, 1, 1, 0.01, 0.5]), np.array([0.2, 0.8, 1, 0.3, 0.02, 1])
    u = [keyed_rng(0, Purpose.AVAILABILITY, r + 1).random(6) for r in range(60)]
    there = u[0] < on / (on + off)
    found = presence(words, 60, *others)
    for r in range(60):
        there = np.where(there, u[r] < 1 - off, u[r] < on) if r else there
        np.testing.assert_array_equal(found[r], there)


def test_diurnal_shares_follow_the_sine():
    words = "{kind: diurnal, share: 0.4, depth: 0.8, period: 8, groups: 4}"
    there = presence(words, 800, "partitioner.clients=40").reshape(100, 8, 40).mean(0)
    r, phases = np.arange(8), np.arange(4) / 4
    expected = 0.4 * (1 + 0.8 * np.sin(2 * np.pi * (r[:, None] / 8 + phases)))
    nearest = [np.abs(expected - of_client[:, None]).mean(0).argmin() for of_client in there.T]
    assert np.bincount(nearest).tolist() == [10] * 4
    np.testing.assert_allclose(there, expected[:, nearest], atol=5 * np.sqrt(0.25 / 100))


def test_diurnal_clients_have_phases_of_their_own_unless_grouped():
    there = presence("{kind: diurnal, share: 0.5, depth: 1, period: 4}", 4000, "partitioner.clients=4")
    means = there.reshape(1000, 4, 4).mean(0)
    assert sorted(means.argmax(0)) == [0, 1, 2, 3]
    np.testing.assert_allclose(means.mean(1), 0.5, atol=0.02)  # phases are evenly spaced


def test_somebody_is_always_there():
    e = small(
        "fedavg", "quadratic_minimisation", pattern("{kind: markov, on: 0.001, off: 1}"), "participation.cohort=null"
    )
    drawn = [e.federation.at(r).cohort().tolist() for r in range(60)]
    assert {len(cohort) for cohort in drawn} == {1}
    assert {i for (i,) in drawn} == {*range(6)}


def test_who_is_drawn_if_nobody_is_there_is_drawn_evenly():
    words = [pattern("{kind: diurnal, share: [0.02, 0.02, 0.3, 0.3], depth: 0, period: 24}"), "partitioner.clients=4"]
    e = small("fedavg", "quadratic_minimisation", *words, "participation.cohort=null")
    cohorts = [e.federation.at(r).cohort() for r in range(4000)]
    shares, nobody = np.array([0.02, 0.02, 0.3, 0.3]), (0.98 * 0.7) ** 2
    found = np.bincount(np.concatenate(cohorts)) / len(cohorts)
    np.testing.assert_allclose(found, shares + nobody / 4, atol=0.03)


# Configs


def test_runs_from_before_are_the_same_runs():
    nodes = dict(compose(["algo=fedmsa", "problem=mco"]).nodes)
    before = {**nodes, "participation": {k: v for k, v in nodes["participation"].items() if k != "pattern"}}
    assert stamp(before) == stamp(nodes)
    cyclic = {**nodes, "participation": {**nodes["participation"], "pattern": {"kind": "cyclic", "groups": 2}}}
    assert stamp(cyclic)["run"] != stamp(nodes)["run"]


def test_the_head_of_a_run_names_the_pattern():
    assert (
        Participation(cohort=2, pattern={"kind": "cyclic", "groups": 2}).described(5)
        == "5 clients, 2 per round, cyclic availability"
    )


MISTAKES = {
    "cyclic": "must be null or a pattern, such as {kind: cyclic, groups: 2}",
    "{kind: cyclc, groups: 2}": "participation.pattern.kind=cyclc: must be",
    "{kind: cyclic}": "participation.pattern.groups: is missing",
    "{kind: cyclic, group: 2}": "participation.pattern.group: there is no such key",
    "{kind: cyclic, groups: 1}": "participation.pattern.groups=1: must be at least 2",
    "{kind: cyclic, groups: 11}": "must be at most the number of clients, 10",
    "{kind: cyclic, groups: [0,1]}": "a list with an entry for each of the 10 clients",
    "{kind: cyclic, groups: [0,2,0,2,0,2,0,2,0,2]}": "groups must be numbered 0, 1, ..., and each group needs a client",
    "{kind: cyclic, groups: [0,1,0,1,0,1,0,1,0,1], by: label}": "by=label and a list of groups cannot be combined",
    "{kind: cyclic, groups: 2, by: label}": "this problem has no labels; use by=random",
    "{kind: markov, on: 0.2}": "participation.pattern.off: is missing",
    "{kind: markov, on: 0, off: 0.2}": "participation.pattern.on=0: must be greater than 0",
    "{kind: markov, on: [0.1,0.2], off: 0.2}": "participation.pattern.on=[0.1, 0.2]: must be a list with an entry for each",
    "{kind: diurnal, share: 0.8, depth: 0.5, period: 24}": "share * (1 + depth) must be at most 1",
    "{kind: diurnal, share: 0.5, depth: 0.5, period: 1}": "participation.pattern.period=1: must be at least 2",
    "{kind: diurnal, share: 0.5, depth: 0.5, period: 4, groups: 11}": "must be at most the number of clients, 10",
    "{kind: cyclic, groups: 2, stay: 0}": "participation.pattern.stay=0: must be greater than 0",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(words):
    with pytest.raises(UserError) as error:
        assemble.assemble(composed("algo=fedavg", "problem=quadratic_minimisation", pattern(words)))
    assert MISTAKES[words] in str(error.value)
    assert "\n" not in str(error.value)
