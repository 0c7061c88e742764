"""Checkpoints: everything that is needed to resume a run, in a safetensors file with tensors and text but no code.

The tensors of the algorithm's state are named by their position in it, such as state.x or state.u.0. For a `Memory` state.c,
the rows that have changed since the first round are stored as rows.state.c, and the indices of their clients as
clients.state.c. With keep=best, the variables at the best evaluation are stored too, as best.x and so on.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten_with_path, tree_unflatten

from fedopt.errors import UserError, first_line
from fedopt.federation import Ledger, Memory
from fedopt.files import Node, read_bytes, write_atomically
from fedopt.machine import memory

# The exceptions that reading a damaged file may raise
BROKEN = (SafetensorError, LookupError, TypeError, ValueError, RuntimeError, OSError)
Stored = tuple[dict[str, Tensor], Node]  # the tensors by name, and the progress of the run loop
FORMAT = 5  # the version of the file format, which increases when older checkpoints cannot be read any more
BEST = "best."  # prefix of the variables at the best evaluation
CLIENTS, ROWS = "clients.", "rows."  # prefixes of the two tensors of a Memory


class Checkpoint:
    """The checkpoint of a run.

    Args:
        path: The file.
        initial: The algorithm's state before the first round.

    Attributes:
        best: The variables at the best evaluation so far, by name; empty unless keep=best.
    """

    def __init__(self, path: Path, initial: object):
        self.path, self._initial = path, initial
        self.best: dict[str, Tensor] = {}

    def store(self, state: object, ledger: Ledger, progress: Mapping[str, object]) -> bool:
        """Replace the checkpoint if the state is finite.

        Args:
            state: The algorithm's state.
            ledger: The costs so far.
            progress: The progress of the run loop, as JSON values.

        Returns:
            Whether the checkpoint was replaced.

        Raises:
            OSError: The file cannot be written.
            UserError: The structure, shapes or dtypes of the state differ from the initial state, or the state contains
                anything other than tensors and numbers.
        """
        if _kinds(state) != _kinds(self._initial):
            raise UserError("the algorithm's step must return the same structure, shapes and dtypes as its init")
        start = _flat(self._initial)[0]
        now = _flat(state)[0].items()
        changed = {name: leaf.changed(start[name]) for name, leaf in now if isinstance(leaf, Memory)}
        tensors, initial = _tensors(state, changed), _tensors(self._initial, changed)
        if any(_lost(initial[name], tensor) for name, tensor in tensors.items()):
            return False
        tensors |= {f"{BEST}{name}": tensor.detach() for name, tensor in self.best.items()}
        tensors |= {**ledger.sent.tensors, **ledger.centres}
        tensors = {name: t.cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
        text = torch.frombuffer(bytearray(json.dumps({**progress, "format": FORMAT}).encode()), dtype=torch.uint8)
        tensors |= {**ledger.tensors(), "progress": text}
        write_atomically(self.path, save({**tensors, "hash": _hash(tensors)}))
        return True

    def restore(self, ledger: Ledger, stored: Stored | None = None) -> tuple[Any, Node]:
        """Read the checkpoint, and set the ledger and ``best`` to the stored values.

        Args:
            ledger: The costs, which are changed in place.
            stored: The result of `read`. None: the file is read here.

        Returns:
            The stored state and progress.

        Raises:
            UserError: The file is damaged, or the structure of the state differs from the initial state.
        """
        tensors, progress = stored or read(self.path)
        found, wanted = _shapes(tensors), _shapes(_tensors(self._initial, {}))
        if differing := [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]:
            name = differing[0]
            shapes = f"{found.get(name, 'missing')} in the checkpoint, but {wanted.get(name, 'missing')} in this run"
            raise UserError(f"{self.path}: belongs to a different algorithm or different options: {name} is {shapes}")
        try:
            ledger.restore(tensors)
            leaves, structure = _flat(self._initial)
            state = [_restored(name, leaf, tensors) for name, leaf in leaves.items()]
            self.best = {name.removeprefix(BEST): t for name, t in tensors.items() if name.startswith(BEST)}
            return tree_unflatten(state, structure), progress
        except BROKEN as error:
            raise _unreadable(self.path, error) from None


def read(path: Path) -> Stored:
    """Return all tensors of a checkpoint by name, and the progress of the run loop.

    Args:
        path: The checkpoint.

    Raises:
        UserError: The file is damaged, or was written by an incompatible version of fedopt.
    """
    try:
        tensors = load(read_bytes(path, memory() // 3))
        if not torch.equal(tensors.pop("hash"), _hash(tensors)):
            raise ValueError("its hash does not match its content")
        progress = dict(json.loads(bytes(tensors["progress"].tolist())))
    except BROKEN as error:
        raise _unreadable(path, error) from None
    if progress.get("format") != FORMAT:
        raise UserError(f"{path}: was written by another version of fedopt; use that version to read it")
    return tensors, progress


def refuse_foreign(path: Path, metadata: Mapping[str, object], run: str) -> None:
    """Raise UserError if a checkpoint belongs to a different run.

    Args:
        path: The file.
        metadata: The progress that the checkpoint contains.
        run: The fingerprint of the expected run, from `identity.stamp`.
    """
    if metadata.get("run") != run:
        raise UserError(f"{path}: belongs to another run; restore this run's checkpoint, or delete it to start again")


def _flat(state: object) -> tuple[Node, TreeSpec]:
    """Return the leaves of a state by name, such as state.x, and the structure of the state. A `Memory` counts as one leaf."""
    leaves, structure = tree_flatten_with_path(state, is_leaf=lambda value: isinstance(value, Memory))
    names = [".".join(["state", *(str(*astuple(key)) for key in path)]) for path, _ in leaves]  # type: ignore[call-overload]
    if len({*names}) < len(names):  # keys with dots can make names ambiguous
        names = [f"state.{number}" for number in range(len(names))]
    return dict(zip(names, (leaf for _, leaf in leaves), strict=True)), structure


def _tensors(state: object, clients: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Convert a state to tensors by name.

    Args:
        state: The state.
        clients: For each Memory, by name, the indices of the clients whose rows are included. No rows of other memories are
            included.

    Raises:
        UserError: The state contains anything other than tensors, numbers and memories.
    """
    tensors = dict[str, Tensor]()
    try:
        for name, leaf in _flat(state)[0].items():
            if isinstance(leaf, Memory):
                chosen = clients.get(name, np.zeros(0, dtype=np.int64))
                tensors[f"{CLIENTS}{name}"], tensors[f"{ROWS}{name}"] = torch.from_numpy(chosen), leaf.rows(chosen)
            else:
                # torch's default dtype may have too few digits for a float
                tensors[name] = torch.as_tensor(np.float64(leaf) if isinstance(leaf, float) else leaf).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        only = f"the algorithm's state must contain only tensors and numbers ({first_line(error)})"
        raise UserError(f"{only}; change what init and step return") from None
    return tensors


