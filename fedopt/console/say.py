"""Saying things to a person."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fedopt.console.texts import printable

RED, CYAN = 31, 36  # of a terminal

# Of several ranks the main one; `running.lifecycle.execute` chooses another when one fails
speaks = os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ

_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)  # the notes, where `heard` takes them


def say(line: str) -> None:
    """A mistake, or how a command ended: to stderr, by one of several ranks, as one line whatever a value in it holds."""
    _to_stderr("fedopt", RED, line)


def note(line: str) -> None:
    """What a person should know, though nothing is wrong: as `say`."""
    if (notes := _heard.get()) is None:
        _to_stderr("note", CYAN, line)
    else:
        notes.append(line)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Gives a list of the notes that are made inside, which are not printed."""
    notes: list[str] = []
    token = _heard.set(notes)
    try:
        yield notes
    finally:
        _heard.reset(token)


def _to_stderr(prefix: str, colour: int, line: str) -> None:
    if not speaks or sys.stderr is None:
        return
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        prefix = f"\033[{colour}m{prefix}\033[0m"
    print(f"{prefix}: {_one_line(line)}", file=sys.stderr)


def show(*texts: str) -> None:
    """To stdout, each from a new line on."""
    print(*("\n".join(map(printable, text.split("\n"))) for text in texts), sep="\n", flush=True)


def _one_line(text: str) -> str:
    """Printable, and with words of thousands of characters cut."""
    return re.sub(r"\S{400,}", lambda word: f"{word[0][:60]}...{word[0][-20:]}", printable(text))
