"""What a paper claims, as measures of runs that are compared with a bound.

A measure is an expression such as `final('FedNest, iid') - final('FedNest, non-iid')`. It is evaluated once for each seed, on
the runs of that seed. The claim holds when the t-interval of the mean over the seeds keeps the bound, does not hold when no part
of the interval does, and is undecided else.
"""

import ast
import dataclasses
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, ConfigDict, model_validator
from pydantic.dataclasses import dataclass
from simpleeval import InvalidExpression, SimpleEval

from fedopt.comparing.recorded import Recorded
from fedopt.comparing.tables import moments, plus_minus
from fedopt.errors import UserError, nearest
from fedopt.metrics import Metric
from fedopt.results.figures import COSTS

HOLDS, FAILS, UNDECIDED, UNMEASURED = "holds", "does not hold", "undecided", "not measured"
LEVEL = 0.9  # of the two-sided t-interval
EXACT = 1e-9  # relative, of `equals`
COLUMNS = ("says", "measure", "bound", "paper", "mean", "std", "seeds", "holds", "why", "note", "values")
MADE = ("date", "commit", "machine")  # of the runs; the last columns of claims.csv


def _called(node: Any) -> Any:
    """The expression min(a, b) for {min: [a, b]}; anything else as it is."""
    if isinstance(node, dict) and len(node) == 1:
        ((function, values),) = node.items()
        return f"{function}({', '.join(map(str, values))})" if isinstance(values, list) else node
    return node


@dataclass(frozen=True, config=ConfigDict(extra="forbid", coerce_numbers_to_str=True))
class Claim:
    """What is claimed, and one bound on the mean of a measure over the seeds.

    says: the claim in words. measure: the expression, or min, max or sum with a list of expressions, as {min: [...]}.
    paper: what the paper shows, in words; of a band, also what its half width is, such as '91.5 (read to ± 0.5)'.
    within: the largest distance of the mean from `of`, half the width of a band.
    exact: whether all seeds give the measure the same value by construction, so that one seed decides.
    why: what makes the difference, in one sentence, said where the claim does not hold.
    """

    says: str
    measure: Annotated[str, BeforeValidator(_called, json_schema_input_type=str | dict[str, list[str]])]
    paper: str = ""
    at_least: float | None = None
    at_most: float | None = None
    within: float | None = None
    of: float = 0.0
    equals: float | None = None
    exact: bool = False
    why: str = ""

    @model_validator(mode="after")
    def _one_bound(self) -> "Claim":
        if [self.at_least, self.at_most, self.within, self.equals].count(None) != 3:
            raise ValueError("give one of at_least, at_most, within, equals")
        if self.of and self.within is None:
            raise ValueError("of goes with within")
        return self

    @property
    def bound(self) -> str:
        if self.within is not None:
            return f"within {self.within:g} of {self.of:g}"
        bounds = {">=": self.at_least, "<=": self.at_most, "=": self.equals}
        return next(f"{sign} {value:g}" for sign, value in bounds.items() if value is not None)

    def margin(self, value: float) -> float:
        """How far inside the bound the value is, negative outside of it; infinite for `equals`."""
        if self.at_least is not None:
            return value - self.at_least
        if self.at_most is not None:
            return self.at_most - value
        if self.within is not None:
            return self.within - abs(value - self.of)
        assert self.equals is not None
        return math.inf if math.isclose(value, self.equals, rel_tol=EXACT, abs_tol=EXACT) else -math.inf

    def verdict(self, mean: float, std: float, n: int) -> str:
        """From the mean and the standard deviation of the measure over n seeds."""
        if math.isnan(mean):
            return UNMEASURED
        half = half_width(std, n, self.exact)
        if not math.isfinite(half):
            return f"{UNDECIDED} with {n} seed{'s' * (n != 1)}"
        margin = self.margin(mean)
        return HOLDS if margin >= half else FAILS if margin < -half else f"{UNDECIDED} with {n} seed{'s' * (n != 1)}"


def half_width(std: float, n: int, exact: bool = False) -> float:
    """Of the two-sided t-interval of a mean over n seeds. Of one seed it is infinite, or 0 where all seeds give the same value."""
    if n < 2:
        return 0.0 if exact else math.inf
    from scipy.special import stdtrit  # a third of a second

    return float(stdtrit(n - 1, (1 + LEVEL) / 2)) * std / math.sqrt(n)


class Unmeasurable(Exception):
    """Why a measure has no value for a seed."""


