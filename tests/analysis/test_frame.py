"""The tidy table of runs."""

import numpy as np
import pytest
from support.records import record

import fedopt
from fedopt.errors import UserError
from fedopt.metrics import COSTS
from fedopt.papers.page import page as page_of


def test_a_row_an_evaluation(tmp_path):
    for K, seed in ((1, 0), (5, 0), (5, 1)):
        algo = {"_target_": "a.FedMSA", "K": K}
        record(tmp_path / f"{K}{seed}", (90 + seed, np.nan), seed, algo=algo)
    table = fedopt.frame([tmp_path])
    assert [*table][:5] == ["run", "method", "problem", "seed", "algo.K"]
    assert {"round", "comm_rounds", "bytes", "test_accuracy"} < {*table}
    assert table["algo.K"].tolist() == [1, 1, 5, 5, 5, 5]
    assert table["seed"].tolist() == [0, 0, 0, 0, 1, 1]
    assert table["test_accuracy"].tolist() == pytest.approx([90, np.nan, 90, np.nan, 91, np.nan], nan_ok=True)
    described = table.attrs["metrics"]["test_accuracy"]
    assert (described["unit"], described["better"]) == ("%", "higher")


def test_what_a_run_has_spent(tmp_path):
    """Sums of columns, which are powers of two here."""
    names = ["round", "comm_rounds", "bytes_down", "bytes_up", "grad_calls", "hvp_calls", "jvp_calls"]
    names += ["grad_examples", "hvp_examples", "jvp_examples", "client_visits", "train_seconds", "test_accuracy"]
    folder = record(tmp_path / "run", (90,))
    row = ",".join(str(2**k) for k in range(len(names)))
    (folder / "metrics.csv").write_text(f"{','.join(names)}\n{row}\n")
    table = fedopt.frame([folder])
    spent = {"round": 1, "comm_rounds": 2, "bytes": 4 + 8, "seconds": 2048, "grad_calls": 16}
    spent |= {"oracle_calls": 16 + 32 + 64, "example_calls": 128 + 256 + 512, "client_visits": 1024}
    assert {name: table[name][0] for name in COSTS} == spent
    assert page_of([folder]).sections[0].tables[0].cells["time (s)"].tolist() == ["2048"]


def test_nothing_to_read(tmp_path):
    for runs, why in (([], "no runs to compare"), ([tmp_path], "no run to compare"), ([1], "must be a run")):
        with pytest.raises(UserError, match=why):
            fedopt.frame(runs)
