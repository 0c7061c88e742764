"""A mistake in an algorithm or a problem of one's own, in one line with its file and line number. Imports no torch."""

import inspect
import os
import re
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from fedopt.errors import UserError, first_line

PACKAGE, STANDARD = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
# What torch says, in other words
WORDS = {
    r"data-dependent control flow|output dynamic shape": "an if, while, assert or mask on a tensor's values: write "
    "torch.where(condition, a, b)",
    r"\.item\(\) on a Tensor": "a tensor is made a Python number, by .item(), float(), int() or numpy: leave it a tensor",
    r"randomness error mode": "torch draws random numbers here, which do not follow the seed: draw from self.world.rng() in "
    "__post_init__ of a problem, or from fed.rng on the server, and send them",
    r"inplace arithmetic|in-place operation": "a tensor is written over: write x = x - 1 in place of x -= 1",
    r"call numpy\(\)|data pointer of Tensor|\.__array__|convert.* to numpy": "numpy is given a tensor that is derived or that "
    "stands for all clients: take torch's function of that name",
    r"same dtype|scalar type": "tensors of several types of numbers: self.world.tensor(array) has the run's, "
    "torch.zeros_like(x) that of x",
}
ALL_AT_ONCE = (
    "; all clients run at once here, by torch.func.vmap: hardware.engine=one_by_one runs them in turn, which tells whether vmap is "
    "what cannot do this"
)


def is_own(path: str) -> bool:
    """Whether a file of Python is neither fedopt's, nor a library's, nor Python's own."""
    file = Path(path)
    ours = file.is_relative_to(PACKAGE) or file.is_relative_to(STANDARD)
    return not ours and not {"site-packages", "dist-packages"} & set(file.parts) and file.is_file()


def blamed(error: Exception) -> UserError | None:
    """An error that names the line where somebody's own code failed or called what failed; None where no such code was at work,
    or the error says its line."""
    cause: BaseException | None = error
    frames: list[traceback.FrameSummary] = []
    while cause and not frames:
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if is_own(frame.filename)]
        cause = cause.__cause__
    if not frames or isinstance(error, MemoryError | OverflowError):
        return None
    place = _at(frames[-1].filename, frames[-1].lineno or 0)
    if isinstance(error, UserError):
        said = str(error)
        return None if re.match(r"\S+\.py:\d+: ", said) else UserError(f"{place}: {said}")
    said = first_line(error)
    words = next((words for pattern, words in WORDS.items() if re.search(pattern, said)), None)
    stacked = any(frame.filename.endswith("_functorch/vmap.py") for frame in traceback.extract_tb(error.__traceback__))
    return UserError(f"{place}: {words or f'{type(error).__name__}: {said}'}{ALL_AT_ONCE if stacked else ''}")


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
            return f"{top} lies in the working directory, which is not searched: type PYTHONPATH=.{more} fedopt ..."
        return (
            f"there is no module {top}; {searched}: type PYTHONPATH=FOLDER fedopt ..., FOLDER being where {top}.py lies"
        )
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    where = f"{_at(own[-1].filename, own[-1].lineno or 0)}: " if own else ""
    return f"{where}{type(error).__name__}: {first_line(error)}"


def _at(path: str, line: int) -> str:
    return f"{min(os.path.relpath(path), path, key=len)}:{line}"
