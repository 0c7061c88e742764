"""The contract of algorithms and problems, tested on all compatible pairs of files in conf/algo and conf/problem.

`checks` lists the tests of a pair. Tests of a single algorithm or problem come last.
"""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedopt.data import Ragged
from fedopt.federation import Memory, OneByOne, Round, Vectorised
from fedopt.problems import Problem, classes
from fedopt.results import Checkpoint
from fedopt.running import Experiment
from fedopt.testing.harness import (
    APPROXIMATE,
    YOURS,
    class_at,
    fields,
    held,
    held_pairs,
    in_turn,
    is_ours,
    iterate,
    leaves,
    make,
    names,
    problem_classes,
    small,
    steps,
    tuned,
)
from fedopt.testing.recount import Tapped, Watching
from fedopt.toolbox import Vectors

PAIRS = held_pairs()
UNEVEN = [a for a in names("algo") if getattr(class_at("algo", a), "uneven", None)]
CLOSED = [  # without problems whose solution has only x, because each y_i is per-client state
    p
    for p in names("problem")
    if class_at("problem", p).solution is not Problem.solution
    and not issubclass(class_at("problem", p), classes.LocalBilevel)
]
# BOME moves away from a solution at which grad_y f is not zero, since its penalty is zero where g has its minimum
LEFT = [("bome", p) for p in CLOSED if problem_classes()[p] in ("bilevel", "two_level")]
SETTINGS = {
    "as it is": [],
    "dropout": ["participation.dropout=0.5"],
    "uneven": ["participation.least=1", "participation.stragglers=0.34", "participation.dropout=0.3"],
}
ENGINES = ("vectorised", "one_by_one")


def checks(algo: str, problem: str) -> list[tuple[str, ...]]:
    """Return the tests of a pair, each as (name of the test, setting), or as (name of the test,) if it has no settings.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
    """
    uneven, closed = algo in UNEVEN, problem in CLOSED and (algo, problem) not in LEFT
    return [
        *(("test_engines_agree", B) for B in ("null", "4")),
        *(("test_ledger_is_an_independent_count", s) for s in SETTINGS if s != "uneven" or uneven),
        *([("test_stragglers_do_no_harm",)] if uneven else []),
        ("test_resumed_is_undisturbed",),
        ("test_same_seed_same_bits_and_another_seed_not",),
        ("test_step_keeps_shapes_and_leaves_its_input_alone",),
        ("test_order_of_clients_does_not_matter",),
        ("test_equal_clients_are_one_client",),
        ("test_metric_improves",),
        *([("test_solution_is_a_fixed_point",)] if closed else []),
        # This test is in tests/running/test_device.py, so it runs only in a checkout of fedopt
        *(("test_a_round_stays_on_the_device", engine) for engine in ENGINES),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if cases := in_turn(checks).get(metafunc.function.__name__):
        make(metafunc, cases)
    elif "problem" in metafunc.fixturenames and not [*metafunc.definition.iter_markers("parametrize")]:
        metafunc.parametrize([name for name in ("algo", "problem", "setting") if name in metafunc.fixturenames], [])


def close(a: Any, b: Any, rtol: float = 1e-9) -> None:
    """Assert that numbers are equal up to ``rtol`` times the largest number, since cancellation leaves errors of this size.

    Args:
        a: Numbers, nested in any way.
        b: Numbers with the same structure.
        rtol: The tolerance.
    """
    pairs = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True)]
    largest = max((float(y.double().abs().max()) for _, y in pairs if y.numel()), default=0.0)
    for x, y in pairs:
        torch.testing.assert_close(x, y, rtol=rtol, atol=rtol * largest)


def batches(algo: str, size: str) -> list[str]:
    """Return the overrides that set all batch sizes of an algorithm.

    Args:
        algo: The name of the algorithm.
        size: The batch size, as in an override; null for full batches.
    """
    return [f"algo.{key}={size}" for key in fields("algo", algo) if key[0] == "B"]


