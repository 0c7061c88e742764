"""Notebooks, executed: one bar a run or a sweep, tables of runs and comparisons, pictures on axes, sweeps in processes, and the
tutorial's."""

import re

import pytest
from support.command import ROOT, TINY

pytestmark = pytest.mark.full
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")

CELLS = [
    f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport fedopt\nwords = {TINY}",
    "run = fedopt.run(words + ['budget.rounds=300', 'eval.every=1'], algo='fedmsa', problem='mco')",
    "run",
    "runs = fedopt.sweep(words, algo='fedmsa', problem='mco', seed=[0, 1], jobs=2)",
    "fedopt.compare(runs, metric='distance')",
    "axes = run.draw(metric='distance')",
    "fedopt.compare(runs, metric='distance').report()",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Of each cell."""
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    return executed(nbformat.v4.new_notebook(cells=cells), tmp_path_factory.mktemp("book"))


def executed(book, folder, timeout=120):
    """The outputs of each cell. timeout: seconds of a cell."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbclient.NotebookClient(book, timeout=timeout, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.get("outputs") for cell in book.cells]


@pytest.mark.parametrize("cell", [1, 3])
def test_one_bar(cell, outputs):
    """And the lines that stay: the head, and those of a sweep."""
    bars = [output for output in outputs[cell] if "<progress" in str(output.get("data"))]
    assert len(bars) == 1
    assert "100%" in bars[0]["data"]["text/plain"]
    streams = [output for output in outputs[cell] if output.output_type == "stream"]
    assert sum(output.text.count("\n") for output in streams) <= {1: 4, 3: 20}[cell]
    assert not any("warn" in output.text.lower() for output in streams)


def test_tables(outputs):
    assert outputs[2][0]["data"]["text/plain"].startswith("Result(")
    (output,) = outputs[4]
    assert "<table" in output["data"]["text/html"]
    assert "distance" in output["data"]["text/html"]


def test_pictures(outputs):
    assert "image/png" in outputs[5][-1]["data"]


def test_a_page(outputs):
    assert outputs[6][-1]["data"]["text/html"].startswith('<iframe sandbox="allow-scripts"')


def test_the_tutorial(tmp_path, monkeypatch):
    """Gives what it keeps: the same words and pictures, and the same numbers to a hundredth."""
    nbformat = pytest.importorskip("nbformat")
    path = ROOT / "docs" / "tutorial.ipynb"
    assert path.stat().st_size < 300_000
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    kept = [results(cell.get("outputs", [])) for cell in book.cells]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FEDOPT_PICTURES", "1")
    made = [results(outputs or []) for outputs in executed(book, tmp_path, timeout=900)]
    made = [[{kind: text.replace(f"{tmp_path}/", "") for kind, text in out.items()} for out in cell] for cell in made]
    assert [shape(cell) for cell in made] == [shape(cell) for cell in kept]
    assert numbers(made) == pytest.approx(numbers(kept), rel=0.01)
    assert sum("image/png" in out for cell in kept for out in cell) == 4


def results(outputs):
    """What the outputs of a cell hold, without bars and what runs say, which have times."""
    return [out.data for out in outputs if out.output_type != "stream" and "<progress" not in str(out.data)]


def shape(cell):
    """The words of a cell's results, and where they have numbers and pictures."""
    return [{kind: NUMBER.sub("#", text) * (kind == "text/plain") for kind, text in out.items()} for out in cell]


def numbers(cells):
    texts = [out["text/plain"] for cell in cells for out in cell if "image/png" not in out]
    return [float(number) for text in texts for number in NUMBER.findall(text)]
