"""Experiment trackers: where metrics go besides metrics.csv, as the config group `logger` says.

A library is imported only when its tracker is built.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from fedopt.config import flat
from fedopt.errors import UserError, need
from fedopt.files import refuse_linked
from fedopt.results.folder import RunFolder

STRICT = ConfigDict(extra="forbid")


class Tracker(NamedTuple):
    """What `start` returns; any object with these two functions does.

    log: a function of the metrics of an evaluation, by name, and the number of rounds done. If the process is killed after it
        has returned, nothing is lost.
    close: a function that ends tracking.
    """

    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


@dataclass(frozen=True, config=STRICT)
class TensorBoard:
    """Scalars as TensorBoard event files in <run folder>/tensorboard. Raises UserError if TensorBoard is not installed."""

    def __post_init__(self) -> None:
        need("logger=tensorboard", "tensorboard", "tensorboard")

    def start(self, folder: Path, first: int) -> Tracker:
        """Begin tracking.

        folder: the run's folder. first: the first round to be logged; existing records of this round and later ones are
            dropped.
        """
        from torch.utils.tensorboard import SummaryWriter

        refuse_linked(path := folder / "tensorboard", folder)
        writer = SummaryWriter(str(path), purge_step=first)

        def log(row: Mapping[str, float], step: int) -> None:
            for name, value in row.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return Tracker(log, writer.close)


@dataclass(frozen=True, config=STRICT)
class WandB:
    """A run of Weights & Biases, with the config, stored in <run folder>/wandb. It never asks anyone to log in.

    Args:
        project: The name of the project.
        mode: online, offline or disabled. None: WANDB_MODE, else offline.

    Raises:
        UserError: wandb is not installed; or, in `start`, mode is online and nobody is logged in.
    """

    project: str = "fedopt"
    mode: Literal["online", "offline", "disabled"] | None = None

    def __post_init__(self) -> None:
        need("logger=wandb", "wandb", "wandb")

    def start(self, folder: Path, first: int) -> Tracker:
        """Begin tracking.

        Metrics are plotted over rounds. After a resume, rounds after the last checkpoint are logged a second time.

        folder: the run's folder, whose run.json has the run's id. first: the first round to be logged.
        """
        import wandb

        refuse_linked(folder / "wandb", folder)
        recorded = RunFolder(folder)
        mode = self.mode or os.environ.get("WANDB_MODE", "offline")
        if mode == "online" and not wandb.login(prompt=False):
            raise UserError("logger=wandb: nobody is logged in; run wandb login, or set logger.wandb.mode=offline")
        run = wandb.init(
            project=self.project,
            name=folder.name,
            id=recorded.card().get("id"),
            resume="allow",
            dir=folder,
            mode=mode,
            config=flat(recorded.config()),
            settings=wandb.Settings(silent=True, console="off", save_code=False),
        )
        run.define_metric("*", step_metric="round")
        return Tracker(lambda row, step: run.log({**row, "round": step}), run.finish)
