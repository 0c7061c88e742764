"""Sweeps whose runs are computed together: the same folders and files, with numbers that are equal up to rounding."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from support.command import fedopt

import fedopt as package
from fedopt.results import RunFolder

WORDS = ["algo=fedavg", "problem=quadratic_minimisation", "partitioner.clients=4", "participation.cohort=2", "algo.B=8"]
WORDS += ["algo.eta=0.01,0.03,0.1", "algo.tau=1,5", "seed=0,1", "budget.rounds=6", "hardware.dtype=float64"]


@pytest.fixture(autouse=True)
def always_together(monkeypatch):
    monkeypatch.setattr("fedopt.running.together.TRIED", -1)


def same(one, other):
    """Two runs have the same files, and equal content up to rounding."""
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    runs = [pd.read_csv(place / "metrics.csv").drop(columns="train_seconds") for place in (one, other)]
    pd.testing.assert_frame_equal(*runs, rtol=1e-9)
    assert (one / "traffic.csv").read_bytes() == (other / "traffic.csv").read_bytes()
    configs = [RunFolder(place).config() | {"output_dir": "", "resume": ""} for place in (one, other)]
    assert configs[0] == configs[1]
    summaries = [RunFolder(place).summary() for place in (one, other)]
    assert [*summaries[0], summaries[0]["status"]] == [*summaries[1], summaries[1]["status"]]
    for key in {*summaries[0]} - {"status", "seconds", "to_target"}:
        assert summaries[0][key] == pytest.approx(summaries[1][key], rel=1e-9), key
    states = [load_file(place / "checkpoint.safetensors") for place in (one, other)]
    assert [*states[0]] == [*states[1]]
    for name, values in states[0].items():
        if values.dtype.kind == "f":  # not a hash of metrics.csv
            np.testing.assert_allclose(values, states[1][name], rtol=1e-9, atol=1e-12)


def test_a_sweep_that_is_computed_together_leaves_the_same_folders(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, "-m", *WORDS, "output_dir=alone").code == 0
    done = fedopt(monkeypatch, capsys, "-m", *WORDS, "output_dir=together", "--at-once")
    assert done.code == 0
    assert done.out.count("finished") >= 12
    names = sorted(path.name for path in Path("alone").iterdir() if path.is_dir())
    assert names == sorted(path.name for path in Path("together").iterdir() if path.is_dir())
    assert len(names) == 12
    for name in names:
        same(Path("alone", name), Path("together", name))
        assert json.loads(Path("together", name, "run.json").read_text())["computed"] == "at once with 2 others"
        assert "computed" not in json.loads(Path("alone", name, "run.json").read_text())
    times = {path: path.stat().st_mtime_ns for path in Path("together").rglob("metrics.csv")}
    again = fedopt(monkeypatch, capsys, "-m", *WORDS, "output_dir=together", "--at-once")
    assert again.code == 0
    assert again.out.count("already done") == 12
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_runs_that_were_computed_together_can_be_resumed(monkeypatch, capsys, tmp_path):
    """Made longer from their checkpoint, and run again if they were killed while they were written."""
    monkeypatch.chdir(tmp_path)
    words = [word.replace("tau=1,5", "tau=1").replace("seed=0,1", "seed=0") for word in WORDS]
    assert fedopt(monkeypatch, capsys, "-m", *words, "output_dir=together", "--at-once").code == 0
    first, second, third = sorted(path for path in Path("together").iterdir() if path.is_dir())
    for place in (first, second):
        shutil.copytree(place, Path("kept", place.name))
    (first / "checkpoint.safetensors").unlink()
    (first / "summary.json").write_text('{"status": "running"}')
    shutil.rmtree(second)
    assert fedopt(monkeypatch, capsys, "-m", *words, "output_dir=together", "--at-once").code == 0
    for place in (first, second):
        same(place, Path("kept", place.name))
    longer = fedopt(monkeypatch, capsys, "resume=true", f"output_dir={third}", "budget.rounds=9")
    assert longer.code == 0
    more = [word for word in words if not word.startswith(("algo.eta", "budget"))]
    value = RunFolder(third).config()["algo"]["eta"]
    assert fedopt(monkeypatch, capsys, *more, f"algo.eta={value}", "budget.rounds=9", "output_dir=whole").code == 0
    runs = [pd.read_csv(place / "metrics.csv").drop(columns="train_seconds") for place in (third, Path("whole"))]
    runs[0] = runs[0][runs[0]["round"] != 6].reset_index(drop=True)  # the end of the shorter run
    pd.testing.assert_frame_equal(*runs, rtol=1e-9)


def test_what_differs_in_more_than_real_numbers_runs_as_always(monkeypatch, capsys, tmp_path):
    """As do runs that diverge together with others, and runs that fail."""
    monkeypatch.chdir(tmp_path)
    words = ["algo=fedavg", "problem=quadratic_minimisation", "budget.rounds=4", "eval.every=1", "eval.diverged=10"]
    done = fedopt(
        monkeypatch, capsys, "-m", *words, "algo.eta=0.1,0.2,1e9", "algo.tau=1,7", "output_dir=o", "--at-once"
    )
    assert done.code == 0
    runs = {path.name: RunFolder(path) for path in Path("o").iterdir() if path.is_dir()}
    assert sum(run.status() == "diverged" for run in runs.values()) == 2
    assert all("computed" in json.loads((run.path / "run.json").read_text()) for run in runs.values())
    for algo in ("fedavg", "scaffold"):
        done = fedopt(
            monkeypatch, capsys, "-m", f"algo={algo}", *words[1:], "algo.tau=1,2,3", "output_dir=p", "--at-once"
        )
        assert done.code == 0
    assert not [path for path in Path("p").rglob("run.json") if "computed" in json.loads(path.read_text())]


def test_computing_together_from_python(tmp_path):
    base = {"algo": "fedavg", "problem": "quadratic_minimisation", "budget.rounds": 3, "algo.eta": [0.1, 0.2]}
    alone, together = (
        package.sweep(base, output_dir=tmp_path / str(at), at_once=at, quiet=True) for at in (False, True)
    )
    for one, other in zip(alone, together, strict=True):
        assert one.final == pytest.approx(other.final, rel=1e-9)
        assert one.variables["x"].numpy() == pytest.approx(other.variables["x"].numpy(), rel=1e-6)
    assert "computed" in json.loads((together[0].folder / "run.json").read_text())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--at-once"], "--at-once needs a sweep; add -m"),
        (
            ["-m", "--at-once", "--launcher", "slurm"],
            "--at-once and --launcher cannot be combined; leave out one of them",
        ),
    ],
)
def test_mistakes(words, line, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = fedopt(monkeypatch, capsys, *WORDS, *words)
    assert (done.code, done.err) == (2, f"fedopt: {line}\n")
