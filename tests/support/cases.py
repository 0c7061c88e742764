"""Parameters of tests that have a few cases by default, and all with `-m full`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], usual: Callable[[Any], bool]) -> list[Any]:
    """The cases as parameters; those that are not usual are marked `full`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[] if usual(case) else pytest.mark.full)
        for case in cases
    ]
