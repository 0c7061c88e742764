"""The examples in the docstrings of public functions run, and print what they say."""

import doctest
import inspect
import os

import pytest
import torch

import fedopt

FUNCTIONS = {name: getattr(fedopt, name) for name in fedopt.__all__ if inspect.isfunction(getattr(fedopt, name))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the runs that some examples read: `first`, and `seeds` with two runs."""
    place = tmp_path_factory.mktemp("examples")
    before = os.getcwd()
    os.chdir(place)
    for name in ("run", "sweep"):
        _run(FUNCTIONS[name])
    yield place
    os.chdir(before)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("run", "sweep")])
def test_example(name, folder):
    _run(FUNCTIONS[name])


def _run(function):
    assert "Example:\n    >>> " in inspect.getdoc(function)
    (example,) = doctest.DocTestFinder(recurse=False).find(function, globs={"fedopt": fedopt, "torch": torch})
    printed = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert runner.run(example, out=printed.append).failed == 0, "".join(printed)
