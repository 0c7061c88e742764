"""Tables on a terminal. A narrow terminal shows the same content as a wide one."""

from collections.abc import Sequence
from textwrap import wrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedopt.console.say import columns, show
from fedopt.console.texts import printable

LEAST = 32  # the smallest width of a column whose texts are wrapped
BETWEEN, INDENT = 2, " " * 4  # spaces between two columns; indentation of a text below a row
Rows = Sequence[Sequence[str]]


def show_table(heads: Sequence[str], rows: Rows, right: Sequence[str] = (), below: Rows = ()) -> None:
    """Print a table of texts, wrapped between words. Columns that do not fit are printed below their rows.

    In a table without heads, the first column is not wrapped, since it may contain commands.

    Args:
        heads: The heads of the columns. If all are empty, no line of heads is printed.
        rows: The cells of each row.
        right: The heads of the columns that are aligned right and not wrapped, such as numbers.
        below: For each row, the texts to print below it.
    """
    below = below or [[] for _ in rows]
    widths = _widths(heads, rows, right)
    if widths is None and len(heads) > 1:
        label = f"{heads[-1]} " if heads[-1] in right else ""
        lower = [[f"{label}{row[-1]}", *texts] for row, texts in zip(rows, below, strict=True)]
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
    """Return the widths of the columns in characters; None if the table does not fit the terminal without breaking words.

    Args:
        heads: The heads of the columns.
        rows: The cells of each row.
        right: The heads of the columns that are aligned right and not wrapped.
    """
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
    for place, k in enumerate(by_need):  # narrow columns get their full width, the others share the rest equally
        more = min(most[k] - least[k], spare // (len(by_need) - place))
        widths[k] += more
        spare -= more
    return [*widths.values()]


def _print(cells: Sequence[str], layout: Sequence[tuple[int, bool]], style: str = "") -> None:
    """Print a row of a table.

    Args:
        cells: The texts of the row.
        layout: For each column, its width and whether it is aligned right.
        style: The style of all texts, such as bold.
    """
    table = Table.grid(padding=(0, BETWEEN, 0, 0))
    for width, right in layout:
        table.add_column(width=width, justify="right" if right else "left", vertical="bottom" if style else "top")
    table.add_row(*(Text(printable(cell), style) for cell in cells))
    console = Console(width=sum(width + BETWEEN for width, _ in layout), force_jupyter=False)
    with console.capture() as captured:
        console.print(table)
    print(*map(str.rstrip, captured.get().splitlines()), sep="\n", flush=True)  # `show` would escape the bold style


def show_folded(text: str, indent: str = "") -> None:
    """Print a text, wrapped between words to the width of tables.

    Args:
        text: The text.
        indent: Spaces before each line.
    """
    glued = printable(text).replace(" ± ", "\u00a0±\u00a0")  # keep a number and its deviation on one line
    lines = wrap(glued, columns() - len(indent), break_long_words=False, break_on_hyphens=False)
    show(*(f"{indent}{line}".replace("\u00a0", " ") for line in lines))
