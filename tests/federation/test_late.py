"""Answers that come some rounds late: recursions of old points in NumPy, engines, resuming, and methods that refuse."""

import runpy

import numpy as np
import pytest
import torch
from support.cases import few
from support.command import ROOT, TINY, fedopt, torchrun, without_time

from fedopt.config import Participation, compose
from fedopt.errors import UserError
from fedopt.federation.draws import Full, Steps
from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.federation.late import Sent
from fedopt.federation.round import Round
from fedopt.results import Checkpoint
from fedopt.results.identity import stamp
from fedopt.running import assemble
from fedopt.testing import test_contract
from fedopt.testing.harness import class_at, composed, fields, leaves, pairs, small, steps, tuned, usual_pairs

SCRIPT, PAGE = runpy.run_path(str(ROOT / "docs" / "studies" / "cyclic.py")), ROOT / "docs" / "late-answers.md"
FIXED, DRAWN = "participation.late=[0,3,1,0,2,3]", "participation.late=3"
EXACT = ["participation.cohort=null", "problem.noise=0", "algo.B=null"]


def deterministic(algo, problem, *words):
    return small(algo, problem, *EXACT, *words)


def path(e, rounds, *parts):
    """[rounds + 1, ...], a part of the state after each round."""
    return [torch.stack([getattr(s, part) for s in steps(e, rounds)]).numpy() for part in parts]


def answered(e, r):
    """The round of the message that each client answers in round r; nobody looks back to round 0."""
    return np.maximum(r - e.federation.availability.ages(r), min(r, 1))


def gradient(problem, i, x):
    A, c = (problem.per_client[name][i].numpy() for name in "Ac")
    return A @ x - c


# What methods become


@pytest.mark.parametrize("late", [FIXED, DRAWN])
def test_directions_make_delayed_gradient_descent(late):
    """x_(r+1) = x_r - alpha sum_i p_i grad f_i(x_(r - a_i))."""
    e = deterministic("fedmsa", "quadratic_minimisation", late, "algo.K=1", "algo.rho=1", "algo.alpha=0.3")
    x = [e.problem.start()[0].numpy()]
    for r in range(12):
        of = answered(e, r)
        x.append(x[-1] - 0.3 * sum(p * gradient(e.problem, i, x[of[i]]) for i, p in enumerate(e.problem.weights)))
    found = torch.stack([s.u[0] for s in steps(e, 12)])
    np.testing.assert_allclose(found, x, atol=1e-13)


def test_recursive_momentum_of_old_points():
    """d_r = (1 - rho) d_(r-1) + sum_i p_i (g_i(x_(r - a_i)) - (1 - rho) g_i(x_(r - a_i - 1))), also with full batches."""
    e = deterministic("fedmsa", "quadratic_minimisation", DRAWN, "algo.K=1", "algo.rho=0.4", "algo.alpha=0.3")
    x, d = [e.problem.start()[0].numpy()], 0
    for r in range(12):
        of, keep = answered(e, r), 0.6 if r else 0
        d = keep * d + sum(
            p * (gradient(e.problem, i, x[m]) - (keep * gradient(e.problem, i, x[m - 1]) if keep else 0))
            for i, (p, m) in enumerate(zip(e.problem.weights, of, strict=True))
        )
        x.append(x[-1] - 0.3 * d)
    np.testing.assert_allclose(torch.stack([s.u[0] for s in steps(e, 12)]), x, atol=1e-13)


@pytest.mark.parametrize("late", [FIXED, DRAWN])
def test_iterates_make_a_mean_of_old_and_new_ones(late):
    """x_(r+1) = sum_i p_i (the end of client i's steps from x_(r - a_i)). Two local steps."""
    e = deterministic("fedavg", "quadratic_minimisation", late, "algo.tau=2", "algo.eta=0.3")
    x = [e.problem.start()[0].numpy()]
    for r in range(12):
        of, new = answered(e, r), 0
        for i, p in enumerate(e.problem.weights):
            x_i = x[of[i]]
            for _ in range(2):
                x_i = x_i - 0.3 * gradient(e.problem, i, x_i)
            new = new + p * x_i
        x.append(new)
    np.testing.assert_allclose(*path(e, 12, "x"), x, atol=1e-13)


