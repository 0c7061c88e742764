"""Notebooks, executed: one bar a run or a sweep, tables of runs and comparisons, pictures on axes, sweeps in processes, and the
tutorial's."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from support.command import ROOT, TINY
from support.pages import added, blocks

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
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    return executed(nbformat.v4.new_notebook(cells=cells), tmp_path_factory.mktemp("book"))


def executed(book, folder):
    """The outputs of each cell."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
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


@pytest.mark.parametrize("cell", [2, 4])
def test_tables(cell, outputs):
    (output,) = outputs[cell]
    assert "<table" in output["data"]["text/html"]
    assert "distance" in output["data"]["text/html"]


def test_pictures(outputs):
    assert "image/png" in outputs[5][-1]["data"]


def test_a_page(outputs):
    assert outputs[6][-1]["data"]["text/html"].startswith('<iframe sandbox="allow-scripts"')


def test_the_tutorial(tmp_path, monkeypatch):
    """Runs as it stands, except for words that make its commands short, and shows its pictures."""
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(ROOT / "docs" / "tutorial.ipynb", 4)
    nbformat.validate(book)
    commands = [
        (command, " ".join(["!" + command, *map(shlex.quote, added(command, block.words))]))
        for block in blocks(ROOT / "docs" / "tutorial.md")
        for command in block.commands
    ]
    for cell in book.cells:
        if cell.source.startswith("!"):
            lines = [commands.pop(0) for _ in cell.source.splitlines()]
            assert cell.source == "\n".join(f"!{command}" for command, _ in lines)
            cell.source = "\n".join(f"{short}\nassert _exit_code == 0" for _, short in lines)
    assert not commands
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FEDOPT_PICTURES", "1")
    outputs = executed(book, tmp_path)
    pictures = ["Image(" in cell.source for cell in book.cells]
    assert pictures == ["image/png" in str(shown) for shown in outputs]
    assert sum(pictures) == 3
