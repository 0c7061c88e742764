"""Escape texts that somebody else may have made, for a terminal or a file: names of files, values of configs, labels of
metrics.
"""

import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate

_NAMED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX = str.maketrans({**_NAMED, **{c: f"\\{c}" for c in "&%$#_{}"}})
LONGEST = 300  # characters of a text with formulas
MOST_NESTED, MOST_COMMANDS = 10, 20  # groups of a formula in each other, and its commands
_NUMBER = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE)


def printable(text: str) -> str:
    """Escape what a terminal does not print, such as escape sequences, marks of direction and line ends."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, what: str) -> str:
    """Format a number with its noun: 1 run, 2 runs."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def as_number(text: str) -> float | None:
    """Return the number that a text is, such as -1.5, 1e-5 or inf; None for any other text, such as 1.2.3, nan or ."""
    return float(text) if _NUMBER.fullmatch(text) else None


def order(text: str) -> tuple[float, list[float | str]]:
    """Return a sort key: numbers by size, then other texts, with the numbers inside them by size."""
    size, parts = as_number(text), re.split(r"(\d+)", text, flags=re.ASCII)
    mixed = [float(part) if place % 2 else part for place, part in enumerate(parts)]
    return (math.inf, mixed) if size is None else (size, [])


def csv_cell(text: str) -> str:
    """Return a text for a CSV file. What a spreadsheet would take as a formula gets a ' in front."""
    numbers = text == "-" or all(as_number(part) is not None for part in text.split(" ± "))
    risky = text[:1] in ("=", "@", "\t", "\r", "+", "-") and not numbers
    return f"'{printable(text)}" if risky else printable(text)


def markdown_cell(text: str) -> str:
    """Return a text for a cell of a Markdown table: HTML, emphasis, links and further cells are escaped."""
    text = re.sub(r"<(?=[\w/!?])", "&lt;", printable(text)).replace("](", "]\\(")
    return re.sub(r"[*|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, each row as it comes. head, rows: the cells, escaped where they need it.

    Raises:
        ValueError: A row has another number of cells than the head.
    """
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(head)} columns: {' | '.join(row)}")
        yield f"| {' | '.join(row)} |"


def html_text(text: str) -> str:
    """Escape a text for HTML, such as that of a notebook."""
    return html.escape(printable(text))


def latex_cell(text: str) -> str:
    """Return a text for a cell of a LaTeX table. Mathematics between two $ stays if figures can set it; all else is escaped."""
    parts = re.split(r"(\$[^$]+\$)", printable(text)) if len(text) <= LONGEST else [printable(text)]
    safe = [bool(re.fullmatch(r"\$[^$]+\$", part)) and "\\text" not in part and is_mathematics(part) for part in parts]
    return "".join(part if keeps else part.translate(_LATEX) for part, keeps in zip(parts, safe, strict=True))


@lru_cache(1000)
def is_mathematics(text: str) -> bool:
    r"""Tell whether matplotlib can draw a line in which the parts between two $ are formulas.

    A long or deeply nested line is refused unread, since it could keep the parser for ever or end the process. None of the
    parser's commands reads or writes files. What is inside \text is not checked.
    """
    from matplotlib.mathtext import MathTextParser

    deepest = max(accumulate((c == "{") - (c == "}") for c in text), default=0)
    with suppress(ValueError, RecursionError):
        if len(text) <= LONGEST and deepest <= MOST_NESTED and text.count("\\") <= MOST_COMMANDS:
            MathTextParser("path").parse(text)
            return True
    return False