def test_memory_is_the_present_one():
    """SCAFFOLD with cohorts: a late client corrects by the c_i that it has now, so that c stays the mean of the c_i."""
    words = [DRAWN, "participation.cohort=3", "algo.tau=2", "algo.eta=0.2", "algo.eta_g=1"]
    e = deterministic("scaffold", "quadratic_minimisation", *words)
    (x,), M = e.problem.start(), 6
    x, c, c_i, p = [x.numpy()], [np.zeros(len(x))], np.zeros((M, len(x))), e.problem.weights
    for r in range(12):
        of, S = answered(e, r), e.federation.at(r).cohort()
        dx, dc = 0, 0
        for i in S:
            y = x_i = x[of[i]]
            for _ in range(2):
                y = y - 0.2 * (gradient(e.problem, i, y) - c_i[i] + c[of[i]])
            change = (x_i - y) / 0.4 - c[of[i]]
            c_i[i] += change
            dx, dc = dx + p[i] / p[S].sum() * (y - x_i), dc + p[i] * change
        x.append(x[-1] + dx)
        c.append(c[-1] + dc)
        np.testing.assert_allclose(c[-1], p @ c_i, atol=1e-13)
    found_x, found_c = path(e, 12, "x", "c")
    np.testing.assert_allclose(found_x, x, atol=1e-12)
    np.testing.assert_allclose(found_c, c, atol=1e-12)


def largest(top):
    """The largest modulus of an eigenvalue of z_(r+1) = sum_k top[k] z_(r - k), for numbers z."""
    return np.abs(np.roots([1, *(-t for t in top)])).max()


@pytest.mark.parametrize("a", [0, 1, 2, 5])
def test_the_largest_step_if_all_are_late(a):
    """As the page says: 2 sin(pi / (4 a + 2)) / L with changes, 2 / L with iterates, whose rate is the (a + 1)-th root."""
    bound = 2 * np.sin(np.pi / (4 * a + 2))
    for factor, stable in ((0.99, True), (1.01, False)):
        changes, iterates = np.zeros((2, a + 1))
        changes[0] += 1
        changes[a] -= factor * bound
        iterates[a] = 1 - factor * 2
        assert (largest(changes) < 1) == (largest(iterates) < 1) == stable
    iterates[a] = 0.7
    assert largest(iterates) == pytest.approx(0.7 ** (1 / (a + 1)))


USUAL = {
    algo: problem
    for algo, problem in sorted(usual_pairs())
    if algo != "proxskip_gda" and not getattr(class_at("algo", algo), "on_time", False)
}
QUADRATIC = {"fedavg": "quadratic_minimisation", "fedmsa": "quadratic_bilevel", "local_sgda": "quadratic_minimax"}


@pytest.mark.parametrize("algo", few(QUADRATIC, "fedavg".__eq__))
def test_a_state_that_rounds_keep_is_kept_by_late_ones(algo):
    """Begun where many rounds on time end, with unlike clients and a step that is biased."""
    shape = {"fedmsa": ["algo.alpha=0.2", "algo.beta=0.4", "algo.K=2", "algo.rho=0.5"]}
    words = [*shape.get(algo, ["algo.tau=3"]), "problem.conditioning=2"]
    words += [f"algo.{key}=0.2" for key in ("eta", "eta_x", "eta_y") if key in fields("algo", algo)]
    e, late = (deterministic(algo, QUADRATIC[algo], *words, *more) for more in ([], [DRAWN]))
    e.federation.engine = late.federation.engine = OneByOne()
    end = e.algorithm.init(e.problem)
    for r in range(250):
        end = e.algorithm.step(end, e.problem, e.federation.at(r))
    state = end
    for r in range(250, 258):
        state = late.algorithm.step(state, late.problem, late.federation.at(r))
    assert max(torch.dist(a, b) for a, b in zip(leaves(state), leaves(end), strict=True)) < 1e-8
    elsewhere = e.algorithm.step(steps(e, 3)[-1], e.problem, e.federation.at(3))
    assert torch.dist(leaves(elsewhere)[0], leaves(end)[0]) > 1e-3


SOLVED = {
    algo: problem
    for algo, problem in reversed(pairs())
    if algo in USUAL and problem in test_contract.CLOSED and (algo, problem) not in test_contract.LEFT
}


