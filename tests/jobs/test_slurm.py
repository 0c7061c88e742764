"""The queue of a cluster: what is asked of Slurm, what waits, and sweeps that are killed and go on."""

import json
import os
import signal
import stat
import time

import pytest
from support import slurm as cluster
from support.command import PAIR, TINY, fedopt, one_line
from support.records import record
from support.sweeps import CSV_WORDS, begin, rows, to_the_end, workers

from fedopt.commands.answer import minutes
from fedopt.commands.ls import ls
from fedopt.jobs import slurm

pytest.importorskip("submitit")

SLURM = ["--launcher", "slurm", "--partition", "fast", "--time", "2:00:00", "--gpus", "1", "--at-most", "50"]
SWEEP = ["-m", *TINY, "seed=0,1,2", "output_dir=sweep"]


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """A Slurm that queues what it is asked for and never runs it. Gives the files that it was asked with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in {
        "srun": "exit 1",
        "sbatch": f'cp "$1" {programs}/$$.asked; echo Submitted batch job 77',
        "sacct": 'echo "JobID|State|NodeList"; echo "77_[0-2]|PENDING|None assigned"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FEDOPT_QUEUE", str(tmp_path / "queue"))
    monkeypatch.chdir(tmp_path)
    return lambda: [file.read_text() for file in programs.glob("*.asked")]


@pytest.fixture
def ctrl_c(monkeypatch):
    """Comes while the command waits for the queue."""

    def press(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "sleep", press)


def test_slurm_is_asked_once_for_an_array(asked, ctrl_c, monkeypatch, capsys, tmp_path):
    result = fedopt(monkeypatch, capsys, *SWEEP, *SLURM)
    assert result.code == 130
    assert result.err.splitlines()[-1] == (
        "fedopt: stopped; 3 runs still queued; repeat the command to wait again, or cancel with scancel 77"
    )
    (batch,) = asked()
    for flag in ("partition=fast", "time=120", "gpus-per-node=1", "array=0-2%3", "signal=USR2@90", "open-mode=append"):
        assert f"#SBATCH --{flag}\n" in batch
    assert fedopt(monkeypatch, capsys, *SWEEP, *SLURM).err.splitlines()[-1] == result.err.splitlines()[-1]
    assert len(asked()) == 1  # the runs were found in the queue
    fedopt(monkeypatch, capsys, *SWEEP[:-2], "seed=0,1,2,3", SWEEP[-1], *SLURM)
    assert len(asked()) == 2  # for the new one
    capsys.readouterr()
    ls(["sweep"])
    out = capsys.readouterr().out
    assert out.count("queued") == 5
    assert "4 runs: 4 queued" in out


def test_what_is_pickled_is_words(asked, ctrl_c, monkeypatch, capsys, tmp_path):
    """Of a queue that only its user may write in."""
    fedopt(monkeypatch, capsys, *SWEEP, *SLURM)
    queue = tmp_path / "queue"
    assert stat.S_IMODE(queue.stat().st_mode) == 0o700
    (first, *_) = sorted(queue.glob("*/*_submitted.pkl"))
    assert str(tmp_path / "sweep").encode() in first.read_bytes()
    work = slurm.queued()[0].job.submission().function
    assert {type(value) for value in [*work.overrides, *work.folders, work.folder, work.digits]} == {str}
    queue.chmod(0o777)
    one_line(fedopt(monkeypatch, capsys, *SWEEP, *SLURM), str(queue), "FEDOPT_QUEUE")


def test_another_command_has_seen_the_end(asked, ctrl_c, monkeypatch, capsys):
    """And removed what the queue had of it: nobody waits for it any more."""
    fedopt(monkeypatch, capsys, *SWEEP, *SLURM)
    entry = slurm.queued()[0]
    assert entry.waits
    record(entry.folder, [1.0])
    entry.forget()
    assert not entry.waits
    assert entry.outcome().status == "finished"


def test_two_commands_see_the_end(asked, ctrl_c, monkeypatch, capsys, tmp_path):
    """The one that is later finds the submission gone, and goes on."""
    fedopt(monkeypatch, capsys, *SWEEP, *SLURM)
    first, second = slurm.queued(), slurm.queued()
    for entry in first:
        record(entry.folder, [1.0])
        entry.forget()
    assert not list((tmp_path / "queue").glob("*/*"))
    for entry in second:
        assert not entry.waits
        assert entry.outcome().status == "finished"
        entry.forget()
    assert slurm.queued() == []


def test_a_submission_that_is_being_removed(asked, ctrl_c, monkeypatch, capsys, tmp_path):
    """It counts for nothing; the runs of others are listed and watched."""
    fedopt(monkeypatch, capsys, *SWEEP, *SLURM)
    (tmp_path / "queue" / "0").mkdir()
    (tmp_path / "queue" / "0" / "5_0_submitted.pkl").touch()
    ls(["sweep"])
    assert "3 runs: 3 queued" in capsys.readouterr().out


def test_a_job_that_ended_without_a_result(asked, ctrl_c, monkeypatch, capsys):
    """As for want of memory: its run failed, and the line names its log."""
    fedopt(monkeypatch, capsys, *SWEEP, *SLURM)
    entry = slurm.queued()[0]
    entry.job.paths.result_pickle.touch()
    assert not entry.waits
    with pytest.warns(UserWarning, match="result"):  # of submitit, which reads it twice
        outcome = entry.outcome()
    assert outcome.status == "failed"
    assert str(entry.job.paths.stderr) in outcome.text


def test_config_that_changed_in_the_queue(monkeypatch, capsys, tmp_path):
    """Is not run as something else."""
    work = slurm.Work(str(tmp_path / "run"), (*PAIR, "seed=1"), (), "0123456789")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        status, text = work()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert status == "refused"
    assert "config files have changed" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["-m", *TINY, "--launcher", "slurm"], ["--launcher slurm", "srun"]),
        ([*TINY, "--launcher", "slurm"], ["--launcher", "-m"]),
        (["-m", *TINY, "--partition", "fast"], ["--partition", "--launcher slurm"]),
        (["-m", *TINY, "--launcher", "cloud"], ["--launcher", "slurm"]),
        (["-m", *TINY, "--launcher", "slurm", "--time", "2:00"], ["--time", "hours:minutes:seconds"]),
    ],
)
def test_mistakes(words, fragments, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    one_line(fedopt(monkeypatch, capsys, *words), *fragments)
    assert not list(tmp_path.iterdir())


def test_times():
    assert [minutes(text) for text in ("90", "2:00:00", "0:00:30", "26:30:00")] == [90, 120, 1, 1590]


@pytest.mark.slow
def test_job_that_makes_room_goes_on(monkeypatch, tmp_path):
    """A job at its time limit is queued again and resumes; the command is killed meanwhile and finds it."""
    for name, value in {**cluster.install(tmp_path / "slurm"), "FEDOPT_QUEUE": str(tmp_path / "queue")}.items():
        monkeypatch.setenv(name, value)
    launcher = ["--launcher", "slurm", "--at-most", "1"]
    words = [*CSV_WORDS, "budget.rounds=400", "seed=0"]
    command = begin(tmp_path / "disturbed", *words, *launcher)
    folder = tmp_path / "disturbed" / "sweep"
    until(lambda: any(path.read_text().count("\n") > 2 for path in folder.glob("*/metrics.csv")))
    command.kill()
    command.wait()
    (job,) = [
        process for process, line in workers(tmp_path / "disturbed").items() if "_submit" in line and "srun" not in line
    ]
    os.kill(job, signal.SIGUSR2)
    until(lambda: job not in workers(tmp_path / "disturbed"))
    (summary,) = folder.glob("*/summary.json")
    stopped = json.loads(summary.read_text())
    assert stopped["status"] in ("interrupted", "running")  # again
    assert to_the_end(tmp_path / "disturbed", *words, *launcher) == 1
    (log,) = folder.glob("*/log.txt")
    assert log.read_text().count("resumed with ") == 1
    assert to_the_end(tmp_path / "whole", *words) == 1
    assert rows(tmp_path / "disturbed") == rows(tmp_path / "whole")
    assert not list((tmp_path / "queue").glob("*/*"))


def until(condition, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
