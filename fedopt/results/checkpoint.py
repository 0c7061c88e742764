"""Everything a run needs to go on, in a safetensors file and a journal: tensors and text, no code.

Tensors of the algorithm's state are named by where they stand in it, state.x or state.u.0; with keep=best, the variables at the
best evaluation by their own names, best.x.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

from fedopt.errors import UserError, first_line
from fedopt.federation.ledger import Ledger
from fedopt.federation.memory import Memory
from fedopt.results.files import write_atomically
from fedopt.results.journal import Journal, counted

# What reading a damaged file may raise
BROKEN = (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError)
BEST = "best."  # what the names of the best evaluation's variables begin with


class Checkpoint:
    """The last checkpoint of a run: its file, and the journal beside it of what clients keep. initial: the state of round 0.

    best: the variables at the best evaluation so far, by name, where they are kept.
    """

    def __init__(self, path: Path, initial: Any):
        self.path, self._initial = path, initial
        self.best: dict[str, Tensor] = {}
        self._journal = Journal(path.parent, _memories(initial))

    def store(self, state: Any, ledger: Ledger, progress: Mapping[str, Any]) -> bool:
        """Replace it, unless the state is not finite, which leaves the last good one there; returns whether it did.

        state: the algorithm's; progress: what the run loop knows, as JSON. Raises OSError, and UserError for a state that does
        not have the initial one's structure and shapes, or holds other things than tensors and numbers.
        """
        tensors = _tensors(state)
        if (_flat(state)[1], _shapes(tensors)) != (_flat(self._initial)[1], _shapes(_tensors(self._initial))):
            raise UserError("the algorithm's state must keep the structure and the shapes that init gives it")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            return False
        said = dict(progress)
        if memories := _memories(state):
            said["memory"] = self._journal.append(memories)
            if said["memory"] is None:
                return False
        tensors |= {f"{BEST}{name}": tensor.detach() for name, tensor in self.best.items()}
        tensors = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
        text = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        tensors |= {**ledger.tensors(), "progress": text}
        write_atomically(self.path, save({**tensors, "hash": _hash(tensors)}))
        self._journal.tidy()
        return True

    def restore(self, ledger: Ledger) -> tuple[Any, dict[str, Any]]:
        """The state and the progress; the ledger and `best` are set.

        Raises UserError when the files are not as they were stored, or the state is of another structure than the initial one.
        """
        tensors, progress = read(self.path)
        leaves, structure = _flat(self._initial)
        self._refuse_other(tensors)
        try:
            memories = iter(self._journal.restore(progress["memory"]) if _memories(self._initial) else [])
            state = [
                next(memories) if isinstance(leaf, Memory) else _as(tensors[name], leaf)
                for name, leaf in zip(_names(self._initial), leaves, strict=True)
            ]
            ledger.restore(tensors)
            self.best = {name.removeprefix(BEST): t for name, t in tensors.items() if name.startswith(BEST)}
            return tree_unflatten(state, structure), progress
        except BROKEN as error:
            raise _unreadable(self.path, error) from None

    def _refuse_other(self, stored: Mapping[str, Tensor]) -> None:
        """Raises UserError where what is stored is no state of this run's kind."""
        begin = f"{self.path}: the state in it does not fit: "
        expected = _tensors(self._initial)
        if {name for name in stored if name.startswith("state.")} != expected.keys():
            raise UserError(f"{begin}it is of another algorithm, or of other options")
        for name, tensor in expected.items():
            if stored[name].shape != tensor.shape:
                shape, here = (list(of.shape) for of in (stored[name], tensor))
                raise UserError(f"{begin}{name.removeprefix('state.')} has the shape {shape}, and here {here}")


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors, and the progress. Raises UserError when the file, or the journal that it counts, is not as it was stored."""
    try:
        tensors = load(path.read_bytes())
        if not torch.equal(tensors.pop("hash"), _hash(tensors)):
            raise ValueError("its hash is that of other numbers")
        progress = dict(json.loads(bytes(tensors["progress"].tolist())))
        if "memory" in progress:
            counted(path.parent, progress["memory"])
        return tensors, progress
    except BROKEN as error:
        raise _unreadable(path, error) from None


def refuse_foreign(path: Path, metadata: Mapping[str, Any], run: str) -> None:
    """Raises UserError where the checkpoint at a path is not of the run with these digits (`identity.stamp`)."""
    if metadata.get("run") != run:
        raise UserError(
            f"{path}: it belongs to a run with other values; put back this run's own, or delete it to start over"
        )


def _flat(state: Any) -> tuple[list[Any], Any]:
    return tree_flatten(state, is_leaf=lambda value: isinstance(value, Memory))


def _names(state: Any) -> list[str]:
    """Of each leaf: where it stands in the state, or its number where that does not tell them apart."""
    count = len(_flat(state)[0])
    with suppress(ValueError):  # a class that was registered as a tree without names
        paths = [path for path, _ in tree_flatten_with_path(state, is_leaf=lambda value: isinstance(value, Memory))[0]]
        names = [".".join(["state", *(str(*astuple(key)) for key in path)]) for path in paths]  # type: ignore[call-overload]
        if len(set(names)) == count:
            return names
    return [f"state.{j}" for j in range(count)]


def _memories(state: Any) -> list[Memory]:
    return [leaf for leaf in _flat(state)[0] if isinstance(leaf, Memory)]


def _tensors(state: Any) -> dict[str, Tensor]:
    """All of the state but what clients keep. Raises UserError for what is no tensor and no number."""
    leaves = zip(_names(state), _flat(state)[0], strict=True)
    try:
        return {name: torch.as_tensor(leaf).detach() for name, leaf in leaves if not isinstance(leaf, Memory)}
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the algorithm's state must hold tensors and numbers alone ({first_line(error)})") from None


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _unreadable(path: Path, error: Exception) -> UserError:
    why = f"it lacks {error}" if isinstance(error, KeyError) else first_line(error)
    return UserError(f"{path}: the checkpoint cannot be read ({why})")


def _hash(tensors: Mapping[str, Tensor]) -> Tensor:
    """Of all names, types, shapes and numbers, [32]."""
    of_all = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        of_all.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        of_all.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(of_all.digest()), dtype=torch.uint8)


def _as(stored: Tensor, like: Any) -> Any:
    if not isinstance(like, Tensor):
        return type(like)(stored.item())
    return stored.to(like)
