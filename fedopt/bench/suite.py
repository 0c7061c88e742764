"""The benchmark's tasks, its methods and the claims about them. All of them are registered before they are run.

A task is a file conf/bench/<folder>/<name>.yaml. Methods, search ranges and claims are in conf/bench/entries/<version>.yaml.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from hashlib import sha256
from json import dumps
from math import ceil, log2
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
from scipy.stats import qmc

from fedopt.bench.space import ROLES, Point, overrides_of, read_range, roles
from fedopt.config import CONF, content, last_of_each, options, quoted
from fedopt.config.build import build
from fedopt.errors import UserError, unknown
from fedopt.metrics import COSTS

VERSION = "2.1"
NAME = re.compile(r"\w[\w +-]{0,60}")  # of a task, a board or an entry; also used in file names
SEEDS, REPORTS = 2, 3  # seeds of each sampled configuration, and of each configuration that is reported
EVALUATIONS, LONGEST = 24, 2  # evaluations of a run, and its length as a multiple of the budget of communication rounds
BITS = 9  # of the fraction of a stored value: 0.1 %
PROTOCOL = (VERSION, SEEDS, REPORTS, EVALUATIONS, BITS, LONGEST)  # registered with the tasks, entries and claims


@dataclass(frozen=True)
class Currency:
    """A cost by which entries are compared.

    Args:
        label: The name.
        short: The name in the header of a narrow table.
        limit: The key of a task's budget that is 100 % of the cost.
        again: Columns of the cost that count twice.
    """

    label: str
    short: str
    limit: str
    again: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of ``metrics.csv`` whose sum is the cost."""
        return COSTS[self.limit].columns + self.again


CURRENCIES = {
    "comm_rounds": Currency("communication rounds", "rounds", "comm_rounds"),
    "bytes": Currency("bytes", "bytes", "bytes"),
    "client_visits": Currency("client visits", "visits", "client_visits"),
    "calls": Currency("calls, a product as one gradient", "calls", "example_calls"),
    "calls_2": Currency(
        "calls, a product as two gradients", "calls, products twice", "example_calls", ("hvp_examples", "jvp_examples")
    ),
}
COUNTED = [column for currency in CURRENCIES.values() for column in currency.columns]
# column of the table of runs -> column of metrics.csv
COUNTS = {"step": "round"} | {column.removesuffix("_examples"): column for column in COUNTED}
# The keys of a budget
LIMITS = tuple(dict.fromkeys(currency.limit for currency in CURRENCIES.values()))


@dataclass(frozen=True)
class Claim:
    """A registered claim that entry `one` spends less than entry `other`.

    Args:
        key: A short name, such as a letter.
        says: The sentence, without the name of `one` at its start.
        one: The cheaper entry.
        other: The other entry.
        by: The currencies in which the claim is tested.
        on: Patterns of the names of its tasks, such as ``m1_*``. Both entries must be among the entries of the task.
        expects: ``before`` if the claim is that `one` is cheaper, ``not before`` if it is that `one` is not cheaper.
        withdrawn: Whether version 2.0 has published the claim and withdrawn it.
    """

    key: str
    says: str
    one: str
    other: str
    by: list[str]
    on: list[str] = field(default_factory=lambda: ["*"])
    expects: Literal["before", "not before"] = "before"
    withdrawn: bool = False

    def covers(self, task: str) -> bool:
        """Return whether one of the patterns matches the name of a task."""
        return any(fnmatch(task, pattern) for pattern in self.on)


@dataclass(frozen=True)
class Entry:
    """A configuration of an algorithm that takes part in the benchmark.

    Args:
        name: The name in tables.
        algo: The algorithm.
        words: Overrides of all runs.
        ranges: key -> the name of a role, or a range. It may be followed by `` * KEY`` or `` / KEY``, once or several times: the
            value is multiplied or divided by the value of that key, which may also be a number.
        place: Where the paper has these keys.
        form: ``paper``: the tuned keys are the paper's. ``general``: it has more keys, or other ones. ``control``: it
            is run only to measure what another key changes, and has no rank.
    """

    name: str
    algo: str
    words: list[str] = field(default_factory=list)
    ranges: dict[str, str] = field(default_factory=dict)
    place: str = ""
    form: Literal["paper", "general", "control"] = "paper"


