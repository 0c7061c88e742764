"""The config of a command, which may resume the run in a folder."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedopt.config import GROUPS, Composed, Folders, compose, key_of, parsed, recorded
from fedopt.errors import UserError
from fedopt.results import RunFolder


def configured(words: Sequence[str], folders: Folders = ()) -> Composed:
    """Return the config of a command. If it only resumes a run, return the recorded config with the command's other values.

    Args:
        words: The command's overrides.
        folders: Your config folders.

    Raises:
        UserError: The config is wrong, or the folder holds no run to resume.
    """
    return _going_on(words) or compose(words, folders)


def _going_on(words: Sequence[str]) -> Composed | None:
    """Return the recorded config of the run in DIR, with the values of the other words, for `resume=true output_dir=DIR`.

    Return None if the words do not ask to resume, or choose an option of a group, or if DIR holds no run yet.

    Raises UserError if there is no run in DIR, and the words choose neither an algorithm nor a problem nor an experiment.
    """
    if not {"output_dir", "resume"} <= {key_of(word) for word in words}:
        return None
    given = {override.key_or_group: override for override in parsed(words)}
    if given["resume"].value() is not True:
        return None
    folder = RunFolder(Path(str(given["output_dir"].value())))
    if os.path.lexists(folder.path / "config.yaml"):
        card = folder.card()
        if {*given} & {*GROUPS}:
            return None
        return recorded(folder.config(), words, card.get("chosen", {}), card.get("tuned"))
    if not {*given} & {"algo", "problem", "experiment"}:
        raise UserError(f"{folder.path}: there is no run in it to resume; begin one with algo=NAME problem=NAME")
    return None
