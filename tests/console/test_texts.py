"""What leaves the program carries nothing that a terminal, a spreadsheet, LaTeX or a browser would obey."""

import csv
import json
import time

import pandas as pd
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from support.command import code_of
from support.records import record

from fedopt.analysis.sweeps import report
from fedopt.analysis.tables import latex, markdown, write_table
from fedopt.commands import compare
from fedopt.console.texts import csv_cell, latex_cell, markdown_cell, markdown_table, printable
from fedopt.drawing.figures import cut

EVIL = "\x1b]0;title\x07\x1b[2J\u202eabc\r\x9b31m<script>alert(1)</script>[a](javascript:x)|$\\input{/etc/passwd}$"


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-1+cmd|' /C calc'!A0", "\t=1", "-x", "--"])
def test_what_a_spreadsheet_would_take_as_a_formula(text, tmp_path):
    assert csv_cell(text) == f"'{printable(text)}"
    write_table(tmp_path / "t.csv", pd.DataFrame({text: [text, "a"]}))
    rows = csv.reader((tmp_path / "t.csv").read_text().splitlines())
    assert not any(cell[0] in "=+-@\t" for row in rows for cell in row)


def test_a_row_is_as_long_as_the_head_of_its_table():
    assert [*markdown_table(["a", "b"], [["1", "2"]])] == ["| a | b |", "|---|---|", "| 1 | 2 |"]
    for row in (["1"], ["1", "2", "3"]):
        with pytest.raises(ValueError, match="zip"):
            [*markdown_table(["a", "b"], [row])]


@pytest.mark.parametrize(
    "text", ["-", "-1.5", "+3", "1e-3", "-0.022 ± 0.071", "-inf", "a=1", "", "(1 ± 2)e-3", "-1e-05"]
)
def test_numbers_stay_numbers_in_a_spreadsheet(text):
    assert csv_cell(text) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$\\alpha_0$ of 5 %", "$\\alpha_0$ of 5 \\%"),
        ("$\\input{x}$", "\\$\\textbackslash{}input\\{x\\}\\$"),
        ("$a$ $\\write18{x}$", "$a$ \\$\\textbackslash{}write18\\{x\\}\\$"),
        ("\\(\\input{x}\\)", "\\textbackslash{}(\\textbackslash{}input\\{x\\}\\textbackslash{})"),
        ("$\\text{\\input x}$", "\\$\\textbackslash{}text\\{\\textbackslash{}input x\\}\\$"),
        ("5 $ and more", "5 \\$ and more"),
        ("a_b^c~d#&{}", "a\\_b\\textasciicircum{}c\\textasciitilde{}d\\#\\&\\{\\}"),
        ("$^^5cinput{x}$", "\\$\\textasciicircum{}\\textasciicircum{}5cinput\\{x\\}\\$"),
    ],
)
def test_latex(text, wanted):
    assert latex_cell(text) == wanted
    assert wanted in latex(pd.DataFrame({"a": ["x"], "b": [text]}))
    assert wanted in latex(pd.DataFrame({"a": ["x"], text: ["y"]}))


@pytest.mark.parametrize(
    "text",
    ["${}{}$".format("{" * 400, "}" * 400), "$" + "x_1+" * 2500 + "x$", "$" + "\\sqrt{" * 40 + "x" + "}" * 40 + "$"],
)
def test_mathematics_without_end(text):
    """It is text, at once, in LaTeX and in pictures."""
    began = time.monotonic()
    assert latex_cell(text).startswith("\\$")
    assert time.monotonic() - began < 0.5
    figure = Figure()
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(cut(text)).get_window_extent(canvas.get_renderer())


def test_markdown():
    assert markdown_cell("<b>x</b> < 1 & p <= 2|") == "&lt;b>x&lt;/b> < 1 & p <= 2\\|"
    shown = markdown(pd.DataFrame({EVIL: [EVIL]}))
    assert "<script" not in shown
    assert "](" not in shown
    assert shown.count("\n") == 2


def test_no_text_of_a_run_commands_a_terminal(tmp_path, monkeypatch, capsys):
    for seed, algo in enumerate(("a", EVIL)):
        folder = record(tmp_path / "runs" / f"{seed}{EVIL[:8]}", [70, 80], seed=seed, algo={"_target_": "x", "K": algo})
        card = json.loads((folder / "run.json").read_text())
        card |= {"overrides": [f"algo.K={algo}", f"seed={seed}"], "chosen": {"algo": algo, "problem": EVIL}}
        card["metrics"][0]["label"] = EVIL
        (folder / "run.json").write_text(json.dumps(card))
    (tmp_path / "runs" / f"x{EVIL[:8]}").mkdir()
    (tmp_path / "runs" / f"x{EVIL[:8]}" / "config.yaml").write_text(yaml.safe_dump({EVIL: 1}))
    words = ["fedopt-compare", str(tmp_path / "runs"), "--table", "csv,latex,markdown", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", [*words, "--group-by", "algo.K,problem"])
    assert code_of(compare.main) == 0
    report(tmp_path / "runs")
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, *(path.read_text() for path in (tmp_path / "out").glob("*.[ct][se][vx]"))):
        assert printable(text.replace("\n", "")) == text.replace("\n", "")


def test_printable():
    assert printable("a\u202eb\x1b[0m\x9b\n\u2028é ± │") == "a\\u202eb\\x1b[0m\\x9b\\n\\u2028é ± │"
