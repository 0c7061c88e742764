"""The papers' own numbers, where claims say them of what a figure draws."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from fedopt.papers.claims import Claim
from fedopt.papers.published import Published

_NUMBER = r"(-?\d+(?:\.\d+)?)"
_NUMBERS = re.compile(rf"(?:(?:about|almost) )?{_NUMBER}(?: to {_NUMBER})?(?: \(.*\))?")
# The measures whose values are on an axis of the figure -> their arguments between the label and the metric
BEFORE_METRIC: dict[str, list[str]] = {"final": [], "best": [], "smooth": ["n"], "at": ["where"], "first": ["target"]}


@dataclass(frozen=True)
class Mark:
    """A number of the paper's for a line and a metric. x, y: from, to; x is empty where the number holds at no certain x."""

    label: str
    metric: str
    x: tuple[float, ...]
    y: tuple[float, float]


def marks(published: Published) -> list[Mark]:
    """What the paper's numbers in the claims about single lines are on the axes of the figure.

    A claim says one when its measure is `final`, `best`, `smooth`, `at` or `first` of a line by the figure's x, or that less the
    paper's number, and its `paper` is that number, or 'a to b'.
    """
    return (
        [mark for claim in published.claims for mark in _marks(published, claim)]
        if published.transform == "none"
        else []
    )


def _marks(published: Published, claim: Claim) -> Iterator[Mark]:
    numbers, call = numbers_of_paper(claim.paper), ast.parse(claim.measure.strip(), mode="eval").body
    if isinstance(call, ast.BinOp) and isinstance(call.op, ast.Sub) and isinstance(call.right, ast.Constant):
        if (call.right.value,) * 2 != numbers:
            return
        call = call.left
    if numbers is None or not isinstance(call, ast.Call) or ast.unparse(call.func) not in BEFORE_METRIC:
        return
    word = ast.unparse(call.func)
    names = ["label", *BEFORE_METRIC[word], "metric", "x"]
    given = dict(zip(names, call.args, strict=False)) | {str(keyword.arg): keyword.value for keyword in call.keywords}
    with suppress(ValueError):  # an argument that is no plain value
        of = {name: ast.literal_eval(node) for name, node in given.items()}
        metric = of.get("metric") or published.y[0]
        if of.get("x", published.x) != published.x:
            return
        if word == "first":
            yield Mark(of["label"], metric, numbers, (of["target"], of["target"]))
        else:
            yield Mark(of["label"], metric, (of["where"], of["where"]) if word == "at" else (), numbers)


def slopes(published: Published) -> dict[str, float]:
    """series -> the slope that the paper has for it, of claims whose measure is fit(series)."""
    found = {}
    for claim in published.claims:
        numbers, fit = numbers_of_paper(claim.paper), re.fullmatch(r"fit\((['\"])(.*)\1\)", claim.measure.strip())
        if numbers and fit:
            found[fit[2]] = numbers[0]
    return found


def numbers_of_paper(text: str) -> tuple[float, float] | None:
    """From, to: twice the same for one number; None where the text is no number, such as 'above'."""
    found = _NUMBERS.fullmatch(text.strip())
    return (float(found[1]), float(found[2] or found[1])) if found else None
