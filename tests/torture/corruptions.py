"""Files of a run that are damaged, swapped or gone: what cannot be verified is refused in one line and left alone."""

import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from forked import Command, Ended
from trials import ODD, Failure, finished, often, one_line, rows, setting, unreadable

from fedopt.results.folder import FILES

SHORT, LONG = 4, 8  # rounds
RUNS, TIMES = 8, 6  # that are damaged in turn, each several times in a row, since to make them takes longer
TEXTS = [text.encode("latin-1") for text in [*ODD["contents"], "[" * 5000, "9" * 5000]]


def flipped(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """Some bits are others."""
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 5, 50])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(rng: random.Random, content: bytes, other: bytes) -> bytes:
    return content[: rng.choice([0, rng.randrange(len(content)), len(content) - 1])]


def extended(rng: random.Random, content: bytes, other: bytes) -> bytes:
    return content + rng.choice([b"\n", b"\x00", content, b"9,9,9\n", b"{}"])


def line_changed(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """A line is gone, doubled or elsewhere."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    return b"\n".join(
        rng.choice(
            [lines[:at] + lines[at + 1 :], lines[:at] + lines[at:][:1] + lines[at:], rng.sample(lines, len(lines))]
        )
    )


def number_changed(rng: random.Random, content: bytes, other: bytes) -> bytes:
    at = [k for k, byte in enumerate(content) if byte in b"0123456789"]
    if not at:
        return content + b"1"
    k = rng.choice(at)
    return content[:k] + rng.choice([b"-1", b"nan", b"1e999", b"7", b"", b"9" * 30]) + content[k + 1 :]


def replaced(rng: random.Random, content: bytes, other: bytes) -> bytes:
    return rng.choice([*TEXTS, other, other])


DAMAGES: list[Callable[[random.Random, bytes, bytes], bytes]] = [
    flipped,
    cut,
    extended,
    line_changed,
    number_changed,
    replaced,
]


@cache
def runs(key: int) -> tuple[Path, list[str]]:
    """A folder with a `short` run, the `long` one that it becomes when it is gone on with, or `anew`, an `other`, and the words of
    their commands."""
    rng, folder = random.Random(key), Path(tempfile.mkdtemp())
    words = setting(rng, rng.choice(["fedmsa", "fedavg", "scaffold", "localbsgm", "zo_hfl", "fednest"]), SHORT)
    finished([*words, "output_dir=short"], folder)
    shutil.copytree(folder / "short", folder / "long")
    finished([*words, f"budget.rounds={LONG}", "output_dir=long", "resume=true"], folder)
    finished([*words, f"budget.rounds={LONG}", "output_dir=anew"], folder)
    finished([*words, "seed=1234", "output_dir=other"], folder)
    return folder, words


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


def damage(rng: random.Random, folder: Path, others: Path) -> str:
    name = rng.choice([file for file in FILES if (folder / file).is_file()])
    path = folder / name
    kind = rng.random()
    if kind < 0.08:
        path.unlink()
        return f"{name} is gone"
    if kind < 0.12:
        path.unlink()
        path.mkdir()
        return f"{name} is a folder"
    change, content = rng.choice(DAMAGES), path.read_bytes()
    other = (others / name).read_bytes() if (others / name).exists() else b""
    path.write_bytes(change(rng, content or b"0", other))
    return f"{name} is {change.__name__}"


def trial(rng: random.Random, number: int) -> Failure | None:
    """One or two files of a run are damaged, then it is gone on with, looked at, or asked for again."""
    folder, words = runs(number // TIMES % RUNS)
    with tempfile.TemporaryDirectory() as scratch:
        cwd = Path(scratch)
        out = cwd / "out"
        shutil.copytree(folder / "short", out)
        said = "; ".join(damage(rng, out, folder / rng.choice(["other", "long"])) for _ in range(rng.choice([1, 1, 2])))
        before = contents(cwd)
        program, more, rounds = rng.choice(
            [("fedopt", [*words, f"budget.rounds={LONG}", "output_dir=out", "resume=true"], LONG)] * 4
            + [
                ("fedopt", [*words, "output_dir=out", "resume=true"], SHORT),
                ("fedopt", [*words, "output_dir=out"], SHORT),
            ]
            + [("fedopt-compare", ["out", str(folder / "long"), "--out", "compared"], 0)]
        )
        ended = Command(more, cwd, program, often).wait(60)
        wrong = unreadable(ended) or _wrong(
            ended,
            program,
            out,
            [folder / name for name in (("long", "anew") if rounds == LONG else ("short",))],
            before,
        )
        said += f"\nexit {ended.code}\n{ended.out[-500:]}{ended.err[-1500:]}"
        return Failure(wrong, [program, *more], said) if wrong else None


def _wrong(ended: Ended, program: str, out: Path, wholes: list[Path], before: dict[str, bytes | None]) -> str | None:
    """Either it is refused in one line and all stays, or it ends as if nothing had happened."""
    if program == "fedopt-compare":
        return None if ended.code in (0, 2) else "other exit code"
    if ended.code == 2:
        if not one_line(ended):
            return "not one line"
        return None if contents(out.parent) == before else "half-written"
    if ended.code:
        return "other exit code"
    found = rows(out / "metrics.csv")
    return None if any(found == rows(whole / "metrics.csv") for whole in wholes) else "other metrics.csv"
