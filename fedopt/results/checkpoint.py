"""Everything a run needs to go on, in one safetensors file: tensors and text, no code."""

import json
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


def store(path: Path, state: Any, ledger: Ledger, progress: dict[str, Any]) -> None:
    """state: the algorithm's, tensors and numbers; progress: what the run loop knows, as JSON. Raises OSError."""
    leaves, _ = tree_flatten(state)
    tensors = {f"state.{j}": torch.as_tensor(leaf).detach().cpu().clone() for j, leaf in enumerate(leaves)}
    text = torch.frombuffer(bytearray(json.dumps(progress).encode()), dtype=torch.uint8)
    write_atomically(path, save({**tensors, **ledger.tensors(), "progress": text}))


def restore(path: Path, like: Any, ledger: Ledger) -> tuple[Any, dict[str, Any]]:
    """The state and the progress; the ledger is set. like: a state of the same structure, which gives devices and types.

    Raises UserError when the file is broken or belongs to another run.
    """
    try:
        tensors = load(path.read_bytes())
        leaves, structure = tree_flatten(like)
        read = [_as(tensors[f"state.{j}"], leaf) for j, leaf in enumerate(leaves)]
        ledger.restore(tensors)
        return tree_unflatten(read, structure), json.loads(bytes(tensors["progress"].tolist()))
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UserError(
            f"{path}: the checkpoint cannot be read ({str(error).splitlines()[0]}); delete it to start this run over with "
            "resume=true, or put back a good copy"
        ) from None


def _as(stored: Tensor, like: Any) -> Any:
    if not isinstance(like, Tensor):
        return type(like)(stored.item())
    if stored.shape != like.shape:
        raise ValueError(f"a tensor of shape {list(stored.shape)} where this config has {list(like.shape)}")
    return stored.to(like)
