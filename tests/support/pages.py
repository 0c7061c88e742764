"""The blocks of pages, and how their commands are shortened."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MADE = {"_outside", "bench"}  # folders of docs whose pages docs/conf.py makes
BLOCK = re.compile(r"(?:<!-- ([\w ]+?)(?:: ([^\n]*?))? -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


class Block(NamedTuple):
    """mark, words: of the comment before it."""

    mark: str
    words: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Without what follows two blanks and a #."""
        return [re.sub(r"  +#.*", "", line) for line in self.text.splitlines()] if self.language == "bash" else []


def written(docs: Path) -> list[Path]:
    """The pages of docs that the repository has."""
    return [page for page in sorted(docs.rglob("*.md")) if page.relative_to(docs).parts[0] not in MADE]


def blocks(page: Path) -> Iterator[Block]:
    return (Block(*(part or "" for part in match)) for match in BLOCK.findall(page.read_text()))


def added(command: str, further: str) -> list[str]:
    """Words that make a command of a page short: the further ones, and two rounds of a run unless it says how many."""
    words = shlex.split(further)
    others = {"new", "ls", "list", "export", "compare", "report", "reproduce", "tune", "bench", "--help", "--cfg"}
    asks = others & {*command.split()}
    runs = command.split()[0] == "fedopt" and not asks
    return [*words, *["budget.rounds=2"] * (runs and "budget." not in command + further)]
