"""The folder of a run, which explains itself.

config.yaml               the resolved config
run.json                  command, overrides, versions, machine, commit
metrics.csv               one row per evaluation
summary.json              status, final and best values
checkpoint.safetensors    what resuming needs
log.txt                   what happened, with times
partition.csv, .png       the examples of each client, by class
own_test.csv              the rows that clients keep to test on: client, and the place among the data's training rows, from 1
clients.csv, .png         the clients' test metric with their own model, the common one and alone, at the end
traffic.csv               the rounds of each client, and what was sent to it and by it
metrics.png               the metrics over communication rounds
traceback.txt             if the run failed
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from fedopt.config import Tuned
from fedopt.console import printable
from fedopt.errors import UserError
from fedopt.files import PART, read_config, read_json, refuse_links, write_atomically
from fedopt.metrics import Metric

TEXTS = ("config.yaml", "run.json", "metrics.csv", "summary.json", "log.txt", "traceback.txt")
TABLES = "partition.csv", "own_test.csv", "clients.csv", "traffic.csv"
PICTURES = "partition.png", "clients.png", "metrics.png"
FILES = (*TEXTS, *TABLES, *PICTURES, "checkpoint.safetensors", ".lock")
LEFT_OVER = {"summary.json", "run.json", "traceback.txt", "log.txt"}  # by a run that failed before it began
ENDED = ("finished", "diverged")  # the statuses of runs that nothing is left to do for
LOST = ("diverged", "failed")  # those of runs that have no last value to average: their row is where they broke off
OVER = (*ENDED, "stopped")  # with those that on_eval has stopped, which are as long as they were meant to be
Status = Literal["running", "finished", "diverged", "stopped", "interrupted", "failed"]
Values = dict[str, float | None]  # by the names of metrics; None for what is not finite
# The types of the values of the JSON files, which somebody may have sent. Others are left out when they are read.
SUMMARY = {"status": Status, "error": str, "machine": bool, "final": Values, "best": Values, "to_target": Values | None}
CARD = {
    "id": str,
    "overrides": list[str],
    "chosen": dict[str, str],
    "tuned": Tuned,
    "departures": list[str],
    "seed": int,
    "directory": str,
    "started": str,
    "metrics": list[Metric],
    "client_metric": Metric,
    "data": str | None,
    "division": str,
    "effective_weights": list[float] | None,
    "clients": list[str],
    "classes": list[str],
    "commit": str | None,
    "sources": dict[str, str],
    "versions": dict[str, str | None],
    "machine": dict[str, str | int | None],
}


def numbers_of(part: Values | None) -> dict[str, float]:
    """Return the finite values of a part of summary.json, such as final, by metric."""
    return {name: value for name, value in (part or {}).items() if value is not None}


def described(folder: Path) -> list[Metric]:
    """Return the descriptions of a run's metrics from its run.json; [] if there are none."""
    return list(RunFolder(folder).card().get("metrics", ()))


class RunFolder:
    """The folder of one run. `open` locks it until `close`. path: the folder. metrics, checkpoint: the paths of these files."""

    def __init__(self, path: Path):
        self.path = path
        self.metrics = path / "metrics.csv"
        self.checkpoint = path / "checkpoint.safetensors"
        # Stays there: a lock that is removed lets two writers in.
        self._lock = FileLock(path / ".lock", timeout=0.1, poll_interval=0.01)

    def open(self) -> None:
        """Create the folder and lock it. Remove unfinished files that a killed process has left there.

        Raises:
            UserError: Another process has locked it, or one of its files is a link, which writing would follow.
            OSError: The folder cannot be made.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path / name for name in FILES)
        while not self.held:
            try:
                self._lock.acquire()
            except Timeout:  # those who ask `alive` share it for a moment, and are waited for
                if self.alive:
                    raise UserError(
                        f"{self.path}: another run is writing here; wait for it, or choose another output_dir"
                    ) from None
        for left in self.path.glob(f"*{PART}"):  # by a process that was killed
            left.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.release(force=True)

    @property
    def held(self) -> bool:
        """Whether this process holds the lock."""
        return self._lock.is_locked

    @property
    def alive(self) -> bool:
        """Whether a process holds the lock, this one included.

        Asking shares the lock for a moment, in which no process can take it.
        """
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
        """Return the content of config.yaml. Raises UserError if it cannot be read."""
        return read_config(self.path / "config.yaml")

    def card(self) -> dict[str, Any]:
        """Return the entries of run.json that have the right type; {} if it is missing or broken."""
        return read_json(self.path / "run.json", CARD)

    @property
    def used(self) -> bool:
        """Whether a run has begun here, or the folder holds somebody's files that a run would overwrite.

        Files that a run left because it failed before it began do not count.
        """
        there = {name for name in FILES if os.path.lexists(self.path / name)} - {".lock"}
        if not there - LEFT_OVER:  # a run that failed before it began leaves no more
            return bool(there) and self.summary().get("status") != "failed"
        return True

    def vacate(self) -> None:
        """Remove the files of a run that failed in its first round, except for those that say how it failed."""
        for name in {*FILES} - LEFT_OVER - {".lock"}:
            with suppress(OSError):
                (self.path / name).unlink()

    def status(self) -> str | None:
        """Return the recorded status of the run in this folder; None without a run, or if summary.json is missing or broken."""
        return self.summary().get("status") if self.used else None

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do: the run ended, on_eval stopped it, or it failed because of its method or values.

        A run that failed because of the machine, such as a full disk, is not settled.
        """
        summary = self.summary()
        return summary.get("status") in OVER or (summary.get("status") == "failed" and not summary.get("machine"))

    def seen(self) -> str | None:
        """Return the status to show: that of `status`, except for a run that was killed.

        A run is interrupted if it is recorded as running and its process is gone, as after kill -9.
        """
        status = self.status()
        return "interrupted" if status == "running" and not self.alive else status

    def summary(self) -> dict[str, Any]:
        """Return the entries of summary.json that have the right type; {} if it is missing or broken."""
        return read_json(self.path / "summary.json", SUMMARY, others=int | float | None)

    def measured(self, name: Literal["final", "best"]) -> dict[str, float]:
        """Return the finite last or best values of the metrics, by name.

        If the summary lacks them, since the run goes on or was killed, they are those of the rows so far.

        Raises UserError if the rows are needed and cannot be read.
        """
        summary = self.summary()
        if name in summary or not self.metrics.is_file():
            return numbers_of(summary.get(name))
        import pandas as pd  # not at the top: it takes half a second

        from fedopt.files import read_table

        rows = read_table(self.metrics, growing=True).apply(pd.to_numeric, errors="coerce")
        metrics = [metric for metric in described(self.path) if metric.name in rows and len(rows)]
        values = {m.name: float(rows[m.name].iloc[-1] if name == "final" else m.best(rows[m.name])) for m in metrics}
        return {key: value for key, value in values.items() if math.isfinite(value)}

    def last(self, metric: str) -> float:
        """Return the last value of a metric, for means over runs; nan if it is not finite, or if the run diverged or failed.

        `fedopt.analysis.Recorded.last` gives the same number. Raises UserError as `measured` does.
        """
        return math.nan if self.status() in LOST else self.measured("final").get(metric, math.nan)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        finite = json.loads(json.dumps(content), parse_constant=lambda _: None)  # JSON has no nan and no infinity
        self.write_text(name, json.dumps(finite, indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        write_atomically(self.path / name, content.encode(errors="backslashreplace"))

    def log(self, line: str) -> None:
        with (self.path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {printable(line)}\n")
