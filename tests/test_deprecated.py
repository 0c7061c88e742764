"""Names that were removed are answered with one line that says what takes their place."""

import re
from pathlib import Path

import pytest
from support.command import fedopt, one_line

import fedopt as package
from fedopt.config.composed import compose, recorded
from fedopt.config.files import GROUPS, options
from fedopt.deprecated import REMOVED, removed
from fedopt.errors import UserError

PAIR = ("algo=fedavg", "problem=classification")


@pytest.mark.parametrize("name", REMOVED)
def test_entries(name):
    """Each says what happened and what to do, names nothing that exists, and no other module knows its name."""
    assert re.fullmatch(re.escape(name) + r": (was removed|is now [^;]+); .{10,}", removed(name))
    group, _, option = name.partition("=")
    assert group not in GROUPS or option not in options(group)
    others = [path for path in Path(package.__file__).parent.rglob("*.py") if path.stem != "deprecated"]
    if "." in name or "=" in name:
        assert [path for path in others if name in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("word", ["hardware.processes=2", "+hardware.processes=2", "hardware.processes=1,2"])
def test_a_key(word):
    with pytest.raises(UserError, match=r"hardware\.processes: was removed; start N processes with torchrun"):
        compose([*PAIR, word])


def test_a_key_of_a_config_file(tmp_path):
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "old.yaml").write_text("defaults: [cpu]\nprocesses: 2\n")
    with pytest.raises(UserError, match=r"hardware\.processes: was removed; start N processes with torchrun"):
        compose([*PAIR, "hardware=old"], [tmp_path])


def test_a_key_of_a_users_class(tmp_path, monkeypatch):
    """Only the included classes lost the key algo.kept."""
    with pytest.raises(UserError, match=r"algo\.kept: was removed; DRFA weights"):
        compose([*PAIR, "algo.kept=2"])
    (tmp_path / "my_method.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedopt.algorithms.fedavg import FedAvg\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    kept: int = 1\n"
    )
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("defaults: [fedavg, _self_]\n_target_: my_method.Mine\nkept: 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    composed = compose(["algo=mine", PAIR[1], "algo.kept=2"], [tmp_path])
    assert composed.nodes["algo"]["kept"] == 2
    assert recorded(composed.nodes).nodes["algo"]["kept"] == 2


def test_an_option_and_a_flag(monkeypatch, capsys):
    one_line(fedopt(monkeypatch, capsys, *PAIR, "logger=mlflow"), "logger=mlflow: was removed; choose logger=wandb")
    one_line(fedopt(monkeypatch, capsys, "--schema"), "--schema: was removed; fedopt --help KEY")


def test_a_python_name(monkeypatch):
    monkeypatch.setitem(REMOVED, "fedopt.old", "is now fedopt.run; import that name")
    with pytest.raises(AttributeError, match=r"fedopt\.old: is now fedopt\.run"):
        _ = package.old
