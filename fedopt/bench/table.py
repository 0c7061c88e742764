"""What the benchmark shows: hits, scores and pairs in each currency, as tables and as pictures."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedopt.bench.rank import pairs, profile, scores, solved
from fedopt.bench.suite import CURRENCIES, Size, Task, hits, registered
from fedopt.comparing.tables import latex, markdown, print_table, write_table
from fedopt.files.reading import read_json
from fedopt.files.writing import write_atomically
from fedopt.results import figures

FIGURES = {"score": 3, "low": 3, "high": 3, "rank holds": 2, "ratio": 3, "cheaper": 2, "p": 4, "p (Holm)": 4}


def read_entries(out: Path) -> list[str]:
    """The methods that were entered."""
    return list(read_json(out / "entries.json", {"methods": list[str]}).get("methods", []))


def write(found: Sequence[Task], entries: Sequence[str], size: Size, folders: Sequence[str], out: Path) -> None:
    """Rank what there is of these tasks, print it, and write it as CSV, Markdown and LaTeX, with pictures."""
    rows = pd.concat([hits(task, task.methods, size, folders, out) for task in found], ignore_index=True)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "entries.json", json.dumps({"methods": [*entries]}).encode())
    write_table(out / "hits.csv", rows)
    claims = registered(found)
    for currency in CURRENCIES:
        of_currency = rows[rows["currency"] == currency]
        for name, table in (("scores", scores(of_currency)), ("pairs", pairs(of_currency, claims))):
            if not len(table):
                continue
            path = out / f"{name}_{currency}.csv"
            write_table(path, table)
            shown = table.assign(**{c: table[c].map(f"{{:.{n}f}}".format) for c, n in FIGURES.items() if c in table})
            write_atomically(path.with_suffix(".md"), markdown(shown).encode())
            write_atomically(path.with_suffix(".tex"), latex(shown).encode())
            caption = f"{name} by {figures.COSTS[currency][1]}: {', '.join(task.name for task in found)}"
            print_table(shown.astype(str), [*shown.columns[1:]], caption)
    _draw(rows, out)


@figures.styled()
def _draw(rows: pd.DataFrame, out: Path) -> None:
    """The share of goals that each method has reached within a share of the budget; and profiles, which are relative."""
    pictures = {"solved": (solved, "share of the budget"), "profile": (profile, "ratio to the least median cost here")}
    for name, (curves, x) in pictures.items():
        figure, axes = figures.grid(1, len(CURRENCIES), 2.6 * len(CURRENCIES))
        for axis, currency in zip(axes.flat, CURRENCIES, strict=True):
            shares = curves(rows[rows["currency"] == currency])
            for j, method in enumerate(shares):
                axis.plot(shares.index, shares[method], label=method, **figures.look(j))
            figures.describe(axis, x, "share of goals reached", figures.COSTS[currency][1])
            axis.set_xscale("log")
            axis.set_ylim(-0.02, 1.02)
        figures.save(figure, out / f"{name}.svg")
