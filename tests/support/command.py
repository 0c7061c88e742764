"""The `fedopt` command as the tests call it: in this process, or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedopt.commands import run as cli
from fedopt.testing.harness import PAIR

ROOT = Path(__file__).parents[2]
TINY = [*PAIR, "problem.examples=40", "budget.rounds=4", "hardware.threads=1"]  # quadratic_bilevel takes it too


class Result(NamedTuple):
    code: int
    out: str
    err: str


def fedopt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """In this process: no second import of torch."""
    monkeypatch.setattr(sys, "argv", ["fedopt", *arguments])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    capsys.readouterr()
    code = code_of(cli.main)
    return Result(code, *capsys.readouterr())


def code_of(main: Callable[[], None]) -> int:
    """What the process would exit with."""
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def start(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """In a process of its own."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **options.pop("env", {})}
    command = [sys.executable, "-m", "fedopt", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def run(*arguments: str, cwd: Path, **options: Any) -> Result:
    process = start(*arguments, cwd=cwd, **options)
    out, err = process.communicate(timeout=600)
    return Result(process.returncode, out, err)


def start_ranks(
    *arguments: str | Path, cwd: Path, launcher: Sequence[str] = ("--standalone",)
) -> subprocess.Popen[str]:
    """A script or module on two ranks, which hold the pipes open until the last of them ends."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *launcher]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])  # where the scripts of tests/support find one another
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*launcher, *arguments], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def torchrun(*arguments: str | Path, cwd: Path) -> Result:
    process = start_ranks(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return Result(0, out, err)


def one_line(result: Result, *fragments: str) -> None:
    assert result.code not in (0, None)
    line = result.err.strip()
    assert line.startswith("fedopt: ")
    assert "\n" not in line
    assert "Traceback" not in result.err + result.out
    missing = [fragment for fragment in fragments if fragment not in line]
    assert not missing, f"{missing} not in: {line}"


def without_time(path: Path) -> list[list[str]]:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    time = rows[0].index("train_seconds")
    return [row[:time] + row[time + 1 :] for row in rows]
