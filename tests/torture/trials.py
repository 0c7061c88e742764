"""What trials share: their outcome, and what they hold against each other."""

import random
import re
from pathlib import Path
from typing import NamedTuple

import yaml
from forked import Command, Ended

from fedopt.testing import harness

ODD = yaml.safe_load(Path(__file__).with_name("odd.yaml").read_text())
LONGEST = 1000  # characters of a line for people


class Failure(NamedTuple):
    """kind: a column of the table; command: what was tried; said: what came out."""

    kind: str
    command: list[str]
    said: str


def setting(rng: random.Random, algo: str, rounds: int) -> list[str]:
    """A small run of an algorithm, on a random problem of those that it solves."""
    problem = rng.choice([p for a, p in harness.pairs() if a == algo])
    chosen = [
        f"algo={algo}",
        f"problem={problem}",
        *harness.contract_overrides(algo, problem),
        *harness.LESS.get(algo, []),
    ]
    federation = ["partitioner.clients=4", f"participation.cohort={rng.choice([2, 'null'])}", "hardware.threads=1"]
    rhythm = [f"budget.rounds={rounds}", f"eval.every={rng.choice([1, 2, 5])}", f"seed={rng.randrange(1000)}"]
    return [*chosen, *federation, *rhythm]


def often() -> None:
    """In a fork: checkpoints as often as possible."""
    from fedopt.running import sinks

    sinks.CHECKPOINT_SECONDS, sinks.CHECKPOINT_SHARE = 0, 0


def rows(path: Path) -> list[list[str]]:
    """metrics.csv without the times, which no two runs share."""
    lines = [line.split(",") for line in path.read_text().split("\n")]
    time = lines[0].index("train_seconds")
    return [line[:time] + line[time + 1 :] for line in lines]


class Diverged(Exception):
    """A run whose random settings let it diverge."""


def finished(arguments: list[str], cwd: Path, program: str = "fedopt", diverged: bool = False) -> Ended:
    """A command that nothing disturbs. diverged: whether its run may diverge, too.

    Raises Diverged, or RuntimeError where it ends in another way."""
    ended = Command(arguments, cwd, program, often).wait(300)
    if ended.code == 3 and not diverged:
        raise Diverged
    if ended.code not in (0, 3):
        raise RuntimeError(f"{program} {' '.join(arguments)}: {ended}")
    return ended


def unreadable(ended: Ended) -> str | None:
    """What people should never be shown."""
    said = ended.out + ended.err
    if ended.hung:
        return "hangs"
    marks = {"traceback": "Traceback (most", "'this is a bug'": "is a bug", "warning": "Warning"}
    return next((kind for kind, mark in marks.items() if mark in said), None)


RUN = re.compile(r" *\d+%  |[\w/]+ on [\w/]+; |[\d,]+ clients?\b|in |note: ")


def one_line(ended: Ended) -> bool:
    """Whether a mistake or a fault is answered by one line, besides the head of the run, its rows and notes."""
    lines = [line for line in ended.err.strip("\n").split("\n") if not RUN.match(line)]
    return len(lines) == 1 and lines[0].startswith("fedopt: ") and len(lines[0]) <= LONGEST
