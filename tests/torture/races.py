"""Ten processes at once for one folder, some killed: one writes at a time, and metrics.csv is that of an undisturbed run."""

import random
import signal
import tempfile
import time
from pathlib import Path

from forked import Command
from trials import Failure, finished, often, one_line, rows, setting, unreadable

ROUNDS, PROCESSES = 30, 10


def trial(rng: random.Random, number: int) -> Failure | None:
    """Commands that begin within a second, with resume=true or as the same sweep, while some are killed."""
    words = setting(rng, rng.choice(["fedmsa", "fedavg", "scaffold", "fed_norm_sgda"]), ROUNDS)
    swept = rng.random() < 0.3
    arguments = ["-m", *words, "output_dir=out"] if swept else [*words, "output_dir=out", "resume=true"]
    with tempfile.TemporaryDirectory() as folder:
        whole, raced = Path(folder) / "whole", Path(folder) / "raced"
        for path in (whole, raced):
            path.mkdir()
        expected = finished(arguments, whole, diverged=True).code
        commands = []
        for _ in range(PROCESSES):
            commands.append(Command(arguments, raced, before=often))
            time.sleep(rng.choice([0, 0, rng.uniform(0, 0.3)]))
        for command in rng.sample(commands, PROCESSES // 3):
            time.sleep(rng.uniform(0, 0.5))
            command.kill(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        said = ""
        for command in commands:
            ended = command.wait(120)
            said += f"exit {ended.code}: {ended.err.strip()[-300:]}\n"
            if wrong := unreadable(ended):
                return Failure(wrong, arguments, said)
            if ended.code == 2 and not swept and not one_line(ended):
                return Failure("not one line", arguments, said)
        last = Command(arguments, raced, before=often).wait(120)
        said += f"then {last.code}: {last.out[-300:]}{last.err[-300:]}"
        if last.code != expected or [*map(rows, whole.rglob("metrics.csv"))] != [
            *map(rows, raced.rglob("metrics.csv"))
        ]:
            return Failure("second writer", arguments, said)
    return None
