"""The style of a figure: `PlotStyle`, and matplotlib style files.

A style file may come from somebody else. So only settings of appearance are accepted, none that reads files, runs code or
takes long.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from matplotlib import RcParams
from matplotlib.cbook import is_scalar_or_string
from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat
from pydantic.dataclasses import dataclass

from fedopt.drawing.figures import SLIDES
from fedopt.errors import UserError, first_line
from fedopt.files import read_text

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
    """Return key -> value of a matplotlib style file. Raises UserError if it cannot be read, or sets a key that is not about
    appearance.
    """
    settings, where = {}, ""
    try:
        for number, line in enumerate(read_text(path, LARGEST, links=True).splitlines(), 1):
            where = f", line {number}"
            if not (pair := _LINE.fullmatch(line.strip())):
                raise ValueError("must be 'KEY: VALUE', a setting of matplotlib")
            if key := pair[1]:
                settings[key] = _value(key, pair[2].strip().strip('"'))
    except (OSError, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise UserError(f"--style={path}{where}: {first_line(error)}") from None
    return settings


def _value(key: str, text: str) -> Any:
    """Parse the value of a setting as matplotlib does.

    Raises ValueError if the value or key is not allowed in a style file; matplotlib raises KeyError and other errors for
    unknown ones.
    """
    if not LOOKS.fullmatch(key) or (key in RUNS and text.lower() not in ("", "false", "none")):
        raise ValueError(f"{key} is not a setting of looks, which alone are taken from a style file; delete the line")
    if key == "axes.prop_cycle" and not _CYCLE.fullmatch(text):
        raise ValueError(f"{key}: must be cycler('color', ['#0072B2', ...])")
    settings: Any = RcParams({key: text})
    value = settings[key]
    parts = [] if "color" in key else [value] if is_scalar_or_string(value) else [*value]
    sizes = [part for part in parts if isinstance(part, int | float) and (part or len(parts) > 1)]
    if any(isinstance(part, list | tuple) for part in parts) or not all(0.01 <= abs(size) <= MOST for size in sizes):
        raise ValueError(f"{key}: {text} is not allowed in a style file; use names, and numbers from 0.01 to {MOST}")
    return value


def odd(number: int) -> int:
    if number < 1 or number % 2 == 0:
        raise ValueError(f"{number} must be an odd number, such as 1, 3 or 5")
    return number


def _rising(limits: tuple[float, float]) -> tuple[float, float]:
    if not limits[0] < limits[1]:
        raise ValueError("must have the lower end first")
    return limits


Limits = Annotated[tuple[FiniteFloat, FiniteFloat], AfterValidator(_rising)]
Inches = Annotated[float, Field(ge=1, le=20)]
Points = Annotated[float, Field(ge=4, le=60)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PlotStyle:
    """How a comparison is drawn.

    Args:
        smooth: An odd number; values are replaced by centred means over this many evaluations. 1: no smoothing.
        xlim, ylim: The ends of the axes, (low, high). None: fitted to the values.
        logx: Whether the x axis is logarithmic; points at x = 0 are then left out.
        logy: Whether the y axis is logarithmic. None: it is if the values span decades.
        title: The text above the figure.
        legend: Where the legend is placed.
        caption: Whether a text below says what is drawn.
        band: The band around a mean, one of `fedopt.analysis.lines.BANDS`.
        width, height: Inches of the whole figure, 1 to 20. None: each picture is as wide as a paper's column.
        font: The font size, 4 to 60 points. None: that of the style.
        style: A matplotlib style file. None: fedopt's style.
        slides: Whether the figure is for slides: 16:9, with large letters.
    """

    smooth: Annotated[int, AfterValidator(odd)] = 1
    xlim: Limits | None = None
    ylim: Limits | None = None
    logx: bool = False
    logy: bool | None = None
    title: str = ""
    legend: Literal["above", "below", "inside", "none"] = "above"
    caption: bool = True
    band: Literal["std", "sem", "ci", "minmax"] = "std"
    width: Inches | None = None
    height: Inches | None = None
    font: Points | None = None
    style: Path | None = None
    slides: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Return the matplotlib settings (rcParams) that this style changes. Raises UserError if the style file cannot be used."""
        settings = {**(SLIDES if self.slides else {}), **(read_style(self.style) if self.style else {})}
        return settings | ({"font.size": self.font} if self.font else {})