@pytest.mark.parametrize("algo", few(sorted(SOLVED), ["simfbo"].count))
def test_the_solution_stays_a_fixed_point(algo, monkeypatch):
    """The contract's test, with late answers."""
    monkeypatch.setattr(test_contract, "tuned", lambda *words: tuned(*words, "participation.late=[0,1,2,0,1,2]"))
    test_contract.test_solution_is_a_fixed_point(algo, SOLVED[algo], monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("title", SCRIPT["SENDS"])
def test_methods_take_the_rounds_that_the_page_says(title):
    """And end where they do on time. The closed form is the largest eigenvalue of the map of the last four points."""
    digits, apart, exact = SCRIPT["late_columns"](title)
    assert apart < 1e-9
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {title} |"))
    on_time, drawn, fixed = line.strip("| ").split(" | ")[2:]
    np.testing.assert_allclose([float(on_time), float(drawn), float(fixed)], digits, atol=0.51, rtol=0.02)
    if exact:
        assert digits[2] == pytest.approx(exact, rel=0.1)


# The one exchange


def test_nobody_late_is_the_same_bit_for_bit():
    for algo, problem in (("scaffold", "classification"), ("fedmsa", "mco")):
        now, listed = (small(algo, problem, f"participation.late={late}") for late in ("0", "[0,0,0,0,0,0]"))
        assert all(
            torch.equal(*pair) for pair in zip(leaves(steps(now, 3)[-1]), leaves(steps(listed, 3)[-1]), strict=True)
        )
        assert not now.federation.ledger.sent.tensors
        assert now.federation.at(2).complete == listed.federation.at(2).complete


@pytest.mark.parametrize("algo", few(USUAL, ["feddro", "fedmsa", "scaffold"].count))
def test_engines_agree_and_nothing_is_sent_more_often(algo):
    runs, costs = [], []
    for engine, late in ((OneByOne(), 0), (OneByOne(), 2), (Vectorised(2), 2)):
        e = small(algo, USUAL[algo], f"participation.late={late}", "participation.cohort=4")
        e.federation.engine = OneByOne() if e.problem.one_by_one else engine
        runs.append(steps(e, 4)[-1])
        costs.append(e.federation.ledger.columns())
    test_contract.close(runs[2], runs[1])
    assert costs[1] == costs[2]
    assert costs[0]["comm_rounds"] == costs[1]["comm_rounds"]
    moved = any(torch.dist(a.double(), b.double()) > 0 for a, b in zip(leaves(runs[0]), leaves(runs[1]), strict=True))
    assert moved == (algo != "local_only")  # which listens to no message


@pytest.mark.parametrize(("algo", "problem"), [("scaffold", "classification"), ("fednest", "quadratic_bilevel")])
def test_a_checkpoint_has_the_messages_that_are_still_answered(algo, problem, tmp_path):
    """Stopped after any round, a run goes on to the same bits."""
    words = [DRAWN, "participation.cohort=3"]
    whole = leaves(steps(small(algo, problem, *words), 5)[-1])
    for stop in (1, 3):
        before, after = small(algo, problem, *words), small(algo, problem, *words)
        state = steps(before, stop)[-1]
        (tmp_path / str(stop)).mkdir()
        initial = after.algorithm.init(after.problem)
        Checkpoint(tmp_path / str(stop) / "x", initial).store(state, before.federation.ledger, {})
        state, _ = Checkpoint(tmp_path / str(stop) / "x", initial).restore(after.federation.ledger)
        for r in range(stop, 5):
            state = after.algorithm.step(state, after.problem, after.federation.at(r))
        assert all(torch.equal(*pair) for pair in zip(leaves(state), whole, strict=True))


def test_a_resumed_run_is_an_undisturbed_one(monkeypatch, capsys, tmp_path):
    words = [*TINY[:-2], DRAWN, "participation.cohort=2", "partitioner.clients=8", "hardware.threads=1"]
    words += ["algo.rho=0.5", "algo.K=2"]
    for name, rounds, *more in (("whole", 9), ("parts", 2), ("parts", 5, "resume=true"), ("parts", 9, "resume=true")):
        result = fedopt(monkeypatch, capsys, *words, f"budget.rounds={rounds}", f"output_dir={tmp_path / name}", *more)
        assert result.code == 0
    assert without_time(tmp_path / "whole" / "metrics.csv") == without_time(tmp_path / "parts" / "metrics.csv")


@pytest.mark.full
def test_two_processes_are_one(monkeypatch, capsys, tmp_path):
    words = [*TINY, FIXED.replace("3]", "3,1,2]"), "participation.cohort=5", "partitioner.clients=8", "algo.K=2"]
    rows = []
    words.append("hardware.dtype=float64")
    assert fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'one'}").code == 0
    torchrun("-m", "fedopt", *words, "output_dir=two", cwd=tmp_path)
    for name in ("one", "two"):
        _, *table = without_time(tmp_path / name / "metrics.csv")
        rows.append(np.array(table, dtype=float))
    np.testing.assert_allclose(*rows, rtol=1e-9)


def test_what_is_answered():
    """The first message since a round. Round 0, other shapes and forgotten rounds do not count; numbers are today's."""
    sent = Sent()
    for r in range(5):
        sent.keep((torch.full((2,), r), (torch.tensor(10.0 * r), 0.1)), "steps.0", r, r - 2)
    assert {name.split(".")[1] for name in sent.tensors} == {"2", "3", "4"}
    today = (torch.full((2,), 4), (torch.tensor(40.0), 0.5))
    x, (y, number) = sent.message(today, "steps.0", 4, 3)
    assert (x.tolist(), float(y), number) == ([3, 3], 30, 0.5)
    assert sent.message(today, "steps.0", 4, 0)[0].tolist() == [2, 2]
    assert sent.message(today, "steps.1", 4, 0) is today
    longer = torch.zeros(3)
    assert sent.message((longer, today[1]), "steps.0", 4, 0)[0] is longer
    first = Sent()
    first.keep(torch.zeros(1), "steps.0", 0, -3)
    assert first.message(today[0], "steps.0", 1, -2) is today[0]


