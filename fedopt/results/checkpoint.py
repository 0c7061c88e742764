"""A checkpoint: all that a run needs to resume, in a safetensors file and a journal. It holds tensors and text, no code.

Tensors of the algorithm's state are named by their place in it, such as state.x or state.u.0. With keep=best, the variables
at the best evaluation are stored too, as best.x and so on.
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
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from fedopt.errors import UserError, first_line
from fedopt.federation import Ledger, Memory
from fedopt.files import read_bytes, write_atomically
from fedopt.machine import memory
from fedopt.results.journal import Journal, counted, lost

# What reading a damaged file may raise
BROKEN = (SafetensorError, LookupError, TypeError, ValueError, RuntimeError, OSError)
Stored = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and the progress of the run loop
BEST = "best."  # begins the names of the best evaluation's variables


class Checkpoint:
    """The checkpoint of a run: its file, and beside it the journal of what clients keep.

    Args:
        path: The file.
        initial: The algorithm's state before the first round.

    Attributes:
        best: The variables at the best evaluation so far, by name; empty unless keep=best.
    """

    def __init__(self, path: Path, initial: Any):
        self.path, self._initial = path, initial
        self.best: dict[str, Tensor] = {}
        self._journal = Journal(path.parent, _memories(initial))

    def store(self, state: Any, ledger: Ledger, progress: Mapping[str, Any]) -> bool:
        """Replace the checkpoint, unless the state is not finite. Return whether it was replaced.

        Args:
            state: The algorithm's state.
            ledger: The costs so far.
            progress: The loop's progress, as JSON values.

        Raises:
            OSError: The disk refuses it.
            UserError: The state's structure, shapes or dtypes differ from the initial state's, or it holds something other
                than tensors and numbers.
        """
        tensors, initial = _tensors(state), _tensors(self._initial)
        if _kinds(state) != _kinds(self._initial):
            raise UserError("the algorithm's step must keep the structure, shapes and dtypes of init's state")
        if any(lost(initial[name], tensor) for name, tensor in tensors.items()):
            return False
        metadata = dict(progress)
        if memories := _memories(state):
            metadata["memory"] = self._journal.append(memories)
            if metadata["memory"] is None:
                return False
        tensors |= {**{f"{BEST}{name}": tensor.detach() for name, tensor in self.best.items()}, **ledger.sent.tensors}
        tensors = {name: t.cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
        text = torch.frombuffer(bytearray(json.dumps(metadata).encode()), dtype=torch.uint8)
        tensors |= {**ledger.tensors(), "progress": text}
        write_atomically(self.path, save({**tensors, "hash": _hash(tensors)}))
        self._journal.tidy()
        return True

    def restore(self, ledger: Ledger, stored: Stored | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the stored state and progress, and set the ledger and ``best`` to what was stored.

        Args:
            ledger: Changed in place.
            stored: The result of `read`. None: the file is read here.

        Raises:
            UserError: The files are damaged, or the state's structure differs from the initial state's.
        """
        tensors, progress = stored or read(self.path)
        there, here = _shapes(tensors, "state."), _shapes(_tensors(self._initial))
        if differing := [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]:
            name = differing[0]
            shapes = f"{there.get(name, 'absent')} there, and {here.get(name, 'absent')} here"
            raise UserError(f"{self.path}: comes from a different algorithm or different options: {name} is {shapes}")
        try:
            memories = iter(self._journal.restore(progress["memory"]) if _memories(self._initial) else [])
            leaves, structure = _flat(self._initial)
            state = [
                next(memories) if isinstance(leaf, Memory) else _as(tensors[name], leaf)
                for name, leaf in leaves.items()
            ]
            ledger.restore(tensors)
            self.best = {name.removeprefix(BEST): t for name, t in tensors.items() if name.startswith(BEST)}
            return tree_unflatten(state, structure), progress
        except BROKEN as error:
            raise _unreadable(self.path, error) from None


def read(path: Path) -> Stored:
    """Return all tensors of a checkpoint, by name, and the progress.

    Raises:
        UserError: The file, or the part of the journal that it refers to, is damaged.
    """
    try:
        tensors = load(read_bytes(path, memory() // 3))
        if not torch.equal(tensors.pop("hash"), _hash(tensors)):
            raise ValueError("its hash does not fit its content")
        progress = dict(json.loads(bytes(tensors["progress"].tolist())))
        if "memory" in progress:
            counted(path.parent, progress["memory"])
        return tensors, progress
    except BROKEN as error:
        raise _unreadable(path, error) from None


def refuse_foreign(path: Path, metadata: Mapping[str, Any], run: str) -> None:
    """Raise UserError if a checkpoint belongs to a different run.

    path: the file. metadata: its progress. run: the fingerprint of the expected run, from `identity.stamp`.
    """
    if metadata.get("run") != run:
        raise UserError(
            f"{path}: belongs to a different run; put this run's checkpoint back, or delete it to start over"
        )


def _flat(state: Any) -> tuple[dict[str, Any], Any]:
    """Return the leaves of a state by their names, such as state.x, and the state's structure. A `Memory` counts as one leaf."""
    leaves, structure = tree_flatten_with_path(state, is_leaf=lambda value: isinstance(value, Memory))
    names = [".".join(["state", *(str(*astuple(key)) for key in path)]) for path, _ in leaves]  # type: ignore[call-overload]
    if len({*names}) < len(names):  # keys with dots
        names = [f"state.{number}" for number in range(len(names))]
    return dict(zip(names, (leaf for _, leaf in leaves), strict=True)), structure


def _memories(state: Any) -> list[Memory]:
    return [leaf for leaf in _flat(state)[0].values() if isinstance(leaf, Memory)]


def _tensors(state: Any) -> dict[str, Tensor]:
    """Return the leaves of a state as tensors, by name, without memories.

    Raises UserError for other types than tensors and numbers.
    """
    leaves = {name: leaf for name, leaf in _flat(state)[0].items() if not isinstance(leaf, Memory)}
    try:
        # A float would become a tensor of torch's default type, which may hold fewer digits
        exact = {name: np.float64(leaf) if isinstance(leaf, float) else leaf for name, leaf in leaves.items()}
        return {name: torch.as_tensor(leaf).detach() for name, leaf in exact.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the algorithm's state must hold only tensors and numbers ({first_line(error)}); change what "
            f"init and step return"
        ) from None


def _kinds(state: Any) -> dict[str, Any]:
    """Return the shape and dtype of each tensor and memory of a state, and the type of each number, by name."""
    leaves = _flat(state)[0].items()
    return {name: (*v.shape, v.dtype) if isinstance(v, Tensor | Memory) else type(v) for name, v in leaves}


def _shapes(tensors: Mapping[str, Tensor], begin: str = "") -> dict[str, list[int]]:
    """Return full name -> shape of the tensors whose name begins with ``begin``."""
    return {name: list(tensor.shape) for name, tensor in tensors.items() if name.startswith(begin)}


def _as(stored: Tensor, like: Any) -> Any:
    return stored.to(like) if isinstance(like, Tensor) else type(like)(stored.item())


def _unreadable(path: Path, error: Exception) -> UserError:
    why = f"it lacks {error}" if isinstance(error, KeyError) else first_line(error)
    return UserError(f"{path}: this checkpoint cannot be read ({why})")


def _hash(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a hash of all names, types, shapes and numbers, [32] bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        flat = tensor.reshape(-1)
        flat = flat if flat.stride() == (1,) else flat.repeat(1)  # one number may have the stride 0, which view refuses
        digest.update(flat.view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
