"""Configurations that are computed together: each gives what it gives alone."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import partial

import numpy as np
import pytest
import torch

from fedopt.config import Work, compose
from fedopt.errors import UserError
from fedopt.federation import Client, Round, Steps, engines
from fedopt.federation.varied import Place, Separate, Varied
from fedopt.running import at_once, loop, together
from fedopt.running.together import Outcome, merged, run
from fedopt.testing.harness import LESS, class_at, fields, names, small, usual_pairs, with_variants

# They run alone if all their real-valued keys differ, for these reasons. docs/tune.md shows them
ALONE = {
    "drfa": "each configuration samples other cohorts",
    "proxskip_gda": "the number of local steps depends on `p`",
    "f2sa": "a step reads `lam` as a number",
}
FACTORS = (1.0, 0.97, 0.9, 0.8, 0.75)
SAMPLE = sorted(usual_pairs())[::12]
UNLIKE = ("train_seconds",)  # columns that a stack shares


def scaled(value, factor):
    """Return an algorithm with each real-valued key times a factor."""
    if isinstance(value, float):
        return value * factor
    if is_dataclass(value) and not isinstance(value, Work):
        value = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(value, name, scaled(part, factor))
    return [scaled(part, factor) for part in value] if isinstance(value, list) else value


def outcomes(e, algorithms):
    found = [Outcome() for _ in algorithms]
    run(e, algorithms, found)
    return found


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Stacks are kept also where they are slower, and rows have all digits."""
    monkeypatch.setattr(together, "TRIED", (-1,))

    def exact(e, progress, values, noted=loop.noted):
        row, improved = noted(e, progress, values)
        return row | values, improved

    monkeypatch.setattr(loop, "noted", exact)
    monkeypatch.setattr(together, "noted", exact)


def assert_equal(found, alone, tolerance=1e-10):
    for mine, its in zip(found, alone, strict=True):
        assert (mine.status, mine.error, mine.share) == (its.status, its.error, its.share)
        assert len(mine.rows) == len(its.rows)
        for row, other in zip(mine.rows, its.rows, strict=True):
            assert list(row) == list(other)
            for name in {*row} - {*UNLIKE}:
                exact = isinstance(row[name], int)  # counts
                assert row[name] == (other[name] if exact else pytest.approx(other[name], tolerance, 1e-13, True)), name


@pytest.mark.parametrize(
    ("algo", "problem"),
    [pytest.param(*p, marks=[] if p in SAMPLE else pytest.mark.full) for p in sorted(with_variants())],
)
def test_together_is_alone(algo, problem):
    """In eight rounds with cohorts, minibatches and uneven work, with five configurations that differ in all real-valued keys."""
    words = [*LESS.get(algo, []), "budget.rounds=8", "eval.every=3"]
    words += ["algo.B=4"] if "B" in fields("algo", algo) else []
    uneven = ["participation.least=1"] if hasattr(class_at("algo", algo), "uneven") else []
    e = small(algo, problem, *words, *uneven)
    algorithms = [scaled(e.algorithm, factor) for factor in FACTORS]
    found = outcomes(e, algorithms)
    assert_equal(found, [outcomes(e, [one])[0] for one in algorithms])
    assert (sum(not one.alone for one in found) >= 2) == (algo not in ALONE), found[1].alone


def test_most_methods_are_computed_together():
    assert len(names("algo")) - len(ALONE) >= 80