def test_names_of_client_functions_change_nothing(monkeypatch):
    """Another one in each round, and one for both exchanges of a round."""
    exchange = Round.exchange

    def renamed(fed, client_fn, *args, **more):
        client_fn.__qualname__ = str(fed.r)
        return exchange(fed, client_fn, *args, **more)

    for algo, problem in (("scaffold", "classification"), ("fednest", "quadratic_bilevel")):
        ends = []
        for patch in (exchange, renamed):
            monkeypatch.setattr(Round, "exchange", patch)
            ends.append(leaves(steps(small(algo, problem, DRAWN), 5)[-1]))
        assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


def test_an_anchor_in_every_second_round_shifts_nothing():
    """It has draws of its own name. All are a round late, and nobody looks back to round 0."""
    e, answers = deterministic("fedavg", "quadratic_minimisation", "participation.late=[1,1,1,1,1,1]"), []

    def echo(client, x):
        return x + 0

    for r in range(5):
        fed, x = e.federation.at(r), torch.tensor([r], dtype=torch.float64)
        anchored = fed.exchange(echo, 100 + x, fed.everyone(), anchor=Full()) if r % 2 == 0 else 100 + x
        answers.append((float(anchored), float(fed.exchange(echo, x, fed.everyone(), local=Steps(1)))))
    assert answers == [(100, 0), (101, 1), (102, 1), (103, 2), (104, 3)]


def test_lateness_is_drawn_for_each_client_and_round():
    availability = small("fedavg", "quadratic_minimisation", DRAWN, "partitioner.clients=50").federation.availability
    ages = np.array([availability.ages(r) for r in range(200)])
    assert np.bincount(ages.ravel(), minlength=4) / ages.size == pytest.approx([0.25] * 4, abs=0.02)
    assert abs(np.corrcoef(ages[:-1].ravel(), ages[1:].ravel())[0, 1]) < 0.05
    fewer = small("scaffold", "classification", DRAWN).federation.availability
    np.testing.assert_array_equal(fewer.ages(7), ages[7, :6])


# Methods that refuse, and mistakes


def test_e_aipod_would_lose_its_fixed_point(monkeypatch):
    """Its corrections sum to zero only if every client hears of the mean of what all have now."""
    monkeypatch.setattr(class_at("algo", "e_aipod"), "on_time", False)
    for late, lost in ((0, False), (2, True)):
        e = small(
            "e_aipod",
            "quadratic_bilevel",
            *test_contract.without_chance("e_aipod"),
            *EXACT[:2],
            f"participation.late={late}",
            "algo.p=0.9",
        )
        state = steps(e, 3)[-1]
        c = state.memory.tensor()[:, len(state.y) :].mean(0)
        assert (float(c.norm()) > 1e-3) == lost


REFUSED = {
    (
        "e_aipod",
        "quadratic_bilevel",
    ): "participation.late=1: EAiPOD needs all answers on time; set participation.late=0",
    ("fedualex", "quadratic_minimax"): "participation.late=1: FeDualEx needs all answers on time",
    ("proxskip_gda", "quadratic_minimax"): "participation.late=0",
}


@pytest.mark.parametrize(("algo", "problem"), REFUSED)
def test_methods_that_need_answers_on_time_say_so(algo, problem):
    with pytest.raises(UserError) as error:
        steps(assemble.assemble(composed(f"algo={algo}", f"problem={problem}", "participation.late=1")), 1)
    assert REFUSED[algo, problem] in str(error.value)
    assert "\n" not in str(error.value)


def test_mistakes():
    for late, said in (("[1,2]", "a list with an entry for each of the 10 clients"), ("-1", "participation.late=-1")):
        with pytest.raises(UserError, match=said):
            assemble.assemble(composed("algo=fedavg", "problem=quadratic_minimisation", f"participation.late={late}"))


def test_runs_from_before_are_the_same_runs():
    nodes = dict(compose(["algo=fedmsa", "problem=mco"]).nodes)
    before = {**nodes, "participation": {k: v for k, v in nodes["participation"].items() if k != "late"}}
    assert stamp(before) == stamp(nodes)
    assert stamp({**nodes, "participation": {**nodes["participation"], "late": 2}})["run"] != stamp(nodes)["run"]
    assert Participation(late=2).described(5) == "5 clients, delayed answers"
