"""What a run finds in its folder: another writer, links, files of others, files that are not as it left them."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from support.command import TINY, fedopt, start

from fedopt.config.composed import compose
from fedopt.jobs.job import Job
from fedopt.results.folder import FILES, RunFolder
from fedopt.running.failure import record_failure
from fedopt.running.lifecycle import Run

LONGER = ["budget.rounds=8", "resume=true"]


def refused(result, *fragments):
    assert result.code == 2
    line = result.err.strip().splitlines()[-1]
    assert line.startswith("fedopt: ")
    assert "bug" not in line
    for fragment in fragments:
        assert fragment in line


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


@pytest.fixture
def ended(monkeypatch, capsys, tmp_path):
    """The folder of a run that has finished, and a command that goes on with it."""

    def again(*more):
        return fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'run'}", *LONGER, *more)

    assert fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'run'}").code == 0
    return tmp_path / "run", again


# Another writer


def test_a_refused_run_leaves_the_lock(ended):
    """However often: removing the lock would let the next one in."""
    folder, again = ended
    writer = RunFolder(folder)
    writer.open()
    lock, before = os.stat(folder / ".lock").st_ino, contents(folder)
    for _ in range(3):
        refused(again(), "another run is writing here")
        assert os.stat(folder / ".lock").st_ino == lock
    assert contents(folder) == before
    writer.close()
    assert again().code == 0


def test_a_second_sweep_leaves_a_running_job_alone(ended):
    folder, _ = ended
    writer = RunFolder(folder)
    writer.open()
    writer.write_json("summary.json", {"status": "running"})
    before = contents(folder)

    job = Job(folder, compose(TINY), "job")
    assert job.do(1).status == "refused"
    (folder / "summary.json").unlink()
    (folder / "config.yaml").unlink()  # as if the other had only just locked it
    job.do(1)
    assert "traceback.txt" not in contents(folder)
    assert contents(folder).items() <= before.items()


def test_a_run_that_another_command_has_done_meanwhile(monkeypatch, tmp_path):
    """While this one read its data. What the other has written stays."""
    job, set_up = Job(tmp_path / "run", compose(TINY), "job"), Run._set_up

    def slow(self, entry):
        monkeypatch.setattr(Run, "_set_up", set_up)
        assert job.do(1).status == "finished"
        return set_up(self, entry)

    monkeypatch.setattr(Run, "_set_up", slow)
    outcome = job.do(1)
    assert outcome.status == "refused"
    assert "already contains a run (finished)" in outcome.text
    assert RunFolder(tmp_path / "run").status() == "finished"
    assert "traceback.txt" not in contents(tmp_path / "run")


def test_a_job_that_finds_no_folder_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("no folder")
    outcome = Job(tmp_path / "file" / "run", compose(TINY), "job").do(1)
    assert outcome.status == "failed"
    assert outcome.text.startswith(f"{tmp_path / 'file'}")
    assert "fix this, or choose another folder" in outcome.text
    assert "Errno" not in outcome.text


def test_a_failure_that_cannot_be_written_leaves_the_run(ended, monkeypatch):
    """Else the folder would hold a run without a config, with which nobody could go on."""
    folder, again = ended

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        (held := RunFolder(folder)).open()
        patched.setattr(RunFolder, "write_text", full)
        record_failure(held, RuntimeError("in the first round"), compose(TINY), vacate=True)
    assert again().code == 0


# Links, and files of others


@pytest.mark.parametrize("name", [*FILES, *(f"{name}.part" for name in FILES)])
def test_links_are_not_written_through(name, monkeypatch, capsys, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    result = fedopt(monkeypatch, capsys, *TINY, f"output_dir={folder}")
    assert victim.read_text() == "precious"
    assert result.code == 0 if name.endswith(".part") else result.code == 2
    if result.code:
        refused(result, str(folder))


@pytest.mark.parametrize("resume", ["true", "false"])
@pytest.mark.parametrize(
    "names", [["summary.json"], ["checkpoint.safetensors"], ["summary.json", "checkpoint.safetensors"]]
)
def test_files_of_others_are_not_written_over(names, resume, monkeypatch, capsys, tmp_path):
    for name in names:
        (tmp_path / name).write_text('{"mine": 1}')
    before = contents(tmp_path)
    refused(fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path}", f"resume={resume}"), str(tmp_path))
    assert contents(tmp_path) == before


# Files that are not as the run left them


def cut_short(content: bytes) -> bytes:
    return content[: len(content) // 2]


def last_row_cut(content: bytes) -> bytes:
    return content[:-7]


def other_header(content: bytes) -> bytes:
    return content.replace(b"round", b"dnuor", 1)


def other_number(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


def not_text(content: bytes) -> bytes:
    return b"\xff\xfe" + content[2:]


def emptied(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut_short, last_row_cut, other_header, other_number, not_text, emptied])
def test_rows_that_the_checkpoint_does_not_count(damage, ended):
    folder, again = ended
    metrics = folder / "metrics.csv"
    whole = metrics.read_bytes()
    metrics.write_bytes(damage(whole))
    before = contents(folder)
    refused(again(), "metrics.csv", "good copy")
    assert contents(folder) == before
    metrics.write_bytes(whole)
    assert again().code == 0


def test_rows_of_a_run_that_is_done(ended):
    """It is not said to be finished when its rows are not those that it wrote."""
    folder, again = ended
    (folder / "metrics.csv").write_bytes((folder / "metrics.csv").read_bytes()[:-7])
    refused(again("budget.rounds=4"), "metrics.csv", "good copy")


def test_rows_that_were_added_to_a_run_that_is_done(ended):
    """They are not of the run, and go."""
    folder, again = ended
    whole = (folder / "metrics.csv").read_bytes()
    (folder / "metrics.csv").write_bytes(whole + b"9,9\n")
    assert again("budget.rounds=4").code == 0
    assert (folder / "metrics.csv").read_bytes() == whole


def test_a_checkpoint_that_is_gone(ended):
    """The run begins anew, and says so."""
    folder, again = ended
    (folder / "checkpoint.safetensors").unlink()
    result = again("budget.rounds=4")
    assert result.code == 0
    assert "run starts over" in result.err


def test_rows_that_are_gone(ended):
    folder, again = ended
    (folder / "metrics.csv").unlink()
    before = contents(folder)
    refused(again(), "metrics.csv")
    assert contents(folder) == before


def test_a_flipped_bit_in_the_checkpoint(ended):
    folder, again = ended
    checkpoint = folder / "checkpoint.safetensors"
    whole, rng = checkpoint.read_bytes(), np.random.default_rng(0)
    for place in rng.choice(len(whole), 40, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        checkpoint.write_bytes(damaged)
        before = contents(folder)
        refused(again(), "checkpoint.safetensors")
        assert contents(folder) == before
    checkpoint.write_bytes(whole)
    assert again().code == 0


@pytest.mark.parametrize("other", ["seed=1", "algo.alpha=0.001", "hardware.dtype=float64"])
def test_a_checkpoint_of_another_run(other, ended, monkeypatch, capsys, tmp_path):
    folder, again = ended
    assert fedopt(monkeypatch, capsys, *TINY, other, f"output_dir={tmp_path / 'other'}").code == 0
    shutil.copy(tmp_path / "other" / "checkpoint.safetensors", folder)
    before = contents(folder)
    refused(again(), "checkpoint.safetensors", "another" if "dtype" in other else "other")
    assert contents(folder) == before


def test_a_checkpoint_of_another_round(ended):
    """One that is older than the rows is gone on from; one that counts rows which are not there is not."""
    folder, again = ended
    older, rows = (folder / "checkpoint.safetensors").read_bytes(), (folder / "metrics.csv").read_bytes()
    assert again().code == 0
    newer = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "metrics.csv").write_bytes(rows)
    refused(again("budget.rounds=9"), "metrics.csv")
    assert (folder / "metrics.csv").read_bytes() == rows
    assert newer != older
    (folder / "checkpoint.safetensors").write_bytes(older)
    assert again("budget.rounds=9").code == 0


def test_a_budget_that_is_behind(ended):
    """The folder's config says what its rows are of."""
    folder, again = ended
    before = contents(folder)
    refused(again("budget.rounds=2"), "budget", "4 rounds")
    assert contents(folder) == before


# What a run leaves


@pytest.mark.full
def test_the_last_good_state_is_finite(monkeypatch, capsys, tmp_path):
    """Interrupted when the iterates have overflowed, before any evaluation saw it."""
    folder = tmp_path / "run"
    arguments = ["algo=fedavg", "problem=classification", "dataset=digits", "problem.model=linear", "algo.eta=1e30"]
    arguments += ["hardware.threads=1", "budget.rounds=1000000", "eval.every=1000000", "partitioner.clients=5"]
    arguments += ["participation.cohort=null"]
    process = start(*arguments, f"output_dir={folder}", cwd=tmp_path, env={"FEDOPT_CHECKPOINT_SECONDS": "0"})
    deadline = time.monotonic() + 600
    while not (folder / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1)
    process.terminate()
    process.communicate(timeout=600)
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        assert all(bool(file.get_tensor(name).isfinite().all()) for name in file.keys() if name.startswith("state"))  # noqa: SIM118


def test_a_config_of_a_longer_run(ended):
    """What is done is what the checkpoint says, not what the config asks for."""
    folder, again = ended
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 4", "rounds: 8"))
    assert again().code == 0
    assert RunFolder(folder).summary()["round"] == 8
