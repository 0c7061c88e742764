"""`UserError`, the exception for errors that the user can fix, and the hints in its messages."""

import os
import re
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedopt.deprecated import removed

PACKAGE, STANDARD = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
MOST_NAMED, MOST_ALIKE = 30, 6  # the largest numbers of options that a message lists and that it suggests
MEANT = {  # names in other programs -> the name in fedopt
    **dict.fromkeys(("n_clients", "num_clients"), "partitioner.clients"),
    "gpu": "cuda",
    **dict.fromkeys(("method", "optimizer", "optimiser"), "algo"),
    "task": "problem",
}


class UserError(Exception):
    """An error that the user can fix, such as an unknown key.

    The command shows it as one line without a traceback: what is wrong, where, and what to do.
    """


class Unfinished(UserError):
    """Some runs were interrupted, or failed because of the machine (for example a full disk).

    Repeating the command resumes these runs. The exit code is 1.
    """


class WrongFunction(UserError):
    """An error in a user's function or class. `blame` adds the file and the line.

    Args:
        function: The function or class, or its name.
        fault: What the function does wrong, such as 'returns None'. The message is the function's name followed by this text.
    """

    def __init__(self, function: Any, fault: str):
        function = getattr(function, "func", function)  # of a functools.partial
        super().__init__(f"{getattr(function, '__qualname__', function)} {fault}")
        self.function = function


def need(what: str, library: str, extra: str) -> None:
    """Raise UserError if an optional library is not installed.

    Args:
        what: The part of fedopt that needs the library, for the message.
        library: The library's import name.
        extra: The extra of fedopt that installs the library.
    """
    if find_spec(library) is None:
        raise UserError(f"{what} needs {library}, which is not installed; run pip install 'fedopt[{extra}]'")


def gives(function: Any, returned: object, wanted: str) -> WrongFunction:
    """Return the exception to raise for a user's function that returned a wrong value.

    Args:
        function: The user's function.
        returned: The value that it returned.
        wanted: What it must return, as the end of the message.
    """
    what = f"a tensor of shape {list(returned.shape)}" if hasattr(returned, "shape") else f"a {type(returned).__name__}"
    what = "None (is its return missing?)" if returned is None else what
    return WrongFunction(function, f"returns {what}; it must return {wanted}")


def is_own(path: str) -> bool:
    """Return whether a Python file is the user's, that is, part of neither fedopt, an installed library nor Python itself."""
    file = Path(path)
    ours = file.is_relative_to(PACKAGE) or file.is_relative_to(STANDARD)
    return not ours and not {"site-packages", "dist-packages"} & set(file.parts) and file.is_file()


def line_of(path: str, line: int | None) -> str:
    """Return the position of a line as `file.py:12`. The path is relative to the working directory if that is shorter."""
    with suppress(OSError, ValueError):  # the working directory was removed, or is on another drive
        path = min(os.path.relpath(path), path, key=len)
    return f"{path}:{line}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message; the name of its class if the message is empty."""
    try:
        message = str(error).strip()
    except Exception:  # a user's exception class whose __str__ fails
        message = ""
    return (message.splitlines() or [type(error).__name__])[0]


def too_large(error: BaseException) -> bool:
    """Return whether an exception was raised because main memory ran out, or because a number does not fit its type.

    If the memory of a GPU has run out, the result is False.
    """
    by_torch = re.search("can't allocate memory|without overflow", first_line(error))
    return by_torch is not None or isinstance(error, MemoryError | OverflowError)


def of_machine(error: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, comes from files, the disk or memory, and not from the computation."""
    while error is not None:
        if isinstance(error, OSError | MemoryError) or re.search("allocate memory|out of memory", first_line(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def nearest(name: str, known: list[str]) -> str:
    """Return the hint ', did you mean ...?' with the known names that the user may have meant; empty if none is similar.

    The suggestions include names from other programs (lr), the same name under another key, names that begin in the same
    way, and similar spellings. Upper and lower case do not matter.

    Args:
        name: The unknown name.
        known: The known names.
    """
    by_lower = {known_name.casefold(): known_name for known_name in known}
    leaves = {re.split(r"[./]", lower)[-1]: known_name for lower, known_name in by_lower.items()}
    typed = name.casefold()
    leaf = re.split(r"[./]", typed)[-1]
    elsewhere = re.compile(rf"(.*[./])?{re.escape(leaf)}[a-z]?")  # fig2 may stand for fig2a
    beginning = re.compile(rf"(\b|_){re.escape(typed)}")
    found = (
        [one for one in known if typed not in by_lower and (elsewhere.fullmatch(one) or one == MEANT.get(leaf))]
        or [by_lower[lower] for lower in get_close_matches(typed, by_lower, 1)]
        or [leaves[lower] for lower in get_close_matches(leaf, leaves, 1)]
        or [known_name for lower, known_name in by_lower.items() if len(typed) > 2 and beginning.search(lower)]
    )
    return f", did you mean {' or '.join(found[:MOST_ALIKE])}?" if found else ""


def joined(names: Iterable[object], most: int) -> str:
    """Join names with commas. If there are more than ``most``, list the first ``most`` and the total number."""
    listed = [*map(str, names)]
    return ", ".join(listed if len(listed) <= most else [*listed[:most], f"... ({len(listed)} in all)"])


def among(name: str, known: list[str]) -> str:
    """Return the end of a message about an unknown name: the similar names, then the known names, at most `MOST_NAMED`."""
    return f"{nearest(name, known)}; choose from {joined(known, MOST_NAMED)}"


def unknown(group: str, option: str, known: list[str]) -> str:
    """Return the message for an option that its config group does not have.

    Args:
        group: The config group, such as algo.
        option: The unknown name.
        known: The existing options.
    """
    if message := removed(f"{group}={option}"):
        return message
    if re.fullmatch(r"[\w/-]{1,99}", option) and (file := next(Path().glob(f"*/{group}/{option}.yaml"), None)):
        return f"{group}={option}: is in {file}; add --config-dir {file.parts[0]} so that it is found"
    return f"{group}={option}: there is no such {group}{among(option, known)}"


def mistake(error: BaseException, arguments: Iterable[str] = ()) -> str:
    """Return the line to show for an exception whose cause the user can fix; empty for a bug.

    Args:
        error: The exception.
        arguments: The arguments of the command. If memory runs out, the message names the largest number among them.
    """
    if isinstance(error, UserError):
        return str(error)
    if too_large(error):
        numbers = [text for text in arguments if re.fullmatch(r"[\w.]+=-?(\d{4,}|\d[\d.]*e\+?\d+)", text)]
        largest = max(numbers, key=lambda text: abs(float(text.partition("=")[2])), default="a number of this run")
        return f"{largest}: needs more memory than is available, or is too large ({first_line(error)}); make it smaller"
    if isinstance(error, OSError):
        elsewhere = "choose another folder with output_dir=DIR, or with the option --output DIR or --out DIR"
        return f"{error.filename or 'output'}: {error.strerror or error}; fix this, or {elsewhere}"
    return ""
