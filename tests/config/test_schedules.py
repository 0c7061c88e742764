"""Step sizes against their formulas, built as a config's are."""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from fedopt.config.build import build
from fedopt.config.composed import compose, recorded
from fedopt.config.schedules import LocalWork, Schedule
from fedopt.data.ragged import Ragged
from fedopt.decimals import exact
from fedopt.errors import UserError
from fedopt.federation.draws import Epochs, Steps

pytestmark = pytest.mark.smoke


@dataclass(frozen=True)
class Keys:
    alpha: Schedule
    tau: LocalWork


def schedule(node):
    return build(Keys, {"alpha": node, "tau": 1}, "algo").alpha


def local_work(node):
    return build(Keys, {"alpha": 0, "tau": node}, "algo").tau


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (0.05, {0: 0.05, 1: 0.05, 999: 0.05}),
        (0, {0: 0.0, 7: 0.0}),
        ("1e-3", {0: 0.001, 5: 0.001}),  # YAML reads 1e-3 as text
        ({"kind": "constant", "value": 2}, {0: 2.0, 3: 2.0}),
        ({"kind": "inverse_power", "initial": 3.0}, {0: 3.0, 1: 1.5, 2: 1.0, 5: 0.5}),
        ({"kind": "inverse_power", "initial": 3.0, "power": 0.5}, {0: 3.0, 3: 1.5, 8: 1.0}),
        ({"kind": "inverse_power", "initial": 8.0, "power": 2.0, "delay": 10.0}, {0: 8.0, 10: 2.0, 30: 0.5}),
        ({"kind": "inverse_power", "initial": 3.0, "power": 0.0}, {0: 3.0, 50: 3.0}),
        ({"kind": "exponential", "initial": 4.0, "decay": 0.5}, {0: 4.0, 1: 2.0, 4: 0.25}),
        ({"kind": "exponential", "initial": 4.0, "decay": 1.0}, {0: 4.0, 100: 4.0}),
        ({"kind": "piecewise", "values": [3.0, 2.0, 1.0], "boundaries": [2, 5]}, {0: 3, 1: 3, 2: 2, 4: 2, 5: 1, 99: 1}),
        ({"kind": "piecewise", "values": [3.0], "boundaries": []}, {0: 3.0, 99: 3.0}),
    ],
)
def test_values(node, expected):
    alpha = schedule(node)
    assert {r: alpha(r) for r in expected} == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (-0.1, r"^algo\.alpha=-0\.1: .*at least 0"),
        ("fast", r"^algo\.alpha=fast: must be a number, or a schedule such as"),
        (float("nan"), "nan"),
        (None, r"^algo\.alpha=None"),
        ([0.1], r"^algo\.alpha=\[0\.1\]"),
        ({}, "kind"),
        ({"kind": "cosine", "initial": 1.0}, "cosine.*inverse_power"),
        ({"kind": "constant", "value": -1.0}, r"-1\.0"),
        ({"kind": "inverse_power"}, r"^algo\.alpha\.initial: is missing"),
        ({"kind": "inverse_power", "initial": 1.0, "dealy": 3}, r"^algo\.alpha\.dealy: there is no such key"),
        ({"kind": "inverse_power", "initial": 1.0, "delay": 0}, r"^algo\.alpha\.delay=0"),
        ({"kind": "inverse_power", "initial": 1.0, "power": -1}, r"^algo\.alpha\.power=-1"),
        ({"kind": "exponential", "initial": 1.0, "decay": 0.0}, r"^algo\.alpha\.decay=0\.0"),
        ({"kind": "exponential", "initial": 1.0, "decay": 1.1}, r"^algo\.alpha\.decay=1\.1"),
        ({"kind": "exponential", "initial": -1.0, "decay": 0.5}, r"^algo\.alpha\.initial=-1\.0"),
        ({"kind": "piecewise", "values": [1.0, 2.0], "boundaries": [1, 2]}, "one more value"),
        ({"kind": "piecewise", "values": [1.0, 2.0, 3.0], "boundaries": [2, 1]}, "increasing"),
        ({"kind": "piecewise", "values": [1.0, 2.0, 3.0], "boundaries": [2, 2]}, "increasing"),
        ({"kind": "piecewise", "values": [1.0, 2.0], "boundaries": [0]}, r"boundaries\.0=0"),
        ({"kind": "piecewise", "values": [1.0, -2.0], "boundaries": [1]}, r"values\.1=-2\.0"),
    ],
)
def test_bad_values_name_the_key(node, message):
    with pytest.raises(UserError, match=message) as caught:
        schedule(node)
    assert str(caught.value).startswith("algo.alpha")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("node", "unit", "value"),
    [
        (5, "steps", 5),
        ("5", "steps", 5),
        ("5 steps", "steps", 5),
        ("1 step", "steps", 1),
        ("5 epochs", "epochs", 5),
        ("5epochs", "epochs", 5),
        ("1 epoch", "epochs", 1),
        ({"kind": "constant", "value": 5}, "steps", 5),
    ],
)
def test_local_work(node, unit, value):
    work = local_work(node)
    assert work.unit == unit
    assert [work(r, 4) for r in (0, 7)] == [value, value]