def without_chance(algo: str) -> list[str]:
    """Return the overrides that make an algorithm deterministic: full batches, and no random directions.

    Args:
        algo: The name of the algorithm.
    """
    return [*batches(algo, "null"), *(["algo.directions=null"] if "directions" in fields("algo", algo) else [])]


def last(e: Experiment) -> Any:
    return steps(e, 2)[-1]


def test_engines_agree(algo: str, problem: str, setting: str) -> None:
    """Running all clients in parallel, one by one, or in chunks of two gives the same states, and exactly the same ledger.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
        setting: The batch size, as in an override.
    """
    overrides, runs = batches(algo, setting), []
    for engine in (Vectorised(), OneByOne(), Vectorised(2)):
        e = small(algo, problem, *overrides)
        e.federation.engine = engine
        runs.append((last(e), e.federation.ledger))
    for state, ledger in runs[1:]:
        close(state, runs[0][0])
        assert ledger.columns() == runs[0][1].columns()
        np.testing.assert_array_equal(ledger.down, runs[0][1].down)


def test_stragglers_do_no_harm(algo: str, problem: str) -> None:
    """The state stays finite if some or all clients of a cohort take no local step.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
    """
    for stragglers in (0.34, 0.9):
        state = last(small(algo, problem, "participation.cohort=2", f"participation.stragglers={stragglers}"))
        assert all(leaf.isfinite().all() for leaf in leaves(state))


def three_steps(algo: str) -> list[str]:
    """Return the overrides that set three local steps, for each kind of local step that the algorithm has.

    Args:
        algo: The name of the algorithm.
    """
    keys = class_at("algo", algo).uneven
    return [f"algo.{key}=3" for key in ([keys] if isinstance(keys, str) else keys)]


