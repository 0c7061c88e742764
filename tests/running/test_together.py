"""Configurations that are computed together: each gives what it gives alone."""

import math
import time
from dataclasses import replace
from functools import partial
from operator import mul

import numpy as np
import pytest
import torch

from fedopt.algorithms.fedavg import FedAvg
from fedopt.config import compose
from fedopt.config.schedules import Constant
from fedopt.federation import engines
from fedopt.federation.varied import Place, Separate, Varied
from fedopt.running import at_once, loop, together
from fedopt.running.together import Outcome, _Stack, mapped, run
from fedopt.testing.harness import LESS, class_at, fields, names, small, usual_pairs, with_variants

# They run alone if all their real-valued keys differ, for these reasons. docs/tune.md shows them
ALONE = {
    "drfa": "each configuration samples other cohorts",
    "proxskip_gda": "the number of local steps depends on `p`",
    "f2sa": "a step reads `lam` as a number",
    "fedsgm": "the server takes one of two branches, as the constraints say",
}
FACTORS = (1.0, 0.97, 0.9, 0.8, 0.75)
SAMPLE = sorted(usual_pairs())[::12]
# Overrides of pairs whose loss grows with the default step sizes, and the effect of rounding with it
SMALLER = {("adafgda", "group_bounds"): ["algo.gamma=0.05", "algo.lam=0.05"]}
UNLIKE = ("train_seconds",)  # columns that a stack shares


