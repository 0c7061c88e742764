"""Print messages."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from shutil import get_terminal_size
from textwrap import fill
from typing import IO, Any

from fedopt.console.texts import printable

RED, CYAN = 31, 36  # colour codes of terminals
PIPED = 250  # the number of columns if stdout is not a terminal

# Of several processes (ranks) of torchrun, only the first prints; `running.lifecycle.execute` chooses another if one fails
several = os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
speaks = os.environ.get("RANK", "0") == "0" or not several

_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)  # the notes that `heard` collects


def say(line: str) -> None:
    """Print an error, or how a command ended, as one line on stderr. If several processes share a run, only one prints."""
    _to_stderr("fedopt", RED, line)


def note(line: str) -> None:
    """Print a note as one line on stderr. Inside the context `heard`, the note is collected instead."""
    if (notes := _heard.get()) is None:
        _to_stderr("note", CYAN, line)
    else:
        notes.append(line)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Return a context in which notes are collected instead of printed. It yields the list to which they are appended."""
    notes: list[str] = []
    token = _heard.set(notes)
    try:
        yield notes
    finally:
        _heard.reset(token)


def _to_stderr(prefix: str, colour: int, line: str) -> None:
    """Print a line on stderr. Words of hundreds of characters are shortened.

    Args:
        prefix: The word before the line, such as note.
        colour: The colour code of the prefix in a terminal.
        line: The text.
    """
    if not speaks or sys.stderr is None:
        return
    shorter = re.sub(r"\S{400,}", lambda word: f"{word[0][:60]}...{word[0][-20:]}", printable(line))
    text = folded(f"{prefix}: {shorter}", sys.stderr)
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\033[{colour}m{prefix}\033[0m{text.removeprefix(prefix)}"
    print(text, file=sys.stderr)


def show(*texts: str) -> None:
    """Print texts on stdout, each on a new line."""
    print(*("\n".join(map(printable, text.split("\n"))) for text in texts), sep="\n", flush=True)


def tell(*texts: str) -> None:
    """Print texts on stdout. On a terminal, long lines are wrapped between words."""
    show(*(folded(line) for text in texts for line in text.split("\n")))


def folded(line: str, stream: IO[str] | None = None) -> str:
    """Return a line in printable characters, wrapped between words to the width of the terminal.

    Continuation lines are indented. Words that are longer than a line, such as paths, are not broken.

    Args:
        line: The line.
        stream: The stream to which it will be printed. None: stdout. If it is not a terminal, the line is not wrapped.
    """
    stream, line = stream or sys.stdout, printable(line)
    if not stream.isatty():
        return line
    whole_words: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return fill(line, get_terminal_size().columns, subsequent_indent="  ", **whole_words)


def columns() -> int:
    """Return the width of the terminal in characters; a large number if stdout is not a terminal."""
    return get_terminal_size().columns if sys.stdout.isatty() else PIPED
