"""The journal: the rows of per-client memories that checkpoints refer to. A checkpoint appends only the rows that changed.

A record has four int64 (the index of the memory in the state, the number of rows, their bytes, and 0), the clients as int64,
and the rows.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from fedopt.errors import UserError
from fedopt.federation import Memory
from fedopt.files import opened, write_whole

NAMES = ("memory.0", "memory.1")  # in turn: what is counted stays there until a checkpoint counts the other
SPARE = 2**20  # bytes that may lie idle in a small journal
BLOCK = 2**26  # bytes of rows that are read and written at once


class Journal:
    """The journal of one run: files beside the checkpoint with the rows of per-client memories.

    Args:
        folder: The run's folder.
        initial: The memories before the first round. Rows that are still equal to these are not written.
    """

    def __init__(self, folder: Path, initial: Sequence[Memory]):
        self._folder, self._initial, self._counted = folder, list(initial), list(initial)
        self._name, self._size, self._compact, self._hash = NAMES[0], 0, 0, hashlib.sha256()

    def append(self, memories: Sequence[Memory]) -> dict[str, Any] | None:
        """Write the rows that changed since the last call.

        Returns the entry for the checkpoint (file, size and hash), or None if a row is `lost`. What earlier checkpoints refer
        to stays as it was, also if OSError is raised.
        """
        changed, name, size, running = _changed(self._counted, memories), self._name, self._size, self._hash.copy()
        anew = size + sum(len(clients) * memory.row_bytes for _, clients, memory in changed) > 2 * self._compact + SPARE
        if anew:  # most of it is rows that have changed again
            name, size, running = NAMES[name == NAMES[0]], 0, hashlib.sha256()
            changed = _changed(self._initial, memories)
        with (self._folder / name).open("r+b" if size else "wb", buffering=0) as file:
            file.truncate(size)
            file.seek(size)
            for number, clients, rows in _blocks(changed):
                if lost(self._initial[number].rows(clients), rows):
                    return None
                record = _record(number, clients, rows)
                write_whole(file.fileno(), record)
                running.update(record)
                size += len(record)
            os.fsync(file.fileno())
        self._compact = size if anew else self._compact
        self._name, self._size, self._hash, self._counted = name, size, running, list(memories)
        return {"file": name, "size": self._size, "hash": running.hexdigest()}

    def tidy(self) -> None:
        """Remove the file that no checkpoint refers to any more."""
        (self._folder / NAMES[self._name == NAMES[0]]).unlink(missing_ok=True)

    def restore(self, entry: Mapping[str, Any]) -> list[Memory]:
        """Return the memories that a checkpoint refers to. Later calls of `append` continue after them.

        Args:
            entry: The checkpoint's entry, as `append` returned it.

        Raises:
            UserError: The file is damaged.
            ValueError: The clients or the lengths of rows do not fit the initial memories, or a record is cut off.
        """
        self._hash = counted(self._folder, entry)
        self._name, self._size, self._compact = entry["file"], entry["size"], entry["size"]
        for number, clients, raw in _read(self._folder / entry["file"], entry["size"]):
            memory = self._counted[number]
            like = memory.rows(np.zeros(1, dtype=np.int64))
            if clients.min() < 0 or clients.max() >= len(memory) or len(raw) != len(clients) * memory.row_bytes:
                raise ValueError("the memory has other clients, or rows of another length")
            # Rows without entries, of a problem without y, leave no bytes
            rows = torch.frombuffer(bytearray(raw), dtype=like.dtype) if raw else like.new_empty(0)
            self._counted[number] = memory.replaced(clients, rows.view(len(clients), *memory.shape[1:]).to(like.device))
        return self._counted


def lost(initial: Tensor, now: Tensor) -> bool:
    """Tell whether an entry is not finite any more. What begins as infinity, such as a best value so far, may stay so."""
    return not bool(now.isfinite().all()) and bool((initial.isfinite() & ~now.isfinite()).any())


def counted(folder: Path, entry: Mapping[str, Any]) -> Any:
    """Return the running hash of the part of a journal that a checkpoint refers to. entry: the checkpoint's entry.

    Raises UserError if that part is missing or changed.
    """
    path, size, running, there = folder / entry["file"], entry["size"], hashlib.sha256(), False
    if entry["file"] in NAMES and isinstance(size, int):  # else of somebody who wants another file read
        with suppress(OSError), opened(path) as file:
            if there := 0 <= size <= os.fstat(file.fileno()).st_size:
                for start in range(0, size, BLOCK):
                    running.update(file.read(min(BLOCK, size - start)))
    if not there or running.hexdigest() != entry["hash"]:
        raise UserError(f"{path}: was changed or removed after the checkpoint was written")
    return running


def _changed(before: Sequence[Memory], now: Sequence[Memory]) -> list[tuple[int, np.ndarray, Memory]]:
    """Return, for each memory with changed rows, its index, the clients of those rows, and the memory as it is now.

    before, now: the same memories at two times.
    """
    pairs = enumerate(zip(now, before, strict=True))
    return [(k, clients, memory) for k, (memory, since) in pairs if len(clients := memory.changed(since))]


def _blocks(changed: Sequence[tuple[int, np.ndarray, Memory]]) -> Iterator[tuple[int, np.ndarray, Tensor]]:
    """Yield the changed rows in blocks of about `BLOCK` bytes: the index of the memory, the clients, the rows."""
    for number, clients, memory in changed:
        size = max(BLOCK // max(memory.row_bytes, 1), 1)
        for start in range(0, len(clients), size):
            yield number, clients[start : start + size], memory.rows(clients[start : start + size])


def _record(number: int, clients: np.ndarray, rows: Tensor) -> bytes:
    raw = rows.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.array([number, len(clients), len(raw), 0], dtype=np.int64).tobytes() + clients.tobytes() + raw


def _read(path: Path, size: int) -> Iterator[tuple[int, np.ndarray, bytes]]:
    """Yield the records in the first ``size`` bytes of a journal: index of the memory, clients, rows as bytes."""
    with opened(path) as file:
        while file.tell() < size:
            number, rows, length, _ = np.frombuffer(_exactly(file, 32, size), np.int64).tolist()
            clients = np.frombuffer(_exactly(file, 8 * rows, size), np.int64)
            yield number, clients, _exactly(file, length, size)


def _exactly(file: BinaryIO, count: int, size: int) -> bytes:
    """Read ``count`` bytes. Raises ValueError if that goes beyond the first ``size`` bytes of the file."""
    if not 0 <= count <= size - file.tell():
        raise ValueError("the clients' memory ends within a record")
    return file.read(count)
