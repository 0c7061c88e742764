"""The contract that every algorithm keeps, over everything in conf/algo, on every problem of a class that it covers."""

import dataclasses
from itertools import islice

import numpy as np
import pytest
import torch
from harness import config, iterate, names, node, pairs, small, steps, tuned
from hydra.utils import get_class
from torch.utils._pytree import tree_leaves

from fedopt.data.ragged import Ragged
from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.problems.classes import class_of, covered, name
from fedopt.settings import Hardware, build, build_target

PAIRS = pairs()
both = pytest.mark.parametrize(("algo", "problem"), PAIRS)


def close(a, b, rtol=1e-9):
    for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True):
        torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(y), rtol=rtol, atol=rtol)


def batches(algo, size):
    """Of everything that an algorithm takes batches for."""
    return [f"algo.{key}={size}" for key in node("algo", algo) if key[0] == "B"]


def without_chance(algo):
    """Full batches, and no random directions."""
    return [*batches(algo, "null"), *(["algo.directions=null"] if "directions" in node("algo", algo) else [])]


def last(e):
    return steps(e, 2)[-1]


@both
@pytest.mark.parametrize("B", ["null", "4"])
def test_engines_agree(algo, problem, B):
    """All at once = one by one = in stacks; the ledgers exactly."""
    setting = batches(algo, B)
    runs = []
    for engine in (Vectorised(), OneByOne(), Vectorised(2)):
        e = small(algo, problem, *setting)
        e.federation.engine = engine
        runs.append((last(e), e.federation.ledger))
    for state, ledger in runs[1:]:
        close(state, runs[0][0])
        assert ledger.columns() == runs[0][1].columns()
        np.testing.assert_array_equal(ledger.down, runs[0][1].down)


UNEVEN = [a for a in names("algo") if getattr(get_class(node("algo", a)["_target_"]), "uneven", False)]


@pytest.mark.parametrize(("algo", "problem"), [pair for pair in PAIRS if pair[0] in UNEVEN])
def test_stragglers_do_no_harm(algo, problem):
    """Clients without a single local step, with and without others beside them."""
    for stragglers in (0.34, 0.9):
        state = last(small(algo, problem, "participation.cohort=2", f"participation.stragglers={stragglers}"))
        assert all(torch.as_tensor(leaf).isfinite().all() for leaf in tree_leaves(state))


@both
def test_ledger_is_as_declared(algo, problem):
    e = small(algo, problem)
    fed, state = e.federation, None
    fed.begin(0)
    state = e.algorithm.init(e.problem, fed)
    for r in range(1, 4):
        fed.begin(r)
        declared = e.algorithm.cost(state, e.problem, fed)
        before = fed.ledger.columns()
        fed.begin(r)
        state = e.algorithm.step(state, e.problem, fed)
        assert {k: v - before[k] for k, v in fed.ledger.columns().items()} == declared


@both
def test_same_seed_same_bits_and_another_seed_not(algo, problem):
    a, b, c = (last(small(algo, problem, f"seed={s}")) for s in (3, 3, 4))
    assert all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True)
    )
    assert any(
        not torch.equal(torch.as_tensor(x), torch.as_tensor(y))
        for x, y in zip(tree_leaves(a), tree_leaves(c), strict=True)
    )


@both
def test_step_keeps_shapes_and_leaves_its_input_alone(algo, problem):
    e = small(algo, problem)
    first = steps(e, 0)[0]
    before = [torch.as_tensor(leaf).clone() for leaf in tree_leaves(first)]
    e.federation.begin(1)
    second = e.algorithm.step(first, e.problem, e.federation)
    close(tree_leaves(first), before, rtol=0)
    for a, b in zip(before, tree_leaves(second), strict=True):
        b = torch.as_tensor(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert not b.requires_grad


def arranged(e, order):
    """The same experiment with its clients in another order, or the same one several times; everything takes part."""
    original = e.original
    original.splits = {name: Ragged([split[i] for i in order]) for name, split in original.splits.items()}
    for family in ("matrices", "linear"):
        if hasattr(original, family):
            setattr(original, family, {k: v[torch.tensor(order)] for k, v in getattr(original, family).items()})
    e.problem.splits = original.splits
    fed = type(e.federation)(e.problem, e.federation.engine, e.federation.seed)
    return dataclasses.replace(e, federation=fed)


def of_server(state):
    """Without the rows of single clients, [M, d], which are in the field `memory` where an algorithm keeps some."""
    return [value for name, value in state._asdict().items() if name != "memory"]


@both
def test_order_of_clients_does_not_matter(algo, problem):
    order = [3, 0, 5, 1, 4, 2]
    one = last(arranged(small(algo, problem, *without_chance(algo)), range(6)))
    other = last(arranged(small(algo, problem, *without_chance(algo)), order))
    close(of_server(one), of_server(other))
    if hasattr(one, "memory"):
        close(one.memory[order], other.memory)


@both
def test_equal_clients_are_one_client(algo, problem):
    one = last(arranged(small(algo, problem, *without_chance(algo)), [2]))
    many = last(arranged(small(algo, problem, *without_chance(algo)), [2] * 5))
    close(of_server(one), of_server(many))


@both
def test_metric_improves(algo, problem):
    """With the tuned values, in at most 100 rounds: the objective, or the loss that is minimised, falls; where the solution is
    known, so does the distance or the hypergradient."""
    e = tuned(algo, problem, "participation.cohort=6")
    states = iterate(e, 100)
    before = e.problem.metrics(*e.algorithm.output(next(states)))
    measure = next(m for m in ("hypergradient_norm", "distance", "train_loss", "objective") if m in before)
    every_tenth = islice(states, 9, None, 10)
    assert any(e.problem.metrics(*e.algorithm.output(s))[measure] < 0.8 * before[measure] for s in every_tenth)


@pytest.mark.parametrize("algo", names("algo"))
def test_yaml_keys_are_the_fields(algo):
    read = node("algo", algo)
    cls = get_class(read["_target_"])
    assert [k for k in read if not k.startswith("_")] == [f.name for f in dataclasses.fields(cls)]
    assert set(read["_solves_"]) == covered(cls.solves)


@pytest.mark.parametrize("problem", names("problem"))
def test_problem_yaml_keys_are_the_fields(problem):
    read = node("problem", problem)
    cls = get_class(read["_target_"])
    assert [k for k in read if not k.startswith("_")] == [f.name for f in dataclasses.fields(cls)]
    assert read["_class_"] == name(class_of(cls))


@pytest.mark.parametrize("group", ["partitioner", "hardware", "dataset", "logger"])
def test_groups_have_files_that_can_be_built(group):
    for option in names(group):
        node = config(f"{group}={option}", *(["dataset.path=x"] if option == "npz" else []))[group]
        if group == "hardware":
            build(Hardware, node, group)
        elif node["_target_"] is not None:
            build_target(node, group)
