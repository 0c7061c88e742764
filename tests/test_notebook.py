"""A notebook, executed: one bar a run or a sweep, tables of runs and comparisons, pictures on axes, sweeps in processes."""

import pytest
from support.command import ROOT, TINY

pytestmark = pytest.mark.slow

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
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    path = str(tmp_path_factory.mktemp("book"))
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": path}}).execute()
    return [cell.outputs for cell in book.cells]


@pytest.mark.parametrize("cell", [1, 3])
def test_one_bar(cell, outputs):
    """And the lines that stay: the head, and those of a sweep."""
    bars = [output for output in outputs[cell] if "<progress" in str(output.get("data"))]
    assert len(bars) == 1
    assert "100%" in bars[0]["data"]["text/plain"]
    streams = [output for output in outputs[cell] if output.output_type == "stream"]
    assert sum(output.text.count("\n") for output in streams) <= {1: 4, 3: 20}[cell]
    assert not any("warn" in output.text.lower() for output in streams)


@pytest.mark.parametrize("cell", [2, 4])
def test_tables(cell, outputs):
    (output,) = outputs[cell]
    assert "<table" in output["data"]["text/html"]
    assert "distance" in output["data"]["text/html"]


def test_pictures(outputs):
    assert "image/png" in outputs[5][-1]["data"]


def test_a_page(outputs):
    assert outputs[6][-1]["data"]["text/html"].startswith('<iframe sandbox="allow-scripts"')