def test_ledger_is_an_independent_count(algo: str, problem: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger equals independent counts of the derivatives (by `Tapped`) and of the bytes (by `Watching`).

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
        setting: The key in `SETTINGS` of the participation of clients.
        monkeypatch: The fixture of pytest.
    """
    e = small(algo, problem, *SETTINGS[setting], *(three_steps(algo) if setting == "uneven" else []))
    taps, engine, exchange = Tapped(e.problem), Watching(), Mock(wraps=Round.exchange)
    e.federation.engine = engine
    monkeypatch.setattr(Round, "exchange", lambda *given, **more: exchange(*given, **more))
    steps(e, 3)
    ledger = e.federation.ledger
    assert ledger.comm_rounds == exchange.call_count
    for counted, billed in ((engine.down, ledger.down), (engine.up, ledger.up)):
        assert [counted[i] for i in range(e.problem.clients)] == billed.tolist()
    assert {name: getattr(ledger.calls, name) for name in ("grad", "hvp", "jvp")} == taps.calls()


@pytest.mark.smoke
def test_resumed_is_undisturbed(algo: str, problem: str, tmp_path: Path) -> None:
    """A run that is stored and restored between two rounds is bitwise equal to an uninterrupted run.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
        tmp_path: A folder for the checkpoint.
    """
    e = small(algo, problem)
    *_, state = undisturbed = steps(e, 3)
    ledger = e.federation.ledger.columns()

    first = small(algo, problem)
    initial, *_, stored = steps(first, 2)
    Checkpoint(tmp_path / "x", initial).store(stored, first.federation.ledger, {"round": 2})
    second = small(algo, problem)
    read = Checkpoint(tmp_path / "x", second.algorithm.init(second.problem))
    restored, progress = read.restore(second.federation.ledger)
    assert progress["round"] == 2
    close(restored, undisturbed[2], rtol=0)
    resumed = second.algorithm.step(restored, second.problem, second.federation.at(2))
    close(resumed, state, rtol=0)
    assert second.federation.ledger.columns() == ledger


@pytest.mark.full
def test_two_ranks_agree(tmp_path: Path) -> None:
    """Two processes give the same states and the same ledger as one process. Each class of algorithms is tested on one problem.

    Args:
        tmp_path: A folder for the states of the two processes.
    """
    problem_of = dict(PAIRS)
    chosen = {class_at("algo", algo): f"{algo}:{problem_of[algo]}" for algo in reversed(problem_of)}
    overrides = list(chosen.values())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, "-m", "fedopt.testing.two_ranks", str(tmp_path / "states"), *overrides]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "states", weights_only=True)
    for override in overrides:
        e = small(*override.split(":"))
        *together, ledger = found[override]
        close(leaves(last(e)), together)
        assert ledger.tolist() == list(e.federation.ledger.columns().values()), override


def test_same_seed_same_bits_and_another_seed_not(algo: str, problem: str) -> None:
    a, b, c = (leaves(last(small(algo, problem, f"seed={s}"))) for s in (3, 3, 4))
    assert all(x.equal(y) for x, y in zip(a, b, strict=True))
    assert not all(x.equal(y) for x, y in zip(a, c, strict=True))


def test_step_keeps_shapes_and_leaves_its_input_alone(algo: str, problem: str) -> None:
    e = small(algo, problem)
    first = steps(e, 0)[0]
    before = [leaf.clone() for leaf in leaves(first)]
    after = leaves(e.algorithm.step(first, e.problem, e.federation.at(0)))
    close(leaves(first), before, rtol=0)
    assert [(leaf.shape, leaf.dtype) for leaf in after] == [(leaf.shape, leaf.dtype) for leaf in before]
    assert not any(leaf.requires_grad for leaf in after)


def arranged(e: Experiment, order: Sequence[int]) -> Experiment:
    """Return the experiment with its clients in another order, all of which take part in each round.

    The data of the clients in ``e.original`` are rearranged in place.

    Args:
        e: The experiment.
        order: The indices of the clients, in their new order. An index may occur several times, or not at all.
    """
    splits = {name: Ragged([split[i] for i in order]) for name, split in e.original.splits.items()}
    per_client = {name: rows[torch.tensor(order)] for name, rows in e.original.per_client.items()}
    e.original.splits, e.original.per_client = splits, per_client
    fed = type(e.federation)(e.problem, e.federation.engine, e.federation.seed)
    return dataclasses.replace(e, federation=fed)


def of_server(state: Any) -> list[Any]:
    """Return the fields of a state that are stored on the server, which are all fields but per-client state.

    Args:
        state: The state of an algorithm.
    """
    return [value for value in state if not isinstance(value, Memory)]


def test_order_of_clients_does_not_matter(algo: str, problem: str) -> None:
    order = [3, 0, 5, 1, 4, 2]
    one = last(arranged(small(algo, problem, *without_chance(algo)), range(6)))
    other = last(arranged(small(algo, problem, *without_chance(algo)), order))
    close(of_server(one), of_server(other))
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(mine, Memory):
            close(mine.tensor()[order], theirs.tensor())


def test_equal_clients_are_one_client(algo: str, problem: str) -> None:
    one = last(arranged(small(algo, problem, *without_chance(algo)), [2]))
    many = last(arranged(small(algo, problem, *without_chance(algo)), [2] * 5))
    close(of_server(one), of_server(many))


def test_metric_improves(algo: str, problem: str) -> None:
    """With tuned values, a metric improves by more than a fifth within 100 rounds.

    The metric is the norm of the hypergradient or the distance to the solution if the solution is known, else the training
    loss or the objective, else the problem's first metric. If an algorithm of fedopt does not improve the metric of your own
    problem, the test is skipped, unless contract.yaml has overrides for the pair.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
    """
    e = tuned(algo, problem, "participation.cohort=6")
    states = iterate(e, 100)
    before = e.problem.evaluate(*e.algorithm.output(next(states)))
    usual = ("hypergradient_norm", "distance", "train_loss", "objective")
    metric = min(e.problem.metrics, key=lambda m: usual.index(m.name) if m.name in usual else len(usual))
    was, sign = before[metric.name], 1 if metric.better == "higher" else -1
    every_tenth = (e.problem.evaluate(*e.algorithm.output(s))[metric.name] for s in islice(states, 9, None, 10))
    improves = any(sign * (now - was) > 0.2 * abs(was) for now in every_tenth)
    if not improves and is_ours("algo", algo) and not is_ours("problem", problem) and f"{algo} {problem}" not in YOURS:
        pytest.skip(f"the step sizes of {algo} do not suit {problem}; set '{algo} {problem}' in contract.yaml")
    hint = f"is a sign wrong? If not, set other step sizes for '{algo} {problem}' in contract.yaml"
    assert improves, f"{metric.name} does not improve by a fifth: {hint}"


def weighted(rows: np.ndarray, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(rows), torch.full((len(rows),), 1 / len(rows)).to(like)


def with_v(problem: Problem, solution: Any) -> Any:
    """Return the solution of a problem, extended by the variable v of bilevel methods if v is known in closed form.

    For a bilevel problem with grad^2_yy g = I and the solution (x, y), it is (x, y, grad_y f(x, y)). The solution of any other
    problem is returned unchanged.

    Args:
        problem: The problem. All its clients must have equal data.
        solution: The solution, a tuple of vectors.
    """
    if not (isinstance(problem, classes.Bilevel) and problem.identity):
        return solution
    x, y = solution
    xi = problem.sample(0, {split: weighted(rows[0], x) for split, rows in problem.splits.items()})
    return x, y, torch.func.grad(lambda y: problem.f(x, y, xi))(y)


# For a field or an algorithm: overrides that make an inner loop or an estimator exact up to rounding. F2SA's penalty stays inexact
EXACT = {
    "inverse": ["N=8", "inverse=cg"],
    "Q": ["Q=150", "theta=1.0"],
    "neumann": ["neumann=sum"],
    "gamma_local": ["gamma_local=0.5", "tau=250"],
    "estimator": ["estimator=difference"],
    "f2sa": ["lam=1e4", "delta=0", "eta_x=0.1", "eta_y=5e-5", "eta_s=0.5", "n=100"],
}


ALIKE = ("heterogeneity", "noise", "s", "spread", "t_max")  # fields of problems that make all clients equal


def test_solution_is_a_fixed_point(algo: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state remains the solution for three rounds if all clients have equal data and inner loops are exact.

    The inner loops of fedopt's algorithms are set to be exact up to rounding. For your algorithm, the key ``approximate`` in
    contract.yaml sets how far the state may move.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
        monkeypatch: The fixture of pytest.
    """
    named = {algo, *fields("algo", algo)} if is_ours("algo", algo) else ()
    overrides = [f"algo.{override}" for key in EXACT if key in named for override in EXACT[key]]
    overrides += [f"problem.{key}=0" for key in ALIKE if key in fields("problem", problem)]
    e = tuned(algo, problem, *without_chance(algo), *overrides, "participation.cohort=6")
    at = with_v(e.problem, e.problem.solution())
    variables = 2 if isinstance(e.problem, classes.Bilevel | classes.Minimax) else 1
    monkeypatch.setattr(type(e.problem), "start", lambda _: at[:variables])
    first = e.algorithm.init(e.problem)
    points = {name for name in ("u", "u_prev", "z") if isinstance(getattr(first, name, ()), Vectors)}
    # Methods with the variable v have more variables than the problem
    state = first._replace(**{name: Vectors(at[: len(getattr(first, name))]) for name in points})
    for r in range(3):
        state = e.algorithm.step(state, e.problem, e.federation.at(r))
    hint = f"the iterates leave the solution; if the inverse is inexact, set approximate: {{{algo}: 0.01}} in contract.yaml"
    for now, known in zip(e.algorithm.output(state), at, strict=False):
        assert ((now - known).abs() <= APPROXIMATE.get(algo, 1e-9)).all(), hint


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in ("algo", "problem") for name in held(group)])
def test_yaml_keys_are_the_fields(group: str, name: str) -> None:
    expected = [field.name for field in dataclasses.fields(class_at(group, name)) if field.name != "world"]
    assert [*fields(group, name)] == expected


