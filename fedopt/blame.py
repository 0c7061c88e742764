"""Find whose mistake an exception is: name the file and line of a user's code, the exception, and at most one hint.

It imports no torch.
"""

import inspect
import traceback
from contextlib import suppress
from typing import Any

from fedopt.errors import UserError, WrongFunction, first_line, is_own, line_of, nearest, too_large

VMAP = "_functorch/vmap.py"  # of torch, which runs all clients at once
ONE_BY_ONE = "; try hardware.engine=one_by_one, which runs clients one by one"


def blamed(error: Exception) -> UserError | None:
    """Return a UserError that names the line of a user's code that failed, or that called what failed.

    A `WrongFunction` is named with the line that defines the function.

    Return None if no user's code took part, or if memory did not suffice.
    """
    if too_large(error):
        return None
    if isinstance(error, WrongFunction):
        return UserError(f"{_defined(error.function)}{error}")
    cause: BaseException | None = error
    while cause:
        if own := [frame for frame in traceback.extract_tb(cause.__traceback__) if is_own(frame.filename)]:
            said = str(error) if isinstance(error, UserError) else _exception(error)
            return UserError(f"{line_of(own[-1].filename, own[-1].lineno)}: {said}")
        cause = cause.__cause__
    return None


def _exception(error: Exception) -> str:
    hint = ""
    if isinstance(error, AttributeError) and error.name:
        hint = nearest(error.name, dir(error.obj))
    elif isinstance(error, RuntimeError):  # torch's; what Python itself says has nothing to do with vmap
        calls = traceback.extract_tb(error.__traceback__)
        hint = ONE_BY_ONE if any(call.filename.endswith(VMAP) for call in calls) else ""
    return f"{type(error).__name__}: {first_line(error)}{hint} (HYDRA_FULL_ERROR=1 shows the whole traceback)"


def _defined(function: Any) -> str:
    """Return where a function or class is defined, as `file.py:12: `; empty if unknown."""
    with suppress(OSError, TypeError):
        function = inspect.unwrap(function)
        return f"{line_of(inspect.getsourcefile(function) or '', inspect.getsourcelines(function)[1])}: "
    return ""