def test_growing_local_work():
    """ceil(tau (r + 1)^power) steps, tau of each client's own where there is a list, and from the first again."""
    work = local_work({"kind": "growing", "tau": 20})
    assert work.unit == "steps"
    assert [work(r, 4) for r in (0, 1, 499)] == [20, 29, 448]
    assert local_work({"kind": "growing", "tau": 0.3, "power": 0})(99, 4) == 1
    own = local_work({"kind": "growing", "tau": [1, 2.5, 7]})(1, 5)
    assert own.dtype == np.int64
    np.testing.assert_array_equal(own, np.ceil(np.sqrt(2) * np.array([1, 2.5, 7, 1, 2.5])))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (0, r"^algo\.tau=0: must be a number of steps"),
        ("0 epochs", r"^algo\.tau=0 epochs: must be a number of steps"),
        (
            2.5,
            r"^algo\.tau=2\.5: must be a number of steps, such as 5, a number of epochs, such as '0\.5 epochs', or a schedule$",
        ),
        ("2.5 steps", r"^algo\.tau=2\.5 steps: must be a number of steps"),
        (-1, r"^algo\.tau=-1: must be a number of steps"),
        ("5 passes", r"^algo\.tau=5 passes: must be a number of steps"),
        ("epochs", r"^algo\.tau=epochs: must be"),
        ("5 epochs 3", r"^algo\.tau=5 epochs 3: must be"),
        (True, r"^algo\.tau=True: must be"),
        (None, r"^algo\.tau=None: must be"),
        ([5], r"^algo\.tau=\[5\]: must be"),
        ({}, r"^algo\.tau\.kind: must be set$"),
        ({"kind": "constant", "value": "5 epochs"}, r"^algo\.tau\.value=5 epochs: must be a whole number"),
        ({"kind": "growing", "tau": []}, r"^algo\.tau\.tau=\[\]: .*at least 1"),
        ({"kind": "growing", "tau": 0}, r"^algo\.tau\.tau=0: .*greater than 0"),
        ({"kind": "growing", "tau": 2, "powr": 1}, r"^algo\.tau\.powr: there is no such key"),
        ({"kind": "shrinking", "tau": 1}, r"^algo\.tau\.kind=shrinking: must be 'constant', 'growing'$"),
    ],
)
def test_bad_local_work_names_the_key(node, message):
    with pytest.raises(UserError, match=message) as caught:
        local_work(node)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "key", "wanted"),
    [
        (
            ["algo=zo_hfl", "problem=hierarchical", "algo.gamma={kind: constant, value: 0.2}"],
            "gamma",
            {"kind": "constant", "value": 0.2},
        ),
        (
            ["algo=zo_hfl", "problem=hierarchical", "algo.gamma={kind: exponential, initial: 0.1, decay: 0.9}"],
            "gamma",
            {"kind": "exponential", "initial": 0.1, "decay": 0.9},
        ),
        (
            ["algo=zo_hfl", "problem=quadratic_hierarchical", "algo.gamma_local={kind: inverse_power, initial: 0.1}"],
            "gamma_local",
            {"kind": "inverse_power", "initial": 0.1},
        ),
        (
            ["algo=zo_hfl", "problem=hierarchical", "algo.gamma.initial=3"],
            "gamma",
            {"kind": "inverse_power", "initial": 3, "power": 0.5},
        ),
        (["algo=zo_hfl", "problem=hierarchical", "algo.gamma=0.1"], "gamma", 0.1),
    ],
)
def test_a_schedule_takes_the_place_of_another_as_a_whole(words, key, wanted):
    """Also in a run that goes on, and over a tuned one of another kind."""
    composed = compose(words)
    assert composed.nodes["algo"][key] == wanted
    assert recorded(compose(words[:2]).nodes, words[2:]).nodes["algo"][key] == wanted