@dataclasses.dataclass(frozen=True)
class Measures:
    """The words of the expressions, on the runs of one seed. Every word takes a line's label first; `fit` takes a series.

    metric: a column of metrics.csv, by default the first of the figure's y; a value that is not finite counts as the worst.
    x: what is spent, by default the figure's x. All words raise Unmeasurable where the runs have no such value.

    runs: label -> the run of a line that has ended. labels, measured: the experiment's `points` and `measured`, by series.
    """

    runs: Mapping[str, Recorded]
    x: str
    metric: str
    labels: Mapping[str, Mapping[float, str]]
    measured: Mapping[str, str]

    def final(self, label: str, metric: str = "") -> float:
        """The last value."""
        return float(self._values(label, metric)[-1])

    def best(self, label: str, metric: str = "") -> float:
        """The best value, nan where none is finite."""
        return self._described(label, metric).best(map(float, self._values(label, metric)))

    def at(self, label: str, where: float, metric: str = "", x: str = "") -> float:
        """The value at the last evaluation up to x = where."""
        before = self._values(label, metric)[self._spent(label, x) <= where]
        return float(before[-1]) if len(before) else math.nan

    def first(
        self, label: str, target: float, metric: str = "", x: str = "", or_end: bool = False, n: int = 1
    ) -> float:
        """The x at which the mean of the last n evaluations first reaches the target. When it never does: inf, or with `or_end`
        the x at which the run ends.

        That is less than the truth, and so on the safe side for the run that a claim says is slow.
        """
        reached, values = self._described(label, metric).reached, self._values(label, metric)
        hits = [j >= n and reached(np.mean(values[j - n : j]), target) for j in range(1, len(values) + 1)]
        return self._first(label, hits, x, or_end)

    def smooth(self, label: str, n: int | None = None, metric: str = "", until: float = math.inf) -> float:
        """The mean of the last n evaluations up to x = until; by default n is a fifth of them, at least 3."""
        return float(np.mean(self._last(label, n, metric, until)))

    def noise(self, label: str, n: int, metric: str = "", until: float = math.inf) -> float:
        """The standard deviation of the differences between the last n evaluations up to x = until."""
        return float(np.std(np.diff(self._last(label, n, metric, until)), ddof=1))

    def rate(self, label: str, start: float, end: float, metric: str = "") -> float:
        """The slope of log10 of the value against x, by least squares over the evaluations from x = start to x = end."""
        x, values = self._spent(label, ""), self._values(label, metric)
        within = (start <= x) & (x <= end)
        if np.count_nonzero(within) < 2:
            raise Unmeasurable(f"{label} has fewer than two evaluations from {start:g} to {end:g}")
        return float(np.polyfit(x[within], np.log10(values[within]), 1)[0])

    def first_mean_square(
        self, label: str, target: float, metric: str = "", x: str = "", or_end: bool = False
    ) -> float:
        """The x at which the mean of the squares so far is first at most the target; when it never is, as `first` has it."""
        squares = self._values(label, metric) ** 2
        hits = np.cumsum(squares) / np.arange(1, len(squares) + 1) <= target
        return self._first(label, hits.tolist(), x, or_end)

    def mean_square(self, label: str, n: int, metric: str = "") -> float:
        """The mean of the squares of the last n evaluations."""
        return float(np.mean(self._values(label, metric)[-n:] ** 2))

    def _first(self, label: str, hits: list[bool], x: str, or_end: bool) -> float:
        spent = self._spent(label, x)
        return float(spent[hits.index(True)] if any(hits) else spent[-1] if or_end else math.inf)

    def per_round(self, label: str, column: str) -> float:
        """The last value of a column divided by the number of rounds."""
        return self.final(label, column) / self.final(label, "round")

    def diverged(self, label: str) -> float:
        """1 for a run that was stopped as diverged, else 0."""
        return float(self._run(label).status == "diverged")

    def setting(self, label: str, key: str) -> float:
        """The number that the run's config has at a dotted key, such as 'algo.p'."""
        return float(self._run(label).keys[key])

    def fit(self, series: str) -> float:
        """The slope of log y against log x over the points of a series."""
        x, y = np.log(np.array(list(self.points(series).items())).T)
        return float(np.polyfit(x, y, 1)[0])

    def points(self, series: str) -> dict[float, float]:
        """x -> y of the points of a series."""
        points = self.labels[series].items()
        return {x: self.evaluate(self.measured[series], x=x, line=label) for x, label in points}

    def evaluate(self, expression: str, **names: str | float) -> float:
        """The value of an expression. names: what may stand in it besides the words. Raises Unmeasurable."""
        words = {name: getattr(self, name) for name in WORDS}
        evaluator = SimpleEval(functions={**words, **ARITHMETIC}, names=names)
        try:
            with np.errstate(all="ignore"):
                return float(evaluator.eval(expression))
        except ZeroDivisionError:
            raise Unmeasurable("a division by zero") from None
        except KeyError as error:
            raise Unmeasurable(f"there is no {error.args[0]}") from None
        except (InvalidExpression, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise Unmeasurable(str(error)) from None
        except RecursionError:
            raise Unmeasurable("an expression of too many terms") from None

    def _run(self, label: str) -> Recorded:
        if label not in self.runs:
            raise Unmeasurable(f"{label} has no run that ended")
        return self.runs[label]

    def _described(self, label: str, metric: str) -> Metric:
        return self._run(label).metric(metric or self.metric)

    def _values(self, label: str, metric: str) -> np.ndarray:
        run, name = self._run(label), metric or self.metric
        if name not in run.table:
            raise Unmeasurable(f"{label} has no {name}{nearest(name, [*map(str, run.table)])}")
        worst = run.metric(name).worst
        return np.nan_to_num(run.values(name), nan=worst, posinf=worst, neginf=worst)

    def _last(self, label: str, n: int | None, metric: str, until: float) -> np.ndarray:
        values = self._values(label, metric)[self._spent(label, "") <= until]
        return values[-(n or max(3, len(values) // 5)) :]

    def _spent(self, label: str, x: str) -> np.ndarray:
        if (x or self.x) not in COSTS:
            raise Unmeasurable(f"x={x}: there are {', '.join(COSTS)}")
        return self._run(label).cost(x or self.x)


WORDS = [name for name in vars(Measures) if not name.startswith("_") and name not in ("points", "evaluate")]
ARITHMETIC = {"abs": abs, "min": min, "max": max, "sum": lambda *values: sum(values), "log10": np.log10}


def check(expression: str, lines: Iterable[str], series: Iterable[str], line: bool = False) -> None:
    """Whether runs could give the expression a value. line: the name `line` may stand for a label. Raises UserError."""
    for call in _calls(expression):
        word = ast.unparse(call.func)
        if word in ARITHMETIC:
            continue
        if word not in WORDS:
            raise UserError(f"there is no {word}(){nearest(word, [*WORDS, *ARITHMETIC])}")
        try:
            inspect.signature(getattr(Measures, word)).bind(None, *call.args, **{str(k.arg): k for k in call.keywords})
        except TypeError as error:
            raise UserError(f"{word}(): {error}") from None
        known = list(series if word == "fit" else lines)
        match call.args[:1]:
            case [ast.Constant(str(label))]:
                if label not in known:
                    raise UserError(f"{word}({label!r}): there is no such label{nearest(label, known)}")
            case [ast.Name("line")] if line:
                pass
            case _:
                raise UserError(f"{word}(): its first argument must be a label in quotes")


def labels_in(expression: str) -> list[str]:
    """The labels that an expression names, each once."""
    first = [arg for call in _calls(expression) for arg in call.args[:1] if isinstance(arg, ast.Constant)]
    return list(dict.fromkeys(arg.value for arg in first if isinstance(arg.value, str)))


def _calls(expression: str) -> Iterator[ast.Call]:
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", None) or "it has too many terms, or odd characters"
        raise UserError(f"{expression[:200]!r} is no expression: {why}") from None
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def lines_of(claim: Claim, points: Mapping[str, Mapping[float, str]]) -> list[str]:
    """The lines that a claim's measure is about. points: of the experiment, which `fit` takes."""
    found: list[str] = []
    for call in _calls(claim.measure):
        for label in (
            arg.value for arg in call.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ):
            found += points[label].values() if ast.unparse(call.func) == "fit" else [label]
    return list(dict.fromkeys(found))


def judge(claim: Claim, seeds: Mapping[int, Measures]) -> dict[str, Any]:
    """A row of claims.csv, by COLUMNS. `note` says why seeds are left out, and which runs diverged; these count."""
    values: dict[int, float] = {}
    notes: dict[str, list[str]] = {}  # what is to be said -> of which seeds
    for seed, measures in seeds.items():
        ended = [label for label in labels_in(claim.measure) if label in measures.runs]
        said = [f"{label} diverged" for label in ended if measures.diverged(label)]
        try:
            values[seed] = measures.evaluate(claim.measure)
            said += ["not a number"] if math.isnan(values[seed]) else []
        except Unmeasurable as error:
            said.append(str(error))
        for text in said:
            notes.setdefault(text, []).append(str(seed))
    note = "; ".join(f"{text} (seed{'s' * (len(of) > 1)} {', '.join(of)})" for text, of in notes.items())
    mean, std = _moments(claim, list(values.values()))
    return row(claim, mean, std, len(values), note, " ".join(f"{seed}:{value:.6g}" for seed, value in values.items()))


def _moments(claim: Claim, values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation. Values of which one is infinite have no spread where all are on one side of the bound, and else
    an infinite one."""
    mean, std = moments(values)
    if math.isinf(mean):
        std = 0.0 if len({claim.margin(value) >= 0 for value in values}) == 1 else math.inf
    return mean, std


def row(claim: Claim, mean: float, std: float, n: int, note: str, values: str) -> dict[str, Any]:
    """A row of claims.csv. values: the measure of each seed, as seed:value."""
    verdict = claim.verdict(mean, std, n)
    why = claim.why if verdict == FAILS else ""
    cells = (claim.says, claim.measure, claim.bound, claim.paper, mean, std, n, verdict, why, note, values)
    return dict(zip(COLUMNS, cells, strict=True))


def sentence(row: Mapping[str, Any]) -> str:
    """The line that is printed for a row of claims.csv."""
    if row["holds"] == UNMEASURED:
        return f"{UNMEASURED:<24}{row['says']}: {row['note'] or 'no run of it'}"
    count = f"{row['seeds']} seed{'s' * (row['seeds'] != 1)}"
    text = f"{row['holds']:<24}{row['says']}: {plus_minus(row['mean'], row['std'])} ({count}), asked {row['bound']}"
    text += f", paper {row['paper']}" if row["paper"] else ""
    text += f" [{row['note']}]" if row["note"] else ""
    return text + (f". {row['why']}" if row["why"] else "")
