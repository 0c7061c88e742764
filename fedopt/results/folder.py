"""The folder of a run. Its files are:

config.yaml               the resolved config
run.json                  command, overrides, versions, machine, commit
metrics.csv               one row per evaluation
summary.json              status, final and best values
checkpoint.safetensors    everything needed to resume the run
log.txt                   events with times
partition.csv, .png       the number of examples of each client, by class
own_test.csv              the rows that clients use for testing: client, and number of the row in the training data, from 1
clients.csv, .png         the clients' final test metrics with the personal model, the common model, and alone
traffic.csv               for each client, its rounds and the bytes sent to it and by it
metrics.png               the metrics over communication rounds
traceback.txt             only if the run failed
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from fedopt.config import Tuned
from fedopt.console import printable
from fedopt.errors import UserError
from fedopt.files import PART, Node, read_config, read_json, refuse_links, write_atomically
from fedopt.metrics import Metric

TEXTS = ("config.yaml", "run.json", "metrics.csv", "summary.json", "log.txt", "traceback.txt")
TABLES = "partition.csv", "own_test.csv", "clients.csv", "traffic.csv"
PICTURES = "partition.png", "clients.png", "metrics.png"
FILES = (*TEXTS, *TABLES, *PICTURES, "checkpoint.safetensors", ".lock")
LEFT_OVER = {"summary.json", "run.json", "traceback.txt", "log.txt"}  # files of a run that failed before it started
ENDED = ("finished", "diverged")  # statuses of runs that are complete
LOST = ("diverged", "failed")  # statuses of runs whose last row must not enter an average over runs
OVER = (*ENDED, "stopped")  # statuses of runs that are not resumed, including runs that on_eval has stopped
Status = Literal["running", "finished", "diverged", "stopped", "interrupted", "failed"]
Values = dict[str, float | None]  # by name of the metric; None if the value is not finite
# The types of the values in the JSON files. Other values are ignored, since the files may come from somebody else
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
    """Return the finite values of an entry of summary.json such as `final`, by metric.

    Args:
        part: The values by metric. None: there are none.
    """
    return {name: value for name, value in (part or {}).items() if value is not None}


class RunFolder:
    """The folder of one run. `open` locks it until `close`.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        metrics: The path of metrics.csv.
        checkpoint: The path of checkpoint.safetensors.
    """

    def __init__(self, path: Path):
        self.path = path
        self.metrics = path / "metrics.csv"
        self.checkpoint = path / "checkpoint.safetensors"
        # The lock file is never removed, since two processes could then write at the same time
        self._lock = FileLock(path / ".lock", timeout=0.1, poll_interval=0.01)

    def open(self) -> None:
        """Create the folder and lock it. Remove unfinished files of a process that was killed.

        Raises:
            UserError: Another process has locked the folder, or one of its files is a link.
            OSError: The folder cannot be created.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path / name for name in FILES)
        while not self.held:
            try:
                self._lock.acquire()
            except Timeout:  # a process that reads `alive` holds a shared lock for a moment; try again
                if self.alive:
                    busy = "another run is writing here; wait for it, or choose another output_dir"
                    raise UserError(f"{self.path}: {busy}") from None
        for unfinished in self.path.glob(f"*{PART}"):
            unfinished.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.release(force=True)

    @property
    def held(self) -> bool:
        """Whether this process holds the lock."""
        return self._lock.is_locked

    @property
    def alive(self) -> bool:
        """Whether a process, possibly this one, holds the lock.

        The check takes a shared lock for a moment, during which no process can lock the folder.
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

    def config(self) -> Node:
        """Return the content of config.yaml.

        Raises:
            UserError: The file cannot be read.
        """
        return read_config(self.path / "config.yaml")

    def card(self) -> Node:
        """Return the entries of run.json that have the right types; {} if the file is missing or broken."""
        return read_json(self.path / "run.json", CARD)

    @property
    def used(self) -> bool:
        """Whether a run has started in this folder, or the folder contains files that a run would overwrite.

        The files of a run that failed before it started do not count.
        """
        present = {name for name in FILES if os.path.lexists(self.path / name)} - {".lock"}
        if not present - LEFT_OVER:
            return bool(present) and self.summary().get("status") != "failed"
        return True

    def vacate(self) -> None:
        """Remove the files of a run that failed in its first round, except the files that describe the failure."""
        for name in {*FILES} - LEFT_OVER - {".lock"}:
            with suppress(OSError):
                (self.path / name).unlink()

    def status(self) -> str | None:
        """Return the recorded status of the run; None if there is no run, or if summary.json is missing or broken."""
        return self.summary().get("status") if self.used else None

    @property
    def settled(self) -> bool:
        """Whether the run is not executed again: it ended, was stopped by on_eval, or failed because of its method or values.

        A run that failed because of the machine, for example a full disk, is not settled.
        """
        summary = self.summary()
        return summary.get("status") in OVER or (summary.get("status") == "failed" and not summary.get("machine"))

    def seen(self) -> str | None:
        """Return the status to show: the recorded status, or `interrupted` if the process of an unfinished run is gone.

        A process that was killed, for example with kill -9, cannot record the status itself.
        """
        status = self.status()
        return "interrupted" if status == "running" and not self.alive else status

    def summary(self) -> Node:
        """Return the entries of summary.json that have the right types; {} if the file is missing or broken."""
        return read_json(self.path / "summary.json", SUMMARY, others=int | float | None)

    def measured(self, name: Literal["final", "best"]) -> dict[str, float]:
        """Return the finite last or best values of the metrics, by name.

        If the summary has no such values because the run is in progress or was killed, they are computed from metrics.csv.

        Args:
            name: ``final`` for the last values, ``best`` for the best values.

        Raises:
            UserError: metrics.csv is needed and cannot be read.
        """
        summary = self.summary()
        if name in summary or not self.metrics.is_file():
            return numbers_of(summary.get(name))
        import pandas as pd  # imported here because it takes half a second

        from fedopt.files import read_table

        rows = read_table(self.metrics, growing=True).apply(pd.to_numeric, errors="coerce")
        metrics = [metric for metric in self.card().get("metrics", ()) if metric.name in rows and len(rows)]
        values = {m.name: float(rows[m.name].iloc[-1] if name == "final" else m.best(rows[m.name])) for m in metrics}
        return {key: value for key, value in values.items() if math.isfinite(value)}

    def last(self, metric: str) -> float:
        """Return the last value of a metric, for use in averages over runs.

        It is nan if the value is not finite, or if the run diverged or failed. `fedopt.analysis.Recorded.last` returns the
        same number.

        Args:
            metric: The name of the metric.

        Raises:
            UserError: metrics.csv is needed and cannot be read.
        """
        return math.nan if self.status() in LOST else self.measured("final").get(metric, math.nan)

    def write_json(self, name: str, content: Mapping[str, object]) -> None:
        finite = json.loads(json.dumps(content), parse_constant=lambda _: None)  # JSON has no nan and no infinity
        self.write_text(name, json.dumps(finite, indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        write_atomically(self.path / name, content.encode(errors="backslashreplace"))

    def log(self, line: str) -> None:
        with (self.path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {printable(line)}\n")
