"""The fence between server and clients: a client function may use only the data in its message, no other data of the server."""

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
from fedopt.federation.varied import Varied

NUMBERS = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device, Varied)
NAMED = (type, ModuleType)  # classes and modules are the same on the server and on the clients
REFUSED = (np.random.Generator, np.random.BitGenerator, torch.Generator, Random, torch.UntypedStorage, array, bytearray)


def check(client_fn: Callable[..., Any], message: Any = ()) -> None:
    """Check that a client function uses no data of the server other than its message: no tensor, array or random generator.

    The check covers the variables of enclosing functions, the module variables that the function and the functions that it
    calls use, default arguments, attributes, the object of a method, and everything that these contain. Python numbers are
    allowed, since they are hyperparameters.

    Args:
        client_fn: The client function.
        message: The message to the clients. It may contain such data only as tensors, whose bytes are counted.

    Raises:
        UserError: The function uses such data, or the message contains such data as another type. The message of the error
            names the variable.
    """
    for name, value in variables(client_fn):
        if carries(value, set()):
            function = getattr(client_fn, "__name__", "of the exchange")
            why = f"the client function {function} uses data of the server through the variable {name}"
            own = "The client's data, draws and memory are attributes of its first argument"
            raise UserError(f"{why}; send them in the message. {own}")
    if any(not isinstance(leaf, torch.Tensor) and carries(leaf, set()) for leaf in tree_leaves(message)):
        why = "since the bytes of other objects are not counted; convert them to tensors"
        raise UserError(f"a message must be a tensor or a (nested) tuple of tensors, {why}")


def variables(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each variable that a function uses besides its arguments.

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
        brought += [(name, cell.cell_contents)] if gc.get_referents(cell) else []  # an empty cell: not assigned yet
    brought += [(name, function.__globals__.get(name)) for name in _globals(code)]
    for name, value in brought:
        foreign = isinstance(value, FunctionType) and value.__globals__ is not function.__globals__
        yield name, value.__closure__ if foreign else value
        if isinstance(value, type) and value.__module__ == function.__module__:
            # The `__orig_bases__` of a NamedTuple lead to everything that the module `typing` uses
            yield from ((name, attribute) for key, attribute in vars(value).items() if key != "__orig_bases__")


@cache
def _globals(code: CodeType) -> tuple[str, ...]:
    """Return the global names that a function and its nested functions use, given the function's code object."""
    own = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _globals(constant)]
    return tuple(dict.fromkeys([*own, *inner]))


def carries(value: Any, seen: set[int]) -> bool:
    """Return whether a value is or contains a tensor, an array or a random generator.

    Args:
        value: The value.
        seen: The ids of the objects that were already checked. The ids of the objects in this value are added in place.
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
    """Return whether values of a type are server data, which a client function may use only through its message.

    Args:
        kind: The type.

    Returns:
        True for arrays, tensors and random generators; False for numbers, texts, classes and modules; None if it depends on
        what they contain.
    """
    if issubclass(kind, NUMBERS + NAMED):
        return False
    return True if hasattr(kind, "__array__") or issubclass(kind, REFUSED) else None
