"""The tidy table of runs."""

import numpy as np
import pytest
from support.records import record

import fedopt
from fedopt.errors import UserError


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


def test_nothing_to_read(tmp_path):
    for runs, why in (([], "there is no run to compare"), ([tmp_path], "no run to compare"), ([1], "must be a run")):
        with pytest.raises(UserError, match=why):
            fedopt.frame(runs)
