"""Saying things to a person."""

import os
import re
import sys

from fedopt.console.texts import printable

# Of several ranks the main one; `running.lifecycle.execute` chooses another when one fails
speaks = os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ


def say(line: str) -> None:
    """To stderr, by one of several ranks, as one line whatever a value in it holds."""
    if speaks:
        print(f"fedopt: {_one_line(line)}", file=sys.stderr)


def show(*texts: str) -> None:
    """To stdout, each from a new line on."""
    print(*("\n".join(map(printable, text.split("\n"))) for text in texts), sep="\n", flush=True)


def _one_line(text: str) -> str:
    """Printable, and with words of thousands of characters cut."""
    return re.sub(r"\S{400,}", lambda word: f"{word[0][:60]}...{word[0][-20:]}", printable(text))
