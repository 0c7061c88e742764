"""Sweeps in processes of their own, which are killed and go on."""

import os
import subprocess
import sys
from pathlib import Path

from support.command import ROOT, without_time

CSV_WORDS = ["-m", "algo=fedmsa", "problem=quadratic_bilevel", "eval.every=5", "hardware.threads=1", "output_dir=sweep"]


def begin(cwd: Path, *arguments: str) -> subprocess.Popen:
    """The command in this folder. What it and its workers say goes to the file said, as no pipe that outlives it."""
    cwd.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with (cwd / "said").open("a", encoding="utf-8") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "fedopt", *arguments], cwd=cwd, env=env, stdout=said, stderr=said
        )


def to_the_end(cwd: Path, *arguments: str, most: int = 5) -> int:
    """The command, until nothing is left to do; returns how often it was given."""
    for time in range(1, most + 1):
        if begin(cwd, *arguments).wait(600) == 0:
            return time
    raise AssertionError((cwd / "said").read_text())


def workers(cwd: Path) -> dict[int, str]:
    """The command lines of the processes whose working directory this is."""
    lines = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cwd").resolve() == cwd:
                lines[int(process.name)] = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return {process: line for process, line in lines.items() if line}


def rows(cwd: Path) -> dict[str, list[list[str]]]:
    """sweep.csv and the metrics.csv of each run, without times."""
    tables = {"sweep.csv": _without(cwd / "sweep" / "sweep.csv", "seconds")}
    return tables | {path.parent.name: without_time(path) for path in sorted(cwd.glob("sweep/*/metrics.csv"))}


def _without(path: Path, column: str) -> list[list[str]]:
    cells = [line.split(",") for line in path.read_text().splitlines()]
    at = cells[0].index(column)
    return [row[:at] + row[at + 1 :] for row in cells]
