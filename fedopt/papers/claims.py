"""Claims of a paper: bounds on the mean of a measure (`fedopt.papers.measure`), which has one value per seed.

A claim is supported if the 90 % t-interval of the mean over seeds lies inside the bound. It is not supported if the interval
lies outside the bound. Otherwise it is undecided. If the settings of the runs differ from the published ones, the verdict
says so first: 'with changes: supported', 'small-scale: agrees'.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from fedopt.analysis import half_width, moments, plus_minus
from fedopt.console import counted
from fedopt.files import read_table
from fedopt.papers.measure import Measure, parsed
from fedopt.papers.seed_runs import SeedRuns, Unmeasurable

HOLDS, FAILS, UNDECIDED, UNMEASURED = "supported", "not supported", "undecided", "not measured"
CHANGED, SMALL = "with changes: ", "small-scale: "  # before a verdict if settings differ from the published ones
IN_SMALL = {HOLDS: "agrees", FAILS: "disagrees"}
Kind = Literal["paper", "control", "variant"]
LEVEL = 0.9  # the level of the two-sided t-interval
EXACT = 1e-9  # relative tolerance of `equals`, so that only 0 equals 0
MADE = ("date", "commit", "machine")  # columns that describe when and where the runs were made
COLUMNS = ("kind", "says", "measure", "bound", "paper", "mean", "std", "seeds", "holds", "why", "note", "values", *MADE)
RUNS = ("line", "seed", "run")  # the columns of runs.csv
TYPES = defaultdict(lambda: str, mean=float, std=float, seeds=int, seed=int)  # of columns
LARGEST = 2**22  # bytes of a table of results; its rows need 60 times as much memory
REMEDY = "run the experiment again, which writes it"
HEADS = {"says": "claim", "measured": "measured (seeds)", "holds": "verdict", "why": "reason"}


@dataclass(frozen=True, config=ConfigDict(extra="forbid", coerce_numbers_to_str=True))
class Claim:
    """A statement about a paper's experiment, with one bound on the mean of a measure over the seeds.

    Args:
        says: The claim, as a sentence.
        measure: An expression, as text, or the min, max or sum of a list of expressions, written {min: [...]}.
        paper: What the paper shows, as text. A number that was read off a figure has its precision, such as '91.5 (read to ±
            0.5)'.
        at_least, at_most, within, equals: The bound on the mean; exactly one of the four is set.
        within, of: With the bound ``within``, the mean may differ from `of` by at most `within`.
        why: One sentence on why the claim is not supported, which is shown if it is not.
        kind: paper: a claim of the paper. control: fedopt's own check. variant: a claim of the paper on different settings.
        small: How the runs are smaller than the paper's runs, such as 'an MLP for 15 rounds, where the paper trains VGG-11
            for 250'. The claim then counts as small-scale, whatever its verdict is.
        changes: How the settings differ from the published ones. The claim then counts as a claim with changes.
        here: A phrase with fedopt's value for the list of the paper's results; {} stands for the value, such as '{} rounds
            to 90 %'.
    """

    says: str
    measure: Annotated[Measure, parsed()]
    paper: str = ""
    at_least: float | None = None
    at_most: float | None = None
    within: float | None = None
    of: float = 0.0
    equals: float | None = None
    why: str = ""
    kind: Kind = "paper"
    small: str = ""
    changes: str = ""
    here: str = ""

    @model_validator(mode="after")
    def _one_bound(self) -> "Claim":
        if [self.at_least, self.at_most, self.within, self.equals].count(None) != 3:
            raise ValueError("must have exactly one of at_least, at_most, within, equals")
        return self

    @property
    def bound(self) -> str:
        """Return the bound as text, such as '>= 0.5' or 'within 0.7 of 91.5'."""
        if self.within is not None:
            return f"within {self.within:g} of {self.of:g}"
        bounds = {">=": self.at_least, "<=": self.at_most, "=": self.equals}
        return next(f"{sign} {value:g}" for sign, value in bounds.items() if value is not None)

    def margin(self, value: float) -> float:
        """Return the distance of a value from the bound: positive if the value satisfies the bound, negative if it violates it.

        For the bound `equals`, the result is inf (equal up to rounding) or -inf.

        Args:
            value: A value of the measure.
        """
        if self.equals is not None:
            return math.inf if math.isclose(value, self.equals, rel_tol=EXACT) else -math.inf
        if self.within is not None:
            return self.within - abs(value - self.of)
        return value - self.at_least if self.at_least is not None else self.at_most - value  # type: ignore[operator]

    def verdict(self, mean: float, std: float, n: int) -> str:
        """Return the verdict on the claim: 'supported', 'not supported', 'undecided' or 'not measured', preceded by a prefix such
        as 'with changes: ' if the settings differ from the published ones.

        Args:
            mean: The mean of the measure over seeds. nan: the verdict is 'not measured'.
            std: The standard deviation of the measure over seeds.
            n: The number of seeds. With one seed, the claim is undecided.
        """
        if math.isnan(mean):
            return UNMEASURED
        margin, half = self.margin(mean), half_width(std, n, LEVEL) if n > 1 else math.inf
        if not math.isfinite(half) or -half <= margin < half:
            return f"{UNDECIDED} with {counted(n, 'seed')}"
        return HOLDS if margin >= half else FAILS


def judge(claim: Claim, seeds: Mapping[int, SeedRuns]) -> dict[str, Any]:
    """Return the row of claims.csv for a claim, without the date, the commit and the machine of the runs.

    The cell `note` says which seeds have no value and why, and which runs diverged. Diverged runs are included in the mean.

    Args:
        claim: The claim.
        seeds: Seed -> the runs of this seed.
    """
    values: dict[int, float] = {}
    notes = defaultdict[str, list[str]](list)  # note -> its seeds
    for seed, runs in seeds.items():
        for label in dict.fromkeys(call.label for call in claim.measure.calls):
            if label in runs.runs and runs.runs[label].status == "diverged":
                notes[f"{label} diverged"].append(str(seed))
        try:
            values[seed] = claim.measure.value(runs)
        except Unmeasurable as error:
            notes[str(error)].append(str(seed))
        if math.isnan(values.get(seed, 0)):
            notes["not a number"].append(str(seed))
    note = "; ".join(f"{text} (seed{'s' if len(its) > 1 else ''} {', '.join(its)})" for text, its in notes.items())
    mean, std = moments(list(values.values()))
    if math.isinf(mean):  # no deviation if all values are on one side of the bound
        std = 0.0 if len({claim.margin(value) >= 0 for value in values.values()}) == 1 else math.inf
    return row(claim, mean, std, len(values), note, " ".join(f"{seed}:{value:.6g}" for seed, value in values.items()))


def row(claim: Claim, mean: float, std: float, n: int, note: str, values: str) -> dict[str, Any]:
    """Return the row of claims.csv for a claim whose measure is known, without the date, the commit and the machine.

    Args:
        claim: The claim.
        mean: The mean of the measure over seeds.
        std: The standard deviation over seeds.
        n: The number of seeds.
        note: Remarks on seeds without a value and on diverged runs.
        values: The value of each seed, as 'seed:value seed:value'.
    """
    verdict = claim.verdict(mean, std, n)
    why = " ".join(filter(None, (claim.small or claim.changes, claim.why if verdict == FAILS else "")))
    if claim.small and verdict != UNMEASURED:
        verdict = SMALL + IN_SMALL.get(verdict, verdict)
    elif claim.changes and verdict != UNMEASURED:
        verdict = CHANGED + verdict
    stated = (claim.kind, claim.says, claim.measure.text, claim.bound, claim.paper)
    return dict(zip(COLUMNS, (*stated, mean, std, n, verdict, why, note, values), strict=False))


def totals(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a line that counts the paper's claims by their verdict.

    Args:
        rows: Rows of claims.csv: column -> value.
    """
    counts = Counter(re.sub(r" with \d.*", "", row["holds"]) for row in rows if row["kind"] == "paper")
    return f"The paper's claims: {', '.join(f'{counts[verdict]} {verdict}' for verdict in sorted(counts)) or 'none'}."


