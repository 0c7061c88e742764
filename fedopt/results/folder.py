"""A run is a folder that explains itself.

config.yaml       the resolved config             run.json         command, overrides, versions, machine, commit
metrics.csv       one row an evaluation           summary.json     status, final and best values
checkpoint.safetensors, memory.0 or memory.1      log.txt
partition.png, metrics.png                        traceback.txt    of a failed run
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from omegaconf import DictConfig

from fedopt.config import GROUPS, Asked, composed_of, config_text, continued, parsed
from fedopt.errors import UserError, first_line
from fedopt.metrics import Metric

FILES: tuple[str, ...] = (
    "config.yaml",
    "run.json",
    "metrics.csv",
    "summary.json",
    "checkpoint.safetensors",
    "log.txt",
    ".lock",
)
FILES += ("partition.png", "metrics.png", "traceback.txt", "memory.0", "memory.1")
LEFT_OVER = {"summary.json", "run.json", "traceback.txt", "log.txt"}  # by a run that failed before it began
ENDED = ("finished", "diverged")  # the statuses of runs that nothing is left to do for
OVER = (*ENDED, "stopped")  # with those that on_eval has stopped, which are as long as they were meant to be


LONGEST, ODD = 120, "[^A-Za-z0-9=._,+-]"  # of a name: characters, and those that are none of a name's
PLACED = ("output_dir", "resume")  # the keys that say where a run goes or how it starts, and do not name its folder


def key_of(override: str) -> str:
    """The key, or the config group, of an override."""
    return override.lstrip("+~").partition("=")[0]


def slug(overrides: Iterable[str]) -> str:
    """A folder name for a run, from its overrides, whose order does not matter.

    Of words that are too long together the first ones that fit stand there whole, of a long path its last part. A hash tells apart
    names from which something was left out."""
    kept = _naming(overrides)
    text = ",".join(kept) or "default"
    if not re.search(ODD, text) and len(text) <= LONGEST:
        return text
    shown: list[str] = []
    for word in kept:
        key, equals, value = word.partition("=")
        last = value.rstrip("/").rpartition("/")[2] if len(value) > 24 else value
        part = re.sub(f"(_*({ODD}|,)+_*)+", "_", f"{key}{equals}{last}").replace("=_", "=").rstrip("_")
        part = part if len(part) <= LONGEST - 9 else key
        if len(",".join([*shown, part])) <= LONGEST - 9:
            shown.append(part)
    return "-".join(filter(None, [",".join(shown), _hash(text)]))


def slug_before(overrides: Iterable[str]) -> str:
    """What earlier versions made of them, whose runs are gone on with."""
    text = ",".join(_naming(overrides)) or "default"
    shown = re.sub(ODD, "_", text)
    return text if shown == text and len(text) <= LONGEST else f"{shown[: LONGEST - 9]}-{_hash(text)}"


def _naming(overrides: Iterable[str]) -> list[str]:
    return sorted((word for word in overrides if key_of(word) not in PLACED), key=key_of)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


def name_in_sweep(
    algo: str, problem: str, overrides: Iterable[str], seed: Any = None, slug: Callable[[list[str]], str] = slug
) -> str:
    """A folder name for a sweep, from what all of its runs share, or with a seed for one of them: fedmsa_mco,seed=1,algo.K=5."""
    first = f"{algo}_{problem}" if seed is None else f"{algo}_{problem},seed={seed}"
    others = [word for word in overrides if key_of(word) not in ("algo", "problem", "seed", *PLACED)]
    return f"{re.sub(r'[^A-Za-z0-9=._,-]', '_', first)},{slug(others)}" if others else first


def named(parent: Path, name: Callable[[Callable[[list[str]], str]], str]) -> Path:
    """The folder in `parent` whose name is made with `slug`, or with `slug_before` where only that one is there."""
    path, before = (parent / name(of) for of in (slug, slug_before))
    return before if before.exists() and not path.exists() else path


def write_atomically(path: Path, content: bytes) -> None:
    """Write to the side and rename: the file is the old one or the new one, never half of it, and links are replaced, not followed.
    Raises OSError."""
    aside = path.with_name(path.name + ".part")
    try:
        aside.unlink(missing_ok=True)
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(file: int, content: bytes) -> None:
    """To a descriptor, which may take only a part at a time. Raises OSError."""
    while content:
        content = content[os.write(file, content) :]


def numbers_of(part: Any) -> dict[str, float]:
    """The numbers of a part of summary.json, such as final, by the names of the metrics; what is none is left out."""
    found = part if isinstance(part, dict) else {}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def described(folder: Path) -> list[Metric]:
    """What the metrics of the run in a folder say of themselves; empty where its run.json says nothing that can be read."""
    with suppress(TypeError, ValueError, UserError):
        return [Metric(**said) for said in read_json(folder / "run.json").get("metrics", ())]
    return []


def read_json(path: Path) -> dict[str, Any]:
    """Empty where the file is not there or broken."""
    try:
        content = json.loads(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def refuse_links(paths: Iterable[Path]) -> None:
    """Raises UserError where writing to one of these paths would write elsewhere too: it is a link, or no plain file."""
    for file in paths:
        if file.is_symlink() or (file.exists() and not (file.is_file() and file.stat().st_nlink == 1)):
            raise UserError(f"{file}: is a link or no plain file, and is not written to; choose another output_dir")


class RunFolder:
    """The files of one run, locked while it is open."""

    def __init__(self, path: Path):
        self.path = path
        self.metrics = path / "metrics.csv"
        self.checkpoint = path / "checkpoint.safetensors"
        self._lock = FileLock(path / ".lock", timeout=0)  # stays there: a lock that is removed lets two writers in

    def open(self) -> None:
        """Create the folder and lock it. Raises UserError when another process holds it, or a file in it is not a file of this
        folder alone, so that nothing outside of it is ever written; OSError when it cannot be made."""
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path / name for name in FILES)
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(f"{self.path}: another run is writing here; choose another output_dir or wait") from None

    def close(self) -> None:
        self._lock.release(force=True)

    @property
    def held(self) -> bool:
        """Whether this process holds the lock."""
        return self._lock.is_locked

    @property
    def alive(self) -> bool:
        """Whether a process, this one too, holds the lock. For that it is shared for a moment, in which no other can take it."""
        try:
            lock = os.open(self.path / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def config(self) -> dict[str, Any]:
        """config.yaml. Raises UserError where it cannot be read."""
        path = self.path / "config.yaml"
        try:
            config = yaml.safe_load(config_text(path))
        except (OSError, ValueError, RecursionError, yaml.YAMLError, UserError) as error:
            raise UserError(f"{path}: cannot be read ({first_line(error)}); choose another output_dir") from None
        if not isinstance(config, dict):
            raise UserError(f"{path}: holds no config; choose another output_dir")
        return config

    @property
    def used(self) -> bool:
        """Whether a run has begun here, or somebody else's files would be written over."""
        there = {name for name in FILES if os.path.lexists(self.path / name)} - {".lock"}
        before_it_began = self.summary().get("status") == "failed"
        return bool(there - LEFT_OVER if before_it_began else there)

    def vacate(self) -> None:
        """Leave the folder to the next run: of one that has failed before it computed anything stays what says how."""
        for name in {*FILES} - LEFT_OVER - {".lock"}:
            (self.path / name).unlink(missing_ok=True)

    def status(self) -> str | None:
        """The status of the run in this folder, None where there is none."""
        return self.summary().get("status") if self.used else None

    def seen(self) -> str | None:
        """The status to show: a run that says running and whose process is gone, as after kill -9, is interrupted."""
        status = self.status()
        return "interrupted" if status == "running" and not self.alive else status

    def summary(self) -> dict[str, Any]:
        """summary.json, empty where it is not there or broken."""
        return read_json(self.path / "summary.json")

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        finite = json.loads(json.dumps(content), parse_constant=lambda _: None)  # JSON has no nan and no infinity
        self.write_text(name, json.dumps(finite, indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        write_atomically(self.path / name, content.encode(errors="backslashreplace"))

    def log(self, line: str) -> None:
        with (self.path / "log.txt").open("a") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")


def configured(words: Sequence[str], folders: Iterable[str | Path] = ()) -> tuple[DictConfig, dict[str, str]]:
    """The config of a command and the options that it is made of, as `composed_of` gives them; of one that only goes on with a run,
    that run's. Raises UserError, also where there is none, and hydra's and omegaconf's errors."""
    return _going_on(words) or composed_of(words, folders)


def _going_on(words: Iterable[str]) -> tuple[DictConfig, dict[str, str]] | None:
    """What `resume=true output_dir=DIR` without further choices goes on with: the config of the run that is in DIR, with the other
    words' values, and the choices that it was made of. None where the words do not say so, or no run is there."""
    said = {override.key_or_group: override for override in parsed(words)}
    if not {"output_dir", "resume"} <= set(said) or said["resume"].value() is not True:
        return None
    folder = RunFolder(Path(str(said["output_dir"].value())))
    there = os.path.lexists(folder.path / "config.yaml")
    known = read_json(folder.path / "run.json").get("chosen") if there else None
    chosen = {**known} if isinstance(known, dict) else {}
    for group in ("algo", "problem"):
        if group not in said or said[group].is_sweep_override():  # which composing refuses
            continue
        if (begun := chosen.get(group, wanted := said[group].value())) != wanted:
            raise UserError(
                f"{folder.path}: the run in it was begun with {group}={begun}, not {wanted}; another output_dir begins a new one"
            )
    if there:
        return None if set(said) & set(GROUPS) else (continued(folder.config(), said), chosen)
    if not set(said) & {"algo", "problem", "experiment"}:
        raise UserError(f"{folder.path}: there is no run in it to go on with; algo= and problem= begin one")
    return None


def place(config: dict[str, Any], asked: Asked) -> Path:
    """output_dir, else a folder named by the overrides; a further run with the same overrides gets the next number."""
    if config["output_dir"]:
        return Path(config["output_dir"])
    others = [word for word in asked.overrides if word.split("=")[0] not in ("algo", "problem")]
    base = named(Path("outputs") / f"{asked.chosen['algo']}_{asked.chosen['problem']}", lambda of: of(others))
    path, last = base, None
    for n in count(2):
        if not RunFolder(path).used:
            break
        path, last = base.with_name(f"{base.name}.{n}"), path
    return last if config["resume"] and last else path


class MetricsFile:
    """metrics.csv: append-only; each row is on disk, whole, before the run goes on."""

    def __init__(self, path: Path, keep: int | None = None):
        """keep: bytes of an earlier part to go on from, None to begin anew."""
        self.path = path
        self.columns: list[str] = []
        self._hash, self.written = hashlib.sha256(), 0
        self._file = path.open("r+b" if keep else "xb", buffering=0)
        if keep:
            self._file.truncate(keep)
            self._hash.update(rows := self._file.read())
            self.written = len(rows)
            self.columns = rows.decode().split("\n", 1)[0].split(",")

    def append(self, row: Mapping[str, Any]) -> None:
        """Raises OSError, leaving the file as it was, when the row cannot be written whole, and UserError for other columns."""
        if not self.columns:
            self.columns = list(row)
            self._write(",".join(self.columns))
        if self.columns != list(row):
            raise UserError(f"{self.path}: has the columns {', '.join(self.columns)}, and this run {', '.join(row)}")
        values = [row[column] for column in self.columns]
        self._write(",".join(f"{value:.10g}" if isinstance(value, float) else str(value) for value in values))

    def _write(self, line: str) -> None:
        """Unbuffered, so that a killed process loses nothing, and undone when the disk takes only a part."""
        before, content = self.written, (line + "\n").encode()
        try:
            write_whole(self._file.fileno(), content)
        except OSError as error:
            os.ftruncate(self._file.fileno(), before)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._hash.update(content)
        self.written += len(content)

    def sync(self) -> None:
        """Wait until all rows are on the disk. Raises OSError, and UserError where another program replaced or changed the file."""
        os.fsync(self._file.fileno())
        ours, there = os.fstat(self._file.fileno()), self.path.stat() if self.path.exists() else None
        same = there is not None and os.path.samestat(ours, there) and there.st_size == self.written
        if not same or rows_hash(self.path, self.written) != self.hash:
            raise UserError(f"{self.path}: another program replaced or changed it while the run was writing")

    @property
    def hash(self) -> str:
        """Of all rows so far, as `rows_hash` gives it."""
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()


def whole_rows(path: Path) -> str:
    """The text of metrics.csv without a row that is being written, which has no line end yet. Raises OSError and ValueError."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1]


def rows_hash(path: Path, size: int) -> str:
    """The hash of the first bytes of a file; of as many as there are. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(size)).hexdigest()
