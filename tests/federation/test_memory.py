"""What clients keep, where it lies in a file: the same bits, in as little room, and one line when the disk is full."""

import os
from io import FileIO

import numpy as np
import pytest
import torch
from support.command import fedopt, one_line, without_time

from fedopt.federation import memory as memories
from fedopt.federation.memory import GROUP, Memory
from fedopt.results import journal

SCAFFOLD = ["algo=scaffold", "problem=classification", "dataset=digits", "problem.model=linear", "hardware.threads=1"]


@pytest.fixture
def little(monkeypatch):
    """A machine of which a memory may take less than its rows do."""
    monkeypatch.setattr(memories, "memory", lambda: 1)


def test_the_rows_of_an_eighth_of_the_memory_stay_in_it(monkeypatch):
    rows = [torch.zeros(10, dtype=torch.float64)] * 100
    monkeypatch.setattr(memories, "memory", lambda: 8 * 100 * 80)
    assert Memory(rows)._file is None
    assert Memory([*rows, rows[0]])._file is not None


def test_rows_in_a_file_are_those_in_memory(little):
    """To the bit, in every version, in all lists of rows; places of rows that no version has are used again."""
    rng, clients = np.random.default_rng(0), 3 * GROUP + 5
    memory, expected = Memory([torch.zeros(7, dtype=torch.float64)] * clients), np.zeros((clients, 7))
    versions = [(memory, expected)]
    for _ in range(40):
        cohort, rows = rng.choice(clients, 50, replace=False), rng.standard_normal((50, 7))
        memory, expected = memory.replaced(cohort, torch.from_numpy(rows)), expected.copy()
        expected[cohort] = rows
        versions = [*versions[-2:], (memory, expected)]
    for version, rows in versions:
        np.testing.assert_array_equal(version.tensor(), rows)
    (before, _), (after, _) = versions[-2:]
    assert after.changed(before).tolist() == sorted(cohort)
    places = os.fstat(memory._file._file.fileno()).st_size // memory.row_bytes
    assert places <= np.count_nonzero(expected.any(1)) + 4 * 50


def test_a_run_with_rows_in_a_file(monkeypatch, capsys, tmp_path):
    """Its files are those of a run with rows in memory, also after it went on, and with records of the journal in blocks."""
    words = [*SCAFFOLD, "eval.every=1", "participation.cohort=3"]
    assert fedopt(monkeypatch, capsys, *words, "budget.rounds=6", f"output_dir={tmp_path / 'here'}").code == 0
    monkeypatch.setattr(memories, "memory", lambda: 1)
    monkeypatch.setattr(journal, "BLOCK", 5000)
    for rounds in (3, 6):
        more = [f"budget.rounds={rounds}", f"output_dir={tmp_path / 'there'}", "resume=true"]
        assert fedopt(monkeypatch, capsys, *words, *more).code == 0
    here, there = (tmp_path / name for name in ("here", "there"))
    assert without_time(there / "metrics.csv") == without_time(here / "metrics.csv")
    more = ["budget.rounds=8", "resume=true"]
    for folder in (here, there):
        assert fedopt(monkeypatch, capsys, *words, *more, f"output_dir={folder}").code == 0
    assert without_time(there / "metrics.csv") == without_time(here / "metrics.csv")


def test_a_full_disk(little, monkeypatch, capsys, tmp_path):
    words = [*SCAFFOLD, "budget.rounds=4", "eval.every=1", f"output_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as full:
        full.setattr(memories, "TemporaryFile", lambda **_: FileIO("/dev/full", "r+"))
        result = fedopt(monkeypatch, capsys, *words)
        assert result.err.count("fedopt: ") == 1
        one_line(result._replace(err=result.err[result.err.index("fedopt: ") :]), "No space left", "set TMPDIR")
    assert fedopt(monkeypatch, capsys, *words, "resume=true").code == 0
