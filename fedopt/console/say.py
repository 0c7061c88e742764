"""Print messages for a person."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from shutil import get_terminal_size
from textwrap import fill
from typing import IO

from fedopt.console.texts import printable

RED, CYAN = 31, 36  # of a terminal
PIPED = 250  # columns where there is none

# Of several ranks the main one; `running.lifecycle.execute` chooses another when one fails
several = os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
speaks = os.environ.get("RANK", "0") == "0" or not several

_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)  # the notes, where `heard` takes them


def say(line: str) -> None:
    """Print a mistake, or how a command ended, as one line to stderr. Of several ranks only one prints."""
    _to_stderr("fedopt", RED, line)


def note(line: str) -> None:
    """Print, as `say` does, what a person should know though nothing is wrong. Inside `heard` it is collected instead."""
    if (notes := _heard.get()) is None:
        _to_stderr("note", CYAN, line)
    else:
        notes.append(line)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect the notes that are made in the context instead of printing them. Yields the list to which they are appended."""
    notes: list[str] = []
    token = _heard.set(notes)
    try:
        yield notes
    finally:
        _heard.reset(token)


def _to_stderr(prefix: str, colour: int, line: str) -> None:
    if not speaks or sys.stderr is None:
        return
    said = folded(f"{prefix}: {_one_line(line)}", sys.stderr)
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        said = f"\033[{colour}m{prefix}\033[0m{said.removeprefix(prefix)}"
    print(said, file=sys.stderr)


def show(*texts: str) -> None:
    """Print texts to stdout, each on a new line."""
    print(*("\n".join(map(printable, text.split("\n"))) for text in texts), sep="\n", flush=True)


def tell(*texts: str) -> None:
    """Print texts to stdout as prose: on a terminal, lines are folded between words."""
    show(*(folded(line) for text in texts for line in text.split("\n")))


def folded(line: str, stream: IO[str] | None = None) -> str:
    """Make a line printable, and fold it between words to the terminal's width. Later lines are indented.

    A longer word, such as a path, stays whole. If the stream is not a terminal, nothing is folded. stream: by default stdout.
    """
    stream, line = stream or sys.stdout, printable(line)
    if not stream.isatty():
        return line
    return fill(
        line, get_terminal_size().columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def columns() -> int:
    """Return the width of the terminal that stdout is; a large number if stdout is not a terminal."""
    return get_terminal_size().columns if sys.stdout.isatty() else PIPED


def _one_line(text: str) -> str:
    """Return the text as one printable line, with words of thousands of characters cut."""
    return re.sub(r"\S{400,}", lambda word: f"{word[0][:60]}...{word[0][-20:]}", printable(text))
