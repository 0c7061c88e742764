"""The search space: ranges of keys, from the command or from comments in conf/algo such as 'tuned as a step size'."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any, Literal, get_args

import numpy as np

from fedopt.config import ROLE, Composed, Folders, chain, comments, file_of, flat
from fedopt.console import as_number
from fedopt.decimals import exact
from fedopt.errors import UserError

Kind = Literal["log", "uniform", "int", "choice"]
Point = dict[str, str]  # key -> value of a trial, as text of an override
EDGE = 0.1  # fraction of a range: better values may lie beyond an end that is closer than this to the best one
DECADES = 3.5  # width of the range of a step size, around its default
DIGITS = 4  # significant digits of a value
ROLES = {"momentum": "log(0.01,1)", "penalty": "log(1,1000)", "probability": "log(0.05,1)"}  # role -> range
KINDS = "log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH) and choice(A,B,C)"


@dataclass(frozen=True)
class Range:
    """The values that a search may give a key.

    Args:
        kind: log, uniform (real numbers) and int allow all values from ends[0] to ends[1]; choice allows the values in `ends`.
        ends: Two numbers; for a choice, all its values as text.
    """

    kind: Kind
    ends: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kind}({','.join(f'{end:g}' if isinstance(end, float) else str(end) for end in self.ends)})"

    def at(self, share: float) -> str:
        """Return the value at a fraction of the range, as text.

        A log range is divided on a logarithmic scale; for a choice, the fraction selects one of the values.

        Args:
            share: The fraction, 0 <= share < 1, from the lower end.
        """
        low, high = self.ends[0], self.ends[-1]
        if self.kind == "choice":
            return str(self.ends[int(share * len(self.ends))])
        if self.kind == "int":
            return str(low + int(share * (high - low + 1)))
        value = low * (high / low) ** share if self.kind == "log" else low + share * (high - low)
        return f"{float(f'{value:.{DIGITS}g}')!r}"

    def share(self, text: str) -> float:
        """Return the fraction of the range at which a value lies, the inverse of `at`.

        The fraction is outside [0, 1] if the value is beyond the ends. It is nan for text that is not a number, for a value
        that is not in the choice, and for a value of 0 or less in a log range.
        """
        low, high = self.ends[0], self.ends[-1]
        if self.kind == "choice":
            return self.ends.index(text) / max(len(self.ends) - 1, 1) if text in self.ends else math.nan
        value = as_number(text)
        if value is None or (self.kind == "log" and value <= 0):
            return math.nan
        return math.log(value / low) / math.log(high / low) if self.kind == "log" else (value - low) / (high - low)

    @property
    def size(self) -> float:
        """The number of values; inf for real numbers."""
        if self.kind == "choice":
            return len({*self.ends})
        return self.ends[1] - self.ends[0] + 1 if self.kind == "int" else math.inf

    def holds(self, text: str) -> bool:
        return 0 <= self.share(text) <= 1

    def at_edge(self, text: str) -> bool:
        """Return whether a best value is so close to an end of the range that better values may lie outside.

        A number is at an edge if it is outside the range, or closer to an end than a tenth of the range's width (on the log scale
        for log ranges). In a choice of three or more numbers, the smallest and the largest number are at an edge. A text
        is never at an edge.
        """
        if self.kind == "choice":
            numbers = {end: number for end in self.ends if (number := as_number(end)) is not None}
            return len(numbers) == self.size > 2 and numbers.get(text) in (min(numbers.values()), max(numbers.values()))
        share = self.share(text)
        return math.isfinite(share) and not EDGE <= share <= 1 - EDGE


def read_range(override: str) -> tuple[str, Range] | None:
    """Parse an override such as algo.eta=log(0.001,1) into its key and range. Return None if it sets a single value.

    Values separated by commas, such as algo.eta=0.1,0.2, are a choice.

    Raises:
        UserError: The ends of the range are not two increasing numbers, or a log range does not begin above 0.
    """
    key, _, text = override.partition("=")
    call = re.fullmatch(r"(\w+)\((.*)\)", text.strip())
    kind, parts = (call[1], _parts(call[2])) if call else ("choice", _parts(text))
    if kind == "choice":
        return (key, Range("choice", tuple(parts))) if call or len(parts) > 1 else None
    if kind not in get_args(Kind):
        raise UserError(f"{override}: there is no range {kind}; there are {KINDS}")
    try:
        low, high = map(int if kind == "int" else float, parts)
    except ValueError:
        raise UserError(f"{override}: {kind} needs two numbers, such as {kind}(1,10)") from None
    if not (low < high < math.inf and low > (0 if kind == "log" else -math.inf)):
        above = ", and above 0" if kind == "log" else ""
        raise UserError(f"{override}: both ends must be finite, and the first must be less than the second{above}")
    return key, Range(kind, (low, high))  # type: ignore[arg-type]


def _parts(text: str) -> list[str]:
    """Split a text at commas that are not inside quotes or brackets."""
    return [part.strip() for part in re.findall(r"(?:'[^']*'|\"[^\"]*\"|\[[^]]*\]|\{[^}]*\}|[^,])+", text)]


def overrides_of(point: Point) -> list[str]:
    """Return a point as overrides, key=value."""
    return [f"{key}={text}" for key, text in point.items()]


def default_ranges(composed: Composed) -> dict[str, Range]:
    """Return key -> range for the algorithm's keys whose comment says 'tuned as ROLE', around the values in the config.

    The initial value of a schedule is searched. Keys whose value is a list or null are left out.

    Args:
        composed: The config of the algorithm with its defaults.
    """
    values, ranges = flat(composed.nodes), dict[str, Range]()
    for key, role in roles(composed.chosen["algo"], composed.folders).items():
        name = key if key in values else f"{key}.initial"
        if not isinstance(value := values.get(name), list | None):
            ranges[name] = _by_role(key, role, value)
    return ranges


def roles(algo: str, folders: Folders = ()) -> dict[str, str]:
    """Return dotted key -> role from the 'tuned as' comments in an algorithm's files. The role of a step size is ``step``.

    Args:
        algo: The name of the algorithm.
        folders: The user's config folders.
    """
    by_key: dict[str, str] = {}
    for name in chain("algo", algo, folders):
        for key, comment in comments(file_of("algo", name, folders)).items():
            if match := ROLE.search(comment):
                by_key[key if key.startswith("algo.") else f"algo.{key}"] = match[1]
    return by_key


def _by_role(key: str, role: str, value: Any) -> Range:
    """Return the range for a role. A role may itself be a range, such as log(0.001,1).

    Args:
        key: The dotted key.
        role: The role, from the key's comment.
        value: The default value of the key.

    Raises:
        UserError: The role is unknown, or a step size has no positive default.
    """
    if pair := read_range(f"{key}={ROLES.get(role, role)}"):
        return pair[1]
    if role == "step":
        if not (isinstance(value, int | float) and value > 0):
            raise UserError(f"{key}={value}: step sizes are searched around a positive default; set one, or a range")
        ratio = 10 ** (DECADES / 2)
        return Range("log", (float(f"{value / ratio:.2g}"), float(f"{value * ratio:.2g}")))
    if role == "number of local steps":
        _, _, unit = str(value).partition(" ")
        return Range("choice", tuple(f"'{n} {unit}'" if unit else str(n) for n in ((1, 5) if unit else (1, 5, 20))))
    known = f"step size, {', '.join(ROLES)}, number of local steps, or a range such as 'tuned in log(0.001,1)'"
    raise UserError(f"{key}: its comment in the algorithm's file says 'tuned as a {role}'; write {known}")


# Points


def cube(sampler: str, ranges: Mapping[str, Range], count: int, seed: int) -> Iterator[Point]:
    """Yield points that do not depend on the results of trials: a scrambled Sobol sequence, a grid, or random points.

    Algorithms with the same number of ranges get points at the same fractions of their ranges, in the order of their keys.

    Args:
        sampler: sobol, grid or random.
        ranges: key -> range.
        count: The number of points; a grid may have fewer.
        seed: The seed of the points; a grid does not use it.

    Raises:
        UserError: The smallest grid has more than ``count`` points.
    """
    if sampler == "grid":
        yield from grid(ranges, count)
        return
    if sampler == "sobol":
        from scipy.stats import qmc  # slow to import

        sequence = qmc.Sobol(len(ranges), rng=np.random.default_rng(seed))
        shares = sequence.random(2 ** math.ceil(math.log2(count)))[:count]  # powers of two are balanced
    else:
        shares = np.random.default_rng(seed).random((count, len(ranges)))
    for row in shares:
        yield {key: values.at(float(share)) for (key, values), share in zip(ranges.items(), row, strict=True)}


def distinct(points: Iterable[Point], tried: Sequence[Point], count: int) -> list[Point]:
    """Return the first ``count`` points that differ from each other and from the tried ones, then repeated points if needed."""
    new, repeated = list[Point](), list[Point]()
    for point in takewhile(lambda _: len(new) < count, points):
        (repeated if point in tried or point in new else new).append(point)
    return (new + repeated)[:count]


def grid(ranges: Mapping[str, Range], count: int) -> Iterator[Point]:
    """Yield the points of a grid, at most ``count``: all values of each choice, and equally many of each numeric range.

    Args:
        ranges: key -> range.
        count: The largest number of points.

    Raises:
        UserError: The smallest grid has more than ``count`` points.
    """
    choices = math.prod(len(values.ends) for values in ranges.values() if values.kind == "choice")
    numbers = sum(values.kind != "choice" for values in ranges.values())
    if count < (least := choices * 2**numbers):
        few = f"--trials {count}: a grid over {', '.join(ranges)} has at least {least} points"
        raise UserError(f"{few}; use --trials {least} or more, or fewer ranges")
    levels = int(exact((count / choices) ** (1 / numbers))) if numbers else 1
    sides = []
    for values in ranges.values():
        shares = np.linspace(0, 1 - 1e-12, len(values.ends) if values.kind == "choice" else levels)
        sides.append(dict.fromkeys(values.at(float(share)) for share in shares))
    for point in product(*sides):
        yield dict(zip(ranges, point, strict=True))
