"""Parse, quote and compare the overrides of a command."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from fedopt.config.files import GROUPS, options
from fedopt.deprecated import removed
from fedopt.errors import UserError, first_line

OF_CLASSES = ("algo.", "problem.")  # a user's class may use a name that an included class no longer has; see `explain`


def parsed(overrides: Iterable[str]) -> list[Override]:
    """Parse the overrides of a command.

    Args:
        overrides: The overrides, such as algo=fedavg.

    Raises:
        UserError: A text is not an override, sets a key that was removed, or has a value that is too long or too deeply
            nested.
    """
    texts = list(overrides)
    if nameless := next((text for text in texts if text.startswith("=")), ""):
        raise UserError(misread(nameless))
    try:
        parsed_overrides = OverridesParser.create().parse_overrides(texts)
    except OverrideParseException as error:
        raise UserError(misread(str(error.override))) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"a value is too long or too deeply nested ({first_line(error)}); shorten it") from None
    for override in parsed_overrides:
        message = removed(override.key_or_group)
        if message and not override.key_or_group.startswith(OF_CLASSES):
            raise UserError(message)
    return parsed_overrides


def misread(override: str) -> str:
    """Return the error message for a text of a command that should be an override KEY=VALUE but cannot be parsed."""
    if message := removed(override):
        return message
    if group := next((group for group in GROUPS if override in options(group)), ""):
        return f"{override}: write {group}={override}"
    key, _, value = override.partition("=")
    quoted = f"'{key or 'KEY'}=\"{value or 'VALUE'}\"'"
    how = "write KEY=VALUE, such as seed=1, without spaces around = and with spaces between overrides"
    return f"{override}: is not an override; {how}; put a value with = or commas into two pairs of quotes: {quoted}"


def key_of(override: str) -> str:
    """Return the key, or the config group, that an override sets."""
    return override.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """Return a text as the value of an override that means exactly this text, with quotes if they are needed.

    A reference such as ${seed} in the text is still replaced with its value.
    """
    if re.fullmatch(r"(?!(null|true|false|inf|nan)$)[./]*[a-z_][\w./-]*", text, re.ASCII | re.IGNORECASE):
        return text
    escaped = re.sub(r"(\\*)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def literal(text: str) -> str:
    """Escape references such as ${seed} in a text, so that OmegaConf does not replace them."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def overrides_of(values: Mapping[str, object], sweep: bool = False) -> list[str]:
    """Return the overrides that set Python values.

    A dict as a value stands for dotted keys: {"algo": {"eta": 1}} gives algo.eta=1. If its key has a dot, the dict itself is
    the value.

    Args:
        values: The values by key.
        sweep: Whether a list contains alternatives, as in a sweep, and is not itself the value.

    Raises:
        UserError: A key or a value cannot be written as an override.
    """
    overrides = []
    for key, value in values.items():
        value = _plain(value)
        if not isinstance(key, str) or not re.fullmatch(r"\+{0,2}\w[\w./]*", key):
            raise UserError(f"{key}: is not a key; write a key such as seed, algo or 'algo.eta'")
        if isinstance(value, Mapping) and "." not in key:
            overrides += overrides_of({f"{key}.{name}": inner for name, inner in value.items()}, sweep)
        elif isinstance(value, list) and key in GROUPS and not sweep:
            raise UserError(f"{key}={value}: several values need a sweep; use fedopt.sweep")
        elif sweep and isinstance(value, list):
            if not value:
                raise UserError(f"{key}=[]: has no values; give at least one")
            overrides.append(f"{key}=" + ",".join(_written(key, one) for one in value))
        else:
            overrides.append(f"{key}={_written(key, value)}")
    return overrides


def _plain(value: object) -> object:
    """Return a value in plain Python types: NumPy, torch and pandas values, tuples and ranges are converted."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [*value] if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _written(key: str, value: object) -> str:
    """Return the text of a Python value in an override.

    Args:
        key: The key, for the message.
        value: The value.

    Raises:
        UserError: The value cannot be written as an override.
    """
    value = _plain(value)
    if value is None or isinstance(value, bool | int | float):
        return {None: "null", True: "true", False: "false"}[value] if isinstance(value, bool | None) else repr(value)
    if isinstance(value, str | PurePath):
        return quoted(literal(str(value)))
    if isinstance(value, list):
        return f"[{','.join(_written(key, one) for one in value)}]"
    if isinstance(value, Mapping) and all(isinstance(name, str) and re.fullmatch(r"\w+", name) for name in value):
        return "{" + ",".join(f"{name}:{_written(key, one)}" for name, one in value.items()) + "}"
    raise UserError(f"{key}={value}: must be a number, a string, a path, True, False, None, or a list or dict of these")


def of_folder(override: str) -> str:
    """Return an override with quotes around its value if the value is the path of an existing file or folder.

    Only paths that contain an equals sign, and the values of the keys output_dir and from, are recognised. Other overrides are
    unchanged.
    """
    key, _, name = override.partition("=")
    is_path = os.path.exists(name) if "=" in name else key in ("output_dir", "from") and Path(name).is_dir()
    return f"{key}={quoted(name)}" if is_path else override


def command_line(overrides: Iterable[str], folders: Iterable[str]) -> str:
    """Return the shell command ``fedopt`` with these overrides and config folders."""
    return shlex.join(["fedopt", *overrides, *(text for folder in folders for text in ("--config-dir", folder))])


def last_of_each(overrides: Iterable[str]) -> list[str]:
    """Return the overrides without those that a later override of the same key replaces. A leading + of a key is ignored."""
    last = {text.partition("=")[0].lstrip("+") if "=" in text else f"{text} ": text for text in overrides}
    return [*last.values()]


def extra_folders(arguments: Sequence[str]) -> list[str]:
    """Return the config folders among the arguments of a command, that is, the values of --config-dir."""
    joined = [text.removeprefix("--config-dir=") for text in arguments if text.startswith("--config-dir=")]
    return joined + [value for flag, value in pairwise(arguments) if flag in ("--config-dir", "-cd")]
