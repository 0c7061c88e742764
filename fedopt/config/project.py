"""A folder's `fedopt.toml`: where commands in this folder and in its subfolders find your configs, Python files and runs."""

import os
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedopt.config.build import build
from fedopt.config.files import Folders
from fedopt.errors import UserError, first_line
from fedopt.files import MOST_OF_A_CONFIG, read_text

NAME = "fedopt.toml"
TEXT = """# The folders in which fedopt finds your configuration files and Python files
config_dir = "myconf"
python_path = "."
"""
TYPED = os.environ.get("PYTHONPATH", "")  # before a project's folder comes to it


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
        raise UserError(f"{NAME}: cannot be read ({first_line(error)}); mend it, or remove it") from None
    if outside := [place for place in folders if not Path(place).is_relative_to(os.path.realpath(here))]:
        raise UserError(f"{NAME}: {outside[0]} is not in its folder; name it with --config-dir or PYTHONPATH instead")
    return found


def with_project(folders: str | Path | Folders = ()) -> list[str]:
    """Return the config folders of a command, with the project's config folder first if it exists.

    The project's Python files become importable, also for processes that this one starts. Installed modules come first.

    Args:
        folders: The config folders that the command names.

    Raises:
        UserError: `fedopt.toml` is broken.
    """
    named = [*map(str, [folders] if isinstance(folders, str | Path) else folders)]
    if (found := project()) is None:
        return named
    place = os.path.realpath(found.python_path or "")
    if found.python_path and place not in map(os.path.realpath, sys.path):
        sys.path.append(place)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), place]))
    new = os.path.isdir(found.config_dir) and os.path.realpath(found.config_dir) not in map(os.path.realpath, named)
    return [found.config_dir, *named] if new else named
