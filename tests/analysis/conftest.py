"""Fixtures of comparisons: the command, and the figures that it draws."""

import sys

import pandas as pd
import pytest
from support.command import code_of

from fedopt.commands import compare
from fedopt.drawing import figures


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs fedopt compare; gives the exit code, compare.csv as a table (None without one), stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedopt-compare", *map(str, arguments), "--out", str(tmp_path / "out")])
        code = code_of(compare.main)
        csv = tmp_path / "out" / "compare.csv"
        return code, pd.read_csv(csv) if csv.exists() else None, *capsys.readouterr()

    return run


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn."""
    kept, save = [], figures.Figure.savefig

    def saved(figure, *arguments, **options):
        kept.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(figures.Figure, "savefig", saved)
    return kept
