"""Pictures that a run draws at its end: none costs the run or its numbers. Processes of several runs at once."""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.command import ROOT, TINY, fedopt, run, start

from fedopt.console.interrupts import ending_at_once
from fedopt.drawing import run as drawing

SWEEP = ["-m", *TINY, "output_dir=sweep"]
UNCOMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}  # a limit would cut what Python keeps of modules
pytestmark = pytest.mark.pictures


def test_runs_of_a_sweep_draw_nothing(monkeypatch, capsys, tmp_path):
    """A single run draws, also one that has begun without pictures."""
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, *SWEEP, "seed=0,1").code == 0
    assert not [*tmp_path.glob("sweep/*/*.png")]
    assert fedopt(monkeypatch, capsys, *TINY, "output_dir=run").code == 0
    assert (tmp_path / "run" / "metrics.png").stat().st_size > 1000


@pytest.mark.parametrize("error", [RuntimeError("no font"), MemoryError("full"), OSError(28, "no space")])
def test_a_picture_that_fails_is_one_line(error, monkeypatch, capsys, tmp_path):
    """The run is finished, its other pictures are drawn."""

    def fails(*_):
        raise error

    monkeypatch.setattr(drawing, "metrics", fails)
    words = "algo=fedavg", "problem=classification", "dataset=digits", "budget.rounds=2"
    result = fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}")
    assert result.code == 0
    assert result.err.count("metrics.png: this figure cannot be drawn") == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
    assert not (tmp_path / "run" / "traceback.txt").exists()
    assert (tmp_path / "run" / "partition.png").stat().st_size > 1000


@pytest.mark.full
def test_a_picture_that_hangs(monkeypatch, capsys, tmp_path):
    """All numbers are there by then, and Ctrl-C twice ends it."""

    def hangs(*_):
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(drawing, "metrics", hangs)
    assert fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'run'}").code == 130
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.full
def test_a_picture_that_finds_no_room(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    result = run(*TINY, "output_dir=run", cwd=tmp_path, preexec_fn=limit, env=UNCOMPILED)
    assert result.code == 0
    assert result.err.count("cannot be drawn") == 1
    assert "Traceback" not in result.err


@pytest.mark.full
@pytest.mark.parametrize("more", [[], ["--jobs", "2"]])
def test_runs_of_a_sweep_that_is_stopped(more, tmp_path):
    process = start(*SWEEP, "budget.rounds=4,5,1000000", *more, cwd=tmp_path)
    while len(list(tmp_path.glob("sweep/*/metrics.csv"))) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    ended = [json.loads(path.read_text())["status"] for path in tmp_path.glob("sweep/*/summary.json")]
    assert sorted(ended)[0] == "finished"


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_ctrl_c_while_processes_import(tmp_path):
    """A terminal sends it to all processes, and one line is said."""
    process = start(*SWEEP, "seed=0,1", "--jobs", "2", cwd=tmp_path, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not any(
        b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children.read_text().split()
    ):
        assert process.poll() is None, process.communicate()
    time.sleep(0.3)  # in which they begin to import
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, "fedopt: stopped; to resume, repeat the command\n")


def test_nothing_is_collected_during_imports():
    with ending_at_once():
        assert not gc.isenabled()
    assert gc.isenabled()


FORK = """
import multiprocessing
import fedopt, torch
def add(n):
    return torch.ones(n).sqrt().square().sum().item()
def again(n):
    return fedopt.run("algo=fedavg problem=classification dataset=digits budget.rounds=1", output_dir=f"{n}", quiet=True).status
if __name__ == "__main__":
    again(0)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(add, [300_000]), pool.map(again, [1]))
"""


def test_a_pool_of_ones_own_after_a_run_ends(tmp_path):
    """Copies of a process whose OpenMP has two threads, which they lack: they compute with one."""
    (tmp_path / "fork.py").write_text(FORK)
    how = {"cwd": tmp_path, "text": True, "stdout": subprocess.PIPE, "start_new_session": True}
    env = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "fork.py"], env=env, **how)
    try:
        assert process.communicate(timeout=90)[0].strip() == "[300000.0] ['finished']"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
