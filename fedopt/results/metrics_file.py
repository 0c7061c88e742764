"""The file metrics.csv, which is append-only."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from fedopt.errors import UserError
from fedopt.files import read_bytes, write_whole


class MetricsFile:
    """The append-only file metrics.csv. Each row is written before the run continues, so that a killed process loses none."""

    def __init__(self, path: Path, keep: int | None = None):
        """Open the file.

        Args:
            path: The file.
            keep: The number of bytes at the start of the file that are kept when a run is resumed. The rest is removed. None
                or 0: create a new file.

        Raises:
            FileExistsError: The file should be new, but exists.
        """
        self.path = path
        self.columns: list[str] = []
        self._hash, self.written = hashlib.sha256(), 0
        self._file = path.open("r+b" if keep else "xb", buffering=0)
        if keep:
            self._file.truncate(keep)
            self._hash.update(rows := self._file.read())
            self.written = len(rows)
            self.columns = rows.decode().split("\n", 1)[0].split(",")

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row. The first row of a new file defines its columns.

        Raises:
            OSError: The row cannot be written completely. Nothing of it is left in the file.
            UserError: The columns of the row differ from the columns of the file.
        """
        if not self.columns:
            self.columns = list(row)
            self._write(",".join(self.columns))
        if self.columns != list(row):
            difference = f"has the columns {', '.join(self.columns)}, but this run has {', '.join(row)}"
            raise UserError(f"{self.path}: {difference}; choose another output_dir")
        self._write(",".join(map(cell, row.values())))

    def _write(self, line: str) -> None:
        """Write one line without a buffer, so that a killed process loses nothing. If it is written only in part, undo it."""
        before, content = self.written, (line + "\n").encode()
        try:
            write_whole(self._file.fileno(), content)
        except OSError as error:
            os.ftruncate(self._file.fileno(), before)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._hash.update(content)
        self.written += len(content)

    def sync(self) -> None:
        """Wait until all rows are on the disk.

        Raises:
            OSError: The rows cannot be written to the disk.
            UserError: Another program replaced or changed the file.
        """
        os.fsync(self._file.fileno())
        ours, present = os.fstat(self._file.fileno()), self.path.stat() if self.path.exists() else None
        same = present is not None and os.path.samestat(ours, present) and present.st_size == self.written
        if not same or rows_hash(self.path, self.written) != self.hash:
            changed = "another program changed this file during the run; start a new run in another output_dir"
            raise UserError(f"{self.path}: {changed}")

    @property
    def hash(self) -> str:
        """The hash of all rows so far, as `rows_hash` computes it."""
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()


def cell(value: object) -> str:
    """Return a value as it is written in metrics.csv."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def rows_hash(path: Path, size: int) -> str:
    """Return the hash of the first ``size`` bytes of a file.

    Args:
        path: The file.
        size: The number of bytes.

    Raises:
        OSError: The file cannot be opened.
        UserError: The file is a link, or not a regular file.
    """
    return hashlib.sha256(read_bytes(path)[:size]).hexdigest()
