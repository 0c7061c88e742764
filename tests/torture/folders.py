"""Folders of runs, sweeps, queues, results and comparisons in which something is a link, a pipe, a device, broken, odd or gone.

One such file costs what is in it and a line: nothing hangs, nothing outside is shown or written to, and what else is there stays.
"""

import atexit
import json
import os
import random
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from pathlib import Path

import fuzz
from corruptions import DAMAGES, TEXTS
from forked import Command, Ended
from sent import SECRET, outside
from trials import Failure, finished, often, one_line, unreadable

MARKS = (SECRET.encode(), b64encode(SECRET.encode()))  # of a file outside, as it is and in a page
CLASSIFY = [
    *("algo=fedavg", "problem=classification", "problem.model=linear", "dataset=digits", "partitioner=dirichlet"),
    *("partitioner.clients=3", "participation.cohort=null", "budget.rounds=2", "eval.every=1", "hardware.threads=1"),
]
SWEEP = ["-m", *CLASSIFY, "seed=0,1", "output_dir=sweep"]
RESUME = ["resume=true", "budget.rounds=3"]
# The folders that are damaged, with the commands that read or write there
PLACES: dict[str, list[tuple[str, list[str]]]] = {
    "sweep": [
        ("fedopt", ["ls", "sweep", "algo=fed*"]),
        ("fedopt-compare", ["sweep", "--table", "csv,latex,markdown", "--out", "compared"]),
        ("fedopt-report", ["sweep", "--out", "made.html"]),
        ("fedopt", SWEEP),
        ("fedopt", [*CLASSIFY, "seed=0", *RESUME, "output_dir=RUN"]),
        ("fedopt", [*RESUME, "output_dir=RUN"]),
    ],
    "done": [
        ("fedopt-report", ["done", "--out", "made.html"]),
        ("fedopt-reproduce", ["own/tiny", "--config-dir", "conf", "--output", "done", "--jobs", "1"]),
        ("fedopt-reproduce", ["own/tiny", "--config-dir", "conf", "--output", "done", "--list"]),
    ],
    "queue": [("fedopt", ["ls", "sweep"])],
    "compared": [("fedopt-compare", ["sweep", "--table", "csv,latex,markdown", "--out", "compared"])],
    "made": [("fedopt-report", ["sweep", "--out", "made/page.html"])],
    "conf": [("fedopt-reproduce", ["own/tiny", "--config-dir", "conf", "--output", "done", "--list"])],
}


@cache
def prepared() -> Path:
    """A folder with one of each."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("done", "conf"):
        shutil.copytree(fuzz.prepared() / name, folder / name)
    finished(SWEEP, folder)
    for place in ("compared", "made"):
        (program, words) = PLACES[place][0]
        (folder / place).mkdir()
        finished(words, folder, program)
    batch = folder / "queue" / "0123456789abcdef"
    batch.mkdir(parents=True, mode=0o700)
    batch.parent.chmod(0o700)
    return folder


def queue(cwd: Path) -> None:
    """A submission of submitit's, of the sweep's runs, one of which has not ended."""
    batch = cwd / "queue" / "0123456789abcdef"
    runs = [str(path) for path in sorted((cwd / "sweep").iterdir()) if path.is_dir()]
    (batch / "runs.json").write_text(json.dumps({"runs": runs}))
    for number in range(len(runs)):
        (batch / f"1_{number}_submitted.pkl").write_bytes(b"\x80\x04N.")
    (Path(runs[0]) / "summary.json").write_text('{"status": "interrupted"}')


def replaced(rng: random.Random, path: Path, away: Path) -> str:
    """Put something else in the place of a file or a folder. away: a folder outside."""
    was = away / path.name
    if path.is_dir():
        how = rng.choice(["link to what was moved", "link to an empty folder", "file", "gone"])
        path.rename(was)
        if how == "link to what was moved":
            path.symlink_to(was)
        elif how == "link to an empty folder":
            (away / "empty").mkdir(exist_ok=True)
            path.symlink_to(away / "empty")
        elif how == "file":
            path.write_bytes(rng.choice(TEXTS))
        return how
    content = path.read_bytes()
    path.rename(was)
    how = rng.choice(
        ["secret", "moved", "pipe", "device", "nowhere", "folder", "damaged", "damaged", "odd", "empty", "gone"]
    )
    if how == "secret":
        path.symlink_to(away / "secret")
    elif how == "moved":
        path.symlink_to(was)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "nowhere":
        path.symlink_to(away / "nowhere")
    elif how == "folder":
        path.mkdir()
    elif how == "damaged":
        change = rng.choice(DAMAGES)
        path.write_bytes(change(rng, content or b"0", content))
        how = change.__name__
    elif how != "gone":
        path.write_bytes(rng.choice(TEXTS) if how == "odd" else b"")
    return how


def trial(rng: random.Random, number: int) -> Failure | None:
    """The places in turn; one or two things in them are replaced."""
    place = [*PLACES][number % len(PLACES)]
    with tempfile.TemporaryDirectory() as scratch:
        cwd, away = Path(scratch) / "cwd", Path(scratch) / "away"
        shutil.copytree(prepared(), cwd)
        away.mkdir()
        (away / "secret").write_text(f"{SECRET}: 1\n")
        if place == "queue":
            queue(cwd)
        said = ""
        program, words = rng.choice(PLACES[place])
        for _ in range(rng.choice([1, 1, 2])):
            paths = sorted(
                path for path in (cwd / place).rglob("*") if not path.is_symlink() and (path.is_dir() or path.is_file())
            )
            if "output_dir=RUN" in words:  # a user names this folder, which may be a link then
                paths = [path for path in paths if path.is_file()]
            path = rng.choice([*paths, cwd / place])
            if path != cwd / place and not (away / path.name).exists():
                said += f"{path.relative_to(cwd)}: {replaced(rng, path, away)}\n"
        run = min(path.name for path in (prepared() / "sweep").iterdir() if path.is_dir())
        words = [word.replace("RUN", f"sweep/{run}") for word in words]
        before = outside(Path(scratch), cwd)
        ended = Command(words, cwd, program, prepare(cwd)).wait(60)
        said += f"exit {ended.code}\n{ended.out[-500:]}{ended.err[-1500:]}"
        wrong = unreadable(ended) or _wrong(ended, place, words)
        if outside(Path(scratch), cwd) != before:
            wrong = "outside"
        if told(cwd) or SECRET in said:
            wrong = "secret told"
        return Failure(wrong, [program, *words], said) if wrong else None


def prepare(cwd: Path) -> Callable[[], None]:
    """For the fork of a command."""

    def before() -> None:
        os.environ["FEDOPT_QUEUE"] = str(cwd / "queue")
        often()

    return before


def told(cwd: Path) -> bool:
    """Whether a file here has what a file outside says."""
    files = (path for path in cwd.rglob("*") if path.is_file() and not path.is_symlink())
    return any(mark in path.read_bytes() for path in files for mark in MARKS)


def _wrong(ended: Ended, place: str, words: list[str]) -> str | None:
    if ended.code not in (0, 1, 2, 3):
        return "other exit code"
    if ended.code == 2 and not one_line(ended):
        return "not one line"
    reads_many = place in ("sweep", "done", "queue") and words[0] in ("ls", "sweep", "done")
    return "other exit code" if reads_many and ended.code else None
