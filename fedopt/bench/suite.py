"""The benchmark: tasks whose rules were fixed before the results, and the entries that take part.

A task is a file conf/bench/<folder>/<name>.yaml. The entries, with the ranges in which they are searched, stand in
conf/bench/entries/<version>.yaml.
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

from fedopt.bench.space import Point, Range, read_range, roles, overrides_of
from fedopt.config import CONF, content, key_of, options, quoted
from fedopt.config.build import build
from fedopt.errors import UserError, unknown
from fedopt.metrics import COSTS, Cost

VERSION = "2.0"
NAME = re.compile(r"\w[\w -]{0,60}")  # of a task, a board or an entry, which files and folders have too


@dataclass(frozen=True)
class Currency:
    """What entries are compared by.

    Args:
        label: Its name.
        short: Its name in the head of a narrow table.
        cost: The cost whose limit in a task's budget is the whole of it.
        again: The columns of the cost that count once more.
    """

    label: str
    short: str
    cost: Cost
    again: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of ``metrics.csv`` whose sum it is."""
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
# Columns of the table of runs, and of metrics.csv
COUNTS = {"step": "round"} | {column.removesuffix("_examples"): column for column in COUNTED}
# Of a budget; a run ends when all are spent
LIMITS = tuple(dict.fromkeys(currency.cost.limit for currency in CURRENCIES.values()))
EVALUATIONS = 30  # of a run between a hundredth and all of each limit
# Of a task, before it is run
FIXED = ("version", "words", "metric", "targets", "relative", "budget", "smoothness", "twin")

POOLED = ["partitioner=centralized", "participation.cohort=null"]  # in place of a task's own


@dataclass(frozen=True)
class Claim:
    """A registered claim that entry `one` spends less than entry `other`.

    says: the rest of the sentence that begins with the name of `one`. by: the currencies it is tested in.
    """

    says: str
    one: str
    other: str
    by: list[str]


@dataclass(frozen=True)
class Entry:
    """A method as the benchmark runs it.

    Args:
        name: Its name in tables.
        algo: The algorithm.
        words: Overrides of all its runs.
        ranges: key -> the name of a role, or a range; `` / KEY`` behind it divides by that key's value.
        shift: Decades by which all ranges of steps are moved: a null control has another box than its original.
        reference: Whether it runs on the pooled data of all clients, and is judged by oracle calls alone.
    """

    name: str
    algo: str
    words: list[str] = field(default_factory=list)
    ranges: dict[str, str] = field(default_factory=dict)
    shift: float = 0.0
    reference: bool = False


