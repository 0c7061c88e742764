"""Determine how a run starts in its folder: at its own checkpoint, at another run's checkpoint, or from the beginning."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fedopt.console import note
from fedopt.errors import UserError
from fedopt.results import (
    Checkpoint,
    RunFolder,
    numbers,
    read,
    refuse_foreign,
    refuse_other,
    refuse_other_data,
    rows_hash,
    say_changed,
    stamp,
)
from fedopt.running.assemble import Experiment, refuse_changed_data
from fedopt.running.loop import Progress, share_spent

# A run starts from the first round, resumes at its checkpoint, resumes with another budget, or has nothing left to do
Entry = Literal["begin", "resume", "longer", "done"]
START_OVER = "restore a good copy, or delete checkpoint.safetensors and start this run over with resume=true"


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Append advice to a UserError that is raised in the context."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error


def enter(folder: RunFolder, config: dict[str, Any]) -> Entry:
    """Return how a run with this config starts in a folder.

    If the folder contains a run, and resume=true or the status of that run is ``running``, it is locked for this process.

    Args:
        folder: The folder.
        config: The config of the run.

    Returns:
        ``begin``: from the first round. ``resume``: at the checkpoint. ``longer``: at the checkpoint, with a different budget.
        ``done``: the run has finished, and nothing is left to do.

    Raises:
        UserError: The folder contains a run and resume is false, this run has other values, or its files were changed.
    """
    if not folder.used:
        return "begin"
    if config["resume"] or folder.status() == "running":  # if nobody has locked it, it was killed
        folder.open()
    if not config["resume"]:
        refuse_used(folder)
    refuse_other(folder.path, numbers(folder.config()), numbers(config))
    if not os.path.lexists(folder.checkpoint):
        if folder.metrics.exists():
            note(f"{folder.path}: there is no checkpoint, so the run starts over")
        return "begin"
    with advising(START_OVER):
        _, metadata = read(folder.checkpoint)
    here = stamp(config)
    refuse_foreign(folder.checkpoint, metadata, here["run"])
    with advising(START_OVER):
        rows_size = counted_rows(folder, metadata)
    longer = metadata.get("length") != here["length"]
    done = not longer and folder.status() == "finished" and folder.metrics.stat().st_size == rows_size
    if done:
        refuse_changed_data(folder.path, metadata, config)
    say_changed(folder, config)
    if done:
        return "done"
    return "longer" if longer else "resume"


def counted_rows(folder: RunFolder, metadata: Mapping[str, Any]) -> int:
    """Return the number of bytes of metrics.csv to which a checkpoint refers.

    Args:
        folder: The run's folder.
        metadata: The metadata of the checkpoint.

    Raises:
        UserError: These bytes have changed.
    """
    size = metadata.get("rows_size")
    if not isinstance(size, int) or rows_hash(folder.metrics, size) != metadata.get("rows"):
        raise UserError(f"{folder.metrics}: its rows were changed after the checkpoint was written")
    return size


def refuse_used(folder: RunFolder) -> None:
    """Raise a UserError which says that the folder contains a run, or other files with the names of a run's files."""
    if not os.path.lexists(folder.path / "config.yaml"):
        raise UserError(f"output_dir={folder.path}: has files with the names of a run's files; choose another folder")
    ways = "resume it with resume=true, or choose another output_dir"
    raise UserError(f"output_dir={folder.path}: already contains a run ({folder.status()}); {ways}")


def restored(folder: RunFolder, checkpoint: Checkpoint, e: Experiment, longer: bool) -> tuple[Any, Progress, int]:
    """Return the stored state and progress of a run, and the number of bytes of metrics.csv to which its checkpoint refers.

    Args:
        folder: The run's folder.
        checkpoint: The run's checkpoint.
        e: The objects of the run. The ledger of ``e.federation`` is set to the stored costs in place.
        longer: Whether the budget differs from the budget with which the run was started.

    Raises:
        UserError: The data have changed, the checkpoint is damaged, or the run has already used more than the budget.
    """
    with advising(START_OVER):
        stored = read(folder.checkpoint)
    refuse_other_data(folder.path, stored[1], e.data)  # first: other data may change the state's shapes
    with advising(START_OVER):
        state, metadata = checkpoint.restore(e.federation.ledger, stored)
    progress = progress_of(metadata)
    if longer and share_spent(e, progress) > 1:
        raise UserError(f"budget: the run in {folder.path} has used more ({progress.round} rounds); increase it")
    return state, progress, metadata["rows_size"]


def taken_from(source: Path, algo: Mapping[str, Any], initial: Any, e: Experiment) -> tuple[Any, Progress]:
    """Return the state of another run's checkpoint, and a progress that continues from its rounds and seconds.

    Args:
        source: The folder of the other run.
        algo: The node ``algo`` of the config.
        initial: The algorithm's initial state.
        e: The objects of the new run. The ledger of ``e.federation`` is set to the costs of the other run in place.

    Raises:
        UserError: There is no checkpoint, it belongs to another algorithm or has other shapes, or the other run has already used
            the budget.
    """
    folder = RunFolder(source)
    if not folder.checkpoint.is_file():
        raise UserError(f"from={source}: there is no run with a checkpoint in this folder; choose another folder")
    theirs = (folder.config().get("algo") or {}).get("_target_")
    if theirs != algo["_target_"]:
        why = f"its algorithm is {theirs}, whose state does not fit {algo['_target_']}"
        raise UserError(f"from={source}: {why}; give that run's algo= and problem=, since from= copies no config")
    with advising(f"from={source} needs the same options of the algorithm, model and number of clients as that run"):
        state, metadata = Checkpoint(folder.checkpoint, initial).restore(e.federation.ledger)
    there = progress_of(metadata)
    progress = Progress(round=there.round, seconds=there.seconds)
    if share_spent(e, progress) >= 1:
        spent = f"the run at from={source} has used it up in {progress.round} rounds, which count here too"
        raise UserError(f"budget: {spent}; set a larger budget")
    return state, progress


def progress_of(metadata: Mapping[str, Any]) -> Progress:
    """Return the progress that the metadata of a checkpoint contain."""
    return Progress(**{name: metadata[name] for name in Progress.__dataclass_fields__})
