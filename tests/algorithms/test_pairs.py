"""docs/studies/pairs.py, which compares FeDXL with the minimax AUC by bytes: budgets, what is evaluated, and the table."""

import re
import runpy

import numpy as np
import pytest
from support.cases import few
from support.command import ROOT

SCRIPT, PAGE = runpy.run_path(str(ROOT / "docs" / "studies" / "pairs.py")), ROOT / "docs" / "algorithms" / "fedxl.md"
D, M = 3, 2


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Two classes that the sum of the features tells apart, for two clients."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((240, D)).astype(np.float32)
    columns = {
        "x": x,
        "y": np.where(x.sum(1) > 0.8, ">50K", "<=50K"),
        "client": np.array(["Black", "White"])[np.arange(240) % M],
    }
    parts = {"train": slice(0, 160), "test": slice(160, None)}
    path = tmp_path / "adult.npz"
    np.savez(path, **{f"{key}_{of}": v[part] for key, v in columns.items() for of, part in parts.items()})
    monkeypatch.setenv("FEDOPT_DATA", str(tmp_path))
    return path


def test_a_budget_pays_for_whole_rounds_alone(file):
    model = 4 * 2 * (D + 1)  # bytes, to and from each client
    budgets = [model, 2 * M * model, 7 * 2 * M * model - 1, 7 * 2 * M * model]
    found = SCRIPT["run"](
        "FedAvg, cross-entropy", ["problem.model=linear", "algo.eta=1", "algo.tau=2"], file, 0, budgets
    )
    assert [rounds for *_, rounds in found] == [0, 1, 6, 7]
    aucs = [auc for auc, *_ in found]
    assert aucs[-1] > 0.95 > aucs[0]


@pytest.mark.parametrize("title", few(SCRIPT["METHODS"], ["FeDXL, all pairs"].count))
def test_every_method_learns_to_rank_the_test_rows(title, file):
    tried = [
        SCRIPT["run"](title, ["problem.model=linear", *values], file, 0, [10_000])[0]
        for values in SCRIPT["trials"](title, 4)
    ]
    auc, partial, rounds = max(tried)
    assert auc > 0.95
    assert partial > 0.9
    assert rounds > 1


@pytest.mark.full
def test_the_table_has_the_rows_of_the_page(file, capsys):
    SCRIPT["main"](["--trials", "2", "--seeds", "2", "--budgets", "2", "5"])
    printed = capsys.readouterr().out.splitlines()
    titles = [line.split(" | ")[0].strip("| ") for line in printed[2:]]
    assert titles == [*SCRIPT["METHODS"]]
    assert all(re.match(r"\| [^|]+ \| \d", line) for line in printed[2:])
    assert all(f"\n| {title} | " in PAGE.read_text() for title in titles)
