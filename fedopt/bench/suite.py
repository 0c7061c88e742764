"""The benchmark's tasks, whose rules were fixed before any result was known, and its entries.

A task is a file conf/bench/<folder>/<name>.yaml. The entries and their search spaces are in conf/bench/entries/<version>.yaml.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from json import dumps
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from scipy.stats import qmc

from fedopt.bench.space import Point, Range, overrides_of, read_range, roles
from fedopt.config import CONF, content, key_of, options, quoted
from fedopt.config.build import build
from fedopt.errors import UserError, unknown
from fedopt.metrics import COSTS, Cost

VERSION = "2.0"
NAME = re.compile(r"\w[\w -]{0,60}")  # of a task, a board or an entry; also used in file names


@dataclass(frozen=True)
class Currency:
    """A cost by which entries are compared.

    Args:
        label: The name.
        short: The name in the header of a narrow table.
        cost: The cost. Its limit in a task's budget is 100 %.
        again: Columns of the cost that count twice.
    """

    label: str
    short: str
    cost: Cost
    again: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of ``metrics.csv`` whose sum is the cost."""
        return self.cost.columns + self.again


CURRENCIES = {
    "comm_rounds": Currency("communication rounds", "rounds", COSTS["comm_rounds"]),
    "bytes": Currency("bytes", "bytes", COSTS["bytes"]),
    "client_visits": Currency("client visits", "visits", COSTS["client_visits"]),
    "calls": Currency("calls, a product as one gradient", "calls", COSTS["example_calls"]),
    "calls_2": Currency(
        "calls, a product as two gradients",
        "calls, products twice",
        COSTS["example_calls"],
        again=("hvp_examples", "jvp_examples"),
    ),
}
COUNTED = [column for currency in CURRENCIES.values() for column in currency.columns]
# column of the table of runs -> column of metrics.csv
COUNTS = {"step": "round"} | {column.removesuffix("_examples"): column for column in COUNTED}
# The keys of a budget; a run ends when all limits are reached
LIMITS = tuple(dict.fromkeys(currency.cost.limit for currency in CURRENCIES.values()))
EVALUATIONS = 30  # per run, between 1 % and 100 % of each limit
# The rules of a task, which do not change after it was run
FIXED = ("version", "words", "metric", "targets", "relative", "budget", "smoothness", "twin")

POOLED = ["partitioner=centralized", "participation.cohort=null"]  # replace the overrides of a task


@dataclass(frozen=True)
class Claim:
    """A registered claim that entry `one` spends less than entry `other`.

    Args:
        says: The sentence, without the name of `one` at its start.
        one: The cheaper entry.
        other: The other entry.
        by: The currencies in which the claim is tested.
    """

    says: str
    one: str
    other: str
    by: list[str]


@dataclass(frozen=True)
class Entry:
    """A configuration of an algorithm that takes part in the benchmark.

    Args:
        name: The name in tables.
        algo: The algorithm.
        words: Overrides of all runs.
        ranges: key -> the name of a role, or a range. `` / KEY`` at the end divides the value by that key's value.
        shift: Decades by which all ranges of step sizes are shifted, for a null control.
        reference: Whether it runs on the pooled data of all clients. References are compared by oracle calls only.
    """

    name: str
    algo: str
    words: list[str] = field(default_factory=list)
    ranges: dict[str, str] = field(default_factory=dict)
    shift: float = 0.0
    reference: bool = False


@dataclass(frozen=True)
class Task:
    """A benchmark task: a problem with targets and budgets, read from conf/bench/<folder>/<name>.yaml.

    Args:
        board: The board to which the task belongs. Each entry has one score per board.
        title: A short description.
        words: The overrides of every run.
        metric: The metric to which the targets refer.
        targets: Values of the metric to reach, from easy to hard.
        budget: A limit for each of `LIMITS`; a run ends when all limits are reached.
        smoothness: The largest curvatures Lx and Ly, which scale the ranges of step sizes.
        entries: Names of entries.
        name: The name of the file, without its extension.
        version: Changes whenever a rule changes.
        facts: What the page says about the problem, such as its condition number.
        refuses: algorithm -> why it cannot take part.
        claims: The claims to test.
        twin: Overrides that make all clients equal, for control runs. Empty: there is no control.
        null: Pairs of entries that are the same method, as a null control.
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
    version: str = VERSION
    facts: dict[str, str] = field(default_factory=dict)
    refuses: dict[str, str] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    twin: list[str] = field(default_factory=list)
    null: list[list[str]] = field(default_factory=list)
    relative: bool = False
    smoke: bool = False
    points: int = 60
    data: str = ""

    @property
    def file(self) -> Path:
        """The file of the task's data, in the data folder."""
        from fedopt.data import data_folder  # imports torch

        return data_folder(None) / self.data

    @property
    def setting(self) -> list[str]:
        """The overrides of every run, including the path of the data."""
        return self.words + ([f"dataset.path={quoted(str(self.file))}"] if self.data else [])

    def limit(self, currency: str) -> float:
        return self.budget[CURRENCIES[currency].cost.limit]

    def command(self, entry: Entry, point: Point, twin: bool = False) -> list[str]:
        """Return the overrides of a run, without seed and folder. twin: whether it is a control run with equal clients."""
        limits = [f"budget.{name}={limit:g}" for name, limit in self.budget.items()]
        own = self.setting
        if entry.reference:
            own = [word for word in own if not word.startswith(("partitioner", "participation"))] + POOLED
        words = [f"algo={entry.algo}", *own, *limits, "budget.until=last", f"eval.points={EVALUATIONS}"]
        words += [*entry.words, *overrides_of(point), *(self.twin if twin else ())]
        return [*{key_of(word): word for word in words}.values()]


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
        if {*task.budget} != {*LIMITS} or {*task.smoothness} != {"Lx", "Ly"} or min(task.budget.values()) <= 0:
            rules = f"its budget must have {', '.join(LIMITS)}, each above 0, and its smoothness Lx and Ly"
            raise UserError(f"bench.{task.name}: {rules}")
        for claim in task.claims:
            if not ({claim.one, claim.other} <= {*task.entries} and {*claim.by} <= {*CURRENCIES}):
                known = ", ".join(CURRENCIES)
                raise UserError(f"bench.{task.name}: a claim needs two entries of the task, and by one of {known}")
    return [task for task in chosen if task.smoke or names or not smoke]


