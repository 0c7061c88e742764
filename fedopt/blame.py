"""Find the line of the user's code that caused an exception, and describe the error in one line with at most one hint.

This module does not import torch.
"""

import inspect
import traceback
from contextlib import suppress
from typing import Any

from fedopt.errors import UserError, WrongFunction, first_line, is_own, line_of, nearest, too_large

VMAP = "_functorch/vmap.py"  # the torch module that runs clients in parallel
ONE_BY_ONE = "; try hardware.engine=one_by_one, which runs the clients one after another"


def blamed(error: Exception) -> UserError | None:
    """Return a UserError that names the innermost line of the user's code in an exception's traceback.

    For a `WrongFunction` it names the line in which the function is defined.

    Args:
        error: The exception.

    Returns:
        The UserError; None if no user code was involved, or if the program ran out of memory.
    """
    if too_large(error):
        return None
    if isinstance(error, WrongFunction):
        return UserError(f"{_defined(error.function)}{error}")
    cause: BaseException | None = error
    while cause:
        if frames := [frame for frame in traceback.extract_tb(cause.__traceback__) if is_own(frame.filename)]:
            message = str(error) if isinstance(error, UserError) else _exception(error)
            return UserError(f"{line_of(frames[-1].filename, frames[-1].lineno)}: {message}")
        cause = cause.__cause__
    return None


def _exception(error: Exception) -> str:
    """Describe an exception that is not a UserError: its class, the first line of its message, and a hint if there is one."""
    hint = ""
    if isinstance(error, AttributeError) and error.name:
        hint = nearest(error.name, dir(error.obj))
    elif isinstance(error, RuntimeError):  # raised by torch; Python's own errors have nothing to do with vmap
        calls = traceback.extract_tb(error.__traceback__)
        hint = ONE_BY_ONE if any(call.filename.endswith(VMAP) for call in calls) else ""
    return f"{type(error).__name__}: {first_line(error)}{hint} (HYDRA_FULL_ERROR=1 shows the whole traceback)"


def _defined(function: Any) -> str:
    """Return the place where a function or class is defined, as `file.py:12: `; empty if it is unknown."""
    with suppress(OSError, TypeError):
        function = inspect.unwrap(function)
        return f"{line_of(inspect.getsourcefile(function) or '', inspect.getsourcelines(function)[1])}: "
    return ""
