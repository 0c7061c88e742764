"""A folder's `fedopt.toml`: where commands in this folder and in its subfolders find your configs, Python files and runs.

Somebody may have sent the folder with such a file, and Python files are programs. They are imported only if the user's list
on this machine has the folder with this very file.
"""

import hashlib
import os
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex

from fedopt.config.build import build
from fedopt.config.files import Folders
from fedopt.console import note
from fedopt.errors import UserError, first_line
from fedopt.files import MOST_OF_A_CONFIG, read_text

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
    """The content of `fedopt.toml`.

    Args:
        config_dir: The config folder, inside this folder.
        python_path: The folder of Python files, inside this folder. None: there are none.
    """

    config_dir: str = "myconf"
    python_path: str | None = None


def home() -> Path:
    """Return the project's folder as a path from the working directory, `.` if there is no project.

    It is the nearest folder with a `fedopt.toml`, from the working directory upwards. A folder above counts only if the file is
    the user's own: nobody else decides what commands do in a folder that others may write to, such as /tmp.
    """
    with suppress(FileNotFoundError):  # a working directory that was removed
        here = Path.cwd()
        for folder in (here, *here.parents):
            file = folder / NAME
            if os.path.lexists(file) and (folder == here or file.lstat().st_uid == os.getuid()):
                return Path(os.path.relpath(folder))
    return Path()


def outputs() -> Path:
    """Return the folder in which runs go unless a command names another: `outputs` in the project's folder."""
    return home() / "outputs"


def project() -> Project | None:
    """Return the project of the working directory, with paths from there; None without a `fedopt.toml`.

    Raises UserError for a broken `fedopt.toml`.
    """
    here = home()
    if not os.path.lexists(here / NAME):
        return None
    try:
        found = build(Project, tomllib.loads(read_text(here / NAME, MOST_OF_A_CONFIG)), NAME)
        python = None if found.python_path is None else str(here / found.python_path)
        found = Project(str(here / found.config_dir), python)
        folders = [os.path.realpath(place) for place in (found.config_dir, found.python_path or here)]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{NAME}: cannot be read ({first_line(error)}); mend it, or remove it and run `fedopt trust`, which writes a new one"
        ) from None
    if outside := [place for place in folders if not Path(place).is_relative_to(os.path.realpath(here))]:
        raise UserError(f"{NAME}: {outside[0]} is not in its folder; name it with --config-dir or PYTHONPATH instead")
    return found


def with_project(folders: str | Path | Folders = ()) -> list[str]:
    """Return the config folders of a command, with the project's config folder first if it exists.

    If the project is trusted, make its Python files importable, also for processes that this one starts. Otherwise a note
    says how to trust it.

    Args:
        folders: The config folders that the command names.

    Raises:
        UserError: `fedopt.toml` is broken.
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
            what = f"wants Python files to be imported from {found.python_path!r}, and they are programs"
            _say_once(f"{home() / NAME} {what}; if you trust their author, run `fedopt trust`")
    there = os.path.isdir(found.config_dir) and os.path.realpath(found.config_dir) not in map(os.path.realpath, given)
    return [found.config_dir, *given] if there else given


def trusted() -> bool:
    """Tell whether the user's list has this folder with its current `fedopt.toml`.

    A list that others may write to counts as empty.
    """
    try:
        listed, status = read_text(_list(), links=True), _list().stat()
    except (OSError, UserError):
        return False
    private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return private and _mark() in [line.partition(" ")[0] for line in listed.splitlines()]


def trust() -> str:
    """Add this folder to the user's list of trusted folders, and return a line that says so.

    Raises:
        UserError: There is no `fedopt.toml` with a python_path, or the list cannot be written, or others may write to it.
    """
    if (found := project()) is None or not found.python_path:
        raise UserError(f"{NAME}: is missing in this folder, or has no python_path; `fedopt new` writes one")
    path = _list()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        read_text(path, links=True)  # a pipe would wait for ever, and other content stays as it is
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{_mark()} {os.path.realpath(home())!r}\n")
    except (OSError, UserError) as error:
        why = getattr(error, "strerror", None) or first_line(error).removeprefix(f"{path}: ")
        why = f"cannot be written ({why}); put PYTHONPATH=. before a command instead"
        raise UserError(f"{path}: {why}") from None
    if not trusted():
        raise UserError(f"{path}: this list is ignored, since others may write to it; run chmod go-w {path}")
    return f"commands in this folder import Python files from {found.python_path!r} from now on: {path} has it"


def _list() -> Path:
    """Return the path of the user's list of trusted folders. Raises UserError if the user has no home folder."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.config")
    if not os.path.isabs(folder):
        raise UserError(
            "there is no home folder for the list of trusted folders; set XDG_CONFIG_HOME to another folder"
        )
    return Path(folder, "fedopt", "projects")


def _mark() -> str:
    """Return a hash of this folder's path and its `fedopt.toml`, which changes if either does."""
    here = home()
    return hashlib.sha256(os.fsencode(os.path.realpath(here)) + b"\0" + (here / NAME).read_bytes()).hexdigest()


def new_text() -> str:
    """Return the text of a new `fedopt.toml`, with a random token that makes its hash unique."""
    return TEXT.format(token=token_hex(8))
