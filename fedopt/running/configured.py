"""Compose the config of a command, or load the recorded config if the command resumes a run."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedopt.config import GROUPS, Composed, Folders, compose, key_of, parsed, recorded
from fedopt.errors import UserError
from fedopt.results import RunFolder


def configured(overrides: Sequence[str], folders: Folders = ()) -> Composed:
    """Return the config of a command.

    If the command is ``resume=true output_dir=DIR``, perhaps with further values, this is the recorded config of the run in DIR
    with these values replaced.

    Args:
        overrides: The command's overrides.
        folders: The user's config folders.

    Raises:
        UserError: The config is invalid, or the folder contains no run to resume.
    """
    return _resumed(overrides) or compose(overrides, folders)


def _resumed(overrides: Sequence[str]) -> Composed | None:
    """Return the recorded config of the run in DIR, changed by the other overrides, for `resume=true output_dir=DIR`.

    Args:
        overrides: The command's overrides.

    Returns:
        The config. None: the command is not a resume, it chooses an option of a config group, or DIR contains no run yet, but
        the command can start one.

    Raises:
        UserError: DIR contains no run, and the command chooses no algorithm, problem or experiment, so it cannot start one.
    """
    if not {"output_dir", "resume"} <= {key_of(override) for override in overrides}:
        return None
    asked = {override.key_or_group: override for override in parsed(overrides)}
    if asked["resume"].value() is not True:
        return None
    folder = RunFolder(Path(str(asked["output_dir"].value())))
    if os.path.lexists(folder.path / "config.yaml"):
        card = folder.card()
        if {*asked} & {*GROUPS}:
            return None
        return recorded(folder.config(), overrides, card.get("chosen", {}), card.get("tuned"))
    if not {*asked} & {"algo", "problem", "experiment"}:
        raise UserError(f"{folder.path}: contains no run to resume; start one with algo=NAME problem=NAME")
    return None
