"""A folder's `fedopt.toml`: the config folder and the Python files of your own that commands in this folder find.

Somebody may have sent a folder with such a file. Python files are programs: they count only where a list of the user's on this
machine has the folder, with the file as it was then.
"""

import hashlib
import os
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex

from fedopt.config.build import build
from fedopt.config.files import Folders
from fedopt.console.say import note
from fedopt.errors import UserError, first_line
from fedopt.files.reading import MOST_OF_A_CONFIG, read_text

NAME = "fedopt.toml"
TEXT = """# Commands in this folder find your configs and your Python files here
config_dir = "myconf"
python_path = "."
# The list of trusted folders knows this file by {token}
"""
TYPED = os.environ.get("PYTHONPATH", "")  # before a project's folder comes to it
_say_once = cache(note)


@dataclass(frozen=True)
class Project:
    """What the file says: both are folders in its own folder. python_path: where Python files are, None for none."""

    config_dir: str = "myconf"
    python_path: str | None = None


def project() -> Project | None:
    """The project of the working directory; None without a file. Raises UserError for a broken one."""
    if not os.path.lexists(NAME):
        return None
    try:
        found = build(Project, tomllib.loads(read_text(Path(NAME), MOST_OF_A_CONFIG)), NAME)
        folders = [os.path.realpath(place) for place in (found.config_dir, found.python_path or ".")]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{NAME}: cannot be read ({first_line(error)})") from None
    if outside := [place for place in folders if not Path(place).is_relative_to(os.path.realpath("."))]:
        raise UserError(f"{NAME}: {outside[0]} is not in this folder; --config-dir and PYTHONPATH may name any")
    return found


def with_project(folders: str | Path | Folders = ()) -> list[str]:
    """The config folders of a command, after the project's own, whose Python files can be imported from now on.

    They can be in the processes that this one starts too. Raises UserError for a broken file.
    """
    given = [*map(str, [folders] if isinstance(folders, str | Path) else folders)]
    if (found := project()) is None:
        return given
    place = os.path.realpath(found.python_path or "")
    if found.python_path and place not in map(os.path.realpath, sys.path):
        if trusted():
            sys.path.insert(0, place)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))
        else:
            what = f"asks to import Python files from {found.python_path!r}, which are programs"
            _say_once(f"{NAME} here {what}: if you trust whoever wrote them, `fedopt trust` allows it")
    there = os.path.isdir(found.config_dir) and os.path.realpath(found.config_dir) not in map(os.path.realpath, given)
    return [found.config_dir, *given] if there else given


def trusted() -> bool:
    """Whether the user's list has this folder, with its file as it is now. A list that others may write in counts as empty."""
    try:
        listed, status = read_text(_list(), links=True), _list().stat()
    except (OSError, UserError):
        return False
    private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return private and _mark() in [line.partition(" ")[0] for line in listed.splitlines()]


def trust() -> str:
    """Put this folder into the user's list. Returns a line that says so. Raises UserError where that cannot be."""
    if (found := project()) is None or not found.python_path:
        raise UserError(f"{NAME}: is not here, or has no python_path; `fedopt new` begins one")
    path = _list()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{_mark()} {os.getcwd()!r}\n")
    except OSError as error:
        why = f"cannot be written ({error.strerror}); a command with PYTHONPATH=. before it needs no list"
        raise UserError(f"{path}: {why}") from None
    if not trusted():
        raise UserError(f"{path}: others may write there, so that it counts as empty; chmod go-w {path}")
    return f"commands in this folder import Python files from {found.python_path!r} from now on: {path} has it"


def _list() -> Path:
    """Raises UserError where the user has no place of their own."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.config")
    if not os.path.isabs(folder):
        raise UserError(
            "there is no home folder for the list of trusted folders; XDG_CONFIG_HOME may name another place"
        )
    return Path(folder, "fedopt", "projects")


def _mark() -> str:
    """Of this folder and its file: neither another text nor another folder in its place has the same."""
    return hashlib.sha256(os.fsencode(os.path.realpath(".")) + b"\0" + Path(NAME).read_bytes()).hexdigest()


def new_text() -> str:
    """The text of a file for a folder that has none, with a token that no other has."""
    return TEXT.format(token=token_hex(8))
