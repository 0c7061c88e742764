"""A mistake in an algorithm or a problem of one's own, in one line with its file and line number. Imports no torch."""

import inspect
import os
import random
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from fedopt.errors import UserError, first_line, nearest, too_large

PACKAGE, STANDARD = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
WRITTEN_OVER = (
    "a tensor is written over: write x = x - 1, not x -= 1, and torch.where(condition, a, b), not x[rows] = b"
)
# What torch says of what vmap, which runs all clients at once, cannot do; and of what is wrong however clients are run
STACKED = {
    r"data-dependent control flow|\.item\(\)|dynamic shape": "the value of a tensor is asked for, by if, while, assert, .item(), "
    "float() or a mask: write torch.where(condition, a, b), and leave numbers tensors",
    r"call numpy\(\)|data pointer of Tensor|to numpy": "numpy is given a tensor: take torch's function of that name",
    r"inplace arithmetic|index_put_": WRITTEN_OVER,
}
SEEDED = (
    'a problem has self.world.rng("data") in __post_init__, a partitioner the generator that it is given, an algorithm '
    'fed.rng("noise") on the server, which sends each client its numbers by own= of the exchange, for client.own'
)
_STEP_SIZES, _WORK = "Constant|InversePower|Exponential|Piecewise", "Fixed|Growing"
WORDS = {
    r"call numpy\(\)": "numpy is given a tensor that derivatives are taken of: take torch's function of that name",
    r"in-?place operation": WRITTEN_OVER,
    r"randomness error mode": f"torch draws random numbers here, which do not follow the seed: {SEEDED}",
    rf"(^|'|not )({_STEP_SIZES})\b": "a step size is a schedule, which gives a number for a round: self.alpha(fed.r) for a field "
    "alpha",
    rf"(^|'|not )({_WORK})\b": "local work is a schedule: for a field tau, fed.local(self.tau, self.B) draws the samples, and "
    "self.tau(fed.r, problem.clients) is the number of steps",
    r"same dtype|scalar type": "tensors of several types of numbers: self.world.tensor(array) has hardware.dtype, "
    "torch.zeros_like(x) that of x",
}
CONFIGURED = {"set_up", "set_up_shared", "load"}  # where what the config says of data and models is used
VMAP = "vmap, which runs all clients at once"
ONE_BY_ONE = "hardware.engine=one_by_one runs them in turn"


def is_own(path: str) -> bool:
    """Whether a file of Python is neither fedopt's, nor a library's, nor Python's own."""
    file = Path(path)
    ours = file.is_relative_to(PACKAGE) or file.is_relative_to(STANDARD)
    return not ours and not {"site-packages", "dist-packages"} & set(file.parts) and file.is_file()


