"""Processes killed at random moments, then gone on with: metrics.csv is that of an undisturbed run."""

import itertools
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import fuzz
import harness
from forked import Command
from torture import Failure, finished, often, rows, setting, unreadable

ROUNDS = 12


def single(rng: random.Random, algo: str) -> tuple[str, list[str], str]:
    """Program, arguments, and where the rows are."""
    return "fedopt", [*setting(rng, algo, ROUNDS), "output_dir=out", "resume=true"], "out/metrics.csv"


def sweep(rng: random.Random, algo: str) -> tuple[str, list[str], str]:
    words = [word for word in setting(rng, algo, ROUNDS) if not word.startswith("seed=")]
    return "fedopt", ["-m", *words, f"seed={rng.randrange(9)},{rng.randrange(10, 19)}", "output_dir=out"], "out/*/metrics.csv"


def reproduce(rng: random.Random, algo: str) -> tuple[str, list[str], str]:
    return "fedopt-reproduce", ["own/tiny", "--config-dir", "conf", "--output", "out", "--jobs", "2"], "out/runs/*/metrics.csv"


def trials(rng: random.Random) -> Iterator[Failure | None]:
    """Without end: every algorithm in turn, now and then in a sweep or in fedopt-reproduce."""
    for number, algo in enumerate(itertools.cycle(harness.names("algo"))):
        kind = reproduce if number % 10 == 9 else sweep if number % 10 == 4 else single
        yield trial(rng, *kind(rng, algo))


def trial(rng: random.Random, program: str, arguments: list[str], where: str) -> Failure | None:
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        for path in (whole, broken):
            fuzz.write(path / "conf", fuzz.EXPERIMENT)
        seconds = finished(arguments, whole, program).seconds
        said = ""
        for _ in range(rng.choice([1, 1, 2, 4])):
            how = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            command = Command(arguments, broken, program, often)
            time.sleep(rng.uniform(0, seconds))
            command.kill(how)
            ended = command.wait(60)
            said += f"{how.name} after {ended.seconds:.2f} of {seconds:.2f} s: {ended.code}\n{ended.err[-500:]}\n"
            if wrong := unreadable(ended):
                return Failure(wrong, [program, *arguments], said)
        last = Command(arguments, broken, program, often).wait(300)
        said += f"then {last.code}\n{last.out[-500:]}{last.err[-1000:]}"
        if wrong := unreadable(last):
            return Failure(wrong, [program, *arguments], said)
        found = {path.relative_to(whole): rows(path) for path in whole.glob(where)}
        if last.code or found != {path.relative_to(broken): rows(path) for path in broken.glob(where)}:
            return Failure("other metrics.csv", [program, *arguments], said)
    return None