@dataclass(frozen=True)
class Task:
    """A benchmark task: a problem with targets and budgets, read from conf/bench/<folder>/<name>.yaml.

    Args:
        board: The board to which the task belongs. Each entry has one score per board.
        title: A short description.
        words: The overrides of every run.
        metric: The metric to which the targets refer.
        targets: Values of the metric to reach, from easy to hard.
        budget: The cost that counts as 100 %, for each of `LIMITS`.
        smoothness: The largest curvatures Lx and Ly in x and in y, which scale the ranges of step sizes. L is the
            largest curvature in both together; without it, the larger of the two.
        entries: Names of entries.
        name: The name of the file, without its extension.
        facts: What the page says about the problem, such as its condition number.
        refuses: algorithm -> why it cannot take part.
        null: Entries that are searched a second time, with other points of the same ranges, as a null control.
        twins: Pairs of entries that are the same method on this task, as a null control.
        relative: Whether targets are fractions of the metric's first value.
        smoke: Whether the smoke test of the benchmark includes this task.
        points: The number of sampled configurations of each entry.
        data: The file, made by `scripts/data`, that the data folder must contain. Empty: the data come with fedopt.
    """

    board: str
    title: str
    words: list[str]
    metric: str
    targets: list[float]
    budget: dict[str, float]
    smoothness: dict[str, float]
    entries: list[str]
    name: str
    facts: dict[str, str] = field(default_factory=dict)
    refuses: dict[str, str] = field(default_factory=dict)
    null: list[str] = field(default_factory=list)
    twins: list[list[str]] = field(default_factory=list)
    relative: bool = False
    smoke: bool = False
    points: int = 512
    data: str = ""

    @property
    def file(self) -> Path:
        """The file of the task's data, in the data folder."""
        from fedopt.data import data_folder  # imports torch

        return data_folder(None) / self.data

    def limit(self, currency: str) -> float:
        return self.budget[CURRENCIES[currency].limit]

    def command(self, entry: Entry, point: Point) -> list[str]:
        """Return the overrides of a run, without its seed. Its evaluations are evenly spaced in log(communication rounds)."""
        data = [f"dataset.path={quoted(str(self.file))}"] if self.data else []
        rounds = f"budget.comm_rounds={LONGEST * self.budget['comm_rounds']:g}"
        words = [f"algo={entry.algo}", *self.words, *data, rounds, "budget.until=last", f"eval.points={EVALUATIONS}"]
        words += ["hardware.threads=1", *entry.words, *overrides_of(point)]
        return last_of_each(words)


def tasks(names: Sequence[str], folders: Sequence[str] = (), smoke: bool = False) -> list[Task]:
    """Return the tasks with these names, or all tasks if there are no names.

    Args:
        names: Names of tasks.
        folders: The user's config folders.
        smoke: Whether to return only tasks of the smoke test, if there are no names.

    Raises:
        UserError: There is no task with such a name, or a file is broken.
    """
    roots = [CONF, *map(Path, folders)]
    paths = [path for root in roots for path in sorted((root / "bench").rglob("*.yaml"))]
    files = {path.stem: path for path in paths if path.parent.name != "entries"}
    if strange := [name for name in names if name not in files]:
        raise UserError(unknown("task", strange[0], [*files]))
    chosen = [build(Task, {**content(files[name]), "name": name}, f"bench.{name}") for name in names or files]
    for task in chosen:
        if odd := [name for name in (task.name, task.board, *task.entries) if not NAME.fullmatch(name)]:
            raise UserError(f"bench.{task.name}: {odd[0]!r} cannot be a name; use letters, digits, blanks, _ and -")
        sizes = {"Lx", "Ly"} <= {*task.smoothness} <= {"Lx", "Ly", "L"}
        if {*task.budget} != {*LIMITS} or not sizes or min(task.budget.values()) <= 0:
            rules = f"budget must have exactly the keys {', '.join(LIMITS)}, each above 0"
            raise UserError(f"bench.{task.name}: {rules}; smoothness must have the keys Lx and Ly, and may have L")
    return [task for task in chosen if task.smoke or names or not smoke]


