"""Everything a run needs to go on, in one safetensors file: tensors and text, no code."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedopt.errors import UserError
from fedopt.federation.ledger import Ledger
from fedopt.results.folder import write_atomically

# What reading a damaged file may raise
BROKEN = (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError)


def store(path: Path, state: Any, ledger: Ledger, progress: Mapping[str, Any]) -> None:
    """state: the algorithm's, tensors and numbers; progress: what the run loop knows, as JSON. Raises OSError."""
    leaves, _ = tree_flatten(state)
    tensors = {f"state.{j}": torch.as_tensor(leaf).detach().cpu().clone() for j, leaf in enumerate(leaves)}
    text = torch.frombuffer(bytearray(json.dumps(progress).encode()), dtype=torch.uint8)
    tensors |= {**ledger.tensors(), "progress": text}
    write_atomically(path, save({**tensors, "hash": _hash(tensors)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors, and the progress. Raises UserError when the file is not as it was stored."""
    try:
        tensors = load(path.read_bytes())
        if not torch.equal(tensors.pop("hash"), _hash(tensors)):
            raise ValueError("its hash is that of other numbers")
        return tensors, dict(json.loads(bytes(tensors["progress"].tolist())))
    except BROKEN as error:
        raise _unreadable(path, error) from None


def restore(path: Path, like: Any, ledger: Ledger) -> tuple[Any, dict[str, Any]]:
    """The state and the progress; the ledger is set. like: a state of the same structure, which gives devices and types.

    Raises UserError when the file is not as it was stored, or its state is of another structure.
    """
    tensors, progress = read(path)
    try:
        leaves, structure = tree_flatten(like)
        state = [_as(tensors[f"state.{j}"], leaf) for j, leaf in enumerate(leaves)]
        ledger.restore(tensors)
        return tree_unflatten(state, structure), progress
    except BROKEN as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    why = f"it lacks {error}" if isinstance(error, KeyError) else (str(error) or type(error).__name__).splitlines()[0]
    return UserError(
        f"{path}: the checkpoint cannot be read ({why}); delete it to start this run over with resume=true, or put back a "
        "good copy"
    )


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
    if stored.shape != like.shape:
        raise ValueError(f"a tensor of shape {list(stored.shape)} where this config has {list(like.shape)}")
    return stored.to(like)
