"""The overrides of a command, called words here: parsing, quoting and comparing them."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from fedopt.config.files import GROUPS, options
from fedopt.config.tuned import NODES
from fedopt.deprecated import removed
from fedopt.errors import UserError, first_line

COMMANDS = dict.fromkeys(("compare", "tune", "report", "reproduce", "bench"), "this command is fedopt-{}")
COMMANDS |= {"run": "leave this word out", "version": "is no override; fedopt --version shows the version"}


def parsed(words: Iterable[str]) -> list[Override]:
    """Parse the overrides of a command.

    Raises:
        UserError: One is not an override, sets a key that was removed, or its value has thousands of digits or brackets.
    """
    words = list(words)
    if nameless := next((word for word in words if word.startswith("=")), ""):
        raise UserError(misread(nameless, words))
    try:
        overrides = OverridesParser.create().parse_overrides(words)
    except OverrideParseException as error:
        raise UserError(misread(str(error.override), words)) from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"a value cannot be read ({first_line(error)}); it is too long or nested too deep: shorten it"
        ) from None
    for override in overrides:
        if message := removed(override.key_or_group):
            raise UserError(message)
    return overrides


def misread(word: str, words: Sequence[str]) -> str:
    """Return the message for a word that is no override: what was probably meant, and how it is written.

    words: all overrides of the command.
    """
    if word in COMMANDS:
        return f"{word}: {COMMANDS[word].format(word)}"
    if group := next((group for group in GROUPS if word in options(group)), ""):
        return f"{word}: write {group}={word}"
    at = words.index(word) if word in words else 0
    split = bool(at) and (word.startswith("=") or words[at - 1].endswith("="))
    if one := one_word(words[at - split :]):
        return one
    if word.startswith("="):
        return f"{word}: has no key; write KEY=VALUE"
    if word.endswith(","):
        return f"{word}: ends in a comma; remove it"
    if re.fullmatch(r"[\w.]+=[^=,]+(,[\w.]+=[^=,]+)+", word):
        return f"{word}: write blanks between overrides, {word.replace(',', ' ')}"
    key, _, value = word.partition("=")
    if key in NODES and re.match(r"\w+=", value):
        return f"{word}: write {key}.{value}"
    quotes = (
        f"; a text with =, commas or brackets needs quotes inside the shell's: '{key}=\"{value}\"'" if value else ""
    )
    return f"{word}: cannot be read as an override; write KEY=VALUE{quotes}"


def one_word(words: Sequence[str]) -> str:
    """Return a hint if some words begin with an override that is broken by blanks or written with a colon; else ''."""
    found = re.match(r"([a-zA-Z][\w./]*)( ?[ =:] ?)([^\s=:]+)(?!\S)", " ".join(words[:3]))
    if found is None or found[2] == "=":
        return ""
    return f"{found[0]}: write it as one word, {found[1]}={found[3]}"


def key_of(override: str) -> str:
    """Return the key or the config group that an override sets."""
    return override.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """Return a text as the value of an override, quoted if needed, so that it means exactly this text.

    A reference such as ${seed} in it is still replaced by the value.
    """
    if re.fullmatch(r"[\w./-]+", text, re.ASCII) and not _means_more(text):
        return text
    escaped = re.sub(r"(\\*)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def literal(text: str) -> str:
    """Escape a text so that OmegaConf does not interpolate it."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def words_of(values: Mapping[str, Any], sweep: bool = False) -> list[str]:
    """Return the overrides that set these values. A dict under a key without a dot sets the keys of its node.

    Args:
        values: Python values by key.
        sweep: Whether a list means alternatives of its key.

    Raises:
        UserError: A key or value cannot be written as an override.
    """
    words = []
    for key, value in values.items():
        value = _plain(value)
        if not isinstance(key, str) or not re.fullmatch(r"\+{0,2}\w[\w./]*", key):
            raise UserError(f"{key}: must be a key, such as seed, algo or 'algo.eta'")
        if isinstance(value, Mapping) and "." not in key:
            words += words_of({f"{key}.{name}": inner for name, inner in value.items()}, sweep)
        elif isinstance(value, list) and key in GROUPS and not sweep:
            raise UserError(f"{key}={value}: several values are a sweep; use fedopt.sweep")
        elif sweep and isinstance(value, list):
            if not value:
                raise UserError(f"{key}=[]: has no alternatives; give at least one")
            words.append(f"{key}=" + ",".join(_written(key, one) for one in value))
        else:
            words.append(f"{key}={_written(key, value)}")
    return words


def _plain(value: Any) -> Any:
    """Convert NumPy, torch and pandas values to Python's, and tuples and ranges to lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [*value] if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _written(key: str, value: Any) -> str:
    """Return a Python value as the value of an override. Texts and paths mean exactly themselves. key: for the message."""
    value = _plain(value)
    if value is None or isinstance(value, bool | int | float):
        return {None: "null", True: "true", False: "false"}[value] if isinstance(value, bool | None) else repr(value)
    if isinstance(value, str | PurePath):
        return quoted(literal(str(value)))
    if isinstance(value, list):
        return f"[{','.join(_written(key, one) for one in value)}]"
    if isinstance(value, Mapping) and all(isinstance(name, str) and re.fullmatch(r"\w+", name) for name in value):
        return "{" + ",".join(f"{name}:{_written(key, one)}" for name, one in value.items()) + "}"
    if key in GROUPS:
        name = getattr(value, "__name__", type(value).__name__)
        raise UserError(f"{key}: {name} is a class; give the name of a config, such as `fedopt new {key} NAME` writes")
    raise UserError(f"{key}={value}: must be a number, a text, a path, True, False, None, or a list or dict of these")


def _means_more(text: str) -> bool:
    """Tell whether an unquoted text would be read as a number, a truth value or null."""
    with suppress(ValueError):
        float(text)
        return True
    return text.lower() in ("null", "true", "false")


def of_folder(word: str) -> str:
    """Quote a value that is a path with an equals sign, and that of output_dir or from if a folder of this name exists."""
    key, _, name = word.partition("=")
    is_path = os.path.exists(name) if "=" in name else key in ("output_dir", "from") and Path(name).is_dir()
    return f"{key}={quoted(name)}" if is_path else word


def command_line(words: Iterable[str], folders: Iterable[str]) -> str:
    """Return the command that runs the words with these config folders, for a shell."""
    return shlex.join(["fedopt", *words, *(part for folder in folders for part in ("--config-dir", folder))])


def last_of_each(words: Iterable[str]) -> list[str]:
    """Return the overrides without those whose key a later one sets again. A + before a key does not make it a different key."""
    return list({word.partition("=")[0].lstrip("+") if "=" in word else f"{word} ": word for word in words}.values())


def extra_folders(arguments: Sequence[str]) -> list[str]:
    """Return the config folders that a command's arguments name with --config-dir."""
    joined = [word.removeprefix("--config-dir=") for word in arguments if word.startswith("--config-dir=")]
    return joined + [value for flag, value in pairwise(arguments) if flag in ("--config-dir", "-cd")]
