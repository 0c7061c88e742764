"""Measures: numbers that a published experiment computes from the runs of one seed.

A measure is an expression such as `final('FedNest, iid') - final('FedNest, non-iid')`, parsed once, when the experiment is
loaded. It may contain numbers, + - * / **, comparisons (1 if true, else 0), the functions in `FUNCTIONS`, and calls of the
methods of `SeedRuns`, which are called words. Operands are numbers; texts may only be arguments of words.
"""

import ast
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from pydantic import PlainValidator, ValidationInfo
from simpleeval import SimpleEval

from fedopt.errors import UserError, nearest
from fedopt.papers.seed_runs import SeedRuns, Unmeasurable

WORDS = [name for name, member in vars(SeedRuns).items() if inspect.isfunction(member) and not name.startswith("_")]
ON_AXES = ("final", "best", "smooth", "at", "first")  # the words whose values are on an axis of the figure
FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": lambda *values: sum(values),
    "log10": np.log10,
}
OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,  # a float, which takes no memory however large it is
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_NUMBERS = re.compile(rf"(?:(?:about|almost) )?{_NUMBER}(?: to {_NUMBER})?(?: \(.*\))?")


class Word(NamedTuple):
    """A call of a method of `SeedRuns` in a measure. label: its first argument; empty for the name `line`. arguments: the
    others, by name.
    """

    name: str
    label: str
    arguments: dict[str, ast.expr]


class Mark(NamedTuple):
    """A number of the paper, to be drawn on a figure.

    label: of the line it belongs to. x, y: ranges (from, to); x is () if the number does not belong to one x.
    """

    label: str
    metric: str
    x: tuple[float, ...]
    y: tuple[float, float]