def _lost(initial: Tensor, now: Tensor) -> bool:
    """Return whether an entry that was finite at the start is no longer finite.

    Entries that are infinite at the start, such as a best value so far, may stay infinite.

    Args:
        initial: The tensor before the first round.
        now: The same tensor of the state.
    """
    return not bool(now.isfinite().all()) and bool((initial.isfinite() & ~now.isfinite()).any())


def _kinds(state: object) -> dict[str, object]:
    """Return the shape and dtype of each tensor and Memory of a state, and the type of each number, by name."""
    leaves = _flat(state)[0].items()
    return {name: (*v.shape, v.dtype) if isinstance(v, Tensor | Memory) else type(v) for name, v in leaves}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return the shapes of the tensors of a state by name. For the rows of a Memory, return the shape of one row."""
    rows = {name: list(tensor.shape[1:]) for name, tensor in tensors.items() if name.startswith(ROWS)}
    return rows | {name: list(tensor.shape) for name, tensor in tensors.items() if name.startswith("state.")}


def _restored(name: str, like: Any, stored: Mapping[str, Tensor]) -> object:
    """Return a leaf of a stored state, converted to the type of ``like``: a tensor, a number or a `Memory`.

    Args:
        name: The name of the leaf.
        like: The same leaf of the initial state.
        stored: All tensors of the checkpoint, by name.
    """
    if isinstance(like, Memory):
        rows = stored[f"{ROWS}{name}"].to(like.rows(np.zeros(1, dtype=np.int64)).device)
        return like.replaced(stored[f"{CLIENTS}{name}"].numpy(), rows)
    return stored[name].to(like) if isinstance(like, Tensor) else type(like)(stored[name].item())


def _unreadable(path: Path, error: Exception) -> UserError:
    why = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
    return UserError(f"{path}: this checkpoint cannot be read ({why}); restore a copy, or delete it to start again")


def _hash(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a hash of all names, dtypes, shapes and values, as a tensor of 32 bytes.

    Args:
        tensors: The tensors by name, on the CPU.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        flat = tensor.reshape(-1)
        flat = flat if flat.stride() == (1,) else flat.repeat(1)  # `view` refuses stride 0, which one number may have
        digest.update(flat.view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
