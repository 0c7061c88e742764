"""Measures: numbers that a published experiment computes from the runs of one seed.

A measure is an expression such as `final('FedNest, iid') - final('FedNest, non-iid')`, which `simpleeval` evaluates:
numbers, + - * / **, comparisons (1 if true, else 0), the functions in `FUNCTIONS`, and the methods of `SeedRuns`. Parsing
evaluates the expression with unknown values (nan), so that an invalid expression is an error when the experiment is loaded.
"""

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from pydantic import PlainValidator, ValidationInfo
from simpleeval import DEFAULT_OPERATORS, FunctionNotDefined, InvalidExpression, SimpleEval

from fedopt.errors import UserError, first_line, nearest
from fedopt.papers.seed_runs import SeedRuns, Unmeasurable

Functions = Mapping[str, Callable[..., float]]  # by name
METHODS = {name: method for name, method in vars(SeedRuns).items() if inspect.isfunction(method) and name[0] != "_"}
FUNCTIONS: Functions = {
    "abs": abs,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": lambda *values: sum(values),
    "log10": np.log10,
}
SIGNS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
OPERATORS = {sign: DEFAULT_OPERATORS[sign] for sign in SIGNS} | {ast.Pow: math.pow}  # a float, whose size is bounded
NODES = (ast.Constant, ast.Name, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.keyword)
FAILURES = (ArithmeticError, TypeError, ValueError, RecursionError)


class Call(NamedTuple):
    """A call of a method of `SeedRuns` in a measure.

    Attributes:
        name: The name of the method.
        label: The label of the line (or series) to which it is applied. None: the expression uses the name ``line``, which
            stands for the line being measured.
        arguments: The other arguments, by name.
    """

    name: str
    label: Any
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A parsed expression.

    Attributes:
        text: The expression as text.
        tree: Its syntax tree.
        calls: All calls of methods of `SeedRuns` in the expression.
    """

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    calls: list[Call] = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, *names: str) -> "Measure":
        """Parse an expression.

        Args:
            text: The expression.
            names: Which of the names `line` and `x` are allowed in the expression.

        Raises:
            UserError: The expression is invalid, or its value can never be a number.
        """
        calls: list[Call] = []

        def noting(name: str) -> Callable[..., float]:
            def note(*positional: Any, **by_name: Any) -> float:
                given = inspect.signature(METHODS[name]).bind(None, *positional, **by_name).arguments
                _, label, *others = given.items()
                calls.append(Call(name, label[1], dict(others)))
                return math.nan

            return note

        unknown = {name: {"line": None, "x": math.nan}[name] for name in names}
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            _evaluate(text, tree, {name: noting(name) for name in METHODS}, unknown)
            return cls(text, tree, calls)
        except FunctionNotDefined as error:
            why = f"there is no {error.func_name}(){nearest(error.func_name, [*METHODS, *FUNCTIONS])}"
        except (*FAILURES, InvalidExpression, SyntaxError, MemoryError) as error:
            why = f"{first_line(error)}; operands must be numbers, and labels must be quoted"
        raise UserError(f"{text[:200]!r} cannot be evaluated: {why}")

    def lines(self, points: Mapping[str, Mapping[float, str]]) -> list[str]:
        """Return the labels of the lines that the measure needs, each once.

        Args:
            points: series -> {x: label of a line}. A `fit` needs all lines of its series.
        """
        labels = ([*points[call.label].values()] if call.name == "fit" else [call.label] for call in self.calls)
        return list(dict.fromkeys(chain.from_iterable(labels)))

    def value(self, runs: SeedRuns, **names: str | float) -> float:
        """Evaluate the measure on the runs of one seed.

        Args:
            runs: The runs of the seed.
            names: Values for `line` and `x`, if the measure uses these names.

        Raises:
            Unmeasurable: The measure has no value for this seed.
        """
        try:
            return _evaluate(self.text, self.tree, {name: getattr(runs, name) for name in METHODS}, names)
        except FAILURES as error:
            raise Unmeasurable(str(error)) from None


def _evaluate(text: str, tree: ast.expr, methods: Functions, names: Mapping[str, str | float | None]) -> float:
    """Evaluate an expression.

    Args:
        text: The expression as text.
        tree: Its syntax tree.
        methods: The functions that the expression may call in addition to `FUNCTIONS`.
        names: The values of the names in the expression.
    """
    evaluator = SimpleEval(operators=OPERATORS, functions={**methods, **FUNCTIONS}, names=names)
    evaluator.nodes = {node: evaluator.nodes[node] for node in NODES}
    with np.errstate(all="ignore"):
        return float(evaluator.eval(text, tree))


def parsed(*names: str) -> PlainValidator:
    """Return a pydantic validator that turns a text, a number or a mapping such as {min: [text, ...]} into a `Measure`.

    Args:
        names: Which of the names `line` and `x` are allowed in the expression.
    """

    def parse(node: Any, info: ValidationInfo) -> Measure:
        if isinstance(node, Measure):
            return node
        if isinstance(node, dict):
            ((function, terms),) = node.items()
            node = f"{function}({', '.join(map(str, terms))})"
        try:
            return Measure.parse(str(node), *names)
        except UserError as error:
            where = f"claim '{info.data['says']}'" if "says" in info.data else info.field_name
            raise UserError(f"{where}: {error}") from None

    return PlainValidator(parse)