@dataclass(frozen=True)
class Measure:
    """A parsed expression. words: all calls of methods of `SeedRuns` in it, outer ones first."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    words: list[Word] = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, *names: str) -> "Measure":
        """Parse an expression.

        names: which of the names `line` and `x` are allowed in it. Raises UserError if it is malformed, not numeric, or calls
            an unknown function.
        """
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            return cls(text, tree, _words(tree, names))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = getattr(error, "msg", None) or "it has too many terms, or odd characters"
            raise UserError(f"{text[:200]!r} cannot be read as an expression: {why}") from None

    def lines(self, points: Mapping[str, Mapping[float, str]]) -> list[str]:
        """Return the labels of the lines that the measure needs, each once.

        points: as in `Published`; a `fit` needs all lines of its series.
        """
        labels = ([*points[word.label].values()] if word.name == "fit" else [word.label] for word in self.words)
        return list(dict.fromkeys(chain.from_iterable(labels)))

    def value(self, runs: SeedRuns, **names: str | float) -> float:
        """Evaluate the measure on the runs of one seed. Raises Unmeasurable if it has no value.

        names: values for `line` and `x`, if the measure uses them.
        """
        functions = {name: getattr(runs, name) for name in WORDS} | FUNCTIONS
        evaluator = SimpleEval(operators=OPERATORS, functions=functions, names=names)
        try:
            with np.errstate(all="ignore"):
                return float(evaluator.eval(self.text, self.tree))
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise Unmeasurable(str(error)) from None

    def mark(self, paper: str, metric: str, x: str) -> Mark | None:
        """Return the paper's number as a mark for a figure of metric against x; None if it cannot be shown there.

        It can if the measure is one call of a method in `ON_AXES`, or such a call minus the paper's number.

        paper: the paper's text, as in `Claim`.
        """
        numbers, call = numbers_in(paper), self.tree
        match call:
            case ast.BinOp(left, ast.Sub(), ast.Constant(number)) if (number, number) == numbers:
                call = left
        if numbers is None or not isinstance(call, ast.Call) or ast.unparse(call.func) not in ON_AXES:
            return None
        name, label, arguments = self.words[0]
        try:
            values = {key: ast.literal_eval(node) for key, node in arguments.items()}
        except ValueError:  # an argument that is no plain value
            return None
        if values.get("x", x) != x:
            return None
        metric = values.get("metric") or metric
        match name:
            case "at":
                return Mark(label, metric, (values["where"],) * 2, numbers)
            case "first":
                return Mark(label, metric, numbers, (values["target"],) * 2)
        return Mark(label, metric, (), numbers)

    def slope(self, paper: str) -> tuple[str, float] | None:
        """Return (series, the paper's slope) if the measure is a single `fit` and the paper's text is a number; else None."""
        numbers = numbers_in(paper)
        is_fit = isinstance(self.tree, ast.Call) and ast.unparse(self.tree.func) == "fit"
        return (self.words[0].label, numbers[0]) if is_fit and numbers else None


def parsed(*names: str) -> PlainValidator:
    """Return a pydantic validator that parses a text, a number or {min: [text, ...]} as a measure. names: as in
    `Measure.parse`.
    """

    def parse(node: Any, info: ValidationInfo) -> Measure:
        if isinstance(node, Measure):
            return node
        match node:
            case dict() if [*map(type, node.values())] == [list]:
                ((function, terms),) = node.items()
                node = f"{function}({', '.join(map(str, terms))})"
            case dict() | list() | None:
                raise ValueError("must be an expression, or a list of them as {min: [...]}")
        try:
            return Measure.parse(str(node), *names)
        except UserError as error:
            where = f"claim '{info.data['says']}'" if "says" in info.data else info.field_name
            raise UserError(f"{where}: {error}") from None

    return PlainValidator(parse)


def numbers_in(paper: str) -> tuple[float, float] | None:
    """Parse a text such as '3 to 4' as (3.0, 4.0); a single number gives it twice.

    'about' or 'almost' before it, and a remark in brackets after it, are allowed. Any other text, such as 'above', gives
    None.
    """
    match = _NUMBERS.fullmatch(paper.strip())
    return (float(match[1]), float(match[2] or match[1])) if match else None


def _words(tree: ast.expr, names: Sequence[str]) -> list[Word]:
    """Return the calls of methods of `SeedRuns` in an expression, outer ones first. Raises UserError if it is not numeric."""
    nodes, words = [tree], []
    for node in nodes:  # which grow
        match node:
            case ast.Constant(int() | float()):
                pass
            case ast.Name("x") if "x" in names:
                pass
            case ast.UnaryOp(sign, operand) if type(sign) in OPERATORS:
                nodes.append(operand)
            case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]) if type(sign) in OPERATORS:
                nodes += [left, right]
            case ast.Call(ast.Name(name), args, []) if name in FUNCTIONS:
                nodes += args
            case ast.Call():
                words.append(_word(node, names))
                nodes += [arg for arg in words[-1].arguments.values() if not isinstance(arg, ast.Constant)]
            case _:
                raise UserError(
                    f"{ast.unparse(node)[:100]}: is not a number; use numbers, words, + - * / ** and comparisons only"
                )
    return words


def _word(call: ast.Call, names: Sequence[str]) -> Word:
    name = ast.unparse(call.func)
    if name not in WORDS:
        raise UserError(f"there is no {name[:100]}(){nearest(name, [*WORDS, *FUNCTIONS])}")
    given = {str(keyword.arg): keyword.value for keyword in call.keywords}
    try:
        arguments = inspect.signature(getattr(SeedRuns, name)).bind(None, *call.args, **given).arguments
    except TypeError as error:
        raise UserError(f"{name}(): {error}") from None
    _, label, *others = arguments.items()
    match label[1]:
        case ast.Constant(str(text)) if text:
            return Word(name, text, dict(others))
        case ast.Name("line") if "line" in names and name != "fit":
            return Word(name, "", dict(others))
    raise UserError(f"{name}(): its first argument must be a label in quotes")