def sentence(row: Mapping[str, Any]) -> str:
    """Return a line about one claim, with its verdict, its measured value and its bound.

    Args:
        row: A row of claims.csv: column -> value.
    """
    if row["holds"] == UNMEASURED:
        return f"{UNMEASURED:<28} {row['says']}: {row['note'] or 'no run of it'}"
    value = f"{plus_minus(row['mean'], row['std'])} ({counted(row['seeds'], 'seed')})"
    text = f"{row['holds']:<28} {row['says']}: {value}, bound {row['bound']}"
    text += f", paper {row['paper']}" if row["paper"] else ""
    text += f" [{row['note']}]" if row["note"] else ""
    return text + (f". {row['why']}" if row["why"] else "")


def claims_shown(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows of claims.csv as a table for readers, one row per claim.

    The column kind is left out if all claims are the paper's, and the column reason if no claim has one.
    """
    cells = []
    for row in rows:
        measured = f"{plus_minus(row['mean'], row['std'])} ({row['seeds']})" if row["seeds"] else ""
        why = " ".join(filter(None, (row["why"], f"[{row['note']}]" if row["note"] else "")))
        cells.append({**row, "measured": measured, "why": why})
    columns = ["kind"] * any(row["kind"] != "paper" for row in rows)
    columns += ["says", "bound", "paper", "measured", "holds"] + ["why"] * any(cell["why"] for cell in cells)
    return pd.DataFrame(cells, columns=columns).rename(columns=HEADS)


def rows_of(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a CSV file that `fedopt reproduce` wrote; [] if the file does not exist.

    Args:
        path: The file.
        columns: The columns that the file must have.

    Raises:
        UserError: The file is broken.
    """
    if not path.exists():
        return []
    how: dict[str, Any] = {"keep_default_na": False, "na_values": {"mean": "", "std": ""}, "dtype": TYPES}
    table = read_table(path, columns, most=LARGEST, remedy=REMEDY, **how)[[*columns]]
    table = table.replace("^'(?=[=@+-])", "", regex=True)  # the quote of `csv_cell`
    return [{str(column): value for column, value in row.items()} for row in table.to_dict("records")]
