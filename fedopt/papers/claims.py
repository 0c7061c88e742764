"""What a paper claims: a bound on a measure of runs (`fedopt.papers.measure`), which each seed gives a value.

The claim holds if the t-interval of the mean over the seeds keeps the bound. It does not hold if no part of the interval does.
Else it is undecided.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from fedopt.analysis import half_width, moments, plus_minus
from fedopt.console import counted
from fedopt.papers.measure import Measure, parsed
from fedopt.papers.seed_runs import SeedRuns, Unmeasurable

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
UNTESTED, UNMEASURED = "not tested", "not measured"
Kind = Literal["paper", "control", "variant"]
LEVEL = 0.9  # of the two-sided t-interval
EXACT = 1e-9  # relative, of `equals`
MADE = ("date", "commit", "machine")  # of the runs
MEASURED = ("measure", "mean", "std", "seeds", "note", "values", *MADE)  # whatever the bound and the words are
COLUMNS = ("kind", "says", "measure", "bound", "paper", "mean", "std", "seeds", "holds", "why", "note", "values", *MADE)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", coerce_numbers_to_str=True))
class Claim:
    """A claim: a statement about a paper's experiment, and one bound on the mean of a measure over the seeds.

    says: the claim in words.
    measure: the expression, or min, max or sum with a list of expressions, as {min: [...]}.
    paper: what the paper shows, in words; for a band with its half width, such as '91.5 (read to ± 0.5)'.
    at_least, at_most, within, equals: the bound; a claim has exactly one of them.
    within: the largest distance of the mean from `of`, half the width of a band.
    exact: whether the measure has the same value for all seeds by construction, so that one seed decides.
    why: one sentence on what makes the difference, shown if the claim does not hold.
    kind: who makes the claim: the paper; us, for a control; or the paper on different settings, for a variant.
    untested: why the runs cannot refute the claim, for example because they are smaller. If it then does not hold, it is not
        tested.
    here: what its value says in the paper's line of results, with {} for the value, such as '{} rounds to 90 %'.
    """

    says: str
    measure: Annotated[Measure, parsed()]
    paper: str = ""
    at_least: float | None = None
    at_most: float | None = None
    within: float | None = None
    of: float = 0.0
    equals: float | None = None
    exact: bool = False
    why: str = ""
    kind: Kind = "paper"
    untested: str = ""
    here: str = ""

    @model_validator(mode="after")
    def _one_bound(self) -> "Claim":
        if [self.at_least, self.at_most, self.within, self.equals].count(None) != 3:
            raise ValueError("must have exactly one of at_least, at_most, within, equals")
        if self.of and self.within is None:
            raise ValueError("of: is the middle of a band; give within too, or remove it")
        if self.here and self.here.count("{}") != 1:
            raise ValueError("here must have {} once, for the value")
        return self

    @property
    def bound(self) -> str:
        if self.within is not None:
            return f"within {self.within:g} of {self.of:g}"
        bounds = {">=": self.at_least, "<=": self.at_most, "=": self.equals}
        return next(f"{sign} {value:g}" for sign, value in bounds.items() if value is not None)

    def margin(self, value: float) -> float:
        """Return how far inside the bound the value is, negative if outside. For `equals` it is plus or minus infinity."""
        if self.equals is not None:
            return math.inf if math.isclose(value, self.equals, rel_tol=EXACT, abs_tol=EXACT) else -math.inf
        if self.within is not None:
            return self.within - abs(value - self.of)
        return value - self.at_least if self.at_least is not None else self.at_most - value  # type: ignore[operator]

    def verdict(self, mean: float, std: float, n: int) -> str:
        """Return the verdict from the mean and the standard deviation of the measure over n seeds.

        A nan as mean gives `UNMEASURED`. One seed leaves the claim undecided, unless it is `exact`.
        """
        if math.isnan(mean):
            return UNMEASURED
        margin, half = self.margin(mean), 0.0 if self.exact else math.inf
        if n > 1:
            half = half_width(std, n, LEVEL)
        if not math.isfinite(half) or -half <= margin < half:
            return f"{UNDECIDED} with {counted(n, 'seed')}"
        return HOLDS if margin >= half else FAILS


def judge(claim: Claim, seeds: Mapping[int, SeedRuns]) -> dict[str, Any]:
    """Return a row of claims.csv, without the columns MADE.

    Its `note` says why seeds are left out, and which runs diverged; diverged runs count. seeds: seed -> its runs.
    """
    values: dict[int, float] = {}
    notes: dict[str, list[str]] = {}  # note -> its seeds
    for seed, runs in seeds.items():
        for label in dict.fromkeys(word.label for word in claim.measure.words):
            if label in runs.runs and runs.runs[label].status == "diverged":
                notes.setdefault(f"{label} diverged", []).append(str(seed))
        try:
            values[seed] = claim.measure.value(runs)
            if math.isnan(values[seed]):
                notes.setdefault("not a number", []).append(str(seed))
        except Unmeasurable as error:
            notes.setdefault(str(error), []).append(str(seed))
    note = "; ".join(f"{text} (seed{'s' if len(its) > 1 else ''} {', '.join(its)})" for text, its in notes.items())
    mean, std = moments(list(values.values()))
    if math.isinf(mean):  # no deviation if all values are on one side of the bound
        std = 0.0 if len({claim.margin(value) >= 0 for value in values.values()}) == 1 else math.inf
    return row(claim, mean, std, len(values), note, " ".join(f"{seed}:{value:.6g}" for seed, value in values.items()))


def row(claim: Claim, mean: float, std: float, n: int, note: str, values: str) -> dict[str, Any]:
    """Return a row of claims.csv, without MADE, from the mean and standard deviation of a measure over n seeds.

    values: the measure of each seed, as 'seed:value'.
    """
    verdict = claim.verdict(mean, std, n)
    if claim.untested and verdict not in (HOLDS, UNMEASURED):
        verdict = UNTESTED
    why = {FAILS: claim.why, UNTESTED: claim.untested}.get(verdict, "")
    stated = (claim.kind, claim.says, claim.measure.text, claim.bound, claim.paper)
    return dict(zip(COLUMNS, (*stated, mean, std, n, verdict, why, note, values), strict=False))


def seeds_of(row: Mapping[str, Any], word: str = "") -> str:
    """Format how many seeds a row of claims.csv has, and the first seed if it is not 0. word: follows the number."""
    first = str(row["values"]).partition(":")[0]
    return f"{row['seeds']}{word}" + (f" from {first} on" if first not in ("", "0") else "")


def sentence(row: Mapping[str, Any]) -> str:
    """Format the line that is printed for a row of claims.csv."""
    if row["holds"] == UNMEASURED:
        return f"{UNMEASURED:<24}{row['says']}: {row['note'] or 'no run of it'}"
    count = seeds_of(row, " seed" if row["seeds"] == 1 else " seeds")
    text = f"{row['holds']:<24}{row['says']}: {plus_minus(row['mean'], row['std'])} ({count}), asked {row['bound']}"
    text += f", paper {row['paper']}" if row["paper"] else ""
    text += f" [{row['note']}]" if row["note"] else ""
    return text + (f". {row['why']}" if row["why"] else "")
