"""The rows of per-client memories that checkpoints count. Each checkpoint appends those that changed: it costs what cohorts do.

A record is four int64 (the number of the memory in the state, of rows, of their bytes, and 0), the clients as int64, and the rows.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedopt.errors import UserError
from fedopt.federation.memory import Memory
from fedopt.files.reading import read_start
from fedopt.files.writing import write_whole

NAMES = ("memory.0", "memory.1")  # in turn: what is counted stays there until a checkpoint counts the other
SPARE = 2**20  # bytes that may lie idle in a small journal


class Journal:
    """The file of one run's memories. initial: those of round 0, whose rows are never written."""

    def __init__(self, folder: Path, initial: Sequence[Memory]):
        self._folder, self._initial, self._counted = folder, list(initial), list(initial)
        self._name, self._size, self._compact, self._hash = NAMES[0], 0, 0, hashlib.sha256()

    def append(self, memories: Sequence[Memory]) -> dict[str, Any] | None:
        """Write the rows that changed since the last call; returns what the checkpoint says of it, or None, having written nothing,
        where a row is not finite. Raises OSError, leaving what is counted as it was."""
        changed = _changed(self._counted, memories)
        if not all(bool(rows.isfinite().all()) for *_, rows in changed):
            return None
        name, size, content, running = self._name, self._size, _records(changed), self._hash.copy()
        if size + len(content) > 2 * self._compact + SPARE:  # most of it is rows that have changed again
            name, size, content = NAMES[name == NAMES[0]], 0, _records(_changed(self._initial, memories))
            running, self._compact = hashlib.sha256(), len(content)
        running.update(content)
        with (self._folder / name).open("r+b" if size else "wb", buffering=0) as file:
            file.truncate(size)
            file.seek(size)
            write_whole(file.fileno(), content)
            os.fsync(file.fileno())
        self._name, self._size, self._hash, self._counted = name, size + len(content), running, list(memories)
        return {"file": name, "size": self._size, "hash": running.hexdigest()}

    def tidy(self) -> None:
        """Remove the file that the checkpoint counts no more."""
        for name in NAMES:
            if name != self._name:
                (self._folder / name).unlink(missing_ok=True)

    def restore(self, entry: Mapping[str, Any]) -> list[Memory]:
        """The memories that a checkpoint counts, to go on from. Raises UserError where the file is not as it was written, and
        ValueError where it is of another number of clients or of rows of another length."""
        content = counted(self._folder, entry)
        self._name, self._size, self._compact = entry["file"], len(content), len(content)
        self._hash = hashlib.sha256(content)
        for number, clients, raw in _read(content):
            memory = self._counted[number]
            like = memory.rows(np.zeros(1, dtype=np.int64))
            if clients.max() >= len(memory) or len(raw) != len(clients) * like.numel() * like.element_size():
                raise ValueError("the memory of other clients, or of another model")
            # Rows without entries, of a problem without y, leave no bytes
            rows = torch.frombuffer(bytearray(raw), dtype=like.dtype) if raw else like.new_empty(0)
            self._counted[number] = memory.replaced(clients, rows.view(len(clients), like.numel()).to(like.device))
        return self._counted


def counted(folder: Path, entry: Mapping[str, Any]) -> bytes:
    """The part of a journal that a checkpoint's entry counts. Raises UserError where it is not there any more."""
    path, content = folder / entry["file"], b""
    if entry["file"] in NAMES and isinstance(entry["size"], int):  # else of somebody who wants another file read
        with suppress(OSError):
            content = read_start(path, entry["size"])
    if len(content) != entry["size"] or hashlib.sha256(content).hexdigest() != entry["hash"]:
        raise UserError(f"{path}: its rows are not those that the checkpoint counts")
    return content


def _changed(before: Sequence[Memory], now: Sequence[Memory]) -> list[tuple[int, np.ndarray, Tensor]]:
    """Of each memory in which rows changed: its number, the clients, and their rows."""
    pairs = enumerate(zip(now, before, strict=True))
    clients = [(number, memory, memory.changed(since)) for number, (memory, since) in pairs]
    return [(number, rows, memory.rows(rows)) for number, memory, rows in clients if len(rows)]


def _records(changed: Sequence[tuple[int, np.ndarray, Tensor]]) -> bytes:
    content = b""
    for number, clients, rows in changed:
        raw = rows.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        content += np.array([number, len(clients), len(raw), 0], dtype=np.int64).tobytes() + clients.tobytes() + raw
    return content


def _read(content: bytes) -> Iterator[tuple[int, np.ndarray, bytes]]:
    """The records: number of the memory, clients, rows."""
    at = 0
    while at < len(content):
        number, rows, size, _ = np.frombuffer(content, np.int64, 4, at).tolist()
        clients = np.frombuffer(content, np.int64, rows, at + 32)
        at += 32 + 8 * rows + size
        yield number, clients, content[at - size : at]
