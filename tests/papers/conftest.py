"""An experiment file of the test's own, the command that runs it, and the figures that it makes."""

import sys

import pytest
import yaml
from support.command import Result, code_of
from support.experiments import FEDMSA, TINY

from fedopt.commands import reproduce


@pytest.fixture
def experiment(tmp_path):
    """Writes conf/experiment/test/<name>.yaml with the node `experiment`, on mco."""

    def write(name, common=(), **node):
        path = tmp_path / "conf" / "experiment" / "test" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        defaults = [{"override /problem": "mco"}, {"override /algo": "fedmsa"}]
        content = {"defaults": defaults, **TINY, **dict(common), "experiment": {**FEDMSA, **node}}
        path.write_text("# @package _global_\n" + yaml.safe_dump(content, sort_keys=False))
        return path

    return write


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs fedopt reproduce in tmp_path with its config folder."""

    def run(*arguments):
        (tmp_path / "conf").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr(sys, "argv", ["fedopt-reproduce", "--config-dir", "conf", *map(str, arguments)])
        capsys.readouterr()
        return Result(code_of(reproduce.main), *capsys.readouterr())

    return run


@pytest.fixture
def made(monkeypatch):
    """The figures that a test makes, in place of their files."""
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    return figures
