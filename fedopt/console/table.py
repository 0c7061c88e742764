"""Tables on a terminal: the one place that lays out rows and columns. A narrow terminal shows as much as a wide one."""

from collections.abc import Sequence
from textwrap import wrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedopt.console.say import columns, show
from fedopt.console.texts import printable

LEAST = 32  # characters of a text that is folded: it gets no fewer
BETWEEN, INDENT = 2, " " * 4  # columns of the terminal between two of the table; what is before a text below a row
Rows = Sequence[Sequence[str]]


def show_table(heads: Sequence[str], rows: Rows, right: Sequence[str] = (), below: Rows = ()) -> None:
    """Print a table of texts. Texts are folded between words; columns that do not fit go below their rows, the last one first.

    In a list without heads the names in the first column are not folded, since they may be commands.

    Args:
        heads: The heads of the columns. If all are empty, none is printed.
        rows: For each row, its cells.
        right: The heads of the columns that are aligned right and whose cells are not folded, such as numbers.
        below: For each row, the texts below it.
    """
    below = below or [[] for _ in rows]
    widths = _widths(heads, rows, right)
    if widths is None and len(heads) > 1:
        named = f"{heads[-1]} " if heads[-1] in right else ""
        lower = [[f"{named}{row[-1]}", *texts] for row, texts in zip(rows, below, strict=True)]
        show_table(heads[:-1], [row[:-1] for row in rows], right, lower)
        return
    layout = list(zip(widths or [columns()], [head in right for head in heads], strict=True))
    if any(heads):
        _print(heads, layout, "bold")
    for row, texts in zip(rows, below, strict=True):
        _print(row, layout)
        for text in filter(None, texts):
            show_folded(text, INDENT)


def _widths(heads: Sequence[str], rows: Rows, right: Sequence[str]) -> list[int] | None:
    """Return the widths of the columns; None if they do not fit the terminal without breaking a word."""
    least, most = list[int](), list[int]()
    for head, *cells in zip(heads, *rows, strict=True):
        texts = [printable(cell) for cell in cells]
        longest = max(map(len, texts), default=0)
        whole = head in right or not (least or any(heads))
        word = longest if whole else max((len(word) for text in texts for word in text.split()), default=0)
        least.append(max(word, min(longest, LEAST), *map(len, head.split() or [""])))
        most.append(max(longest, len(head)))
    spare = columns() - sum(least) - BETWEEN * (len(least) - 1)
    if spare < 0:
        return None
    widths = dict(enumerate(least))
    by_need = sorted(widths, key=lambda k: most[k] - least[k])
    for place, k in enumerate(by_need):  # those that need little get all of it, the others equal parts of the rest
        more = min(most[k] - least[k], spare // (len(by_need) - place))
        widths[k] += more
        spare -= more
    return [*widths.values()]


def _print(cells: Sequence[str], layout: Sequence[tuple[int, bool]], style: str = "") -> None:
    """Print a row. layout: for each column, its width and whether it is aligned right. style: of all texts, such as bold."""
    table = Table.grid(padding=(0, BETWEEN, 0, 0))
    for width, right in layout:
        table.add_column(width=width, justify="right" if right else "left", vertical="bottom" if style else "top")
    table.add_row(*(Text(printable(cell), style) for cell in cells))
    console = Console(width=sum(width + BETWEEN for width, _ in layout), force_jupyter=False)
    with console.capture() as captured:
        console.print(table)
    print(*map(str.rstrip, captured.get().splitlines()), sep="\n", flush=True)  # not `show`: bold heads are meant


def show_folded(text: str, indent: str = "") -> None:
    """Print a text, folded between words to the width of tables. indent: what is before each line."""
    glued = printable(text).replace(" ± ", "\u00a0±\u00a0")  # a number stays on its line
    lines = wrap(glued, columns() - len(indent), break_long_words=False, break_on_hyphens=False)
    show(*(f"{indent}{line}".replace("\u00a0", " ") for line in lines))