A_PAIR = [next(pair for pair in PAIRS if pair[1] == problem) for problem in held("problem")]


@pytest.mark.parametrize(("algo", "problem"), A_PAIR)
def test_problem_measures_what_it_says(algo: str, problem: str) -> None:
    """A problem returns the metrics that it declares, which do not depend on the order of clients, and its weights sum to 1.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
    """
    e = small(algo, problem)
    point = [v + 0.1 for v in e.original.start()]
    values = e.original.evaluate(*point)
    assert {metric.name for metric in e.original.metrics} == set(values)
    assert len(e.original.metrics) == len(values)
    no_floats = [name for name, value in values.items() if not isinstance(value, float)]
    assert not no_floats, f"evaluate must return a float as {', '.join(no_floats)}; write float(...)"
    assert e.original.weights.sum() == pytest.approx(1)
    assert len(e.original.weights) == e.original.clients
    of_fit = ("objective", "personal_accuracy", "worst_personal_accuracy", "personal_distance")
    random = of_fit if "fit" in fields("problem", problem) else ()
    other = arranged(e, [3, 0, 5, 1, 4, 2]).original.evaluate(*point)
    for metric in {*values} - {*random}:  # random metrics depend on which client gets which random numbers
        assert other[metric] == pytest.approx(values[metric], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("algo", "problem"), A_PAIR)
