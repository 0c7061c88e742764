"""The loop as a script calls it: no folder, no config file, rows as they come."""

import copy
import json
import time
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from fedopt.config.files import CONF, content
from fedopt.config.settings import Budget
from fedopt.errors import UserError
from fedopt.metrics import COSTS, COUNTS, LIMITS
from fedopt.papers.published import Published
from fedopt.running.loop import begin, costs, loop
from fedopt.running.resume import progress_of
from fedopt.testing.harness import small

WORDS = ["algo=fedmsa", "problem=mco", "budget.rounds=7", "eval.every=3", "eval.at=[1]"]


CALLS = ["grad_calls", "hvp_calls", "jvp_calls"]
EXAMPLES = ["grad_examples", "hvp_examples", "jvp_examples"]
SUMS = {  # of columns of metrics.csv: what each cost is, and the key of the budget that limits it
    "round": (["round"], "rounds"),
    "comm_rounds": (["comm_rounds"], "comm_rounds"),
    "bytes": (["bytes_down", "bytes_up"], "bytes"),
    "seconds": (["train_seconds"], "seconds"),
    "grad_calls": (["grad_calls"], ""),
    "oracle_calls": (CALLS, "oracle_calls"),
    "example_calls": (EXAMPLES, "example_calls"),
    "client_visits": (["client_visits"], "client_visits"),
}


def experiment(*more):
    return small("fedmsa", "quadratic_bilevel", *WORDS, *more)


def without_time(row):
    return {key: value for key, value in row.items() if key != "train_seconds"}


def rows_of(moments):
    return [without_time(moment.row) for moment in moments if moment.row is not None]


def test_rows_without_a_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    e = experiment()
    moments = list(loop(e, *begin(e)))
    assert [moment.round for moment in moments] == list(range(8))
    assert [row["round"] for row in rows_of(moments)] == [0, 1, 3, 6, 7]
    assert [moment.status for moment in moments] == [None] * 7 + ["finished"]
    assert moments[-1].spent == 1
    assert rows_of(moments)[-1]["comm_rounds"] == e.federation.ledger.comm_rounds > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", range(8))
def test_going_on_at_any_moment_gives_the_same_rows(at):
    first = experiment()
    state, progress = begin(first)
    rows, moments = [], loop(first, state, progress)
    for moment in moments:
        rows += rows_of([moment])
        if moment.round == at:
            break
    second = experiment()
    second.federation.ledger = copy.deepcopy(first.federation.ledger)
    rows += rows_of(loop(second, moment.state, copy.deepcopy(progress)))
    whole = experiment()
    assert rows == rows_of(loop(whole, *begin(whole)))


def test_an_interrupted_loop_ends_after_its_round():
    e = experiment()
    seen = []
    for moment in loop(e, *begin(e), lambda: len(seen) == 3):
        seen.append(moment)
    assert [moment.round for moment in seen] == [0, 1, 2]
    assert seen[-1].status is None


def test_a_loop_that_diverges_ends_with_that_row():
    e = experiment("eval.diverged=1e-300")  # the first row may exceed it, another one not
    moments = list(loop(e, *begin(e)))
    assert [moment.status for moment in moments] == [None, "diverged"]
    assert [row["round"] for row in rows_of(moments)] == [0, 1]


def test_the_best_evaluation_and_what_the_target_took():
    e = experiment("eval.metric=distance", "eval.target=1e9")
    state, progress = begin(e)
    moments = list(loop(e, state, progress))
    values = [moment.row["distance"] for moment in moments if moment.row]
    improved = [moment.row["distance"] for moment in moments if moment.improved]
    assert improved == [value for n, value in enumerate(values) if all(value < other for other in values[:n])]
    assert progress.best["distance"] == min(values)
    assert progress.to_target["round"] == 0


def test_an_evaluation_that_diverged_is_no_best_one_and_reaches_no_target(monkeypatch):
    """The distance falls to the target, and is beyond the limit."""
    e = experiment("eval.metric=distance", "eval.target=3", "eval.diverged=0.5")
    state, progress = begin(e)
    names, due = [metric.name for metric in e.problem.metrics], iter((4.0, 3.0))
    monkeypatch.setattr("fedopt.running.loop.measured", lambda *_: dict.fromkeys(names, 0.0) | {"distance": next(due)})
    start, last = loop(e, state, progress)
    assert (start.improved, last.improved, last.status, progress.to_target) == (True, False, "diverged", None)
    assert (progress.best["distance"], progress.final["distance"]) == (4, 3)


