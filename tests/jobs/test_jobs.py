"""Many runs: each config is composed and checked once, and no process outlives its command."""

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from support.command import TINY, fedopt, start

from fedopt.analysis import sweeps
from fedopt.config import build
from fedopt.config import composed as configs
from fedopt.console.bar import Bar
from fedopt.jobs import sweep
from fedopt.jobs.job import Job, Outcome
from fedopt.jobs.local import Local


@pytest.fixture
def checks(monkeypatch):
    """How often values are held against the types of a class, by its name."""
    counts = Counter()
    original = build.checked

    def counted(cls, *arguments):
        counts[cls.__name__] += 1
        return original(cls, *arguments)

    monkeypatch.setattr(build, "checked", counted)
    return counts


def test_a_run_checks_its_config_once(checks, monkeypatch, capsys, tmp_path):
    assert fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'run'}").code == 0
    assert checks == {"Settings": 1, "FedMSA": 1, "Mco": 1, "Iid": 1}


@pytest.mark.full
def test_a_sweep_composes_and_checks_each_job_once(checks, monkeypatch, capsys, tmp_path):
    composed = []
    monkeypatch.setattr(sweep, "compose", lambda *words: composed.append(words) or configs.compose(*words))
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, "-m", *TINY, "budget.rounds=1", f"seed={','.join(map(str, range(50)))}")
    assert result.code == 0, result.err
    assert len(list(tmp_path.rglob("metrics.csv"))) == len(composed) == 50
    assert set(checks.values()) == {50}


class Says(Job):
    """Its outcome names the process that does it. One whose title is a signal kills this process."""

    def do(self, *_, **__) -> Outcome:
        if self.title:
            os.kill(os.getpid(), getattr(signal, self.title))
        time.sleep(0.05)  # each of two processes gets one
        return Outcome("finished", str(os.getpid()))


@pytest.mark.full
def test_a_process_does_one_job_after_another(tmp_path):
    """Another takes the place of one that is killed, and a single job is lost with it."""
    jobs = [Says(tmp_path / str(i), configs.Composed({}), "SIGKILL" if i == 2 else "") for i in range(9)]
    outcomes = {job: outcome for job, outcome, _ in Local(2)(jobs, Bar(len(jobs), quiet=True))}
    assert [job for job in jobs if outcomes[job].status != "finished"] == [jobs[2]]
    assert "code -9" in outcomes[jobs[2]].text
    processes = Counter(outcome.text for outcome in outcomes.values() if outcome.status == "finished")
    assert len(processes) == 3
    assert sum(processes.values()) == 8


LONG = ["algo=fedmsa", "problem=quadratic_bilevel", "budget.rounds=1000000", "eval.every=100000", "hardware.threads=1"]


def hangs_up():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


LAUNCHERS = {
    "in turn": [],
    "two processes": ["--jobs", "2"],
}

MARKS = {
    ("in turn", signal.SIGTERM): pytest.mark.slow,
    ("two processes", signal.SIGHUP): pytest.mark.full,
}


def computing(folder: Path) -> list[int]:
    """The processes whose working directory is this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cwd").resolve() == folder and process.joinpath("cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("launcher", "how"),
    [
        pytest.param(launcher, how, marks=MARKS.get((launcher, how), pytest.mark.slow), id=f"{launcher}-{how.name}")
        for launcher in LAUNCHERS
        for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
    ],
)
def test_no_process_outlives_its_sweep(launcher, how, tmp_path):
    # The suite may itself ignore SIGHUP, as under nohup, and what it starts would then too
    command = start(
        "-m", *LONG, "seed=0,1,2", "output_dir=sweep", *LAUNCHERS[launcher], cwd=tmp_path, preexec_fn=hangs_up
    )
    try:
        wait_for(lambda: list(tmp_path.glob("sweep/*/metrics.csv")), 600)
        os.kill(command.pid, how)
        command.wait(600)
        wait_for(lambda: not computing(tmp_path), 600)
    finally:
        for process in computing(tmp_path):
            os.kill(process, signal.SIGKILL)
        for pipe in (command.stdout, command.stderr):
            pipe.close()


@pytest.mark.full
def test_ctrl_c_ends_all_runs_at_once_with_a_checkpoint(tmp_path):
    """The command says how to resume them, and sweep.csv has what they reached."""
    command = start("-m", *LONG, "seed=0,1,2", "output_dir=sweep", "--jobs", "2", cwd=tmp_path)
    wait_for(lambda: len(list(tmp_path.glob("sweep/*/metrics.csv"))) == 2, 600)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=600)
    assert (command.returncode, err) == (130, "fedopt: stopped; to resume, repeat the command\n")
    assert pd.read_csv(tmp_path / "sweep" / "sweep.csv")["status"].tolist() == ["interrupted"] * 2
    assert len(list(tmp_path.glob("sweep/*/checkpoint.safetensors"))) == 2


def wait_for(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_refused_runs_and_other_data_are_not_pooled(tmp_path, capsys):
    """What is in the folder of a run that was refused is none of the sweep's; runs on two data sets are two groups."""
    for seed, data in enumerate(["a" * 64, "a" * 64, "b" * 64]):
        run = tmp_path / f"seed{seed}"
        run.mkdir()
        metric = {"name": "loss", "label": "loss", "unit": "", "better": "lower", "scale": "log", "bounds": True}
        (run / "run.json").write_text(json.dumps({"overrides": [f"seed={seed}"], "data": data, "metrics": [metric]}))
        (run / "summary.json").write_text(json.dumps({"status": "finished", "final": {"loss": 1.0 + seed}}))
    assert sweeps.report(tmp_path) == 0
    out = capsys.readouterr().out
    assert re.search(r"aaaaaaaa +2 +1\.50 ± 0\.71", out)
    assert re.search(r"bbbbbbbb +1 +3", out)
    assert sweeps.report(tmp_path, {tmp_path / "seed0": "other", tmp_path / "seed1": "other"}) == 0
    out = capsys.readouterr().out
    assert re.search(r"3 +2 refused, 1 finished +3", out)
    assert "3 runs: 2 refused, 1 finished" in out
    table = pd.read_csv(tmp_path / "sweep.csv")
    assert table["final_loss"].notna().tolist() == [False, False, True]
