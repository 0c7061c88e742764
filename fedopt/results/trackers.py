"""Experiment trackers of the config group `logger`, which record metrics in addition to metrics.csv.

The library of a tracker is imported only when the tracker is built.
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
    """The result of a tracker's method `start`. Any object with these two attributes will do.

    Attributes:
        log: A function of the metrics of an evaluation, by name, and the number of completed rounds. When it returns, the
            metrics must be stored, so that they survive if the process is killed.
        close: A function that ends tracking.
    """

    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


@dataclass(frozen=True, config=STRICT)
class TensorBoard:
    """Write scalars as TensorBoard event files to <run folder>/tensorboard.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __post_init__(self) -> None:
        need("logger=tensorboard", "tensorboard", "tensorboard")

    def start(self, folder: Path, first: int) -> Tracker:
        """Start tracking.

        Args:
            folder: The run's folder.
            first: The first round that will be logged. Existing records of this round and of later rounds are removed.
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
    """Record a run and its config with Weights & Biases, in <run folder>/wandb. The user is never asked to log in.

    Args:
        project: The name of the project.
        mode: ``online``, ``offline`` or ``disabled``. None: the environment variable WANDB_MODE, or offline if it is not set.

    Raises:
        UserError: wandb is not installed.
    """

    project: str = "fedopt"
    mode: Literal["online", "offline", "disabled"] | None = None

    def __post_init__(self) -> None:
        need("logger=wandb", "wandb", "wandb")

    def start(self, folder: Path, first: int) -> Tracker:
        """Start tracking. Metrics are plotted over rounds.

        After a resume, the rounds after the last checkpoint are logged a second time.

        Args:
            folder: The run's folder, whose run.json contains the run's id.
            first: The first round that will be logged.

        Raises:
            UserError: The mode is online and nobody is logged in.
        """
        import wandb

        refuse_linked(folder / "wandb", folder)
        recorded = RunFolder(folder)
        mode = self.mode or os.environ.get("WANDB_MODE", "offline")
        if mode == "online" and not wandb.login(prompt=False):
            raise UserError("logger=wandb: you are not logged in; run wandb login, or set logger.wandb.mode=offline")
        settings = wandb.Settings(silent=True, console="off", save_code=False)
        names = {"project": self.project, "name": folder.name, "id": recorded.card().get("id")}
        where = {"dir": folder, "mode": mode, "resume": "allow", "settings": settings}
        run = wandb.init(**names, **where, config=flat(recorded.config()))
        run.define_metric("*", step_metric="round")
        return Tracker(lambda row, step: run.log({**row, "round": step}), run.finish)
