"""The overrides of a command: parsing, quoting and comparing them."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from fedopt.config.files import GROUPS, options
from fedopt.deprecated import removed
from fedopt.errors import UserError, first_line


def parsed(words: Iterable[str]) -> list[Override]:
    """Parse the overrides of a command.

    Raises:
        UserError: One is not an override, sets a key that was removed, or its value has thousands of digits or brackets.
    """
    words = list(words)
    if nameless := next((word for word in words if word.startswith("=")), ""):
        raise UserError(misread(nameless))
    try:
        overrides = OverridesParser.create().parse_overrides(words)
    except OverrideParseException as error:
        raise UserError(misread(str(error.override))) from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"a value cannot be read ({first_line(error)}); it is too long or nested too deep: shorten it"
        ) from None
    for override in overrides:
        if message := removed(override.key_or_group):
            raise UserError(message)
    return overrides


def misread(override: str) -> str:
    """Return the message for a text that is no override."""
    if message := removed(override):
        return message
    if group := next((group for group in GROUPS if override in options(group)), ""):
        return f"{override}: write {group}={override}"
    key, _, value = override.partition("=")
    quoted = f"'{key or 'KEY'}=\"{value or 'VALUE'}\"'"
    return (
        f"{override}: cannot be read as an override; write KEY=VALUE, such as seed=1, without blanks around = and with blanks "
        f"between overrides; a value with =, commas or brackets needs quotes inside the shell's: {quoted}"
    )


def key_of(override: str) -> str:
    """Return the key or the config group that an override sets."""
    return override.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """Return a text as the value of an override, quoted if needed, so that it means exactly this text.

    A reference such as ${seed} in it is still replaced by the value.
    """
    if re.fullmatch(r"(?!(null|true|false|inf|nan)$)[./]*[a-z_][\w./-]*", text, re.ASCII | re.IGNORECASE):
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
    raise UserError(f"{key}={value}: must be a number, a text, a path, True, False, None, or a list or dict of these")


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
