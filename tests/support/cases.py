"""Parameters of tests that have a few cases by default, and more with `-m full` or `-m slow`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], usual: Callable[[Any], bool], rest: pytest.MarkDecorator = pytest.mark.full) -> list[Any]:
    """Return the cases as parameters. Those that are not usual have the mark `rest`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[] if usual(case) else rest)
        for case in cases
    ]
