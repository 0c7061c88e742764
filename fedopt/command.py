"""What the commands share: mistakes are answered in one line. Imports no torch."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from itertools import pairwise
from typing import NoReturn

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedopt.config import GROUPS, composed, flat, options
from fedopt.errors import UserError, first_line, nearest, too_large, unknown
from fedopt.interrupts import ctrl_c_kept

# Of several ranks the main one; `loop.execute` chooses another when one fails
speaks = os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ


class Parser(argparse.ArgumentParser):
    """Raises UserError for a mistake."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists the options")


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """For argparse: reads names with commas between them, each of which must be known."""

    def read(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: there are {', '.join(known)}{nearest(name, list(known))}")
        return names

    return read


def answer(work: Callable[[], int | None], arguments: Sequence[str] = ()) -> None:
    """Do the work and exit with the code that it returns, if any; with 2 for a mistake of the user's, 130 for Ctrl-C and 1 for a
    bug, and one line about it. With HYDRA_FULL_ERROR=1 they are raised instead.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for terminals without ± or box lines
    try:
        with ctrl_c_kept():
            code = work()
    except KeyboardInterrupt:
        say("stopped")
        code = 130
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        if is_mistake(error):
            say(explain(error, arguments))
            code = 2
        else:
            say(f"{type(error).__name__}: {first_line(error)} (this is a bug: HYDRA_FULL_ERROR=1 shows where)")
            code = 1
    if code:
        sys.exit(code)


def is_mistake(error: BaseException) -> bool:
    """Whether a user can mend it."""
    return isinstance(error, UserError | HydraException | OmegaConfBaseException | OSError) or too_large(error)


def explain(error: BaseException, arguments: Sequence[str]) -> str:
    """One line for a mistake in the command or the config: what, where, and the nearest valid name."""
    if isinstance(error, UserError):
        return str(error)
    if too_large(error):
        numbers = [word for word in arguments if re.fullmatch(r"[\w.]+=-?(\d{4,}|\d[\d.]*e\+?\d+)", word)]
        largest = max(
            numbers, key=lambda word: abs(float(word.partition("=")[2])), default="a dimension or another number"
        )
        return f"{largest}: is too large for the memory or the precision here ({first_line(error)})"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = error.missing_cfg_file
        nested = missing.startswith(("experiment/", "preset/"))  # Hydra's options are those of one folder then
        group, _, option = missing.partition("/") if nested else missing.rpartition("/")
        known = options(group) if nested else sorted(error.options or []) or options(group)
        return unknown(group, option, known)
    text = " ".join(str(error).split())
    if key := re.search(r"Could not override '([^']+)'", text):
        if key[1] in GROUPS:
            return f"{key[1]}: neither the algorithm's nor the problem's file names one; +{key[1]}=NAME adds one"
        known = known_keys(arguments)
        nodes = (word for word in arguments if word.partition("=")[0] not in GROUPS)
        if whole := next((word for word in nodes if key[1].startswith(f"{word.partition('=')[0]}.")), ""):
            return f"{whole}: is set by its keys, such as {key[1]}=VALUE"
        if key[1] in known:
            return f"{key[1]}: not every choice of the sweep has this key"
        chosen = [word for word in arguments if word.partition("=")[0] in ("algo", "problem") and "," not in word]
        group, _, name = key[1].partition(".")
        own = next((word for word in arguments if _chooses_own(word, group)), None)
        if own and not get_close_matches(name, [of.removeprefix(f"{group}.") for of in known]):
            given = next((word for word in arguments if word.startswith(f"{key[1]}=")), f"{key[1]}=VALUE")
            return f"{key[1]}: the file of {own} has no such key; +{given} sets a field of its class that the file leaves out"
        explained = f"fedopt --help {' '.join(chosen or ['algo=NAME', 'problem=NAME'])} explains them"
        return f"{key[1]}: there is no such key{_meant(key[1].lstrip('+~'), known)}; {explained}"
    if several := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{several[1]}: several values are a sweep, with -m (in Python a loop), or a list, in square brackets"
    if merging := re.search(r"Error merging override (.*)", text):
        return f"{merging[1]}: this key holds no such value"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override; write key=value, with quotes around values that hold blanks, commas or braces"
    if isinstance(error, OSError):
        elsewhere = "choose another place: output_dir=DIR, or --output DIR or --out DIR of the sister commands"
        return f"{error.filename or 'output'}: {error.strerror or error}; mend that, or {elsewhere}"
    said = first_line(error)
    return text.partition(" full_key:")[0][:300] if said.endswith(":") else said  # what is wrong comes after it


def _chooses_own(word: str, group: str) -> bool:
    """Whether a word chooses, in this group, a file of the user's own."""
    key, _, option = word.partition("=")
    return key == group in GROUPS and "," not in option and option not in options(group)


def _meant(word: str, known: list[str]) -> str:
    """As `nearest`, or the keys beside a key that resembles none of them.

    A word without dots is a group or the last part of a key, and algorithm rather a group."""
    parent, _, leaf = word.rpartition(".")
    beside = [name.removeprefix(f"{parent}.") for name in known if parent and name.rpartition(".")[0] == parent]
    if beside:
        near = get_close_matches(leaf, beside, 1, 0.7)  # 0.6 would take eta_x for beta
        return f", did you mean {parent}.{near[0]}?" if near else f"; {parent} has {', '.join(beside)}"
    if parent:
        return nearest(word, known)
    leaves = {name.rpartition(".")[2]: name for name in known}
    found = get_close_matches(word, leaves, 1) or get_close_matches(word, [g for g in GROUPS if len(word) > 4], 1, 0.5)
    return f", did you mean {leaves[found[0]]}?" if found else ""


def known_keys(arguments: Sequence[str]) -> list[str]:
    """The config groups, and the dotted keys of the config that the command's choices from them compose to."""
    choices = [a for a in arguments if a.split("=")[0] in GROUPS and not set(a) & set(", ()[]{}")]
    try:
        config = OmegaConf.to_container(composed(choices, extra_folders(arguments)))
    except (UserError, HydraException, OmegaConfBaseException):
        return list(GROUPS)
    assert isinstance(config, dict)
    return [*GROUPS, *(key for key in flat(config) if not key.rpartition(".")[2].startswith("_"))]


def extra_folders(arguments: Sequence[str]) -> list[str]:
    """The config folders that a command names with --config-dir."""
    joined = [a.removeprefix("--config-dir=") for a in arguments if a.startswith("--config-dir=")]
    return joined + [value for flag, value in pairwise(arguments) if flag in ("--config-dir", "-cd")]


def say(line: str) -> None:
    """To stderr, by one of several ranks, as one line whatever a value in it holds."""
    if speaks:
        print(f"fedopt: {_one_line(line)}", file=sys.stderr)


def _one_line(text: str) -> str:
    """Without line ends and control characters, and with words of thousands of characters cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return re.sub(r"\S{400,}", lambda word: f"{word[0][:60]}...{word[0][-20:]}", shown)
