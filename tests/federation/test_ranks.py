"""Ranks of which one is killed or fails, and ranks whose torchrun is killed."""

import signal
import socket
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.command import ROOT, Result, fedopt, start, start_ranks

from fedopt.results.folder import RunFolder

LONG = ["algo=fedmsa", "problem=quadratic_bilevel", "budget.rounds=60", "eval.every=3", "hardware.threads=1"]
HURT = ROOT / "tests" / "support" / "hurt_ranks.py"
BUILDING, ROUND, EVALUATION = (
    "fedopt.running.lifecycle.assemble",
    "fedopt.federation.ranks.total",
    "fedopt.running.loop.evaluate",
)
DRAWING = "fedopt.drawing.run.metrics"
UNLIKE = HURT.with_name("unlike_ranks.py")


def assert_goes_on(monkeypatch, capsys, path: Path, rounds: int) -> None:
    """To the metrics.csv of an undisturbed run, on one rank."""
    for name, more in (("run", ["resume=true"]), ("whole", [])):
        arguments = [*LONG, f"budget.rounds={rounds}", f"output_dir={path / name}", *more]
        assert fedopt(monkeypatch, capsys, *arguments).code == 0
    run, whole = (pd.read_csv(path / name / "metrics.csv").drop(columns="train_seconds") for name in ("run", "whole"))
    np.testing.assert_allclose(run, whole, rtol=1e-5, atol=1e-12)


def hurt(how: str, rank: int, where: str, calls: int, cwd: Path) -> tuple[Result, list[str]]:
    """What comes of it, and the lines that fedopt says."""
    process = start_ranks(HURT, how, str(rank), where, str(calls), *LONG, "output_dir=run", cwd=cwd)
    out, err = process.communicate(timeout=120)
    assert "bug" not in err
    assert "in execute" not in err  # a traceback
    return Result(process.returncode, out, err), [line for line in err.splitlines() if line.startswith("fedopt: ")]


slow, full = pytest.mark.slow, pytest.mark.full
KILLS = [
    (1, ROUND, 70),
    pytest.param(0, EVALUATION, 9, marks=slow),
    pytest.param(0, DRAWING, 1, marks=[slow, pytest.mark.pictures]),
]


@full
@pytest.mark.parametrize(("rank", "where", "calls"), KILLS)
def test_killed_rank(monkeypatch, capsys, rank, where, calls, tmp_path):
    """Another says so in one line, and the run goes on from its checkpoint."""
    result, said = hurt("kill", rank, where, calls, tmp_path)
    assert result.code == 1
    assert len(said) == 1
    assert "another process of the run ended" in said[0]
    assert "resume=true" in said[0]
    assert RunFolder(tmp_path / "run").status() == ("finished" if where == DRAWING else "failed" if rank else "running")
    assert_goes_on(monkeypatch, capsys, tmp_path, 60)


@slow
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_killed_while_it_builds(rank, tmp_path):
    result, said = hurt("kill", rank, BUILDING, 1, tmp_path)
    assert result.code == 1
    assert len(said) <= 1  # torchrun may have ended the other before it noticed


@full
def test_rank_that_fails_alone_says_why(tmp_path):
    result, said = hurt("fail", 1, ROUND, 70, tmp_path)
    assert result.code == 1
    assert len(said) == 1
    assert said[0].endswith(": this rank cannot")
    assert RunFolder(tmp_path / "run").status() == "failed"


@full
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=slow)])
def test_ranks_are_interrupted_with_torchrun(how, monkeypatch, capsys, tmp_path):
    """When it is killed, and by Ctrl-C."""
    process = start_ranks("-m", "fedopt", *LONG, "budget.rounds=100000", "output_dir=run", cwd=tmp_path)
    while not (tmp_path / "run" / "metrics.csv").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)  # until no rank is left
    assert "interrupted after" in out
    assert "fedopt: " not in err
    summary = RunFolder(tmp_path / "run").summary()
    assert summary["status"] == "interrupted"
    assert_goes_on(monkeypatch, capsys, tmp_path, summary["round"] + 6)


