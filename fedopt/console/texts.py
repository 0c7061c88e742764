"""Format texts, and escape texts from somebody else (file names, values of configs, labels) for a terminal or a file."""

import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate

_NAMED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX = str.maketrans({**_NAMED, **{c: f"\\{c}" for c in "&%$#_{}"}})
LONGEST = 300  # the largest number of characters of a text with formulas
MOST_NESTED, MOST_COMMANDS = 10, 20  # the largest depth of nested groups, and number of commands, in a formula
_NUMBER = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE)


def printable(text: str) -> str:
    """Escape characters that a terminal does not print, such as escape sequences, direction marks and line breaks."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, what: str) -> str:
    """Return a number with its noun as text, such as '1 run' or '2 runs'.

    Args:
        number: The number.
        what: The noun in the singular.
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def as_number(text: str) -> float | None:
    """Convert a text such as -1.5, 1e-5 or inf to a number; return None for any other text, such as 1.2.3 or nan."""
    return float(text) if _NUMBER.fullmatch(text) else None


def order(text: str) -> tuple[float, list[float | str]]:
    """Return a key for sorting texts: texts that are numbers come first, by size.

    Other texts follow in alphabetical order, except that numbers inside them are compared by size: run2 comes before run10.
    """
    size, pieces = as_number(text), re.split(r"(\d+)", text, flags=re.ASCII)
    mixed = [float(piece) if place % 2 else piece for place, piece in enumerate(pieces)]
    return (math.inf, mixed) if size is None else (size, [])


def csv_cell(text: str) -> str:
    """Return a text for a cell of a CSV file. A text that a spreadsheet would take for a formula gets a leading apostrophe."""
    numbers = text == "-" or all(as_number(number) is not None for number in text.split(" ± "))
    risky = text[:1] in ("=", "@", "\t", "\r", "+", "-") and not numbers
    return f"'{printable(text)}" if risky else printable(text)


def markdown_cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table: HTML, emphasis, links and column separators."""
    text = re.sub(r"<(?=[\w/!?])", "&lt;", printable(text)).replace("](", "]\\(")
    return re.sub(r"[*|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table.

    Args:
        head: The cells of the head, escaped if necessary.
        rows: The cells of each row, as many as in the head, escaped if necessary.

    Raises:
        ValueError: A row has more or fewer cells than the head.
    """
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell for _, cell in zip(head, row, strict=True))} |"


def html_text(text: str) -> str:
    """Escape a text for HTML, for example in a notebook."""
    return html.escape(printable(text))


def latex_cell(text: str) -> str:
    """Escape a text for a cell of a LaTeX table. Formulas between two $ are kept if matplotlib can draw them."""
    pieces = re.split(r"(\$[^$]+\$)", printable(text)) if len(text) <= LONGEST else [printable(text)]
    return "".join(piece if _is_safe_formula(piece) else piece.translate(_LATEX) for piece in pieces)


def _is_safe_formula(text: str) -> bool:
    """Return whether a text is one formula between two $ that matplotlib can draw and that contains no \\text command."""
    return bool(re.fullmatch(r"\$[^$]+\$", text)) and "\\text" not in text and is_mathematics(text)


@lru_cache(1000)
def is_mathematics(text: str) -> bool:
    r"""Return whether matplotlib can draw a line whose parts between two $ are formulas.

    Long or deeply nested lines are refused without parsing, since they could block the parser or crash the process. The
    parser has no commands that read or write files. The content of \text is not checked.
    """
    from matplotlib.mathtext import MathTextParser

    deepest = max(accumulate((c == "{") - (c == "}") for c in text), default=0)
    with suppress(ValueError, RecursionError):
        if len(text) <= LONGEST and deepest <= MOST_NESTED and text.count("\\") <= MOST_COMMANDS:
            MathTextParser("path").parse(text)
            return True
    return False