def is_own_class(cls: type) -> bool:
    """As `is_own`, of the file that a class is defined in."""
    return is_own(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


def classes_in(module: Any) -> list[str]:
    """The classes that a module defines."""
    found = ((name, value) for name, value in vars(module).items() if isinstance(value, type))
    return [name for name, value in found if value.__module__ == module.__name__]


def blamed(error: Exception) -> UserError | None:
    """An error that names the line where somebody's own code failed or called what failed; None where no such code was at work,
    or the error says its line."""
    cause: BaseException | None = error
    frames: list[traceback.FrameSummary] = []
    inside: list[str] = []  # of fedopt's functions, those that the last of these frames called
    while cause and not frames:
        for frame in traceback.extract_tb(cause.__traceback__):
            if is_own(frame.filename):
                frames, inside = [*frames, frame], []
            else:
                inside.append(frame.name)
        cause = cause.__cause__
    if isinstance(error, UserError) and not CONFIGURED.isdisjoint(inside):
        return None
    said = first_line(error)
    if not frames and "modified by an inplace operation" in said:  # found out in the derivative, which is torch's work
        return UserError(f"a function of your own (f, g, a network): {WRITTEN_OVER}")
    if not frames or too_large(error) or (isinstance(error, UserError) and re.match(r"[^:]+\.py:\d+: ", said)):
        return None
    words = str(error) if isinstance(error, UserError) else _words(error, frames[-1])
    return UserError(f"{_at(frames[-1].filename, frames[-1].lineno or 0)}: {words}")


def _words(error: Exception, frame: traceback.FrameSummary) -> str:
    """What is wrong, as far as it is known, else as the error says it."""
    said, called = first_line(error), traceback.extract_tb(error.__traceback__)
    stacked = any(inner.filename.endswith("_functorch/vmap.py") for inner in called)
    for patterns in (STACKED, WORDS) if stacked else (WORDS,):
        if words := next((words for pattern, words in patterns.items() if re.search(pattern, said)), None):
            return f"{words}; {VMAP}, cannot do this: {ONE_BY_ONE}, to find out" if patterns is STACKED else words
    if "NoneType" in said and called and called[-1].filename == frame.filename:
        said += " (None: is a return missing in the function that gives it?)"
    if isinstance(error, AttributeError | NameError) and error.name:
        said += nearest(error.name, _names(error))
    if isinstance(error, KeyError):
        said += "".join(f"; {name} has {', '.join(keys)}" for name, keys in _keys(error).items())
    blame = stacked and isinstance(error, RuntimeError)  # torch's; what Python itself says has nothing to do with vmap
    asked = f"; {VMAP}, is at work here: {ONE_BY_ONE}, to find out whether it is to blame" if blame else ""
    return f"{type(error).__name__}: {said}{asked} (HYDRA_FULL_ERROR=1 shows the whole traceback)"


def _names(error: AttributeError | NameError) -> list[str]:
    """The attributes that an object has, or the names that a line may use, where another one was meant."""
    if isinstance(error, AttributeError):
        return [name for name in dir(error.obj) if not name.startswith("_")]
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return [*frame.f_locals, *frame.f_globals]


def _keys(error: KeyError) -> dict[str, list[str]]:
    """The keys of the dicts with names for keys that a line may have meant, by the dict's name."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    dicts = {name: list(value) for name, value in frame.f_locals.items() if isinstance(value, dict) and value}
    return {name: keys for name, keys in dicts.items() if all(isinstance(key, str) for key in keys)}


def place(function: Any) -> str:
    """Where a function or class is defined, `file.py:12`; its name where that is not known."""
    try:
        function = inspect.unwrap(function)
        return _at(inspect.getsourcefile(function) or "", inspect.getsourcelines(function)[1])
    except (OSError, TypeError):
        return getattr(function, "__qualname__", str(function))


def not_imported(module: str, error: BaseException) -> str:
    """Why a module that a config names cannot be imported."""
    top = str(module).partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == top:
        searched = f"PYTHONPATH={os.environ['PYTHONPATH']}" if os.environ.get("PYTHONPATH") else "PYTHONPATH is not set"
        if Path(f"{top}.py").is_file() or Path(top).is_dir():
            more = f":{os.environ['PYTHONPATH']}" if os.environ.get("PYTHONPATH") else ""
            return f"{top} lies in the working directory, which is not searched: type PYTHONPATH=.{more} before the command"
        modules = iter_modules(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        near = nearest(top, [module.name for module in modules])
        where = f"type PYTHONPATH=FOLDER before the command, FOLDER being where {top}.py lies"
        return f"there is no module {top}{near}; {searched}: {where}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    where = f"{_at(own[-1].filename, own[-1].lineno or 0)}: " if own else ""
    return f"{where}{type(error).__name__}: {first_line(error)}"


def _at(path: str, line: int) -> str:
    with suppress(OSError, ValueError):  # no working directory any more, another drive
        path = min(os.path.relpath(path), path, key=len)
    return f"{path}:{line}"


@contextmanager
def untouched(function: Callable[..., Any], given: Any) -> Iterator[None]:
    """Raises UserError where a call of the function writes over a tensor of what it is given, or draws from generators that all
    of the program share."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

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
    from numpy.random import bit_generator

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
    import numpy as np
    import torch

    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    of_numpy = numpy["state"]["key"].tobytes(), numpy["state"]["pos"]
    of_torch = torch.get_rng_state().numpy().tobytes()
    return {"torch": of_torch, "numpy.random": of_numpy, "random": random.getstate()}


def wrong(function: Callable[..., Any], given: Any, wanted: str) -> UserError:
    """For a function that gives something else than what is wanted."""
    what = f"a tensor of shape {list(given.shape)}" if hasattr(given, "shape") else f"a {type(given).__name__}"
    what = "None (is its return missing?)" if given is None else what
    return UserError(f"{called(function)} gives {what}; it must give {wanted}")


def called(function: Callable[..., Any]) -> str:
    """A function's place and its name, for messages."""
    function = function.func if isinstance(function, partial) else function
    return f"{place(function)}: {getattr(function, '__qualname__', 'a function')}"
