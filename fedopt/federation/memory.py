"""What clients keep from round to round."""

import os
from collections.abc import Sequence
from copy import copy
from tempfile import TemporaryFile, gettempdir

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from fedopt.errors import UserError
from fedopt.files import write_whole
from fedopt.machine import memory

SHARE = (
    1 / 8
)  # of the memory of the machine, or of the GPU: what the rows of all clients may take, else they are kept in a file
GROUP = 1024  # clients whose rows are in one list
EXAMPLE = "make it with a row for each client, such as Memory(x.new_zeros(problem.clients, len(x)))"


class Memory:
    """A row for each client, ``[M, ...]``. It is a value, as tensors are: no method changes it.

    `replaced` returns a new memory that shares all unchanged rows with this one. So the cost of a round depends on its cohort
    alone, and clients that never took part share one row. If all rows would take more than an eighth of the machine's or
    GPU's memory, replaced rows are kept in a temporary file.

    Args:
        rows: A tensor for each client, all of one shape and dtype: vectors, numbers or matrices. Or one tensor of all rows,
            such as ``[M, d]``.

    Raises:
        UserError: There is no row, or rows differ in shape or dtype.
    """

    def __init__(self, rows: Sequence[Tensor] | Tensor):
        """Keep the rows as they are, not copied. rows: a tensor for each client, or one of all rows, [M, ...]."""
        if len(rows) == 0 or not isinstance(rows[0], Tensor):
            raise UserError(f"a Memory needs a tensor for each client; {EXAMPLE}")
        self._like = first = rows[0]
        self.shape, self.dtype = (len(rows), *first.shape), first.dtype
        self._refuse_others(rows)
        self._groups: list[list[Tensor | _Row]] = [[*rows[k : k + GROUP]] for k in range(0, len(rows), GROUP)]
        self._file = _RowFile(first) if len(rows) * first.nbytes > SHARE * _memory(first.device) else None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """The bytes of one client's row."""
        return self._like.nbytes

    def rows(self, clients: np.ndarray) -> Tensor:
        """Return the rows of these clients, ``[n, ...]``.

        Args:
            clients: The indices of n clients.

        Raises:
            UserError: A client has no row: its index is M or more.
        """
        self._check(clients)
        rows = (self._groups[i // GROUP][i % GROUP] for i in np.asarray(clients).tolist())
        return torch.stack([row if isinstance(row, Tensor) else row.read() for row in rows])

    def replaced(self, clients: np.ndarray, rows: Sequence[Tensor] | Tensor) -> "Memory":
        """Return a memory with new rows for these clients; this one stays as it is.

        Args:
            clients: The indices of the clients.
            rows: A tensor for each of them, or one tensor ``[clients, ...]``.

        Raises:
            UserError: A client has no row, a new row has a different shape or dtype, or the disk is full.
            ValueError: There are more or fewer rows than clients.
        """
        self._check(clients)
        self._refuse_others(rows)
        new = copy(self)
        new._groups = list(self._groups)
        for i, row in zip(np.asarray(clients).tolist(), rows, strict=True):
            group, place = divmod(i, GROUP)
            if new._groups[group] is self._groups[group]:
                new._groups[group] = list(self._groups[group])
            # A clone: a view would keep the cohort's tensor alive
            new._groups[group][place] = row.clone() if self._file is None else _Row(self._file, row)
        return new

    def _refuse_others(self, rows: Sequence[Tensor] | Tensor) -> None:
        """Raise UserError if a row has another shape or dtype than the memory's rows."""
        some = rows[:1] if isinstance(rows, Tensor) else rows  # the rows of a tensor are alike
        for shape, dtype in {(row.shape, row.dtype) for row in some} - {(self._like.shape, self.dtype)}:
            raise UserError(
                f"a Memory's rows have shape {[*self._like.shape]} of {self.dtype}, and a new one {[*shape]} of {dtype}; {EXAMPLE}"
            )

    def _check(self, clients: np.ndarray) -> None:
        last = np.max(clients, initial=-1)
        if last >= len(self):
            raise UserError(
                f"client {last} has no row in a Memory of {len(self)} rows; make it with a row for each "
                f"client, problem.clients in all"
            )

    def changed(self, since: "Memory") -> np.ndarray:
        """Return the indices of clients whose rows were replaced since an earlier memory of the same clients."""
        groups = enumerate(zip(self._groups, since._groups, strict=True))
        others = ((GROUP * k, zip(now, before, strict=True)) for k, (now, before) in groups if now is not before)
        clients = [first + place for first, rows in others for place, (a, b) in enumerate(rows) if a is not b]
        return np.array(clients, dtype=np.int64)

    def tensor(self) -> Tensor:
        """Return all rows, ``[M, ...]``, as one new tensor."""
        return self.rows(np.arange(len(self)))


class _RowFile:
    """A temporary file of rows in the folder TMPDIR. It has no name there, so it vanishes with the process.

    like: a row, for the shape, dtype and device of all.
    """

    def __init__(self, like: Tensor):
        self.like, self.free, self._rows = like, list[int](), 0
        self._file = TemporaryFile(buffering=0)  # noqa: SIM115, open as long as rows are

    def write(self, row: Tensor) -> int:
        """Write a row, and return its index in the file. Raises UserError if the disk is full."""
        if not self.free:
            self.free, self._rows = [self._rows], self._rows + 1
        number = self.free.pop()
        try:
            self._file.seek(number * self.like.nbytes)
            write_whole(self._file.fileno(), row.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        except OSError as error:
            why = f"{error.strerror}, and what clients keep does not fit into memory"
            raise UserError(f"{gettempdir()}: {why}; set TMPDIR to a folder with more space") from None
        return number

    def __del__(self) -> None:
        self._file.close()

    def read(self, number: int) -> Tensor:
        content = bytearray(os.pread(self._file.fileno(), self.like.nbytes, number * self.like.nbytes))
        return torch.frombuffer(content, dtype=self.like.dtype).view(self.like.shape).to(self.like.device)


class _Row:
    """A row in a file. Its place in the file becomes free when no memory has the row any more."""

    __slots__ = ("_file", "_number")

    def __init__(self, file: _RowFile, row: Tensor):
        self._file, self._number = file, file.write(row)

    def read(self) -> Tensor:
        return self._file.read(self._number)

    def __del__(self) -> None:
        if hasattr(self, "_number"):  # else the disk was full
            self._file.free.append(self._number)


def _memory(device: torch.device) -> int:
    """Return the total memory of a GPU, or of the machine, in bytes."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else memory()


# To functions of trees it is one tensor
register_pytree_node(Memory, lambda memory: ([memory.tensor()], None), lambda leaves, _: Memory(next(iter(leaves))))
