"""The words of a command: reading, quoting and comparing overrides."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from fedopt.errors import UserError, first_line


def parsed(words: Iterable[str]) -> list[Override]:
    """The overrides of a command. Raises UserError for a word that is none, and for thousands of digits or brackets."""
    try:
        return OverridesParser.create().parse_overrides(list(words))
    except OverrideParseException as error:
        needed = "write key=value, with quotes around values that hold blanks, commas or braces"
        raise UserError(f"{error.override}: not an override; {needed}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"a value cannot be read: {first_line(error)}") from None


def key_of(override: str) -> str:
    """The key, or the config group, of an override."""
    return override.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """A text as the value of an override that means just it, but for interpolations; with quotes where it needs them."""
    if re.fullmatch(r"[\w./-]+", text, re.ASCII) and not _means_more(text):
        return text
    escaped = re.sub(r"(\\*)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def _means_more(text: str) -> bool:
    """Whether a word without quotes is a number, a truth value or null."""
    with suppress(ValueError):
        float(text)
        return True
    return text.lower() in ("null", "true", "false")


def of_folder(word: str) -> str:
    """The name of a folder that is there needs no quotes, whatever commas and equals signs it has."""
    key, _, name = word.partition("=")
    return f"{key}={quoted(name)}" if key in ("output_dir", "from") and Path(name).is_dir() else word


def last_of_each(words: Iterable[str]) -> list[str]:
    """The words without those whose key a later one sets again."""
    return list({word.partition("=")[0].lstrip("+"): word for word in words}.values())


def extra_folders(arguments: Sequence[str]) -> list[str]:
    """The config folders that a command names with --config-dir."""
    joined = [word.removeprefix("--config-dir=") for word in arguments if word.startswith("--config-dir=")]
    return joined + [value for flag, value in pairwise(arguments) if flag in ("--config-dir", "-cd")]
