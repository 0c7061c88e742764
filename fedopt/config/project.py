"""The project file `fedopt.toml`: where commands in its folder and subfolders find your configs, Python files and runs."""

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


@dataclass(frozen=True)
class Project:
    """The content of `fedopt.toml`.

    Args:
        config_dir: The config folder, inside the project's folder.
        python_path: The folder with Python files, inside the project's folder. None: there is none.
    """

    config_dir: str = "myconf"
    python_path: str | None = None


def home() -> Path:
    """Return the project's folder, relative to the working directory; `.` if there is no project file.

    It is the working directory or its nearest parent with a `fedopt.toml`. In a parent folder the file counts only if it
    belongs to the user, so that nobody else can change what commands do in a shared folder such as /tmp.
    """
    with suppress(FileNotFoundError):  # the working directory was removed
        here = Path.cwd()
        for folder in (here, *here.parents):
            file = folder / NAME
            if os.path.lexists(file) and (folder == here or file.lstat().st_uid == os.getuid()):
                return Path(os.path.relpath(folder))
    return Path()


def outputs() -> Path:
    """Return the default folder of runs: `outputs` in the project's folder."""
    return home() / "outputs"


def project() -> Project | None:
    """Return the project of the working directory, with paths relative to it; None if there is no `fedopt.toml`.

    Raises:
        UserError: `fedopt.toml` cannot be read, has unknown keys, or names a folder outside the project's folder.
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
        raise UserError(f"{NAME}: cannot be read ({first_line(error)}); correct it, or remove it") from None
    if outside := [place for place in folders if not Path(place).is_relative_to(os.path.realpath(here))]:
        raise UserError(f"{NAME}: {outside[0]} is outside the project; use --config-dir or PYTHONPATH for it instead")
    return found


def with_project(folders: str | Path | Folders = ()) -> list[str]:
    """Return the project's config folder, if there is one, followed by the config folders that a command names.

    This also makes the project's Python files importable, in this process and in its child processes. Installed modules
    take precedence.

    Args:
        folders: The config folders that the command names.

    Raises:
        UserError: `fedopt.toml` is invalid.
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