@dataclass(frozen=True)
class Task:
    """A benchmark task: a problem with its targets and budgets, as read from conf/bench/<folder>/<name>.yaml.

    Args:
        board: The board on which the task counts. A method has one score per board.
        title: A short description.
        words: The overrides of every run.
        metric: The metric to which the targets refer.
        targets: Values of the metric to reach, from easy to hard.
        budget: A limit for each of `LIMITS`; a run ends when all are spent.
        smoothness: The largest curvatures Lx and Ly, which scale the ranges of steps.
        entries: Names of entries.
        name: The name of the file, without ending.
        version: Changes whenever a rule changes.
        facts: What the page says of the problem, such as its condition number.
        refuses: algorithm -> why it cannot take part.
        claims: The claims to test.
        twin: Overrides that make all clients equal, for the control runs; empty: no control.
        null: Pairs of entries that are one method, and must not be told apart.
        relative: Whether targets are fractions of the metric's first value.
        smoke: Whether the smallest form of the benchmark includes this task.
        points: The number of points of each entry's pool.
        data: The file that the data folder must have, as `scripts/data` makes it; empty if the data come with fedopt.
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
        from fedopt.data import data_folder  # which imports torch

        return data_folder(None) / self.data

    @property
    def setting(self) -> list[str]:
        """The overrides of every run, with the place of the data."""
        return self.words + ([f"dataset.path={quoted(str(self.file))}"] if self.data else [])

    def limit(self, currency: str) -> float:
        return self.budget[CURRENCIES[currency].cost.limit]

    def command(self, entry: Entry, point: Point, twin: bool = False) -> list[str]:
        """Return the overrides of a run, without seed and folder. twin: whether all clients are equal."""
        limits = [f"budget.{name}={limit:g}" for name, limit in self.budget.items()]
        own = self.setting
        if entry.reference:
            own = [word for word in own if not word.startswith(("partitioner", "participation"))] + POOLED
        words = [f"algo={entry.algo}", *own, *limits, "budget.until=last", f"eval.points={EVALUATIONS}"]
        words += [*entry.words, *overrides_of(point), *(self.twin if twin else ())]
        return [*{key_of(word): word for word in words}.values()]


def tasks(names: Sequence[str], folders: Sequence[str] = (), smoke: bool = False) -> list[Task]:
    """Return the tasks with the given names; without names, all tasks.

    folders: the user's config folders. smoke: without names, return only the tasks marked smoke.

    Raises:
        UserError: There is no task of this name, or a file is broken.
    """
    roots = [CONF, *map(Path, folders)]
    paths = [path for root in roots for path in sorted((root / "bench").rglob("*.yaml"))]
    files = {path.stem: path for path in paths if path.parent.name != "entries"}
    if strange := [name for name in names if name not in files]:
        raise UserError(unknown("task", strange[0], [*files]))
    chosen = [build(Task, {**content(files[name]), "name": name}, f"bench.{name}") for name in names or files]
    for task in chosen:
        if odd := [name for name in (task.name, task.board, *task.entries) if not NAME.fullmatch(name)]:
            raise UserError(
                f"bench.{task.name}: {odd[0]!r} cannot be a name; use letters, digits, blanks, _ and - only"
            )
        if {*task.budget} != {*LIMITS} or {*task.smoothness} != {"Lx", "Ly"} or min(task.budget.values()) <= 0:
            rules = f"its budget must have {', '.join(LIMITS)}, each above 0, and its smoothness Lx and Ly"
            raise UserError(f"bench.{task.name}: {rules}")
        for claim in task.claims:
            if not ({claim.one, claim.other} <= {*task.entries} and {*claim.by} <= {*CURRENCIES}):
                raise UserError(
                    f"bench.{task.name}: a claim must be about two of its entries, by one of {', '.join(CURRENCIES)}"
                )
    return [task for task in chosen if task.smoke or names or not smoke]


class Entries:
    """All entries, and the roles of their keys.

    The files are read at once, and an entry is built when it is asked for. Nothing is run here, and that the algorithm exists or
    fits a task is not checked: `Pools.fits` tells it.

    folders: the user's config folders. Files bench/entries/<name>.yaml there add entries.

    Raises:
        UserError: A file is broken, or a range names no role.
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
        """Add an algorithm as an entry, unless there is one of its name. Ranges follow its 'tuned as' comments.

        A step of y, v or u, by the last letter of its key, is searched around 1/Ly, any other around 1/Lx. Local steps divide it.

        Raises:
            UserError: There is no such algorithm, or none of its comments says what a key is tuned as.
        """
        if algo in self._nodes:
            return
        if algo not in (there := options("algo", self.folders)):
            raise UserError(unknown("algorithm", algo, [*self._nodes, *there]))
        by_key = roles(algo, self.folders)
        if not by_key:
            raise UserError(
                f"{algo}: no comment in its file says what a key is tuned as; write such as '# step; tuned as a step'"
            )
        local = next((f" / {key}" for key, role in by_key.items() if role == "number of local steps"), "")
        ranges = {key: "steps" if role == "number of local steps" else role for key, role in by_key.items()}
        ranges |= {key: ("y" if key[-1] in "yvu" else "x") + local for key, role in by_key.items() if role == "step"}
        self._nodes[algo] = {"ranges": ranges}

    def cube(self, task: Task, entry: Entry) -> np.ndarray:
        """Return the pool of points as fractions of the ranges, [points, keys].

        It is a Sobol sequence, scrambled anew for each task and entry.
        """
        rng = np.random.default_rng([crc32(name.encode()) for name in (task.name, entry.name)])
        sequence = qmc.Sobol(max(len(entry.ranges), 1), rng=rng)
        return sequence.random(2 ** int(np.ceil(np.log2(task.points))))[: task.points]

    def digest(self, task: Task, entry: Entry) -> str:
        """Return the hash of what may not change between runs that are compared: a task's rules, and how an entry is searched."""
        rules = {key: asdict(task)[key] for key in FIXED}
        return sha256(dumps([rules, asdict(entry), self.roles], sort_keys=True).encode()).hexdigest()[:12]

    def points(self, task: Task, entry: Entry) -> list[Point]:
        """Return the defaults, an empty point, and the pool of points."""
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
        """Return a range on this task, and the keys by whose values it is divided."""
        role, *by = text.split(" / ")
        written = self.roles.get(role, role)
        match = re.fullmatch(r"(.+?)(?: ([*/]) (Lx|Ly))?", written)
        pair = read_range(f"range={match[1] if match else written}")
        if pair is None or match is None or not {*by} <= {*entry.ranges}:
            raise UserError(
                f"bench.entries.{entry.name}: {text} is neither a role ({', '.join(self.roles)}) nor a range"
            )
        values = pair[1]
        if values.kind == "log" and (match[2] or role == "server"):
            scale = task.smoothness[match[3]] if match[3] else 1.0
            scale = (1 / scale if match[2] == "/" else scale) * 10**entry.shift
            values = Range("log", tuple(end * scale for end in values.ends))
        return values, by
