"""What clients keep: every version of a memory stays as it was, and checkpoints in blocks read back."""

import numpy as np
import torch
from support.command import fedopt, without_time

from fedopt.federation.memory import GROUP, Memory
from fedopt.results import journal

SCAFFOLD = ["algo=scaffold", "problem=classification", "dataset=digits", "problem.model=linear", "hardware.threads=1"]


def test_every_version_has_its_rows():
    """To the bit, also where clients are in several groups of rows."""
    rng, clients = np.random.default_rng(0), 3 * GROUP + 5
    memory, expected = Memory([torch.zeros(7, dtype=torch.float64)] * clients), np.zeros((clients, 7))
    versions = [(memory, expected)]
    for _ in range(10):
        cohort, rows = rng.choice(clients, 50, replace=False), rng.standard_normal((50, 7))
        memory, expected = memory.replaced(cohort, torch.from_numpy(rows)), expected.copy()
        expected[cohort] = rows
        versions = [*versions[-2:], (memory, expected)]
    for version, rows in versions:
        np.testing.assert_array_equal(version.tensor(), rows)
    (before, _), (after, _) = versions[-2:]
    assert after.changed(before).tolist() == sorted(cohort)


def test_a_run_resumes_from_rows_in_blocks(monkeypatch, capsys, tmp_path):
    words = [*SCAFFOLD, "eval.every=1", "participation.cohort=3"]
    assert fedopt(monkeypatch, capsys, *words, "budget.rounds=6", f"output_dir={tmp_path / 'here'}").code == 0
    monkeypatch.setattr(journal, "BLOCK", 5000)
    for rounds in (3, 6):
        more = [f"budget.rounds={rounds}", f"output_dir={tmp_path / 'there'}", "resume=true"]
        assert fedopt(monkeypatch, capsys, *words, *more).code == 0
    assert without_time(tmp_path / "there" / "metrics.csv") == without_time(tmp_path / "here" / "metrics.csv")
