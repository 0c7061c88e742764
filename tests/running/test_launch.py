"""One run on several processes, which the command starts itself."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.command import fedopt, one_line, run, start

from fedopt.api import run as run_from_python
from fedopt.errors import UserError
from fedopt.results.folder import RunFolder
from fedopt.running import hardware
from fedopt.running.launch import asked_processes

PAIR = ["algo=fedmsa", "problem=quadratic_bilevel", "eval.every=3", "hardware.threads=1"]
TWO = "hardware.processes=2"
pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")


def rows(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv").drop(columns="train_seconds")


def ranks(command: subprocess.Popen) -> list[int]:
    """The two processes of a run that a command has started."""
    lists = Path(f"/proc/{command.pid}/task").glob("*/children")
    children = [int(child) for path in lists for child in path.read_text().split()]
    both = sorted(child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())
    assert len(both) == 2
    return both


@pytest.fixture
def endless(tmp_path):
    """A command with two processes, in the middle of its run."""
    command = start(*PAIR, "budget.rounds=1000000", TWO, "output_dir=run", cwd=tmp_path)
    try:
        metrics = tmp_path / "run" / "metrics.csv"
        while not metrics.exists() or metrics.read_text().count("\n") < 4:
            assert command.poll() is None, command.communicate()
            time.sleep(0.1)
        yield command
    finally:
        command.kill()
        command.communicate(timeout=600)  # until no rank is left, which holds the pipes open too


def goes_on_alone(monkeypatch, capsys, path: Path) -> None:
    """One process goes on with the run, to the rows of one that was never shared."""
    rounds = int(rows(path / "run")["round"].iloc[-1]) + 6
    for name, more in (("run", ["resume=true"]), ("alone", [])):
        result = fedopt(monkeypatch, capsys, *PAIR, f"budget.rounds={rounds}", f"output_dir={path / name}", *more)
        assert result.code == 0, result.err
    np.testing.assert_allclose(rows(path / "run"), rows(path / "alone"), rtol=1e-5, atol=1e-12)


@pytest.mark.full
def test_stopped_process_is_said_and_killed_one_ends_the_run(endless, monkeypatch, capsys, tmp_path):
    stopped = ranks(endless)[0]
    os.kill(stopped, signal.SIGSTOP)
    note = next(line for line in endless.stderr if line.startswith("note: "))
    assert f"is stopped, and the other processes wait for it; kill -CONT {stopped}" in note
    os.kill(stopped, signal.SIGCONT)
    began = time.monotonic()
    os.kill(ranks(endless)[1], signal.SIGKILL)
    _, err = endless.communicate(timeout=600)
    assert time.monotonic() - began < 600
    lines = [line for line in err.splitlines() if line.startswith("fedopt: ")]
    assert len(lines) == 1
    assert "of 2 of the run ended with SIGKILL" in lines[0]
    assert "resume=true" in lines[0]
    assert "Traceback" not in err
    assert endless.returncode == 2
    goes_on_alone(monkeypatch, capsys, tmp_path)


@pytest.mark.slow
def test_ctrl_c_keeps_a_checkpoint(endless, monkeypatch, capsys, tmp_path):
    endless.send_signal(signal.SIGINT)
    out, err = endless.communicate(timeout=600)
    assert endless.returncode == 130, err
    assert "interrupted after" in out
    assert "Traceback" not in err
    assert RunFolder(tmp_path / "run").summary()["status"] == "interrupted"
    goes_on_alone(monkeypatch, capsys, tmp_path)


@pytest.mark.slow
def test_no_process_outlives_its_command(endless):
    commands = [Path(f"/proc/{process}/cmdline") for process in ranks(endless)]
    endless.kill()
    endless.communicate(timeout=600)  # until they have closed the pipes
    time.sleep(1)
    assert not any(command.exists() and command.read_bytes() for command in commands)


@pytest.mark.slow
def test_second_ctrl_c_ends_at_once(endless):
    endless.send_signal(signal.SIGINT)
    os.kill(ranks(endless)[0], signal.SIGSTOP)  # no round ends any more
    time.sleep(2)
    endless.send_signal(signal.SIGINT)
    _, err = endless.communicate(timeout=600)
    assert endless.returncode == 130
    assert "Traceback" not in err


@pytest.mark.slow
def test_sweep_of_shared_runs(tmp_path):
    """Its table is that of a sweep whose runs have one process each."""
    tables = []
    for name, more in (("two", [TWO, "--jobs", "2"]), ("one", [])):
        words = [*PAIR, "budget.rounds=9", "seed=0,1", f"output_dir={name}", *more]
        result = run("-m", *words, cwd=tmp_path)
        assert result.code == 0, result.err
        tables.append(pd.read_csv(tmp_path / name / "sweep.csv").drop(columns=["seconds", "error", "output_dir"]))
    assert tables[0].pop("hardware.processes").tolist() == [2, 2]
    tables[0]["run"] = tables[0]["run"].str.replace("-processes2", "")
    pd.testing.assert_frame_equal(*tables, rtol=1e-5)


@pytest.mark.slow
def test_mistake_on_all_processes_is_one_line(tmp_path):
    result = run(*PAIR, TWO, "eval.metric=nothing", "output_dir=run", cwd=tmp_path)
    one_line(result, "eval.metric=nothing", "distance")
    assert not (tmp_path / "run").exists()


def test_all_processes_need_a_gpu(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    one_line(fedopt(monkeypatch, capsys, *PAIR, "hardware.processes=all"), "hardware.processes=all", "hardware=cuda")
    for wrong in ("0", "100000"):
        one_line(fedopt(monkeypatch, capsys, *PAIR, f"hardware.processes={wrong}"), "hardware.processes")
    monkeypatch.setattr("fedopt.running.launch.memory", lambda: 3 * 2**30)
    result = fedopt(monkeypatch, capsys, *PAIR, "hardware.processes=13")
    one_line(result, "hardware.processes=13")


def test_what_has_been_launched_launches_nothing(monkeypatch):
    """torchrun has said how many processes there are."""
    settings = type("Settings", (), {"processes": 4})
    assert asked_processes(settings) == 4
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert asked_processes(settings) == 1


def test_function_of_rows_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="on_eval"):
        run_from_python([*PAIR, TWO], on_eval=print)


@pytest.mark.full
def test_left_over_world_says_that_it_waits(tmp_path):
    """A rank whose master does not exist, as a job script leaves it in the environment."""
    env = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    command = start(*PAIR, "output_dir=run", cwd=tmp_path, env=env)
    try:
        line = command.stderr.readline()
        assert line.startswith("note: WORLD_SIZE=2")
        assert "localhost" in line
    finally:
        command.kill()
        command.communicate()


@pytest.mark.parametrize(
    ("place", "local_rank", "ranks_here", "gpu"), [(0, 0, 1, 0), (3, 0, 1, 1), (1, 1, 2, 1), (0, 1, 2, 1)]
)
def test_gpus_in_turn(place, local_rank, ranks_here, gpu, monkeypatch):
    """The fourth of the runs at once has the second of two GPUs; both ranks of the second run have one each."""
    assert hardware_index(monkeypatch, place, local_rank, ranks_here) == gpu


def test_more_ranks_than_gpus(monkeypatch):
    with pytest.raises(UserError, match=r"2.*GPUs"):
        hardware_index(monkeypatch, 0, 2, 3)


def hardware_index(monkeypatch, place, local_rank, ranks_here):
    """The GPU that a process takes on a machine with two."""
    chosen = []
    monkeypatch.setattr(hardware.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(hardware.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(hardware.torch.cuda, "set_device", chosen.append)
    for name, value in (("FEDOPT_PLACE", place), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", ranks_here)):
        monkeypatch.setenv(name, str(value))
    settings = hardware.Hardware("cuda", "float32", "auto", None, 1, False, None, False)
    with hardware.restored():
        device = hardware.configure(settings)
    assert chosen == [device]
    return device.index
