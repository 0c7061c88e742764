"""The options of a figure."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat
from pydantic.dataclasses import dataclass


def _rising(limits: tuple[float, float]) -> tuple[float, float]:
    """Return the limits (low, high) of an axis unchanged. Raise ValueError unless low is smaller than high."""
    if not limits[0] < limits[1]:
        raise ValueError("must begin with the smaller number")
    return limits


Limits = Annotated[tuple[FiniteFloat, FiniteFloat], AfterValidator(_rising)]
Inches = Annotated[float, Field(ge=1, le=20)]
Points = Annotated[float, Field(ge=4, le=60)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PlotStyle:
    """The style in which a comparison is drawn.

    Args:
        xlim, ylim: The limits (low, high) of the axes. None: the limits are fitted to the values.
        logy: Whether the y axis is logarithmic. None: it is logarithmic if the values span decades.
        title: The text above the figure.
        legend: Where the legend is placed: above, inside or none (no legend).
        caption: Whether a caption below the figure explains its lines and bands.
        band: The kind of band around a mean, one of `fedopt.analysis.lines.BANDS`, such as std.
        width, height: Inches of the whole figure, 1 to 20. None: each picture is as wide as a paper's column.
        font: The font size, 4 to 60 points. None: 8 points.
    """

    xlim: Limits | None = None
    ylim: Limits | None = None
    logy: bool | None = None
    title: str = ""
    legend: Literal["above", "inside", "none"] = "above"
    caption: bool = True
    band: Literal["std", "sem", "ci", "minmax"] = "std"
    width: Inches | None = None
    height: Inches | None = None
    font: Points | None = None
