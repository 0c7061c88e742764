"""A matplotlib style file. Somebody may have sent it: it says how things look, and nothing in it reads, runs or takes long."""

import re
from pathlib import Path
from typing import Any

from matplotlib import RcParams
from matplotlib.cbook import is_scalar_or_string

from fedopt.errors import UserError, first_line
from fedopt.files.reading import read_text

LARGEST, MOST = 2**16, 600  # bytes of a file; a number in it, such as dots per inch
LOOKS = re.compile(
    r"(axes|axes3d|boxplot|contour|errorbar|figure|font|grid|hatch|hist|image|legend|lines|markers|patch|path|pcolor|pcolormesh|pdf|"
    r"polaraxes|savefig|scatter|svg|text|xaxis|xtick|yaxis|ytick)\..*|mathtext\.fontset"
)
RUNS = ("figure.hooks", "path.effects", "savefig.directory", "text.latex.preamble", "text.usetex")  # of these
_LINE = re.compile(r"""(?:([\w.-]+)\s*:((?:"[^"]*"|[^"#])*))?(?:#.*)?""")
_LIST = r"""cycler\((?:\w+\s*=|['"]\w+['"]\s*,)\s*(?:\[[^][()]*\]|['"]\w*['"])\)"""
_CYCLE = re.compile(rf"\(?\s*{_LIST}(?:\s*\+\s*{_LIST})*\s*\)?")  # of lists; older matplotlibs evaluate it as Python


def read_style(path: Path) -> dict[str, Any]:
    """Its settings. Raises UserError for a file that cannot be read, and for a line that is no setting of looks."""
    settings, where = {}, ""
    try:
        for number, line in enumerate(read_text(path, LARGEST, links=True).splitlines(), 1):
            where = f", line {number}"
            if not (pair := _LINE.fullmatch(line.strip())):
                raise ValueError("is no 'KEY: VALUE' of matplotlib")
            if key := pair[1]:
                settings[key] = _value(key, pair[2].strip().strip('"'))
    except (OSError, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise UserError(f"--style={path}{where}: {first_line(error)}") from None
    return settings


def _value(key: str, text: str) -> Any:
    """What matplotlib makes of it. Raises ValueError and others where it is no setting of looks."""
    if not LOOKS.fullmatch(key) or (key in RUNS and text.lower() not in ("", "false", "none")):
        raise ValueError(f"{key} is not taken from a style file, which says how things look; delete the line")
    if key == "axes.prop_cycle" and not _CYCLE.fullmatch(text):
        raise ValueError(f"{key}: must be cycler('color', ['#0072B2', ...])")
    settings: Any = RcParams({key: text})
    value = settings[key]
    parts = [] if "color" in key else [value] if is_scalar_or_string(value) else [*value]
    sizes = [part for part in parts if isinstance(part, int | float) and (part or len(parts) > 1)]
    if any(isinstance(part, list | tuple) for part in parts) or not all(0.01 <= abs(size) <= MOST for size in sizes):
        raise ValueError(f"{key}: {text} is not taken from a style file; names, and numbers from 0.01 to {MOST}, are")
    return value