def test_own_derivatives_are_those_of_the_functions(algo: str, problem: str) -> None:
    """The hand-written derivatives of a problem equal the derivatives computed by automatic differentiation.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
    """
    p = small(algo, problem).original
    xi = p.sample(1, {split: weighted(rows[1], p.start()[0]) for split, rows in p.splits.items()})
    point = [v + 0.1 * torch.sin(torch.arange(v.numel())) for v in p.start()]
    letters = "fgh" if isinstance(p, classes.Hierarchical) else "fg"  # h of other classes is no scalar
    for function in (getattr(p, letter) for letter in letters if hasattr(p, letter)):
        *fixed, last = [*point, point[0] + 0.1] if isinstance(p, classes.Hierarchical) else point
        automatic = torch.func.grad(lambda v, function=function, fixed=fixed: function(*fixed, v, xi))(last)
        if hasattr(function, "gradient"):
            close(function.gradient(*fixed, last, xi), automatic)
        if hasattr(function, "both"):
            x, y = (*fixed, last)[-2:]
            gradients = torch.func.grad(lambda x, y, function=function: function(x, y, xi), argnums=(0, 1))
            close(torch.cat(function.both(x, y, xi)), torch.cat(gradients(x, y)))
            along = lambda x, y, gradients=gradients, v=y + 1: gradients(x, y)[1] @ v  # noqa: E731
            if hasattr(function, "second"):
                gradient, hessian, cross = function.second(x, y, xi)
                products = torch.func.grad(along, argnums=(0, 1))(x, y)
                close(torch.cat((gradient, cross(y + 1), hessian(y + 1))), torch.cat((automatic, *products)))
        if hasattr(function, "steps"):
            several = [torch.stack([v, v]) for v in (*fixed, last)]
            close(function.steps(*several, xi, 0.5), torch.stack([last - 0.5 * automatic] * 2))
        if hasattr(function, "step"):
            close(function.step(*fixed, last.clone(), xi, 0.5, None, None), last - 0.5 * automatic)
