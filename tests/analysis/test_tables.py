"""Tables of a comparison: on a terminal, as LaTeX, Markdown and CSV."""

import numpy as np
import pandas as pd
import pytest
from support.records import FEDAVG, named, two_problems

from fedopt.analysis import tables


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_numbers_are_whole_at_every_width(width, monkeypatch, capsys):
    """Beside each other where they fit, else one under the other; heads are broken between words."""
    number, label = "(4.72 ± 0.73)e-05", "fedmsa, algo.K=5, partitioner.alpha=0.1"
    heads = [
        "algo, algo.K",
        "runs",
        "status",
        "final distance to the solution",
        "best distance to the solution",
        "rounds to 0.1",
    ]
    table = pd.DataFrame([[label, "3", "2 finished, 1 diverged", number, number, "120 ± 3"]] * 2, columns=heads)
    monkeypatch.setattr("fedopt.console.say.PIPED", width)
    tables.print_table(table, right=heads[3:], caption="tested by nothing")
    shown = capsys.readouterr().out
    assert shown.count(number) == 4
    assert shown.count("120 ± 3") == 2
    assert "…" not in shown
    assert "tested by nothing" in " ".join(shown.split())
    assert "solution" in shown
    if width >= 60:
        assert max(map(len, shown.splitlines())) <= width


def test_files_for_a_paper(tmp_path, command):
    for seed in (0, 1):
        named(tmp_path / "runs" / f"a{seed}", "fedmsa", 1, 90 + seed, seed=seed)
        named(tmp_path / "runs" / f"b{seed}", "fedavg", 1, 80 + 5 * seed, seed=seed, algo=FEDAVG)
    names = [
        "--names",
        "fedmsa=FedMSA (ours, K=5) 100% | _",
        "--format",
        "pdf,svg,png",
        "--table",
        "latex,markdown,csv",
    ]
    code, csv, out, err = command(tmp_path / "runs", *names, "--x", "grad_calls", "--target", 90)
    assert (code, err) == (0, "")
    assert set(csv["label"]) == {"FedMSA (ours, K=5) 100% | _", "fedavg"}
    assert csv["grad_calls_to_target_mean"].dropna().tolist() == [70]  # 7 a round
    made = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert made["compare.pdf"].startswith(b"%PDF")
    assert b"<svg" in made["compare.svg"]
    assert made["compare.png"].startswith(b"\x89PNG")
    assert all(name in out for name in made)
    tex = made["compare.tex"].decode()
    assert tex.startswith("\\begin{tabular}{lrrrrr}\n\\toprule\n")
    assert r"FedMSA (ours, K=5) 100\% | \_ & 2 & \textbf{90.50 $\pm$ 0.71} & \textbf{90.50 $\pm$ 0.71} & " in tex
    head, rule, first, second = made["compare.md"].decode().splitlines()
    assert head.startswith("| method | seeds | final test accuracy (%) |")
    assert first.startswith(r"| FedMSA (ours, K=5) 100% \| \_ | 2 |") or second.startswith(r"| FedMSA (ours")
    assert {line.replace(r"\|", "").count("|") for line in (head, rule, first, second)} == {7}


def test_columns_and_bold_ties(tmp_path, command):
    for name, values in {"a": (90.1, 90.9), "b": (90.102, 90.902), "c": (80, 80.1)}.items():
        for seed, value in enumerate(values):
            named(tmp_path / "runs" / f"{name}{seed}", name, 1, value, seed=seed)
    command(tmp_path / "runs", "--table", "markdown", "--columns", "best,seeds")
    head, _, *rows = (tmp_path / "out" / "compare.md").read_text().splitlines()
    assert head == "| method | best test accuracy (%) | seeds |"
    assert [row.count("**") for row in rows] == [2, 2, 0]


