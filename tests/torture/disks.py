"""Disks that are full at every write of a run in turn: one line, nothing by half, and the run goes on when there is room."""

import atexit
import errno
import io
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from forked import Command
from trials import Failure, finished, often, one_line, rows, setting, unreadable

ROUNDS = 5
WRITES = 60  # of such a run, or less


class Disk:
    """In a fork: the `first`-th write to a file under `folder` finds no room, and so do all that follow, or the next `times` ones.

    A write that fails has written half of what it should. Files are written by os.write and by what open() gives; making, locking,
    renaming and syncing files count as writes.
    """

    def __init__(self, folder: Path, first: int, times: int | None):
        self.folder, self.first, self.last, self.count = str(folder), first, first + times if times else None, 0
        self.open, self.write = io.open, os.write

    def full(self) -> bool:
        """Whether this write finds no room."""
        self.count += 1
        return self.count > self.first and (self.last is None or self.count <= self.last)

    def refuse(self, path: Any = None) -> None:
        if self.full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path and str(path))

    def guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function of a path, or of a descriptor, that may find no room."""

        def guard(path: Any, *more: Any, **options: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(path)
            writes = call is not os.open or more[0] & (os.O_WRONLY | os.O_RDWR)
            if place.startswith(self.folder) and writes:
                self.refuse(path)
            return call(path, *more, **options)

        return guard

    def install(self) -> None:
        often()
        for name in ("open", "mkdir", "fsync", "ftruncate", "replace"):
            setattr(os, name, self.guarded(getattr(os, name)))
        os.write = self._write  # type: ignore[assignment]
        io.open = self._open  # type: ignore[assignment]

    def _write(self, descriptor: int, content: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(self.folder) and self.full():
            self.write(descriptor, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(descriptor, content)

    def _open(self, path: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        ours = not isinstance(path, int) and os.path.abspath(path).startswith(self.folder) and set(mode) & set("wax+")
        if ours:
            self.refuse(path)
        file = self.open(path, mode, *more, **options)
        return Guarded(file, self) if ours else file


class Guarded:
    """An open file whose writes may find no room."""

    def __init__(self, file: Any, disk: Disk):
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "Guarded":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        if self._disk.full():
            self._file.write(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(content)


@cache
def undisturbed(key: int) -> tuple[list[str], Path]:
    """The words of a run, and its rows where there is room."""
    rng, folder = random.Random(key), Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    words = setting(rng, rng.choice(["fedmsa", "fedavg", "scaffold", "fednest"]), ROUNDS)
    finished([*words, "output_dir=out"], folder)
    return words, folder / "out" / "metrics.csv"


def trial(rng: random.Random, number: int) -> Failure | None:
    """The writes of some runs in turn."""
    words, csv = undisturbed(number // WRITES)
    arguments, times = [*words, "output_dir=out"], rng.choice([None, 1])
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder), number % WRITES, times)
        ended = Command(arguments, Path(folder), before=disk.install).wait(60)
        last = Command([*arguments, "resume=true"], Path(folder), before=often).wait(60)
        said = f"write {number % WRITES} and {times or 'all'} from it on: exit {ended.code}\n{ended.out[-500:]}{ended.err[-1500:]}"
        said += f"\nthen {last.code}: {last.out[-500:]}{last.err[-500:]}"
        wrong = unreadable(ended) or unreadable(last)
        if not wrong and ended.code not in (0, 2):
            wrong = "other exit code"
        if not wrong and ended.code == 2 and not one_line(ended):
            wrong = "not one line"
        if not wrong and (last.code or rows(csv) != rows(Path(folder) / "out" / "metrics.csv")):
            wrong = "other metrics.csv"
        return Failure(wrong, ["fedopt", *arguments], said) if wrong else None
