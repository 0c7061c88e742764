"""Trials of a search that are computed together, and the table that keeps their curves."""

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from filelock import FileLock

from fedopt.bench.space import Point, overrides_of
from fedopt.config import Composed, compose
from fedopt.console import Bar
from fedopt.errors import UserError, first_line
from fedopt.files import BROKEN, LARGEST, read_bytes, write_atomically
from fedopt.jobs import Job, Outcome
from fedopt.results import cell

if TYPE_CHECKING:
    from fedopt.running import Outcome as Computed

TABLE = "curves.csv.gz"
# One per evaluation of a trial with a seed: the trial, the seed, the tuned keys, how the run ended, and the metrics
Rows = list[dict[str, str]]


def read_rows(path: Path) -> Rows:
    """Return the rows of a table of curves, by trial and seed; an empty list if the file does not exist.

    Args:
        path: The file.

    Raises:
        UserError: The file is damaged.
    """
    with _damage_named(path):
        rows = [*csv.DictReader(StringIO(gzip.decompress(_content(path)).decode()))]
        if rows and "status" not in rows[0]:
            raise ValueError("the column status is missing")
        return sorted(rows, key=lambda row: (int(row["trial"]), int(row["seed"])))


def add_rows(path: Path, rows: Rows) -> None:
    """Add rows to a table of curves. Several processes may do so at the same time; a killed process leaves no partial rows.

    The new rows are compressed on their own and follow the others, so that adding a trial does not take longer in a large table.

    Args:
        path: The file of the table, which is created if it does not exist.
        rows: The new rows.

    Raises:
        OSError: The disk is full or gone.
        UserError: The table is damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(".lock")):
        with _damage_named(path):
            before = _content(path)
            with gzip.open(BytesIO(before), "rt") as file:
                columns = next(csv.reader(file), [])
        if {name for row in rows for name in row} - {*columns}:  # the table is new, or none of its trials has metrics
            before, rows, columns = b"", [*read_rows(path), *rows], []
        text = pd.DataFrame(rows, columns=columns or None).to_csv(index=False, header=not before)
        write_atomically(path, before + gzip.compress(text.encode(), 6, mtime=0))


def _content(path: Path) -> bytes:
    return read_bytes(path, LARGEST) if path.exists() else b""


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Raise a UserError that names the table if it cannot be read."""
    try:
        yield
    except (EOFError, zlib.error, *BROKEN) as error:
        why = first_line(error).removeprefix(f"{path}: ")
        raise UserError(f"{path}: cannot be read ({why}); delete it, and repeat the command") from None


@dataclass(frozen=True, eq=False, kw_only=True)
class Stack(Job):
    """A job that computes trials of a search with one seed, together where possible, and adds their curves to a table.

    Args:
        points: trial -> its point, the values of the tuned keys.
        configs: The config of each trial. They differ only in keys of the algorithm. If empty, the process that computes the
            trials composes them, since composing hundreds of configs takes a while.
    """

    points: Mapping[int, Point]
    configs: Sequence[Composed] = ()
    ended = settled = False  # trials that have ended get no job

    def do(self, processes: int, bar: Bar | None = None) -> Outcome:
        """Compute the trials, and return an outcome with the numbers of trials that finished, diverged and failed.

        Errors do not raise. A trial that raises an exception has failed; the others continue.

        Args:
            processes: The number of processes that share the machine.
            bar: The progress bar. None: no progress is shown.
        """
        from fedopt.running import at_once, reason

        left, done = dict(self.points), list["Computed"]()
        words, folders = self.composed.overrides, self.composed.folders

        def keep(share: float, every: bool = False) -> None:
            """Add the trials that have ended to the table.

            Args:
                share: The fraction of the work that is done, which the progress bar shows.
                every: Whether trials that were computed together are added too. They have the same end.
            """
            pairs = zip(self.points, done, strict=True)
            new = [(n, one) for n, one in pairs if n in left and (every or (one.alone and one.status))]
            if new:
                add_rows(self.folder / TABLE, [row for n, one in new for row in self._rows(n, left.pop(n), one)])
            if bar:
                bar.move(share)

        try:
            configs = self.configs or [compose([*words, *overrides_of(p)], folders) for p in self.points.values()]
            at_once(configs, keep, done, processes)
            keep(1.0, every=True)
        except Exception as error:
            return Outcome("failed", reason(error))
        counts = Counter(one.status for one in done)
        failed = [f"trial {n}: {one.error}" for n, one in zip(self.points, done, strict=True) if one.status == "failed"]
        text = ", ".join(f"{many} {status}" for status, many in counts.items())
        return Outcome("finished", f"{text} ({failed[0]})" if failed else text)

    def _rows(self, number: int, point: Point, one: "Computed") -> Rows:
        """Return the rows of a trial for the table of curves, one per evaluation.

        Args:
            number: The index of the trial.
            point: The trial's point.
            one: The outcome of its run.
        """
        about = {"trial": str(number), "seed": str(self.composed.nodes["seed"]), **point}
        about |= {"status": one.status, "error": one.error, "alone": one.alone}
        return [about | {name: cell(value) for name, value in row.items()} for row in one.rows or [{}]]
