"""Processes killed at random moments, then gone on with: metrics.csv is that of an undisturbed run."""

import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import fuzz
from forked import Command
from support.command import start_ranks, torchrun
from trials import Diverged, Failure, finished, often, rows, setting, unreadable

from fedopt.results.folder import RunFolder
from fedopt.testing import harness

ROUNDS = 12


def single(rng: random.Random, algo: str) -> tuple[str, list[str], str]:
    """Program, arguments, and where the rows are."""
    return "fedopt", [*setting(rng, algo, ROUNDS), "output_dir=out", "resume=true"], "out/metrics.csv"


def sweep(rng: random.Random, algo: str) -> tuple[str, list[str], str]:
    words = [word for word in setting(rng, algo, ROUNDS) if not word.startswith("seed=")]
    return (
        "fedopt",
        ["-m", *words, f"seed={rng.randrange(9)},{rng.randrange(10, 19)}", "output_dir=out"],
        "out/*/metrics.csv",
    )


def reproduce(rng: random.Random, algo: str) -> tuple[str, list[str], str]:
    return (
        "fedopt-reproduce",
        ["own/tiny", "--config-dir", "conf", "--output", "out", "--jobs", "2"],
        "out/runs/*/metrics.csv",
    )


def trial(rng: random.Random, number: int) -> Failure | None:
    """Every algorithm in turn; now and then in a sweep, in fedopt reproduce, or on two ranks."""
    algos = harness.names("algo")
    algo = algos[number % len(algos)]
    if number % 20 == 7:
        return ranks(rng, algo)
    kind = reproduce if number % 10 == 9 else sweep if number % 10 == 4 else single
    program, arguments, where = kind(rng, algo)
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        for path in (whole, broken):
            fuzz.write(path / "conf", fuzz.EXPERIMENT)
        undisturbed = finished(arguments, whole, program, diverged=True)
        seconds = undisturbed.seconds
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
        if program == "fedopt-reproduce":
            time.sleep(1)  # its runs notice within half a second that it was killed
        last = Command(arguments, broken, program, often).wait(300)
        said += f"then {last.code}\n{last.out[-500:]}{last.err[-1000:]}"
        wrong = unreadable(last) or _other(last.code != undisturbed.code, whole, broken, where)
        return Failure(wrong, [program, *arguments], said) if wrong else None


def _other(failed: bool, whole: Path, broken: Path, where: str) -> str | None:
    of_whole, of_broken = ({path.relative_to(at): rows(path) for path in at.glob(where)} for at in (whole, broken))
    return "other metrics.csv" if failed or of_whole != of_broken else None


def ranks(rng: random.Random, algo: str) -> Failure | None:
    """A run on two ranks: torchrun, or one rank of it, is killed."""
    arguments = ["-m", "fedopt", *setting(rng, algo, ROUNDS), "output_dir=out", "resume=true"]
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        for path in (whole, broken):
            path.mkdir()
        began = time.monotonic()
        try:
            torchrun(*arguments, cwd=whole)
        except AssertionError:  # torchrun has one exit code for all that is not 0
            if RunFolder(whole / "out").status() != "diverged":
                raise
            raise Diverged from None
        seconds = time.monotonic() - began
        process = start_ranks(*arguments, cwd=broken)
        time.sleep(rng.uniform(0, seconds))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        with suppress(ProcessLookupError):
            os.kill(int(rng.choice([str(process.pid), *children])), signal.SIGKILL)
        try:
            _, err = process.communicate(timeout=30)  # until no rank is left
        except subprocess.TimeoutExpired:
            return Failure("hangs", arguments, "a rank is left behind")
        said = [line for line in err.splitlines() if line.startswith("fedopt: ") and "one begins" not in line]
        if "in execute" in err or "is a bug" in err or len(said) > 1:
            return Failure("not one line", arguments, err[-3000:])
        try:
            torchrun(*arguments, cwd=broken)
        except AssertionError as error:
            return Failure("other exit code", arguments, str(error)[-3000:])
        wrong = _other(False, whole, broken, "out/metrics.csv")
        return Failure(wrong, arguments, err[-3000:]) if wrong else None
