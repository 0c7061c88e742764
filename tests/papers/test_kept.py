"""scripts/keep: results that are kept in docs/results, judged and drawn again without runs."""

import json
import runpy
import shutil

import numpy as np
import pandas as pd
import pytest
from support.command import ROOT

from fedopt.analysis.tables import plus_minus
from fedopt.papers import published
from fedopt.papers.figure import CURVES

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "keep"))


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Runs scripts/keep on test/one in tmp_path; returns the rows of the kept claims.csv."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        SCRIPT["main"](["test/one", "--into", "kept", "--config-dir", "conf", *arguments])
        file, empty = tmp_path / "kept/test/one/claims.csv", {"mean": "", "std": ""}
        return pd.read_csv(file, keep_default_na=False, na_values=empty).to_dict("records")

    return run


@pytest.mark.full
def test_texts_that_a_spreadsheet_would_take_for_formulas_are_judged_again(experiment, command, keep):
    claim = {"says": "+ it stays", "measure": "-diverged('FedMSA')", "equals": 0, "paper": "-1 by the bound"}
    experiment("one", claims=[claim], seeds=1)
    assert command("test/one", "--seeds", 2).code == 0
    for again in ([], ["--again"], ["--again"]):
        (row,) = keep(*again)
        assert (row["says"], row["paper"], row["holds"]) == ("'+ it stays", "'-1 by the bound", "supported")


@pytest.mark.full
@pytest.mark.pictures
def test_what_is_kept(tmp_path, experiment, command, keep):
    claim = {"says": "far", "measure": "final('FedMSA')", "at_least": 1e3, "why": "It is solved."}
    other = {"says": "seeds", "measure": "setting('FedMSA', 'seed')", "within": 0.1}
    experiment("one", claims=[claim, other], common={"budget": {"rounds": 240}})
    assert command("test/one", "--seeds", 2).code == 0
    row = keep()[0]
    kept = tmp_path / "kept" / "test" / "one"
    assert sorted(file.name for file in kept.iterdir()) == ["claims.csv", "curves.csv", "figure.svg", "runs.csv"]
    assert b"<svg" in (picture := (kept / "figure.svg").read_bytes())
    thin, whole = pd.read_csv(kept / "curves.csv"), pd.read_csv(tmp_path / "outputs/reproduce/test/one/curves.csv")
    facts = ["line", "metric", "title", "scale", "seeds", "diverged"]
    assert list(thin.columns) == [*facts, "comm_rounds", "mean", "low", "high"]
    assert set(thin["title"]) == {"distance to the solution"}
    assert set(thin["seeds"]) == {2}
    assert (len(whole), len(thin)) == (241, 100)
    assert list(thin["comm_rounds"].iloc[[0, -1]]) == list(whole["comm_rounds"].iloc[[0, -1]]) == [0, 480]
    at = whole.set_index("comm_rounds").loc[list(thin["comm_rounds"])]
    np.testing.assert_allclose(thin["mean"], at["mean"], rtol=1e-4)
    assert [part.split(":")[0] for part in row["values"].split()] == ["0", "1"]
    card = json.loads(next(tmp_path.glob("outputs/reproduce/runs/*/run.json")).read_text())
    assert (row["date"], row["machine"]) == (card["started"][:10], card["machine"]["platform"])
    assert row["commit"] == card["commit"] or card["commit"] is None

    # Judged again without runs: another bound, another measure, other runs
    for outputs in tmp_path.glob("outputs/*"):
        shutil.rmtree(outputs)
    again = keep("--again")[0]
    assert (again["holds"], again["why"]) == ("not supported", "It is solved.")
    (kept / "figure.svg").unlink()
    experiment("one", claims=[{**claim, "at_least": -1}, {**other, "measure": "1"}], common={"budget": {"rounds": 240}})
    first, second = keep("--again")
    assert (plus_minus(first["mean"], first["std"]), first["seeds"]) == (plus_minus(row["mean"], row["std"]), 2)
    assert (first["holds"], second["holds"], second["note"]) == ("supported", "not measured", "not run yet")
    assert (kept / "figure.svg").read_bytes() == picture  # drawn again, of what is kept, and the same
    experiment("one", claims=[claim], common={"budget": {"rounds": 200}})
    (changed,) = keep("--again")
    assert (changed["holds"], changed["note"]) == ("not measured", "its runs are others now")


def test_points_that_are_kept(tmp_path, experiment, command, keep):
    point = {"points": {"s": {1: "FedMSA"}}, "point": "final(line)", "seeds": 1}
    experiment("one", **point)
    assert command("test/one").code == 0
    keep()
    kept, whole = tmp_path / "kept/test/one/curves.csv", tmp_path / "outputs/reproduce/test/one/curves.csv"
    assert kept.read_bytes() == whole.read_bytes()


def test_results_in_the_docs_are_small():
    files = [file for file in (ROOT / "docs" / "results").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 9e6
    pictures = [file.stat().st_size for file in files if file.suffix == ".svg"]
    assert len(pictures) > 30
    assert max(pictures) <= 450_000
    assert np.quantile(pictures, 0.85) <= 155_000


@pytest.mark.full
@pytest.mark.pictures
def test_each_kept_figure_can_be_drawn_again(tmp_path):
    """Its curves have what it takes, and lines and panels of the present file."""
    for file in (ROOT / "docs" / "results").glob("*/*/figure.svg"):
        described = published.load("/".join(file.parts[-3:-1]))
        table = pd.read_csv(file.with_name("curves.csv"))
        if described.points:
            assert {"series", "x", "seed", "y"} == {*table}
            assert {*table["series"]} <= {*described.points}
        else:
            assert [*CURVES, described.x, "mean", "low", "high"] == [*table]
            assert {*table["line"]} <= {*described.lines}
            assert {*table["scale"]} <= {"log", "linear"}
    folder = ROOT / "docs" / "results" / "fedmsa" / "theorem31"
    shutil.copy(folder / "curves.csv", tmp_path)
    SCRIPT["draw_again"]("fedmsa/theorem31", tmp_path)
    assert b"<svg" in (tmp_path / "figure.svg").read_bytes()
