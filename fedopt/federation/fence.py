"""The fence between server and clients: a client function knows what it was sent, and nothing else of the server's."""

import dis
import gc
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fedopt.errors import UserError

NUMBERS = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device)
NAMED = (type, ModuleType)  # what is the same on the server and on the clients
REFUSED = (np.random.Generator, np.random.BitGenerator, torch.Generator, Random, torch.UntypedStorage, array, bytearray)


def check(client_fn: Callable[..., Any], message: Any = ()) -> None:
    """Refuse a client function that carries data of the server's: a tensor, an array or a random generator.

    It looks at the variables of enclosing functions, and at the module variables that the function and the functions it calls
    use. It also looks at default arguments, attributes, the object of a method, and whatever these hold. Python numbers are
    allowed: they are hyperparameters.

    Raises UserError, which names the variable. It is also raised if the message holds such data in anything but a tensor.
    """
    for name, value in variables(client_fn):
        if carries(value, set()):
            function = getattr(client_fn, "__name__", "of the exchange")
            raise UserError(
                f"the client function {function} uses the server's data through the variable {name}; send them in the "
                f"message. A client's own "
                "data, draws and memory come with its first argument"
            )
    if any(not isinstance(leaf, torch.Tensor) and carries(leaf, set()) for leaf in tree_leaves(message)):
        raise UserError(
            "a message must be a tensor or (nested) tuples of tensors, since the bytes of other objects "
            "would not be counted"
        )


def variables(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each thing that a function brings along besides its arguments.

    Args:
        function: A function, a method or a partial function.
    """
    if not isinstance(function, FunctionType):
        name = "self" if hasattr(function, "__self__") else "arguments of partial"
        for held in gc.get_referents(function):
            yield from variables(held) if isinstance(held, FunctionType) else [(name, held)]
        return
    code, defaults = function.__code__, function.__defaults__ or ()
    brought = [*zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)]
    brought += [*(function.__kwdefaults__ or {}).items(), *vars(function).items()]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        brought += [(name, cell.cell_contents)] if gc.get_referents(cell) else []  # else it is not assigned yet
    brought += [(name, function.__globals__.get(name)) for name in _globals(code)]
    for name, value in brought:
        foreign = isinstance(value, FunctionType) and value.__globals__ is not function.__globals__
        yield name, value.__closure__ if foreign else value
        if isinstance(value, type) and value.__module__ == function.__module__:
            # A NamedTuple's lead to all that module `typing` uses
            yield from ((name, attribute) for key, attribute in vars(value).items() if key != "__orig_bases__")


@cache
def _globals(code: CodeType) -> tuple[str, ...]:
    """Return the names of the module's variables that a function and the functions nested in it use."""
    own = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _globals(constant)]
    return tuple(dict.fromkeys([*own, *inner]))


def carries(value: Any, seen: set[int]) -> bool:
    """Tell whether a value is, or holds, a tensor, an array or a random generator.

    seen: ids of objects that were checked before; the ids of this value are added.
    """
    kind: Any = type(value)
    known = _verdict(kind)
    if known is not None or id(value) in seen:
        return bool(known)
    seen.add(id(value))
    held = (v for _, v in variables(value)) if isinstance(value, FunctionType) else gc.get_referents(value)
    return any(carries(v, seen) for v in held)


@cache
def _verdict(kind: Any) -> bool | None:
    """Tell whether all values of a type are data of the server's: True or False; None if that depends on what they hold."""
    if issubclass(kind, NUMBERS + NAMED):
        return False
    return True if hasattr(kind, "__array__") or issubclass(kind, REFUSED) else None
