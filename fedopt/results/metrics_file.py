"""metrics.csv, which is append-only."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedopt.errors import UserError
from fedopt.files import read_bytes, write_whole


class MetricsFile:
    """metrics.csv, append-only. Each row is in the file before the run continues, so that a killed process loses none."""

    def __init__(self, path: Path, keep: int | None = None):
        """Open the file.

        Args:
            path: The file.
            keep: The number of bytes at its start to keep when a run resumes; the rest is cut off. None or 0: a new file.

        Raises:
            FileExistsError: The file should be new, and exists.
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

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row. The first row of a new file sets its columns.

        Raises:
            OSError: The row cannot be written completely; no part of it is left in the file.
            UserError: Its columns differ from the file's.
        """
        if not self.columns:
            self.columns = list(row)
            self._write(",".join(self.columns))
        if self.columns != list(row):
            lacking = f"has the columns {', '.join(self.columns)}, and this run has {', '.join(row)}"
            raise UserError(f"{self.path}: {lacking}; choose another output_dir")
        self._write(",".join(map(cell, row.values())))

    def _write(self, line: str) -> None:
        """Write one line unbuffered, so that a killed process loses nothing. Undo it if the disk takes only a part."""
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
            OSError: The disk refuses.
            UserError: Another program replaced or changed the file.
        """
        os.fsync(self._file.fileno())
        ours, there = os.fstat(self._file.fileno()), self.path.stat() if self.path.exists() else None
        same = there is not None and os.path.samestat(ours, there) and there.st_size == self.written
        if not same or rows_hash(self.path, self.written) != self.hash:
            raise UserError(
                f"{self.path}: another program changed or replaced this file during the run; begin again "
                f"in another output_dir"
            )

    @property
    def hash(self) -> str:
        """The hash of all rows so far, as `rows_hash` computes it."""
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()


def cell(value: Any) -> str:
    """Return a value as it is written in metrics.csv."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def rows_hash(path: Path, size: int) -> str:
    """Return the hash of the first ``size`` bytes of a file.

    Raises OSError and UserError as `opened` does.
    """
    return hashlib.sha256(read_bytes(path)[:size]).hexdigest()
