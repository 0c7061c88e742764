"""A checkpoint: all that a run needs to resume, in a safetensors file. It holds tensors and text, no code.

Tensors of the algorithm's state are named by their place in it, such as state.x or state.u.0. Of a `Memory` state.c, the rows
that were replaced since the first round are stored as rows.state.c, and their clients as clients.state.c. With keep=best, the
variables at the best evaluation are stored too, as best.x and so on.
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

# What reading a damaged file may raise
BROKEN = (SafetensorError, LookupError, TypeError, ValueError, RuntimeError, OSError)
Stored = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and the progress of the run loop
FORMAT = 5  # of checkpoints: one more where a later version could not read, or would misread, an older one
BEST = "best."  # begins the names of the best evaluation's variables
CLIENTS, ROWS = "clients.", "rows."  # begin the names of the two tensors of a memory


class Checkpoint:
    """The checkpoint of a run.

    Args:
        path: The file.
        initial: The algorithm's state before the first round.

    Attributes:
        best: The variables at the best evaluation so far, by name; empty unless keep=best.
    """

    def __init__(self, path: Path, initial: Any):
        self.path, self._initial = path, initial
        self.best: dict[str, Tensor] = {}

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
        if _kinds(state) != _kinds(self._initial):
            raise UserError("the algorithm's step must keep the structure, shapes and dtypes of init's state")
        since = _flat(self._initial)[0]
        changed = {
            name: leaf.changed(since[name]) for name, leaf in _flat(state)[0].items() if isinstance(leaf, Memory)
        }
        tensors, initial = _tensors(state, changed), _tensors(self._initial, changed)
        if any(_lost(initial[name], tensor) for name, tensor in tensors.items()):
            return False
        tensors |= {**{f"{BEST}{name}": tensor.detach() for name, tensor in self.best.items()}, **ledger.sent.tensors}
        tensors = {name: t.cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
        text = torch.frombuffer(bytearray(json.dumps({**progress, "format": FORMAT}).encode()), dtype=torch.uint8)
        tensors |= {**ledger.tensors(), "progress": text}
        write_atomically(self.path, save({**tensors, "hash": _hash(tensors)}))
        return True

    def restore(self, ledger: Ledger, stored: Stored | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the stored state and progress, and set the ledger and ``best`` to what was stored.

        Args:
            ledger: Changed in place.
            stored: The result of `read`. None: the file is read here.

        Raises:
            UserError: The file is damaged, or the state's structure differs from the initial state's.
        """
        tensors, progress = stored or read(self.path)
        there, here = _shapes(tensors), _shapes(_tensors(self._initial, {}))
        if differing := [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]:
            name = differing[0]
            shapes = f"{there.get(name, 'absent')} there, and {here.get(name, 'absent')} here"
            raise UserError(f"{self.path}: comes from a different algorithm or different options: {name} is {shapes}")
        try:
            ledger.restore(tensors)
            leaves, structure = _flat(self._initial)
            state = [_restored(name, leaf, tensors) for name, leaf in leaves.items()]
            self.best = {name.removeprefix(BEST): t for name, t in tensors.items() if name.startswith(BEST)}
            return tree_unflatten(state, structure), progress
        except BROKEN as error:
            raise _unreadable(self.path, error) from None


def read(path: Path) -> Stored:
    """Return all tensors of a checkpoint, by name, and the progress.

    Raises:
        UserError: The file is damaged, or another version of fedopt has written it.
    """
    try:
        tensors = load(read_bytes(path, memory() // 3))
        if not torch.equal(tensors.pop("hash"), _hash(tensors)):
            raise ValueError("its hash does not fit its content")
        progress = dict(json.loads(bytes(tensors["progress"].tolist())))
    except BROKEN as error:
        raise _unreadable(path, error) from None
    if progress.get("format") != FORMAT:
        raise UserError(f"{path}: another version of fedopt has written this checkpoint, and only that one can read it")
    return tensors, progress


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


def _tensors(state: Any, clients: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return a state as tensors, by name.

    clients: the clients of which the rows are returned, for each memory by its name; none where the name is missing.
    Raises UserError for other types than tensors, numbers and memories.
    """
    tensors = dict[str, Tensor]()
    try:
        for name, leaf in _flat(state)[0].items():
            if isinstance(leaf, Memory):
                chosen = clients.get(name, np.zeros(0, dtype=np.int64))
                tensors[f"{CLIENTS}{name}"], tensors[f"{ROWS}{name}"] = torch.from_numpy(chosen), leaf.rows(chosen)
            else:
                # A float would become a tensor of torch's default type, which may hold fewer digits
                tensors[name] = torch.as_tensor(np.float64(leaf) if isinstance(leaf, float) else leaf).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the algorithm's state must hold only tensors and numbers ({first_line(error)}); change what "
            f"init and step return"
        ) from None
    return tensors


def _lost(initial: Tensor, now: Tensor) -> bool:
    """Tell whether an entry is not finite any more. What begins as infinity, such as a best value so far, may stay so."""
    return not bool(now.isfinite().all()) and bool((initial.isfinite() & ~now.isfinite()).any())


def _kinds(state: Any) -> dict[str, Any]:
    """Return the shape and dtype of each tensor and memory of a state, and the type of each number, by name."""
    leaves = _flat(state)[0].items()
    return {name: (*v.shape, v.dtype) if isinstance(v, Tensor | Memory) else type(v) for name, v in leaves}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return name -> shape of the tensors of a state; of the rows of a memory, the shape of one row."""
    rows = {name: list(tensor.shape[1:]) for name, tensor in tensors.items() if name.startswith(ROWS)}
    return rows | {name: list(tensor.shape) for name, tensor in tensors.items() if name.startswith("state.")}


def _restored(name: str, like: Any, stored: Mapping[str, Tensor]) -> Any:
    """Return the stored leaf of a state: a tensor, a number or a memory, as the leaf of the initial state (``like``) is."""
    if isinstance(like, Memory):
        rows = stored[f"{ROWS}{name}"].to(like.rows(np.zeros(1, dtype=np.int64)).device)
        return like.replaced(stored[f"{CLIENTS}{name}"].numpy(), rows)
    return stored[name].to(like) if isinstance(like, Tensor) else type(like)(stored[name].item())


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