class Entries:
    """The benchmark's entries (methods with tuned keys) by name, the search ranges by role, and the registered claims.

    An entry is built when it is first used. Whether its algorithm exists and fits a task is checked by `Pools.fits`, not here.

    Args:
        folders: The user's config folders. Files bench/entries/<name>.yaml in them add roles, entries and claims.

    Attributes:
        roles: role -> search range.
        claims: The claims about pairs of entries.
        questions: key -> a registered question that is not about a pair.

    Raises:
        UserError: A file is broken.
    """

    def __init__(self, folders: Sequence[str] = ()):
        self.folders, self.roles, self._nodes = folders, {**ROLES}, dict[str, dict[str, Any]]()
        self.claims, self.questions = list[Claim](), dict[str, str]()
        own = (path for root in folders for path in sorted((Path(root) / "bench" / "entries").glob("*.yaml")))
        for path in (CONF / "bench" / "entries" / f"{VERSION}.yaml", *own):
            read = content(path)
            self.roles |= read.get("roles", {})
            self._nodes |= read.get("entries", {})
            self.claims += [build(Claim, node, f"{path}: claims") for node in read.get("claims", [])]
            self.questions |= read.get("questions", {})
        for claim in self.claims:
            if not {claim.one, claim.other} <= {*self._nodes} or not {*claim.by} <= {*CURRENCIES}:
                known = ", ".join(CURRENCIES)
                raise UserError(f"bench.claims.{claim.key}: 'one' and 'other' must be entries, 'by' a list of {known}")

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> Entry:
        if name not in self._nodes:
            raise UserError(unknown("entry", name, [*self._nodes]))
        node = dict(self._nodes[name])
        like = asdict(self[node.pop("like")]) if "like" in node else {"algo": name}
        return build(Entry, {**like, **node, "name": name}, f"bench.entries.{name}")

    def claims_on(self, task: Task) -> list[Claim]:
        """Return the claims that are tested on a task."""
        here = [claim for claim in self.claims if {claim.one, claim.other} <= {*task.entries}]
        return [claim for claim in here if claim.covers(task.name)]

    def enter(self, algo: str) -> None:
        """Add an algorithm as an entry, unless an entry has its name. Its 'tuned as' comments set the ranges.

        A step size whose key ends in y, v or u is searched around 1/Ly, other step sizes around 1/Lx, each divided by the number
        of local steps.

        Raises:
            UserError: There is no such algorithm, or none of its comments says what a key is tuned as.
        """
        if algo in self._nodes:
            return
        if algo not in (available := options("algo", self.folders)):
            raise UserError(unknown("algorithm", algo, [*self._nodes, *available]))
        if not (by_key := roles(algo, self.folders)):
            why = "no comment in its file says what a key is tuned as"
            raise UserError(f"{algo}: {why}; write one, such as '# step size; tuned as a step size'")
        steps = {key: "steps" for key, role in by_key.items() if role == "number of local steps"}
        local = "".join(f" / {key}" for key in [*steps][:1])
        ranges = steps | {key: role for key, role in by_key.items() if key not in steps}  # other ranges refer to them
        ranges |= {key: ("y" if key[-1] in "yvu" else "x") + local for key, role in by_key.items() if role == "step"}
        self._nodes[algo] = {"ranges": ranges}

    def digest(self, task: Task, entry: Entry) -> str:
        """Return a hash of everything that is registered about an entry on a task, and that compared runs must share."""
        claims = [asdict(claim) for claim in self.claims_on(task)]
        written = [self.roles.get(text.split(" ")[0]) for text in entry.ranges.values()]
        of_task = asdict(task) | {"title": "", "facts": {}}  # texts, which may change
        rules = [of_task, asdict(entry), written, claims, self.questions, *PROTOCOL]
        return sha256(dumps(rules, sort_keys=True).encode()).hexdigest()[:12]

    def points(self, task: Task, entry: Entry, scramble: int = 0) -> list[Point]:
        """Return the configurations of an entry on a task: the defaults, the theory point, and the sampled ones.

        The defaults are an empty point. The theory point is the middle of all ranges: step sizes 1/(K L), server steps of 1,
        momentum 0.1, 5 local steps, and a Neumann series of length 5 and scale 1. The sampled configurations are a Sobol
        sequence.

        Args:
            task: The task.
            entry: The entry.
            scramble: The index of the scrambling of the sequence. Each task, entry and index has a different one.
        """
        rng = np.random.default_rng([*(crc32(name.encode()) for name in (task.name, entry.name)), scramble])
        sequence = qmc.Sobol(max(len(entry.ranges), 1), rng=rng)
        cube = [np.full(sequence.d, 0.5), *sequence.random(2 ** ceil(log2(task.points)))[: task.points]]
        return [{}, *(self._point(task, entry, row) for row in cube)]

    def _point(self, task: Task, entry: Entry, row: np.ndarray) -> Point:
        """Return the configuration at fractions of the ranges of an entry's keys, [keys]."""
        point, numbers = Point(), dict[str, Any](L=max(task.smoothness.values())) | task.smoothness
        for (key, text), share in zip(entry.ranges.items(), row, strict=False):
            role, *factors = text.replace(", ", ",").split(" ")
            written, *scale = self.roles.get(role, role).split(" ")
            try:
                values = read_range(f"range={written}")[1]  # type: ignore[index]
                point[key] = values.at(float(share))
                terms = [*scale, *factors]
                for sign, name in zip(terms[::2], terms[1::2], strict=True):
                    number = float(point[key]) * float(numbers.get(name, name)) ** {"*": 1, "/": -1}[sign]
                    point[key] = f"{number:.4g}"
                numbers[key] = point[key]
            except (TypeError, LookupError, ValueError):
                known = f"{', '.join(self.roles)}, or a range such as log(0.1,1)"
                known += "; ' * X' or ' / X' may follow (X: a number, an earlier key, L, Lx or Ly)"
                raise UserError(f"bench.entries.{entry.name}: {key}: {text!r} must be {known}") from None
        return point