def test_a_tuned_schedule_of_another_kind(tmp_path):
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "zo_hfl.yaml").write_text(
        "hierarchical: {source: x, algo: {gamma: {kind: exponential, initial: 1, decay: 0.5}}}"
    )
    node = compose(["algo=zo_hfl", "problem=hierarchical"], [tmp_path]).nodes["algo"]["gamma"]
    assert node == {"kind": "exponential", "initial": 1, "decay": 0.5}


@pytest.mark.parametrize(
    ("epochs", "B", "steps"),
    [(0.5, 4, [2, 1]), (1.5, 4, [5, 2]), (0.1, 4, [1, 1]), (0.5, None, [1, 1]), (2, 4, [6, 2])],
)
def test_parts_of_an_epoch(epochs, B, steps):
    """Clients of 12 and of 4 examples: parts are rounded up to a sample, which are those that the whole pass begins with."""
    splits = {"train": Ragged([np.arange(12), np.arange(12, 16)])}
    work = build(Keys, {"alpha": 1, "tau": f"{epochs} epochs"}, "algo").tau
    drawn = Epochs(work(0, 2), B)
    assert drawn.steps_of(splits, np.arange(2)).tolist() == steps
    (whole,), (parts,) = (
        of.sampler(np.array([12]))([np.random.default_rng(0)], [12], [count])
        for of, count in ((Epochs(2, B), 6), (drawn, steps[0]))
    )
    for some, wanted in zip(parts, whole, strict=False):
        np.testing.assert_array_equal(some, wanted)


def test_decimals_are_those_on_paper():
    """ceil, floor and round of what a user writes, against fractions: of Epochs, Steps and growing work, of parts of a budget."""
    for cents, n in product(range(1, 130), (10, 25, 50, 75, 100)):
        parts, decimal = Fraction(cents, 100) * n, cents / 100
        splits = {"train": Ragged([np.arange(n)])}
        assert Epochs(decimal, 1).steps_of(splits, np.arange(1)) == math.ceil(parts)
        assert Steps(decimal * n).steps_of(splits, np.arange(1)) == math.ceil(parts)
        assert local_work({"kind": "growing", "tau": decimal, "power": 1})(n - 1, 1) == math.ceil(parts)
        assert (math.floor(exact(decimal * n)), round(exact(decimal * n))) == (math.floor(parts), round(parts))
    assert exact(0.145 * 100) == 14.5  # 14.499999999999998
    assert math.ceil(exact(7 + 1e-9)) == 8


@pytest.mark.parametrize("tau", ["0.5", "0.5 steps", "-0.5 epochs", "0.0 epochs", "1e3 epochs", "nan epochs", 0.5])
def test_parts_of_a_step_are_none(tau):
    with pytest.raises(UserError, match=r"^algo\.tau"):
        build(Keys, {"alpha": 1, "tau": tau}, "algo")