@full
@pytest.mark.parametrize(("how", "where"), [("wait", BUILDING), pytest.param("hang", ROUND, marks=slow)])
def test_no_rank_outlives_torchrun(how, where, tmp_path):
    """Not one that builds, nor one that does not come to the end of a round."""
    process = start_ranks(HURT, how, "1", where, "1", *LONG, "output_dir=run", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=50)  # until no rank is left, whose hurt lasts longer


@pytest.mark.full
def test_ranks_with_other_words_are_refused(tmp_path):
    other = ["seed=1", "algo.alpha=0.001", "partitioner.clients=4", "budget.rounds=61", "hardware.dtype=float32"]
    assert_refused(("", " ".join(other)), LONG, [word.partition("=")[0] for word in other], tmp_path)


@full
@pytest.mark.parametrize("words", [("", "algo.alhpa=1"), pytest.param(("algo.alhpa=1", "algo.alhpa=1"), marks=slow)])
def test_a_mistake_on_any_rank_is_said_once(words, tmp_path):
    """Of one that never joins the others, and of all."""
    process = start_ranks(UNLIKE, *words, *LONG, "output_dir=run", cwd=tmp_path)
    _, err = process.communicate(timeout=120)
    said = [line for line in err.splitlines() if line.startswith("fedopt: ")]
    assert len(said) == 1, err
    assert "algo.alhpa" in said[0]
    assert not (tmp_path / "run").exists()


@full
def test_ranks_with_other_data_are_refused(tmp_path):
    """The same path, on machines with files of their own."""
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
        x[-1, -1] += rank
        np.savez(tmp_path / str(rank) / "data.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    words = ["algo=fedavg", "problem=classification", "dataset=npz", "dataset.path=data.npz", "problem.model=softmax"]
    words += ["partitioner=iid", "partitioner.clients=2", "participation.cohort=2", "budget.rounds=2"]
    assert_refused(("", ""), [*words, "hardware.threads=1"], [" data ("], tmp_path)


def assert_refused(words, shared, differ, cwd):
    """By all ranks, in one line, before the folder is made."""
    process = start_ranks(UNLIKE, *words, *shared, "output_dir=run", cwd=cwd)
    _, err = process.communicate(timeout=120)
    said = [line for line in err.splitlines() if line.startswith("fedopt: ")]
    assert len(said) == 1, err
    assert all(part in said[0] for part in ("differ in", *differ)), said
    assert [(cwd / f"code.{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    assert not list(cwd.rglob("run"))


@slow
def test_two_machines(monkeypatch, capsys, tmp_path):
    """As docs/clusters.md starts them, each with a torchrun of its own: the numbers of one process."""
    words = [*LONG, "budget.rounds=9", "output_dir=run", "resume=true"]
    meets = ["--nnodes", "2", "--rdzv-id", "7", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}"]
    machines = [start_ranks("-m", "fedopt", *words, cwd=tmp_path, launcher=meets) for _ in range(2)]
    for machine in machines:
        _, err = machine.communicate(timeout=240)
        assert machine.returncode == 0, err
    assert fedopt(monkeypatch, capsys, *LONG, "budget.rounds=9", f"output_dir={tmp_path / 'one'}").code == 0
    run, one = (pd.read_csv(tmp_path / name / "metrics.csv").drop(columns="train_seconds") for name in ("run", "one"))
    np.testing.assert_allclose(run, one, rtol=1e-5, atol=1e-12)


@pytest.mark.full
def test_left_over_world_says_that_it_waits(tmp_path):
    """A rank whose master does not exist, as a job script leaves it in the environment."""
    env = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    command = start(*LONG, "output_dir=run", cwd=tmp_path, env=env)
    try:
        line = command.stderr.readline()
        assert line.startswith("note: WORLD_SIZE=2")
        assert "localhost" in line
    finally:
        command.kill()
        command.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
