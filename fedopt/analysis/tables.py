"""Tables for people: on the terminal, and as CSV, LaTeX and Markdown."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from fedopt.analysis.runs import ABSENT
from fedopt.console import csv_cell, latex_cell, markdown_cell, markdown_table, show_table, tell
from fedopt.files import write_atomically

BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}


def plus_minus(mean: float, std: float, decimals: int | None = None) -> str:
    """Format mean ± std, such as '0.912 ± 0.013'.

    By default std has two significant digits, and the mean has as many decimals as std. If the mean is 1e5 or more, or std
    is tiny, both share one exponent, as in '(1.234 ± 0.056)e+06'. If std is far smaller than the mean, each has its own
    exponent.

    Args:
        mean: The mean.
        std: The standard deviation. nan: only the mean is shown.
        decimals: The number of decimals of the mean and of std. None: the default described above.
    """
    if decimals is not None and math.isfinite(mean):
        return f"{mean:z.{decimals}f}" + (f" ± {std:.{decimals}f}" if math.isfinite(std) else "")
    if not (math.isfinite(std) and math.isfinite(mean)):
        return f"{mean:.4g}"
    if not std:
        return f"{mean:.4g} ± 0"
    digits, largest = 1 - math.floor(math.log10(std)), max(abs(mean), std)
    if digits <= 7 and largest < 1e5:
        return f"{mean:z.{max(digits, 0)}f} ± {std:.{max(digits, 0)}f}"
    power = math.floor(math.log10(largest))
    after = max(digits + power, 1)
    if after > 5:
        return f"{mean:.4g} ± {std:.2g}"
    return f"({mean / 10.0**power:.{after}f} ± {std / 10.0**power:.{after}f})e{power:+03d}"


def mean_text(mean: float, std: float = math.nan, how: Callable[[float, float], str] = plus_minus) -> str:
    """Format a mean and a standard deviation with ``how``; return a dash (`ABSENT`) if there is no mean.

    Args:
        mean: The mean. nan: there is none, for example because a run diverged.
        std: The standard deviation. nan: only the mean is shown.
        how: The function that formats (mean, std).
    """
    return how(mean, std) if math.isfinite(mean) else ABSENT


def beside_paper(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a table.csv in the layout of the paper's table, each as 'measured (paper)'.

    Args:
        cells: One row per cell, with the columns row, column, mean (shown as - if it is not finite), std, and paper, the
            number in the paper (nan: none).
    """
    measured = cells.apply(lambda cell: mean_text(cell["mean"], cell["std"]), axis=1)
    paper = ["" if pd.isna(number) else f" ({number:g})" for number in cells["paper"]]
    shown = cells.assign(text=measured + paper).pivot(index="row", columns="column", values="text")
    shown = shown.reindex(index=cells["row"].unique(), columns=cells["column"].unique()).fillna("")
    return shown.reset_index(names="").rename_axis(columns=None)


def in_bytes(mean: float, std: float, unit: str = "") -> str:
    """Format a mean and a standard deviation of bytes as mean ± std.

    Args:
        mean: The mean, in bytes.
        std: The standard deviation, in bytes.
        unit: The unit to show, one of `BYTES`. Empty: `unit_of_bytes` chooses it.
    """
    unit = unit or unit_of_bytes([mean])
    return f"{plus_minus(mean / BYTES[unit], std / BYTES[unit])} {unit}"


def unit_of_bytes(means: Sequence[float]) -> str:
    """Return the unit for a column of numbers of bytes, such as 'MB'.

    It is the largest unit in which the smallest number is at least 1 or the largest number is at least 100.

    Args:
        means: The numbers, in bytes.
    """
    finite = [mean for mean in means if math.isfinite(mean)]
    small, large = min(finite, default=0), max(finite, default=0)
    return next((unit for unit, size in BYTES.items() if small >= size or large >= 100 * size), "B")


def alike(values: Sequence[float], digits: int) -> list[str]:
    """Return numbers as texts, with the same number of decimals where possible.

    Args:
        values: The numbers.
        digits: The number of significant digits. If no number needs more than two decimals for it, all numbers get as many
            decimals as the one that needs most.
    """
    texts = [f"{value:#.{digits}g}".rstrip(".") for value in values]
    plain = [text for text in texts if re.fullmatch(r"-?\d+(\.\d+)?", text)]
    decimals = max((len(text.partition(".")[2]) for text in plain), default=0)
    if decimals > 2:
        return texts
    return [f"{value:.{decimals}f}" if text in plain else text for value, text in zip(values, texts, strict=True)]


def rounded(value: object) -> object:
    """Return a float as text with seven significant digits, or as a whole number if its magnitude is between 1e6 and 1e15.

    nan and values of other types are returned unchanged.
    """
    if not isinstance(value, float) or math.isnan(value):
        return value
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.7g}"


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table to a CSV file, completely or not at all.

    Floats are written with seven significant digits (`rounded`). Missing folders are created.

    Args:
        path: The file.
        table: The table.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = table.astype(object).map(rounded).map(lambda cell: csv_cell(cell) if isinstance(cell, str) else cell)
    write_atomically(path, cells.rename(columns=csv_cell).to_csv(index=False).encode())


def print_table(table: pd.DataFrame, right: Sequence[str] = (), caption: str | None = None) -> None:
    """Print a table of texts on the terminal.

    Args:
        table: The table.
        right: The names of the columns to align right, such as columns of numbers.
        caption: A text below the table. None: no caption.
    """
    show_table([*map(str, table)], table.to_numpy().tolist(), right)
    if caption:
        tell(caption)


def latex(table: pd.DataFrame, bold: pd.DataFrame | None = None) -> str:
    """Return a table of texts as LaTeX for the package booktabs. The first column is aligned left, all other columns right.

    Text between two $ is kept as mathematics.

    Args:
        table: The texts.
        bold: Booleans [rows, columns], true for bold cells. None: no cell is bold.
    """
    style = table.style.hide(axis="index").format(_typeset).format_index(_typeset, axis="columns")
    if bold is not None:
        style = style.apply(lambda _: bold.replace({True: "textbf:--rwrap", False: ""}), axis=None)
    return style.to_latex(hrules=True, column_format=f"l{'r' * (table.shape[1] - 1)}")


def _typeset(cell: object) -> str:
    """Return a text as LaTeX, with minus signs, powers of ten, ± and dashes set properly."""
    text = re.sub(r"\)e([-+]\d+)", lambda power: rf") $\times 10^{{{int(power[1])}}}$", latex_cell(str(cell)))
    text = re.sub(r"(^|± )(-?[\d.]+)e([-+]\d+)", lambda m: rf"{m[1]}${m[2]} \times 10^{{{int(m[3])}}}$", text)
    text = re.sub(r"^-(?=\d)", "$-$", text)
    return re.sub(r" - |^-$", lambda dash: dash[0].replace("-", "--"), text).replace("±", r"$\pm$")


def markdown(table: pd.DataFrame, bold: pd.DataFrame | None = None) -> str:
    """Return a table of texts as Markdown.

    Args:
        table: The texts.
        bold: Booleans [rows, columns], true for bold cells. None: no cell is bold.
    """
    cells = table.astype(str).map(markdown_cell)
    if bold is not None:
        cells = cells.where(~bold, "**" + cells + "**")
    return "\n".join(markdown_table([markdown_cell(str(name)) for name in table], cells.to_numpy().tolist()))