@pytest.mark.parametrize(
    ("values", "limit"),
    [((2.5e10, 2e10, 2.4e16, 2.6e16), 2.5e16), ((0, 9e5, -9e5, 1.1e6), 1e6), ((1e-9, 1e-3, 9e5, -1.1e6), 1e6)],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_the_limit_is_relative_to_the_start(values, limit, resumed, monkeypatch):
    """At least eval.diverged itself. Only metrics that bound divergence have one; a resumed run keeps its start."""
    e = experiment("eval.every=1")
    names = [metric.name for metric in e.problem.metrics]
    due = iter(values)
    monkeypatch.setattr("fedopt.running.loop.measured", lambda *_: dict.fromkeys(names, 1.0) | {"distance": next(due)})
    state, progress = begin(e)
    for moment in loop(e, state, progress):
        if resumed and moment.round == 2:
            break
    if resumed:
        progress = progress_of(json.loads(json.dumps(vars(progress))))
        *_, moment = loop(e, moment.state, progress)
    assert (moment.round, moment.status) == (3, "diverged")
    for said in ("distance", f"{values[-1]:.5g}", f"{limit:.5g}", "eval.diverged=1e+06"):
        assert said in progress.diverged


def test_a_metric_that_is_not_bounded_has_no_limit(monkeypatch):
    e = small("fedavg", "classification", "budget.rounds=2", "eval.every=1")
    names = [metric.name for metric in e.problem.metrics]
    monkeypatch.setattr("fedopt.running.loop.measured", lambda *_: dict.fromkeys(names, 1.0) | {"test_accuracy": 1e30})
    assert [moment.status for moment in loop(e, *begin(e))] == [None, None, "finished"]


def test_a_budget_of_which_nothing_is_spent():
    """local_only sends nothing, and would go on for ever; with another limit it ends."""
    words = ["budget.rounds=null", "budget.bytes=1000"]
    with pytest.raises(UserError, match="do not use any bytes"):
        rows_of(loop(e := small("local_only", "linear_regression", *words), *begin(e)))
    e = small("local_only", "linear_regression", "budget.rounds=120", "budget.bytes=1000")
    assert rows_of(loop(e, *begin(e)))[-1]["round"] == 120


@pytest.mark.full
def test_until_the_last_limit():
    """The run goes on until both limits are spent. It is evaluated whenever another part of the logarithm of one of them is."""
    limits = {"comm_rounds": 20, "oracle_calls": 8000}
    words = [f"budget.{name}={limit}" for name, limit in limits.items()]
    e = experiment(*words, "budget.rounds=null", "budget.until=last", "eval.points=4", "eval.at=[]")
    rows, spent = [], []
    for moment in loop(e, *begin(e)):
        counts = e.federation.ledger.columns()
        spent.append({"comm_rounds": counts["comm_rounds"], "oracle_calls": sum(counts[name] for name in CALLS)})
        rows += [moment.round] if moment.row else []
    assert all(spent[-1][name] >= limit for name, limit in limits.items())
    assert not all(spent[-2][name] >= limit for name, limit in limits.items())
    marks = [limit * 10 ** (part / 2) / 100 for limit in limits.values() for part in range(1, 5)]
    names = [name for name in limits for _ in range(4)]
    first = {
        next(r for r, at in enumerate(spent) if at[name] >= mark * (1 - 1e-9))
        for name, mark in zip(names, marks, strict=True)
    }
    assert rows == sorted({0, *first})


def test_all_that_knows_a_cost_knows_the_same_ones():
    """The list of costs, the keys of a budget, the rows of a run, its summary, and the axes of a paper's figure."""
    assert {name: ([*cost.columns], cost.limit) for name, cost in COSTS.items()} == SUMS
    limits = [limit for _, limit in SUMS.values() if limit]
    assert [*LIMITS] == [field.name for field in fields(Budget) if field.name != "until"] == limits
    assert {*content(CONF / "config.yaml")["budget"]} == {*limits, "until"}
    e = experiment()
    *_, last = loop(e, *(begun := begin(e)))
    assert {*last.row} - {metric.name for metric in e.problem.metrics} == COUNTS
    spent = {name: round(sum(last.row[column] for column in columns), 3) for name, (columns, _) in SUMS.items()}
    assert costs(e, begun[1]) == spent
    assert {*get_args(get_type_hints(Published)["x"])} < {*SUMS}


@pytest.mark.parametrize("name", [name for name, (_, limit) in SUMS.items() if limit])
def test_a_run_ends_when_the_sum_of_the_columns_reaches_its_limit(name):
    """FedNest takes gradients and products of both kinds, with full and small batches."""
    columns, limit = SUMS[name]
    words = ["budget.rounds=null", "eval.every=1", "algo.B=4"]
    e = small("fednest", "quadratic_bilevel", *words, f"budget.{limit}={(1 if name == 'seconds' else 10**9)}")
    rows = []
    for moment in loop(e, *begin(e)):
        rows.append(moment.row)
        if moment.round == 3:
            break
    spent = [sum(row[column] for column in columns) for row in rows]
    assert name in ("round", "seconds") or all(rows[-1][column] for column in columns)
    e = small("fednest", "quadratic_bilevel", *words, f"budget.{limit}={spent[2]}")
    ended = [sum(moment.row[column] for column in columns) for moment in loop(e, *begin(e))]
    assert ended[-2] < spent[2] <= ended[-1]


def test_neither_evaluations_nor_whoever_takes_the_rows_are_training(monkeypatch):
    """The clock of training stands still while metrics are taken, and while a row is written; it counts the first round too."""
    e = experiment("budget.rounds=3", "eval.every=1", "eval.at=[]")
    asleep, evaluate = [], type(e.problem).evaluate

    def slow(*point):
        asleep.append(time.sleep(0.1))
        return evaluate(*point)

    step = type(e.algorithm).step
    monkeypatch.setattr(type(e.problem), "evaluate", slow)
    monkeypatch.setattr(type(e.algorithm), "step", lambda *given: time.sleep(0.05) or step(*given))
    began, (state, progress) = time.perf_counter(), begin(e)
    for _ in loop(e, state, progress):
        asleep.append(time.sleep(0.1))
    whole = time.perf_counter() - began
    assert len(asleep) == 8
    assert 3 * 0.05 <= progress.seconds < whole - 0.8  # all three rounds
