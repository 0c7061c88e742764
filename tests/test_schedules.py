"""Step sizes against their formulas, built as a config's are."""

import numpy as np
import pytest
from pydantic.dataclasses import dataclass

from fedopt.errors import UserError
from fedopt.schedules import LocalSteps, Schedule
from fedopt.settings import build


@dataclass(frozen=True)
class Steps:
    alpha: Schedule


def schedule(node):
    return build(Steps, {"alpha": node}, "algo").alpha


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
        (-0.1, r"-0\.1.*greater than or equal to 0"),
        ("fast", "fast.*number"),
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
        ({"kind": "piecewise", "values": [1.0, 2.0], "boundaries": [1, 2]}, "one value more"),
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


def local_steps(node):
    return build(LocalSteps, node, "algo.steps")


def test_local_steps():
    """A number, or ceil(tau (r + 1)^power), tau of each client's own where there is a list."""
    assert [local_steps(3)(r, 4) for r in (0, 7)] == [3, 3]
    assert [local_steps({"kind": "growing", "tau": 20})(r, 4) for r in (0, 1, 499)] == [20, 29, 448]
    assert local_steps({"kind": "growing", "tau": 0.3, "power": 0})(99, 4) == 1
    own = local_steps({"kind": "growing", "tau": [1, 2.5, 7]})(1, 5)
    np.testing.assert_array_equal(own, np.ceil(np.sqrt(2) * np.array([1, 2.5, 7, 1, 2.5])))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (0, "algo.steps.*0.*greater than 0"),
        (2.5, "algo.steps.*2.5.*integer"),
        ({"kind": "growing", "tau": []}, "algo.steps.*tau"),
        ({"kind": "growing", "tau": 0}, "algo.steps.*tau"),
        ({"kind": "shrinking", "tau": 1}, "shrinking.*growing"),
    ],
)
def test_bad_local_steps_name_the_key(node, message):
    with pytest.raises(UserError, match=message) as caught:
        local_steps(node)
    assert "\n" not in str(caught.value)
