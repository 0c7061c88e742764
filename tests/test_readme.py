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
OWN_COMMANDS = re.findall(r"^PYTHONPATH=\. fedopt (--config-dir .*)$", README, flags=re.MULTILINE)
COMMANDS = re.findall(r"^(fedopt(?:-compare)? .*?)(?:  +#.*)?$", TOUR, flags=re.MULTILINE)


def test_promises_are_held_by_tests():
    """Every test that docs/promises.md names is there, and every promise names one."""
    page = (ROOT / "docs" / "promises.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| Promise")]
    assert len(rows) >= 18
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named
        for file, test in named:
            assert f"def {test}(" in files[file]


def test_commands_are_found():
    assert len(COMMANDS) >= 7
    assert len(OWN_COMMANDS) == 2


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


def own_files(folder: Path) -> dict[str, str]:
    """README's algorithm and problem as a user would write them down, and the environment in which they are found."""
    for group, name in (("algo", "my_sgd"), ("problem", "my_regression")):
        (source,) = [text for language, text in BLOCKS if language == "python" and f"{name}.py" in text]
        (node,) = [text for language, text in BLOCKS if language == "yaml" and f"/{name}.yaml" in text]
        (folder / f"{name}.py").write_text(source)
        (folder / "myconf" / group).mkdir(parents=True)
        (folder / "myconf" / group / f"{name}.yaml").write_text(node)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.mark.parametrize("chosen", OWN_COMMANDS)
def test_own_files_run(chosen, tmp_path):
    env = own_files(tmp_path)
    command = [sys.executable, "-m", "fedopt", *shlex.split(chosen), "budget.rounds=3"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "finished after 3 rounds" in done.stdout


def test_own_files_are_held_to_the_contract(tmp_path):
    env = {**own_files(tmp_path), "FEDOPT_CONTRACT_CONF": str(tmp_path / "myconf")}
    test = [str(ROOT / "tests" / "test_contract.py"), "-k", "my_sgd or my_regression", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", "pytest", *test], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= 40
