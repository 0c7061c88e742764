"""How a run begins in its folder: at its own checkpoint, at another run's, or at the start."""

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
START_OVER = "restore a good copy, or delete checkpoint.safetensors to start this run over with resume=true"


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Append advice to a UserError that is raised in the context."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error


def enter(folder: RunFolder, config: dict[str, Any]) -> Entry:
    """Return how a run with this config begins in a folder. With resume=true, a folder that holds a run is locked.

    begin: from the first round. resume: at the checkpoint. longer: at the checkpoint, with a different budget. done: the run has
        finished, and nothing is left to do.

    Raises UserError if the folder holds a run and resume is false, if that run has other values, or if its files were
    changed.
    """
    if not folder.used:
        return "begin"
    if config["resume"] or folder.status() == "running":  # or else it was killed
        folder.open()
    if not config["resume"]:
        refuse_used(folder)
    refuse_other(folder.path, numbers(folder.config()), numbers(config))
    if not os.path.lexists(folder.checkpoint):
        if folder.metrics.exists():
            note(f"{folder.path}: there is no checkpoint, so that the run starts over")
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
    """Return how many bytes of metrics.csv a checkpoint refers to. Raises UserError if these bytes have changed."""
    size = metadata.get("rows_size")
    if not isinstance(size, int) or rows_hash(folder.metrics, size) != metadata.get("rows"):
        raise UserError(f"{folder.metrics}: its rows were changed after the checkpoint was written")
    return size


def refuse_used(folder: RunFolder) -> None:
    """Raise UserError: the folder holds a run, or somebody's files with the names of a run's."""
    if not os.path.lexists(folder.path / "config.yaml"):
        raise UserError(f"output_dir={folder.path}: holds files with the names of a run's files; choose another folder")
    ways = "resume it with resume=true, or choose another output_dir"
    raise UserError(f"output_dir={folder.path}: holds a run already ({folder.status()}); {ways}")


def restored(folder: RunFolder, checkpoint: Checkpoint, e: Experiment, longer: bool) -> tuple[Any, Progress, int]:
    """Return the state and progress of the run's checkpoint, and the bytes of metrics.csv that it refers to.

    The ledger of e.federation is set to the stored costs.

    Args:
        folder, checkpoint: The run's.
        e: The objects of the run.
        longer: Whether the budget has changed.

    Raises:
        UserError: The data, the checkpoint or the budget do not fit.
    """
    with advising(START_OVER):
        stored = read(folder.checkpoint)
    refuse_other_data(folder.path, stored[1], e.data)  # first: other data may change the state's shapes
    with advising(START_OVER):
        state, metadata = checkpoint.restore(e.federation.ledger, stored)
    progress = progress_of(metadata)
    if longer and share_spent(e, progress) > 1:
        raise UserError(
            f"budget: the run in {folder.path} has used more already, in {progress.round} rounds; give a larger one"
        )
    return state, progress, metadata["rows_size"]


def taken_from(source: Path, algo: Mapping[str, Any], initial: Any, e: Experiment) -> tuple[Any, Progress]:
    """Return the state of another run's checkpoint, and a progress that continues its rounds and seconds.

    The ledger of e.federation is set to that run's costs.

    Args:
        source: The other run's folder.
        algo: The config's node of the algorithm.
        initial: The algorithm's first state.
        e: The objects of the run.

    Raises:
        UserError: The checkpoint does not fit, or its costs reach the budget.
    """
    folder = RunFolder(source)
    if not folder.checkpoint.is_file():
        raise UserError(f"from={source}: there is no run with a checkpoint in this folder; give the folder of one")
    theirs = (folder.config().get("algo") or {}).get("_target_")
    if theirs != algo["_target_"]:
        why = f"its algorithm is {theirs}, whose state does not fit {algo['_target_']}"
        raise UserError(
            f"from={source}: {why}; give its algo= and problem= again, since from does not take over values"
        )
    with advising(f"from={source} needs the same options of the algorithm, model and number of clients as that run"):
        state, metadata = Checkpoint(folder.checkpoint, initial).restore(e.federation.ledger)
    there = progress_of(metadata)
    progress = Progress(round=there.round, seconds=there.seconds)
    if share_spent(e, progress) >= 1:
        raise UserError(
            f"budget: the run at from={source} has used it in {progress.round} rounds, which count here "
            f"too; give a larger one"
        )
    return state, progress


def progress_of(metadata: Mapping[str, Any]) -> Progress:
    """Return the progress that a checkpoint notes."""
    return Progress(**{name: metadata[name] for name in Progress.__dataclass_fields__})
