"""A page of results: one HTML file that needs no network access. This module does not depend on runs."""

import gzip
import html
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import fedopt
from fedopt.console import printable
from fedopt.errors import UserError, need
from fedopt.files import write_atomically


class Table(NamedTuple):
    """A table of texts on a page.

    Attributes:
        title: The heading of the table.
        cells: The texts of the cells.
        bold: Boolean array [rows, columns], true for bold cells. None: no cell is bold.
        open: Whether the table is expanded when the page opens.
    """

    title: str
    cells: pd.DataFrame
    bold: Any = None
    open: bool = True


class Section(NamedTuple):
    """A section of a page.

    Attributes:
        title: The heading of the section.
        facts: Paragraphs below the heading.
        picture: A picture as a data URI. Empty: no picture.
        chart: The interactive chart, None if there is none. It has the entries xs and ys (names of the axes), logs (whether
            each y axis is logarithmic at first), targets (target values), lines (name, label, colour and dash of each) and
            curves: curves[name of y][name of x][index of the line] is None, or the lists [x, mean] or [x, mean, low, high].
            If it has the entry menus, a list of names, the page has one menu per name instead of one for y; the chosen
            values, joined by |, are then the name of y.
        views: name of a y axis of the chart -> (tables, notes) that are shown while this axis is chosen.
        tables: Tables that are shown with every y axis.
        maps: label -> heat map, with its clients, classes and counts [clients, classes].
        notes: Remarks that are shown with every y axis.
    """

    title: str
    facts: Sequence[str] = ()
    picture: str = ""
    chart: Mapping[str, Any] | None = None
    views: Mapping[str, tuple[Sequence[Table], Sequence[str]]] = {}
    tables: Sequence[Table] = ()
    maps: Mapping[str, Mapping[str, Any]] = {}
    notes: Sequence[str] = ()


class Page(NamedTuple):
    """An HTML page.

    Attributes:
        title: The title of the page.
        sections: The sections of the page, in order.
        notes: Remarks below the first section.
    """

    title: str
    sections: Sequence[Section]
    notes: Sequence[str] = ()

    def html(self) -> str:
        """Return the page as HTML. Raise UserError if plotly is not installed."""
        from jinja2 import Environment

        template = Environment(autoescape=True, finalize=_printable).from_string(_file("page.html"))
        contents = {"css": _file("page.css"), "js": _file("page.js"), "plotly": _plotly(), "page": self}
        data = [{"chart": section.chart, "maps": section.maps} for section in self.sections]
        made = f"fedopt {fedopt.__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        return template.render(contents, made=made, data=_packed(json.dumps(data)))

    def write(self, path: str | Path) -> Path:
        """Write the page to a file, and return the path of the file. Missing folders are created.

        Args:
            path: The file.

        Raises:
            UserError: The path is a folder, or plotly is not installed.
            OSError: The file cannot be written.
        """
        path = Path(path)
        if path.is_dir():
            raise UserError(f"{path}: this is a folder; give the path of a file, such as {path / 'report.html'}")
        content = self.html().encode(errors="backslashreplace")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        return path

    def _repr_html_(self) -> str:
        """Return the page inside a sandboxed HTML frame, for notebooks."""
        style = "width: 100%; height: 45em; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(self.html())}"></iframe>'


def _printable(value: object) -> object:
    """Escape unprintable characters if the value is a plain str; return any other value, such as escaped markup, unchanged."""
    return printable(value) if type(value) is str else value


def _file(name: str) -> str:
    """Return the content of a text file in the folder of this module, such as page.css."""
    return files("fedopt.drawing").joinpath(name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Return a text compressed with gzip and encoded as Base64, which needs no escapes in HTML."""
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def _plotly() -> str:
    """Return the JavaScript code of plotly, compressed. Raise UserError if plotly is not installed."""
    need("a page of results", "plotly", "report")
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs())
