"""A sweep whose command and workers are killed at any moment goes on to what an undisturbed one gives."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support import slurm
from support.command import fedopt
from support.sweeps import CSV_WORDS, begin, rows, to_the_end, workers

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
LAUNCHERS = {"processes": ["--jobs", "2"], "slurm": ["--at-most", "2", "--launcher", "slurm"]}


@pytest.mark.full
def test_killed_command(monkeypatch, capsys, tmp_path):
    """Of three runs, as the second one is in its rounds."""
    words = [*CSV_WORDS, "budget.rounds=30", "seed=0,1,2"]
    command = begin(tmp_path / "killed", *words)
    while len(list(tmp_path.glob("killed/sweep/*/metrics.csv"))) < 2:
        assert command.poll() is None
    command.kill()
    command.wait()
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        assert fedopt(monkeypatch, capsys, *words).code == 0
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("seed", [int(os.environ.get("FEDOPT_KILLS", "0"))])
def test_killed_sweep(launcher, seed, monkeypatch, tmp_path):
    """Of twelve runs, killed six times: the command, a worker, or all; then it goes on, with a seed more."""
    monkeypatch.setenv("FEDOPT_QUEUE", str(tmp_path / "queue"))
    for name, value in slurm.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    chance, cwd = random.Random(seed), tmp_path / "killed"
    words, more = [*CSV_WORDS, "budget.rounds=40", "algo.K=1,5"], LAUNCHERS[launcher]
    twelve = [*words, "seed=0,1,2,3,4,5", *more]
    for _ in range(6):
        command = begin(cwd, *twelve)
        time.sleep(chance.uniform(2, 15))
        others = [process for process in workers(cwd) if process != command.pid]
        victims = chance.choice([[command.pid], [command.pid, *others], [chance.choice(others or [command.pid])]])
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        if command.pid not in victims:
            time.sleep(chance.uniform(0, 5))
            command.kill()
        command.wait()
    to_the_end(cwd, *twelve)
    fourteen = [*words, "seed=0,1,2,3,4,5,6"]
    to_the_end(cwd, *fourteen, *more)
    assert to_the_end(tmp_path / "whole", *fourteen, "--jobs", "2") == 1
    killed, whole = rows(cwd), rows(tmp_path / "whole")
    assert len(killed) == 1 + 14
    assert killed == whole
    assert not workers(cwd)
