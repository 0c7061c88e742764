"""The config of a command, which may resume the run in a folder."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedopt.config import GROUPS, Composed, Folders, compose, key_of, parsed, recorded
from fedopt.errors import UserError
from fedopt.results import RunFolder


def configured(overrides: Sequence[str], folders: Folders = ()) -> Composed:
    """Return the config of a command. If it only resumes a run, return the recorded config with the command's other values.

    Args:
        overrides: The command's overrides.
        folders: Your config folders.

    Raises:
        UserError: The config is wrong, or the folder holds no run to resume.
    """
    return _resumed(overrides) or compose(overrides, folders)


def _resumed(overrides: Sequence[str]) -> Composed | None:
    """Return the recorded config of the run in DIR, changed by the other overrides, for `resume=true output_dir=DIR`.

    Return None if the overrides do not ask to resume, if they choose an option of a config group, or if DIR holds no run yet.

    Raises:
        UserError: There is no run in DIR, and the overrides choose no algorithm, problem or experiment.
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
