"""Code of one's own: which files it is in, and what its functions may not do: write over what they are given, or draw numbers
that do not follow the seed."""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.random import bit_generator
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedopt.config import flat
from fedopt.errors import UserError
from fedopt.mistakes import SEEDED, is_own, place
from fedopt.settings import imported


def sources(config: dict[str, Any]) -> dict[str, str]:
    """A hash of each module of one's own that a config names a class of, and of those that they take anything from, by name.

    Modules that cannot be imported are left out.
    """
    named = (str(value) for key, value in flat(config).items() if key.endswith("_target_") or key == "problem.model")
    modules = [_module(path) for path in named]
    found: dict[str, str] = {}
    while modules:
        module = modules.pop()
        file = getattr(module, "__file__", None) or ""
        if module is not None and module.__name__ not in found and is_own(file):
            found[module.__name__] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:10]
            modules += [_origin(value) for value in vars(module).values()]
    return dict(sorted(found.items()))


def _module(path: str) -> ModuleType | None:
    """That the dotted path of a class begins with."""
    with suppress(UserError):  # who builds from it says what is wrong
        imported(path, path)
    return sys.modules.get(path.rpartition(".")[0])


def _origin(value: Any) -> ModuleType | None:
    """The module that a value is, or is defined in."""
    name = getattr(value, "__module__", None)
    return value if isinstance(value, ModuleType) else sys.modules.get(name) if isinstance(name, str) else None


@contextmanager
def untouched(function: Callable[..., Any], given: Any) -> Iterator[None]:
    """Raises UserError where a call of the function writes over a tensor of what it is given, or draws from generators that all
    of the program share."""
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
    before, drawn = [tensor._version for tensor in tensors], _drawn()
    with seeded():
        yield
    if before != [tensor._version for tensor in tensors]:
        raise UserError(f"{called(function)} writes over what it is given: write x = x - 1 in place of x -= 1")
    for library, now in _drawn().items():
        if now != drawn[library]:
            raise UserError(
                f"{called(function)} draws random numbers from {library}, which do not follow the seed: {SEEDED}"
            )


@contextmanager
def seeded() -> Iterator[None]:
    """Raises UserError where code of one's own makes one of numpy's generators without a seed."""
    module: Any = bit_generator  # its stubs do not name where it takes entropy from
    given = module.randbits

    def refuse(bits: int) -> int:
        if not is_own(sys._getframe(1).f_code.co_filename):  # a library that is loaded
            return given(bits)
        raise UserError(f"one of numpy's generators is made without a seed, and does not follow fedopt's: {SEEDED}")

    module.randbits = refuse
    try:
        yield
    finally:
        module.randbits = given


def _drawn() -> dict[str, Any]:
    """The states of the generators that all of the program share."""
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    of_numpy = numpy["state"]["key"].tobytes(), numpy["state"]["pos"]
    of_torch = torch.get_rng_state().numpy().tobytes()
    return {"torch": of_torch, "numpy.random": of_numpy, "random": random.getstate()}


def wrong(function: Callable[..., Any], given: Any, wanted: str) -> UserError:
    """For a function that gives something else than what is wanted."""
    what = f"a tensor of shape {list(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    what = "None (is its return missing?)" if given is None else what
    return UserError(f"{called(function)} gives {what}; it must give {wanted}")


def called(function: Callable[..., Any]) -> str:
    """A function's place and its name, for messages."""
    function = function.func if isinstance(function, partial) else function
    return f"{place(function)}: {getattr(function, '__qualname__', 'a function')}"