def outcomes(e, algorithms):
    found = [Outcome() for _ in algorithms]
    run(e, algorithms, found, lambda: None)
    return found


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Stacks are kept also where they are slower, and rows have all digits."""
    monkeypatch.setattr(together, "TRIED", -1)

    def exact(e, progress, values, noted=loop.noted):
        row, improved = noted(e, progress, values)
        return row | values, improved

    monkeypatch.setattr(loop, "noted", exact)
    monkeypatch.setattr(together, "noted", exact)


def assert_equal(found, alone, tolerance=1e-10):
    for mine, its in zip(found, alone, strict=True):
        assert (mine.status, mine.error, mine.done) == (its.status, its.error, its.done)
        assert len(mine.rows) == len(its.rows)
        for row, other in zip(mine.rows, its.rows, strict=True):
            assert list(row) == list(other)
            for name in {*row} - {*UNLIKE}:
                if isinstance(row[name], int):  # counts
                    assert row[name] == other[name], name
                elif mine.status != "diverged" or math.isfinite(row[name]) or math.isfinite(other[name]):
                    # A run that diverges ends with inf or nan, which depends on the processor
                    assert row[name] == pytest.approx(other[name], tolerance, 1e-13, nan_ok=True), name


@pytest.mark.parametrize(
    ("algo", "problem"),
    [pytest.param(*p, marks=[] if p in SAMPLE else pytest.mark.full) for p in sorted(with_variants())],
)
def test_together_is_alone(algo, problem):
    """In eight rounds with cohorts, minibatches and uneven work, with five configurations that differ in all real-valued keys."""
    words = [*LESS.get(algo, []), *SMALLER.get((algo, problem), []), "budget.rounds=8", "eval.every=3"]
    words += ["algo.B=4"] if "B" in fields("algo", algo) else []
    uneven = ["participation.least=1"] if hasattr(class_at("algo", algo), "uneven") else []
    e = small(algo, problem, *words, *uneven)
    algorithms = [mapped(partial(mul, factor), e.algorithm) for factor in FACTORS]
    found = outcomes(e, algorithms)
    assert_equal(found, [outcomes(e, [one])[0] for one in algorithms])
    assert (sum(not one.alone for one in found) >= 2) == (algo not in ALONE), found[1].alone


def test_most_methods_are_computed_together():
    assert len(names("algo")) - len(ALONE) >= 80


def quick(*words):
    """Return an experiment whose rounds take no time."""
    return small("fedavg", "quadratic_minimisation", "budget.rounds=6", "eval.every=1", *words)


def with_eta(e, *etas):
    return [replace(e.algorithm, eta=Constant(eta)) for eta in etas]


def each_alone(e, algorithms):
    return [outcomes(e, [one])[0] for one in algorithms]


@pytest.fixture
def sizes(monkeypatch):
    """The number of configurations in each computation of a round."""
    found = []

    def timed(self, call, original=_Stack._timed):
        found.append(len(self.outcomes))
        return original(self, call)

    monkeypatch.setattr(_Stack, "_timed", timed)
    return found


def test_a_configuration_that_diverges_stops_counting(sizes):
    """Once half of a stack have diverged, the others are a smaller stack."""
    e = quick()
    algorithms = with_eta(e, 1e9, 0.1, 1e7, 0.2, 1e8, 1e30)
    found = outcomes(e, algorithms)
    assert [one.status for one in found] == ["diverged", "finished"] * 2 + ["diverged"] * 2
    assert_equal(found, each_alone(e, algorithms))
    assert sizes[-1] == 2
    assert sizes[0] == 6
    assert {one.status for one in outcomes(e, with_eta(e, 1e30, 1e29))} == {"diverged"}


class Picky(FedAvg):
    """It refuses a value in its second round."""

    def step(self, s, problem, fed):
        if fed.r and self.eta(0) > 0.25:
            raise ArithmeticError("eta is too large")
        return super().step(s, problem, fed)


def test_a_configuration_that_raises_fails_alone():
    e = quick()
    algorithms = [Picky(**vars(one)) for one in with_eta(e, 0.1, 0.3, 0.2)]
    found = outcomes(e, algorithms)
    assert [one.status for one in found] == ["finished", "failed", "finished"]
    assert "ArithmeticError: eta is too large" in found[1].error
    assert len(found[1].rows) == 2
    assert not found[0].alone
    assert_equal(found[::2], each_alone(e, algorithms)[::2])


def test_slower_stacks_run_alone(monkeypatch):
    """The first rounds show it, and the configurations continue from there."""
    e = quick()
    algorithms = with_eta(e, 0.1, 0.2, 0.3)
    expected = each_alone(e, algorithms)

    def slow(self, call, original=_Stack._timed):
        original(self, call)
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass

    steps, step = [], FedAvg.step
    monkeypatch.setattr(
        FedAvg, "step", lambda self, s, problem, fed: steps.append(fed.r) or step(self, s, problem, fed)
    )
    monkeypatch.setattr(together, "TRIED", 1)
    monkeypatch.setattr(_Stack, "_timed", slow)
    found = outcomes(e, algorithms)
    assert steps == [
        0,
        1,
        1,
        *[2, 3, 4, 5] * 3,
    ]  # two rounds together, one of them also by one configuration, then alone
    assert {one.alone for one in found} == {"each configuration is faster alone"}
    assert_equal(found, expected)


def test_memory_cuts_stacks(monkeypatch, sizes):
    e = quick()
    algorithms = with_eta(e, 0.1, 0.2, 0.3, 0.4, 0.5)
    size = e.problem.start()[0].nbytes * e.problem.clients
    monkeypatch.setattr(engines, "STACK_BYTES", 2 * size)
    found = outcomes(e, algorithms)
    assert sorted({*sizes}) == [2]
    assert_equal(found, each_alone(e, algorithms))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["participation.late=1"], "late clients answer messages of one configuration"),
        (["budget.seconds=1000"], "budget.seconds limits the time of one configuration"),
    ],
)
def test_what_cannot_be_computed_together_says_why(words, reason):
    e = quick(*words)
    assert {one.alone for one in outcomes(e, with_eta(e, 0.1, 0.2))} == {reason}


def test_configs_run_at_once(sizes):
    """Those that differ in whole numbers are apart, and one that is refused fails."""
    words = ["algo=fedavg", "problem=quadratic_minimisation", "budget.rounds=3", "participation.least=2"]
    keys = [("0.1", "5"), ("0.2", "5"), ("0.1", "1"), ("0.3", "5"), ("0.3", "4")]
    heard = list[float]()
    found = at_once([compose([*words, f"algo.eta={eta}", f"algo.tau={tau}"]) for eta, tau in keys], heard.append)
    assert [one.status for one in found] == ["finished", "finished", "failed", "finished", "finished"]
    assert found[2].error.startswith("participation.least=2: must be at most algo.tau, which is 1")
    assert [bool(one.alone) for one in found] == [False, False, False, False, True]
    assert {*sizes} == {3}
    assert heard == sorted(heard)
    assert heard[-1] == 1
    assert at_once([]) == []


def test_a_message_that_is_written_over_is_refused():
    class Writes(FedAvg):
        def step(self, s, problem, fed):
            return s._replace(x=fed.exchange(lambda client, x: x.mul_(0.5), s.x, fed.cohort()))

    e = quick()
    found = outcomes(e, [Writes(**vars(one)) for one in with_eta(e, 0.1, 0.2)])
    assert [("writes over its message" in one.error) for one in found] == [True, True]


def test_a_varied_number_computes_as_each_of_its_values():
    values, place, x = np.array([0.1, 0.25, 3.0]), Place(), torch.tensor([2.0, 3.0])
    varied = Varied(values, place)
    assert (1 / (2 * varied**2 - 0.5)).values.tolist() == [1 / (2 * v**2 - 0.5) for v in values.tolist()]
    assert varied > 0
    assert varied != 7
    for refused in (lambda: varied > 1, lambda: float(varied), lambda: bool(varied - 0.1)):
        with pytest.raises(Separate):
            refused()
    assert float(0 * varied + 2) == 2
    with pytest.raises(TypeError):
        hash(varied)

    def of_one(index, x, v):
        results = [
            x.sub(x, alpha=v),
            torch.addcmul(x, x, x, value=v),
            torch.where(x > 2, v, x),
            v * x,
            x / v,
            x - (-v),
        ]
        return torch.stack(results)

    def together_of(index, x):
        place.begin(index)
        return of_one(index, x, varied)

    found = torch.func.vmap(together_of, (0, None))(torch.arange(3), x)
    torch.testing.assert_close(found, torch.stack([of_one(0, x, v) for v in values.tolist()]))
