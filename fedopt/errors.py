"""The one exception for mistakes that a user can mend, and the hints in its messages."""

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
MOST_NAMED, MOST_ALIKE = 30, 6  # options in a message, and those that it suggests
MEANT = {  # names of other programs: what they mean here
    **dict.fromkeys(("n_clients", "num_clients"), "partitioner.clients"),
    "gpu": "cuda",
    **dict.fromkeys(("method", "optimizer", "optimiser"), "algo"),
    "task": "problem",
}


class UserError(Exception):
    """A mistake that a user can mend.

    The command shows it as one line without a traceback: what is wrong, where, and what to do.
    """


class Unfinished(UserError):
    """Some runs failed because of the machine, such as a full disk, or were interrupted. The same command resumes them.

    The exit code is 1.
    """


class WrongFunction(UserError):
    """A mistake in a user's function or class. `blame` adds the file and the line.

    Args:
        function: The function or class, or a text that names it.
        said: What it does wrong, such as 'returns None'. The message is the function's name and then this.
    """

    def __init__(self, function: Any, said: str):
        function = getattr(function, "func", function)  # of a partial
        super().__init__(f"{getattr(function, '__qualname__', function)} {said}")
        self.function = function


def need(what: str, library: str, extra: str) -> None:
    """Raise UserError if a library of one of fedopt's extras is not installed. what: which part of fedopt needs it."""
    if find_spec(library) is None:
        raise UserError(f"{what} needs {library}, which is not installed; pip install 'fedopt[{extra}]'")


def gives(function: Any, given: Any, wanted: str) -> WrongFunction:
    """Return the error for a function that returns something other than what is wanted.

    function: the user's. given: what it returned. wanted: what it must return, in words.
    """
    what = f"a tensor of shape {list(given.shape)}" if hasattr(given, "shape") else f"a {type(given).__name__}"
    what = "None (is its return missing?)" if given is None else what
    return WrongFunction(function, f"returns {what}; it must return {wanted}")


def is_own(path: str) -> bool:
    """Tell whether a Python file is the user's: not fedopt's, not a library's and not part of Python."""
    file = Path(path)
    ours = file.is_relative_to(PACKAGE) or file.is_relative_to(STANDARD)
    return not ours and not {"site-packages", "dist-packages"} & set(file.parts) and file.is_file()


def line_of(path: str, line: int | None) -> str:
    """Return `file.py:12`, with the path relative to the working directory if that is shorter."""
    with suppress(OSError, ValueError):  # no working directory any more, another drive
        path = min(os.path.relpath(path), path, key=len)
    return f"{path}:{line}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message; its class name if the message is empty."""
    try:
        said = str(error).strip()
    except Exception:  # an exception of a user's, with a __str__ that fails
        said = ""
    return (said.splitlines() or [type(error).__name__])[0]


def too_large(error: BaseException) -> bool:
    """Tell whether an error says that the CPU's memory did not suffice, or that a number does not fit its type.

    The GPU's out-of-memory error does not count.
    """
    said = first_line(error)
    return (
        isinstance(error, MemoryError | OverflowError) or "can't allocate memory" in said or "without overflow" in said
    )


def of_machine(error: BaseException | None) -> bool:
    """Tell whether an error, or one that it arose from, comes from files, the disk or memory.

    Any other error is taken to come from what was computed.
    """
    while error is not None:
        if isinstance(error, OSError | MemoryError) or re.search("allocate memory|out of memory", first_line(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def nearest(word: str, known: list[str]) -> str:
    """Return ', did you mean ...?' with the known names that a misspelt one may mean; empty if none is near.

    It considers names of other programs (lr), names in another place, beginnings of names, and similar spellings. Capitals do
    not matter.

    Args:
        word: The unknown name.
        known: The known names.
    """
    whole = {name.casefold(): name for name in known}
    leaves = {name.rpartition(".")[2]: of for name, of in whole.items()}
    typed = word.casefold()
    leaf = re.split(r"[./]", typed)[-1]
    part = re.compile(rf"(.*[./])?{re.escape(leaf)}[a-z]?")  # fig2 may be fig2a
    alike = [name for name in known if part.fullmatch(name) or name == MEANT.get(leaf)]
    if alike and typed not in whole:
        return f", did you mean {' or '.join(alike[:MOST_ALIKE])}?"
    for names, text in ((whole, typed), (leaves, typed.rpartition(".")[2])):
        if found := get_close_matches(text, names, 1):
            return f", did you mean {names[found[0]]}?"
    begun = [name for of, name in whole.items() if len(typed) > 2 and re.search(rf"(\b|_){re.escape(typed)}", of)]
    return f", did you mean {' or '.join(begun[:MOST_ALIKE])}?" if begun else ""


def some(names: Iterable[object], most: int) -> str:
    """Join names by commas, at most ``most`` of them; if there are more, end with how many there are in all."""
    listed = [*map(str, names)]
    return ", ".join(listed if len(listed) <= most else [*listed[:most], f"... ({len(listed)} in all)"])


def among(word: str, known: list[str]) -> str:
    """Return the end of a message about an unknown name: the names that it may be a misspelling of, then all known ones."""
    return f"{nearest(word, known)}; there are {some(known, MOST_NAMED)}"


def unknown(group: str, option: str, known: list[str]) -> str:
    """Return the message for an option that its config group does not have.

    group: such as algo. option: the unknown name. known: the existing options.
    """
    if message := removed(f"{group}={option}"):
        return message
    shown = option if len(option) < 100 else f"{option[:60]}...{option[-20:]}"
    if re.fullmatch(r"[\w/-]{1,99}", option) and (own := next(Path().glob(f"*/{group}/{option}.yaml"), None)):
        return f"{group}={option}: is in {own}; add --config-dir {own.parts[0]} so that it is found"
    return f"{group}={shown}: there is no such {group}{among(option, known)}"


def mistake(error: BaseException, words: Iterable[str] = ()) -> str:
    """Return the line to show for an exception if a user can mend its cause; empty for a bug.

    words: the arguments of the command.
    """
    if isinstance(error, UserError):
        return str(error)
    if too_large(error):
        numbers = [word for word in words if re.fullmatch(r"[\w.]+=-?(\d{4,}|\d[\d.]*e\+?\d+)", word)]
        largest = max(
            numbers, key=lambda word: abs(float(word.partition("=")[2])), default="a dimension or another number"
        )
        return (
            f"{largest}: needs more memory than there is, or exceeds the range of numbers ({first_line(error)}); "
            f"use a smaller value"
        )
    if isinstance(error, OSError):
        elsewhere = "choose another folder: output_dir=DIR, or the option --output DIR or --out DIR"
        return f"{error.filename or 'output'}: {error.strerror or error}; mend this, or {elsewhere}"
    return ""