@pytest.mark.parametrize(
    ("decimals", "cells", "bold"), [("1", ["90.5 ± 0.6", "80.0"], [2, 2, 0]), ("0", ["91 ± 1", "80"], [2, 2, 0])]
)
def test_decimals(decimals, cells, bold, tmp_path, command):
    for name, values in {"a": (90.11, 90.95), "b": (90.13, 90.95), "c": (80.04,)}.items():
        for seed, value in enumerate(values):
            named(tmp_path / "runs" / f"{name}{seed}", name, 1, value, seed=seed)
    _, csv, _, _ = command(tmp_path / "runs", "--table", "markdown,csv", "--decimals", decimals)
    _, _, *rows = (tmp_path / "out" / "compare.md").read_text().splitlines()
    assert [row.count("**") // 2 for row in rows] == bold
    assert cells[0] in rows[0]
    assert f"| {cells[1]} |" in rows[2]
    assert csv["final_test_accuracy_mean"].tolist() == pytest.approx([90.53, 90.54, 80.04])  # all digits


def test_a_table_of_two_problems_has_a_row_per_method(tmp_path, command):
    two_problems(tmp_path / "runs", {"fedmsa": (90, 60), "codasca": (80, 70)})
    assert command(tmp_path / "runs", "--table", "latex,csv", "--columns", "final")[0] == 0
    tex = (tmp_path / "out" / "compare.tex").read_text()
    rows = [line.split(" & ") for line in tex.splitlines() if line.startswith(("FedMSA", "CODASCA"))]
    assert "mco: final" in tex
    assert "saddle: final" in tex
    assert {row[0]: ["textbf" in cell for cell in row[1:]] for row in rows} == {
        "FedMSA": [True, False],
        "CODASCA": [False, True],
    }


def test_numbers_for_people(tmp_path):
    table = pd.DataFrame(
        {"a": [91.97999999999966, 1e-12 / 3, 123456789.0, np.nan, np.inf], "b": [1, None, "x", 2.0, 3]}
    )
    tables.write_table(tmp_path / "t.csv", table)
    cells = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    assert [a for a, _ in cells] == ["91.98", "3.333333e-13", "123456789", "", "inf"]
    assert [b for _, b in cells] == ["1", "", "x", "2", "3"]
    assert tables.in_bytes(2.5e6, 1e5) == "2.50 ± 0.10 MB"
    assert tables.in_bytes(12, float("nan")) == "12 B"
    assert tables.unit_of_bytes([6.2e4, 1.7e6, float("nan")]) == "kB"
    assert tables.unit_of_bytes([6.2e4, 1.7e9]) == "MB"
    assert tables.in_bytes(6.2e4, 1e3, "MB") == "0.0620 ± 0.0010 MB"
    assert tables.alike([90.0, 83.95, 75.2], 4) == ["90.00", "83.95", "75.20"]
    assert tables.alike([-0.1, 0.0275], 3) == ["-0.100", "0.0275"]
    assert tables.alike([12.5, 3e-9, 1500], 3) == ["12.5", "3.00e-09", "1.50e+03"]
    small = [tables.plus_minus(0.001021, 9.4e-5), tables.plus_minus(0.0008, 2e-4), tables.plus_minus(4e-24, 1.3e-24)]
    assert small == ["0.001021 ± 0.000094", "0.00080 ± 0.00020", "(4.0 ± 1.3)e-24"]
    assert r"(4.0 $\pm$ 1.3) $\times 10^{-24}$" in tables.latex(pd.DataFrame({"a": small}))
    plain = tables.latex(pd.DataFrame({"a": ["eta=1e-05"], "b": ["-1.73e-05"], "c": ["2e+06 ± 3e-07"]}))
    assert r"eta=1e-05 & $-1.73 \times 10^{-5}$ & $2 \times 10^{6}$ $\pm$ $3 \times 10^{-7}$" in plain
    assert tables.plus_minus(123456.7, 0.00001) == "1.235e+05 ± 1e-05"
    assert [tables.plus_minus(-0.004, 3.4), tables.plus_minus(-0.004, 3.4, 1)] == ["0.0 ± 3.4"] * 2
    mathematics = tables.latex(pd.DataFrame({"a_b": ["50 %"], r"to $x^\star_1$": ["c"]}))
    assert r"a\_b & to $x^\star_1$ \\" in mathematics
    assert r"50 \%" in mathematics
    assert r"5 \$ \textasciitilde" in tables.latex(pd.DataFrame({"a": ["5 $ ~"]}))
