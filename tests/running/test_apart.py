"""Pictures that other processes draw: all are there when the command returns, whatever happens in between."""

import gc
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.command import ROOT, TINY, fedopt, run, start

from fedopt.console.interrupts import ending_at_once
from fedopt.drawing import run as drawn_here
from fedopt.metrics import Metric
from fedopt.running import apart

SWEEP = ["-m", *TINY, "output_dir=sweep"]
UNCOMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}  # a limit would cut what Python keeps of modules
pytestmark = pytest.mark.pictures


@pytest.fixture
def drawing(monkeypatch):
    """Two processes draw, and this one is not able to."""
    monkeypatch.setattr(apart, "cores", lambda: 2)
    monkeypatch.setattr(drawn_here, "metrics", None)
    made = apart.Drawing(apart=True)
    yield made
    made.close()


@pytest.fixture
def given(tmp_path):
    """The arguments of a picture."""
    (tmp_path / "metrics.csv").write_text("round,comm_rounds,loss\n0,0,2\n1,2,\n2,4,0.5\n")
    metric = Metric("loss", "loss", "", "lower")
    return "metrics", tmp_path / "metrics.png", tmp_path / "metrics.csv", [metric], "a run"


def test_another_process_draws(drawing, given):
    drawing(*given)
    drawing.wait(given[1].parent)
    assert given[1].stat().st_size > 1000


@pytest.mark.full
def test_a_process_that_is_killed_costs_no_picture(drawing, given, monkeypatch):
    drawing(*given)
    drawing.wait(given[1].parent)
    monkeypatch.undo()  # this process has to
    (going,) = (process for process in multiprocessing.active_children() if process.is_alive())
    os.kill(going.pid, signal.SIGSTOP)
    given[1].unlink()
    for _ in range(3):
        drawing(*given)
    os.kill(going.pid, signal.SIGKILL)
    drawing.wait(given[1].parent)
    assert given[1].exists()


def test_numbers_wait_for_no_picture(drawing, given, monkeypatch, capsys):
    """A process that hangs is given up after a while, in one line; then nothing is drawn, and nobody waits any more."""
    drawing(*given)
    drawing.wait(given[1].parent)
    hanging = multiprocessing.active_children()
    for process in hanging:
        os.kill(process.pid, signal.SIGSTOP)
    rescue = threading.Timer(30, lambda: [process.kill() for process in hanging])  # so that this fails if it waits
    rescue.start()
    given[1].unlink()
    monkeypatch.setattr(apart, "PATIENCE", 0.5, raising=False)
    for _ in range(2):
        drawing(*given)
        drawing.wait(given[1].parent)
    drawing.close()
    rescue.cancel()
    assert capsys.readouterr().err.count("metrics.png: is not drawn after 0.5 seconds") == 1
    assert not given[1].exists()


@pytest.mark.full
def test_a_picture_that_finds_no_room(tmp_path, monkeypatch, capsys):
    """Its job has failed, the others not, and the same command draws it."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    result = run(*SWEEP, "seed=0,1", cwd=tmp_path, preexec_fn=limit, env=UNCOMPILED)
    assert result.code == 1
    assert result.out.count("failed") == 2
    assert result.err.count("metrics.png") == 2
    assert "Traceback" not in result.err
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, *SWEEP, "seed=0,1").code == 0
    assert len(list(tmp_path.glob("sweep/*/metrics.png"))) == 2


@pytest.mark.full
@pytest.mark.parametrize("more", [[], ["--jobs", "2"]])
def test_runs_of_a_sweep_that_is_stopped(more, tmp_path):
    """Those that ended have their pictures, and so has the one that was interrupted."""
    process = start(*SWEEP, "budget.rounds=4,5,1000000", *more, cwd=tmp_path)
    while len(list(tmp_path.glob("sweep/*/metrics.csv"))) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    ended = [json.loads(path.read_text())["status"] for path in tmp_path.glob("sweep/*/summary.json")]
    assert sorted(ended)[0] == "finished"
    assert len(list(tmp_path.glob("sweep/*/metrics.png"))) == 3, out


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_ctrl_c_while_processes_import(tmp_path):
    """A terminal sends it to all processes, and one line is said."""
    process = start(*TINY, "output_dir=run", cwd=tmp_path, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not any(
        b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children.read_text().split()
    ):
        assert process.poll() is None, process.communicate()
    time.sleep(0.3)  # in which they begin to import
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, "fedopt: stopped\n")


def test_nothing_is_collected_during_imports():
    with ending_at_once():
        assert not gc.isenabled()
    assert gc.isenabled()


FORK = """
import multiprocessing
import fedopt, torch
def add(n):
    return torch.ones(n).exp().log().sum().item()
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
