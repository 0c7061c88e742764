"""Searches whose files are damaged, whose runs are killed or whose disk is full: same trials, or one line."""

import atexit
import random
import shutil
import signal
import tempfile
import time
from functools import cache
from pathlib import Path

from corruptions import DAMAGES
from disks import Disk
from forked import Command, Ended
from trials import Failure, one_line, unreadable

COMMAND = [
    "algo=fedavg",
    "problem=quadratic_minimisation",
    "partitioner.clients=2",
    "hardware.threads=1",
    "algo.eta=log(0.01,0.3)",
    "algo.tau=1,5",
]
COMMAND += ["--budget", "rounds=3", "--seeds", "2", "--trials", "20", "--out", "out"]  # two batches
WRITES = 300  # at most, in such a search
JOBS = 12  # the defaults, two batches of two groups, and the best trial, each with two seeds


@cache
def undisturbed() -> tuple[Path, float]:
    """The folder of a search that has ended, and how many seconds it took."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ended = Command(COMMAND, folder, "fedopt-tune").wait(120)
    if ended.code:
        raise RuntimeError(str(ended))
    return folder / "out", ended.seconds


def damaged(rng: random.Random, out: Path) -> str:
    """A file of the search, or of one of its runs."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix != ".png"]
    path = rng.choice(files)
    change = rng.choice(DAMAGES)
    path.write_bytes(change(rng, path.read_bytes() or b"0", rng.choice(files).read_bytes()))
    return f"{path.relative_to(out)} is {change.__name__}"


def killed(rng: random.Random, cwd: Path, seconds: float) -> str:
    """The search was killed at several random moments."""
    moments = [rng.uniform(0, seconds) for _ in range(rng.choice([1, 1, 2, 3]))]
    for moment in moments:
        command = Command(COMMAND, cwd, "fedopt-tune")
        time.sleep(moment)
        command.kill(signal.SIGKILL)
        command.wait(60)
    return f"killed after {', '.join(f'{moment:.2f}' for moment in moments)} of {seconds:.2f} s"


class Killed:
    """In a fork: the process of a job of the search is killed before its first word, as by the kernel."""

    def __init__(self, number: int):
        self.number = number

    def install(self) -> None:
        from fedopt.bench import tune
        from fedopt.jobs.job import Outcome

        do, left = tune.run_all, self.number

        def run_all(jobs, launcher, bar):  # type: ignore[no-untyped-def]
            nonlocal left
            at, left = left, left - len(jobs)
            lost = {job: Outcome("failed", "its process ended with code -9") for job in jobs[at : at + 1] if at >= 0}
            return do([job for job in jobs if job not in lost], launcher, bar) | lost

        tune.run_all = run_all  # type: ignore[assignment]


def trial(rng: random.Random, number: int) -> Failure | None:
    """Damage, a kill or a full disk; then the same command, which ends with the same trials, or names what is damaged."""
    whole, seconds = undisturbed()
    with tempfile.TemporaryDirectory() as scratch:
        cwd, out, said, first = Path(scratch), Path(scratch) / "out", "", None
        kind = number % 8
        if kind < 4:
            shutil.copytree(whole, out)
            (out / "trials.csv").unlink()
            said = damaged(rng, out)
        elif kind < 6:
            said = killed(rng, cwd, seconds)
        else:
            at = rng.randrange(JOBS if kind == 6 else WRITES)
            before = Killed(at).install if kind == 6 else Disk(cwd, at, rng.choice([None, 1])).install
            first = Command(COMMAND, cwd, "fedopt-tune", before=before).wait(60)
            said = f"{'job' if kind == 6 else 'write'} {at}: exit {first.code}\n{first.err[-800:]}"
        last = Command(COMMAND, cwd, "fedopt-tune").wait(60)
        said += f"\nthen exit {last.code}: {last.err[-800:]}"
        wrong = _wrong(first, last, whole, out, may_refuse=kind < 4)
        return Failure(wrong, ["fedopt-tune", *COMMAND], said) if wrong else None


def _wrong(first: Ended | None, last: Ended, whole: Path, out: Path, may_refuse: bool) -> str | None:
    for ended in filter(None, (first, last)):
        if wrong := unreadable(ended):
            return wrong
        if ended.code not in (0, 1, 2):
            return "other exit code"
        lines = ended.err.strip().split("\n")  # of a full disk, one for each run
        if ended.code and not (
            one_line(ended) if ended is last else all(line.startswith("fedopt: ") for line in lines)
        ):
            return "not one line"
    if last.code and may_refuse:
        return None
    same = not last.code and (out / "trials.csv").read_bytes() == (whole / "trials.csv").read_bytes()
    return None if same else "other metrics.csv"
