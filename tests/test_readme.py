"""README's words are true: its commands run, and its own algorithm keeps the contract."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, fedopt

from fedopt.reproduce import compare

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
TOUR = README[README.index("## A tour") : README.index("## What is there")]
COMMANDS = re.findall(r"^(fedopt(?:-compare)? .*?)(?:  +#.*)?$", TOUR, flags=re.MULTILINE)


def test_commands_are_found():
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(command)
    if "joblib" in command:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if program == "fedopt-compare":
        sweep = ["-m", "algo=fedmsa", "problem=mco", "algo.K=1,5", "budget.rounds=2"]
        assert fedopt(monkeypatch, capsys, *sweep).code == 0
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        compare.main()
        assert (tmp_path / "compare.csv").exists()
        return
    short = [] if "--help" in arguments or "--cfg" in arguments else ["budget.rounds=2"]
    result = fedopt(monkeypatch, capsys, *arguments, *short)
    assert result.code == 0, result.err


def test_from_python(capsys):
    (source,) = [text for language, text in BLOCKS if language == "python" and "assemble" in text]
    exec(source, {})
    assert "distance" in capsys.readouterr().out


def own_algorithm(folder: Path) -> dict[str, str]:
    """README's algorithm as a user would write it down, and the environment in which it is found."""
    (source,) = [text for language, text in BLOCKS if language == "python" and "my_sgd.py" in text]
    (node,) = [text for language, text in BLOCKS if language == "yaml" and "my_sgd" in text]
    (folder / "my_sgd.py").write_text(source)
    (folder / "myconf" / "algo").mkdir(parents=True)
    (folder / "myconf" / "algo" / "my_sgd.yaml").write_text(node)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def test_own_algorithm_runs(tmp_path):
    env = own_algorithm(tmp_path)
    arguments = ["--config-dir", "myconf", "algo=my_sgd", "problem=classification", "dataset=digits", "budget.rounds=3"]
    command = [sys.executable, "-m", "fedopt", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "finished after 3 rounds" in done.stdout


def test_own_algorithm_is_held_to_the_contract(tmp_path):
    env = {**own_algorithm(tmp_path), "FEDOPT_CONTRACT_CONF": str(tmp_path / "myconf")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(ROOT / "tests" / "test_contract.py"),
        "-k",
        "my_sgd",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 8
