"""Several writers and readers at once, processes that are killed, and disks that fail."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.command import TINY, fedopt

from fedopt.config.composed import compose
from fedopt.errors import UserError
from fedopt.files.writing import write_atomically
from fedopt.jobs.job import Job
from fedopt.results.folder import RunFolder
from fedopt.running import lifecycle
from fedopt.running.place import place

WORDS = ["algo=fedmsa", "problem=quadratic_bilevel", "budget.rounds=2"]


def test_many_writers_of_one_file(tmp_path):
    """Each succeeds, and the file is the whole of one of them."""
    contents = [bytes([k]) * 200_000 for k in range(8)]

    def write(content):
        for _ in range(20):
            write_atomically(tmp_path / "compare.csv", content)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, contents))
    assert (tmp_path / "compare.csv").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["compare.csv"]


def test_what_a_killed_writer_left_is_removed(tmp_path):
    (tmp_path / "summary.json.0a1b2c3d.part").write_text("{")
    folder = RunFolder(tmp_path)
    folder.open()
    folder.close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_reason_is_kept_where_no_summary_can_be_written(tmp_path, capsys):
    """As in a folder that nobody may write to."""
    (tmp_path / "run").write_text("a file in place of the folder")
    outcome = Job(tmp_path / "run", compose([*WORDS, f"output_dir={tmp_path / 'run'}"]), "t").do(1)
    assert outcome.status == "failed"
    assert "run" in outcome.text
    assert "None" not in outcome.text + capsys.readouterr().err


def test_other_versions_are_noted_and_logged(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, *TINY, "output_dir=run").code == 0
    card, log = (tmp_path / "run" / name for name in ("run.json", "log.txt"))
    begun = card.read_bytes()
    again = fedopt(monkeypatch, capsys, "resume=true", "output_dir=run", "budget.rounds=6")
    assert "resumed with" not in again.err
    monkeypatch.setattr("fedopt.results.card._version", lambda package: "0.1" if package == "torch" else "1")
    result = fedopt(monkeypatch, capsys, "resume=true", "output_dir=run", "budget.rounds=8")
    assert "resumed with torch 0.1" in result.err
    assert log.read_text().count("resumed with torch 0.1") == 1
    assert card.read_bytes() == begun
    content = json.loads(begun)
    for odd in (None, 3, {"torch": 1}):
        card.write_text(json.dumps(content | {"versions": odd}))
        assert fedopt(monkeypatch, capsys, "resume=true", "output_dir=run", "budget.rounds=9").code == 0


def test_runs_that_begin_at_once_take_folders_of_their_own(monkeypatch, tmp_path):
    """All have seen the same name free before the first of them takes it."""
    monkeypatch.chdir(tmp_path)
    seen, take = threading.Barrier(3), lifecycle.Run._take_folder

    def together(run):
        if not hasattr(run, "waited"):
            run.waited = seen.wait(600)
        take(run)

    monkeypatch.setattr(lifecycle.Run, "_take_folder", together)
    composed, quiet = compose([*TINY, "hardware.threads=null"]), lifecycle.Options(quiet=True)
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(lifecycle.execute, composed, lambda: place(composed), quiet) for _ in range(3)]
        folders = {run.result()[1].path for run in runs}
    assert len(folders) == 3
    assert {RunFolder(path).status() for path in folders} == {"finished"}


def test_readers_keep_no_writer_out(tmp_path):
    """Who asks whether a run is going holds its lock for a moment."""
    folder = RunFolder(tmp_path)
    folder.open()
    folder.close()
    done = threading.Event()

    def ask():
        while not done.is_set():
            _ = RunFolder(tmp_path).alive

    readers = [threading.Thread(target=ask) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(50):
            folder.open()
            folder.close()
    finally:
        done.set()
        for reader in readers:
            reader.join()


def test_locks_are_still_exclusive(tmp_path):
    first = RunFolder(tmp_path)
    first.open()
    with pytest.raises(UserError, match="another run is writing here"):
        RunFolder(tmp_path).open()
    first.close()