class Entries:
    """All entries of the benchmark, by name, and the search ranges of the roles that their keys have.

    An entry is built when it is first used. Whether its algorithm exists and fits a task is checked by `Pools.fits`, not here.

    Args:
        folders: The user's config folders. Files bench/entries/<name>.yaml in them add entries.

    Raises:
        UserError: A file is broken.
    """

    def __init__(self, folders: Sequence[str] = ()):
        self.folders, self.roles, self._nodes = folders, dict[str, str](), dict[str, dict[str, Any]]()
        own = (path for root in folders for path in sorted((Path(root) / "bench" / "entries").glob("*.yaml")))
        for path in (CONF / "bench" / "entries" / f"{VERSION}.yaml", *own):
            read = content(path)
            self.roles |= read.get("roles", {})
            self._nodes |= read.get("entries", {})

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> Entry:
        if name not in self._nodes:
            raise UserError(unknown("entry", name, [*self._nodes]))
        node = dict(self._nodes[name])
        like = asdict(self[node.pop("like")]) if "like" in node else {"algo": name}
        return build(Entry, {**like, **node, "name": name}, f"bench.entries.{name}")

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
        local = next((f" / {key}" for key, role in by_key.items() if role == "number of local steps"), "")
        ranges = {key: "steps" if role == "number of local steps" else role for key, role in by_key.items()}
        ranges |= {key: ("y" if key[-1] in "yvu" else "x") + local for key, role in by_key.items() if role == "step"}
        self._nodes[algo] = {"ranges": ranges}

    def cube(self, task: Task, entry: Entry) -> np.ndarray:
        """Return the sampled configurations as fractions of the ranges, [points, keys].

        They are a Sobol sequence with another scrambling for each task and entry.
        """
        rng = np.random.default_rng([crc32(name.encode()) for name in (task.name, entry.name)])
        sequence = qmc.Sobol(max(len(entry.ranges), 1), rng=rng)
        return sequence.random(2 ** int(np.ceil(np.log2(task.points))))[: task.points]

    def digest(self, task: Task, entry: Entry) -> str:
        """Return a hash of what must be equal for all compared runs: a task's rules, and how an entry is searched."""
        rules = {key: asdict(task)[key] for key in FIXED}
        return sha256(dumps([rules, asdict(entry), self.roles], sort_keys=True).encode()).hexdigest()[:12]

    def points(self, task: Task, entry: Entry) -> list[Point]:
        """Return the defaults (an empty point) and the sampled configurations."""
        ranges = {key: self._range(text, task, entry) for key, text in entry.ranges.items()}
        pool: list[Point] = [{}]
        for row in self.cube(task, entry):
            point = {
                key: values.at(float(share)) for (key, (values, _)), share in zip(ranges.items(), row, strict=False)
            }
            size = {key: float(text.strip("'").split()[0]) for key, text in point.items()}
            for key, (_, by) in ranges.items():
                if by:
                    point[key] = f"{size[key] / prod(size[other] for other in by):.4g}"
            pool.append(point)
        return pool

    def _range(self, text: str, task: Task, entry: Entry) -> tuple[Range, list[str]]:
        """Return the range of a key on this task, and the keys by whose values it is divided."""
        role, *by = text.split(" / ")
        written = self.roles.get(role, role)
        match = re.fullmatch(r"(.+?)(?: ([*/]) (Lx|Ly))?", written)
        pair = read_range(f"range={match[1] if match else written}")
        if pair is None or match is None or not {*by} <= {*entry.ranges}:
            known = f"a role ({', '.join(self.roles)})"
            raise UserError(f"bench.entries.{entry.name}: {text} is neither {known} nor a range")
        values = pair[1]
        if values.kind == "log" and (match[2] or role == "server"):
            scale = task.smoothness[match[3]] if match[3] else 1.0
            scale = (1 / scale if match[2] == "/" else scale) * 10**entry.shift
            values = Range("log", tuple(end * scale for end in values.ends))
        return values, by
