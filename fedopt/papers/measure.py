"""Measures: numbers that a published experiment takes from the runs of one seed.

A measure is an expression such as `final('FedNest, iid') - final('FedNest, non-iid')`, parsed once, when the experiment is loaded.
It has numbers, + - * / **, comparisons (1 if true, else 0), the functions of `FUNCTIONS`, and the words of `SeedRuns`. Only
numbers are operands; texts are arguments of words.
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

from fedopt.analysis.runs import Recorded
from fedopt.errors import UserError, nearest
from fedopt.metrics import COSTS, Metric


class Unmeasurable(Exception):
    """Raised when a measure has no value for a seed; it says why."""


@dataclass(frozen=True)
class SeedRuns:
    """The finished runs of one seed. Its public methods are the words of measures, and all raise Unmeasurable.

    A word's first argument is the label of a line; that of `fit` is a series. metric: a column of metrics.csv, by default the
    first of the figure's y. A value that is not finite counts as the worst. x: the cost axis, by default the figure's.

    runs: label -> run. x, metric: the defaults. points, point: as in `Published`.
    """

    runs: Mapping[str, Recorded]
    x: str
    metric: str
    points: Mapping[str, Mapping[float, str]]
    point: Mapping[str, "Measure"]

    def final(self, label: str, metric: str = "") -> float:
        """Return the last value."""
        return float(self._values(label, metric)[-1])

    def best(self, label: str, metric: str = "") -> float:
        """Return the best value; nan if none is finite."""
        return self._described(label, metric).best(map(float, self._values(label, metric)))

    def at(self, label: str, where: float, metric: str = "", x: str = "") -> float:
        """Return the value at the last evaluation up to x = where."""
        return float(self._values(label, metric, where, x)[-1])

    def first(
        self, label: str, target: float, metric: str = "", x: str = "", or_end: bool = False, n: int = 1
    ) -> float:
        """Return the x at which the mean of the last n evaluations first reaches the target.

        If it never does, it is inf, or with `or_end` the x at which the run ends. That end is less than the truth, so a claim
        that the run is slow stays on the safe side.
        """
        reached, values = self._described(label, metric).reached, self._values(label, metric)
        hits = [j >= n and reached(np.mean(values[j - n : j]), target) for j in range(1, len(values) + 1)]
        return self._first(label, hits, x, or_end)

    def smooth(self, label: str, n: int = 0, metric: str = "", until: float = math.inf) -> float:
        """Return the mean of the last n evaluations up to x = until. By default n is a fifth of them, at least 3."""
        return float(np.mean(self._last(label, n, metric, until)))

    def noise(self, label: str, n: int, metric: str = "", until: float = math.inf) -> float:
        """Return the standard deviation of the differences between the last n evaluations up to x = until."""
        last = self._last(label, n, metric, until)
        if len(last) < 3:
            raise Unmeasurable(f"{label} has fewer than three evaluations to take differences of")
        return float(np.std(np.diff(last), ddof=1))

    def rate(self, label: str, start: float, end: float, metric: str = "") -> float:
        """Return the slope of log10 of the value against x, by least squares over the evaluations from x = start to x = end."""
        x, values = self._spent(label, ""), self._values(label, metric)
        within = (start <= x) & (x <= end)
        if np.count_nonzero(within) < 2:
            raise Unmeasurable(f"{label} has fewer than two evaluations from {start:g} to {end:g}")
        return float(np.polyfit(x[within], np.log10(values[within]), 1)[0])

    def first_mean_square(
        self, label: str, target: float, metric: str = "", x: str = "", or_end: bool = False
    ) -> float:
        """Return the x at which the mean of the squares so far is first at most the target; if it never is, the same as
        `first`.
        """
        squares = self._values(label, metric) ** 2
        hits = np.cumsum(squares) / np.arange(1, len(squares) + 1) <= target
        return self._first(label, hits.tolist(), x, or_end)

    def mean_square(self, label: str, n: int, metric: str = "") -> float:
        """Return the mean of the squares of the last n evaluations."""
        return float(np.mean(self._last(label, n, metric) ** 2))

    def per_round(self, label: str, column: str) -> float:
        """Return the last value of a column divided by the number of rounds."""
        return self.final(label, column) / self.final(label, "round")

    def diverged(self, label: str) -> float:
        """Return 1 for a run that was stopped as diverged, else 0."""
        return float(self._run(label).status == "diverged")

    def setting(self, label: str, key: str) -> float:
        """Return the number at a dotted key of the run's config, such as 'algo.p'."""
        keys = self._run(label).keys
        if key not in keys:
            raise Unmeasurable(f"there is no {key}{nearest(key, list(keys))}")
        return float(keys[key])

    def fit(self, series: str) -> float:
        """Return the slope of log y against log x over the points of a series."""
        points = self.points[series].items()
        y = [self.point[series].value(self, x=x, line=label) for x, label in points]
        return float(np.polyfit(np.log([x for x, _ in points]), np.log(y), 1)[0])

    def _first(self, label: str, hits: list[bool], x: str, or_end: bool) -> float:
        spent = self._spent(label, x)
        return float(spent[hits.index(True)] if any(hits) else spent[-1] if or_end else math.inf)

    def _run(self, label: str) -> Recorded:
        if label not in self.runs:
            raise Unmeasurable(f"{label} has no run that ended")
        return self.runs[label]

    def _described(self, label: str, metric: str) -> Metric:
        return self._run(label).metric(metric or self.metric)

    def _values(self, label: str, metric: str, until: float = math.inf, x: str = "") -> np.ndarray:
        """Return the values of a metric at the evaluations up to x = until. Raises Unmeasurable if there is no such evaluation."""
        run, name = self._run(label), metric or self.metric
        if name not in run.table:
            raise Unmeasurable(f"{label} has no {name}{nearest(name, [*map(str, run.table)])}")
        worst = run.metric(name).worst
        values = np.nan_to_num(run.values(name), nan=worst, posinf=worst, neginf=worst)
        if not len(values := values[self._spent(label, x) <= until]):
            raise Unmeasurable(f"{label} has no evaluation up to {until:g}")
        return values

    def _last(self, label: str, n: int, metric: str, until: float = math.inf) -> np.ndarray:
        values = self._values(label, metric, until)
        return values[-(n or max(3, len(values) // 5)) :]

    def _spent(self, label: str, x: str) -> np.ndarray:
        if (x or self.x) not in COSTS:
            raise Unmeasurable(f"x={x}: there are {', '.join(COSTS)}")
        return self._run(label).cost(x or self.x)


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
    """A word in a measure. label: empty for the name `line`. arguments: those after the label, by parameter name."""

    name: str
    label: str
    arguments: dict[str, ast.expr]


class Mark(NamedTuple):
    """A number of the paper's for a line and a metric.

    x, y: pairs (from, to); x is empty if the number does not belong to one x.
    """

    label: str
    metric: str
    x: tuple[float, ...]
    y: tuple[float, float]


@dataclass(frozen=True)
class Measure:
    """A parsed expression. words: all words in it, outer ones first."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    words: list[Word] = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, *names: str) -> "Measure":
        """Parse an expression. names: which of `line` and `x` may stand in it. Raises UserError if no run could give it a
        value.
        """
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            return cls(text, tree, _words(tree, names))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = getattr(error, "msg", None) or "it has too many terms, or odd characters"
            raise UserError(f"{text[:200]!r} is no expression: {why}") from None

    def lines(self, points: Mapping[str, Mapping[float, str]]) -> list[str]:
        """Return the labels of the lines in it, each once. points: of the experiment, whose lines a `fit` of a series needs."""
        labels = ([*points[word.label].values()] if word.name == "fit" else [word.label] for word in self.words)
        return list(dict.fromkeys(chain.from_iterable(labels)))

    def value(self, runs: SeedRuns, **names: str | float) -> float:
        """Return its value on the runs of one seed. names: the values of `line` and `x`. Raises Unmeasurable if it has none."""
        functions = {name: getattr(runs, name) for name in WORDS} | FUNCTIONS
        evaluator = SimpleEval(operators=OPERATORS, functions=functions, names=names)
        try:
            with np.errstate(all="ignore"):
                return float(evaluator.eval(self.text, self.tree))
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise Unmeasurable(str(error)) from None

    def mark(self, paper: str, metric: str, x: str) -> Mark | None:
        """Return the paper's number on the axes of a figure of metric against x; None if it does not belong there.

        It belongs there if the measure is a word in `ON_AXES` of one line, or such a word minus the paper's number.

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
        """Return the series and the slope that the paper has for it if the measure is `fit` of a series, else None."""
        numbers = numbers_in(paper)
        is_fit = isinstance(self.tree, ast.Call) and ast.unparse(self.tree.func) == "fit"
        return (self.words[0].label, numbers[0]) if is_fit and numbers else None


def parsed(*names: str) -> PlainValidator:
    """Return a pydantic validator that makes a measure of a text, a number or {min: [text, ...]}. names: as in `Measure.parse`."""

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

    return PlainValidator(parse, json_schema_input_type=str | dict[str, list[str]])


def numbers_in(paper: str) -> tuple[float, float] | None:
    """Read (from, to) out of a text; one number gives it twice. Returns None if the text is not a number, such as 'above'."""
    match = _NUMBERS.fullmatch(paper.strip())
    return (float(match[1]), float(match[2] or match[1])) if match else None


def _words(tree: ast.expr, names: Sequence[str]) -> list[Word]:
    """Return the words of a numeric expression, outer ones first. Raises UserError if it or an operand of it is not a number."""
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
                raise UserError(f"{ast.unparse(node)[:100]}: is no number; it may have + - * / ** and comparisons")
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
