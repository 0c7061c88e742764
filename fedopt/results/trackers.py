"""Experiment trackers: where metrics go besides metrics.csv, as the config group `logger` says.

A library is imported only when its tracker is built.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any, Literal, NamedTuple, Protocol
from uuid import uuid4

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from fedopt.config import flat
from fedopt.errors import UserError
from fedopt.files import read_json
from fedopt.results.folder import RunFolder

STRICT = ConfigDict(extra="forbid")
BATCH, LONGEST = 100, 500  # MLflow takes so many parameters at once, and so many characters of one
ENDS = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}  # MLflow's words; others are FAILED


class Tracker(Protocol):
    @property
    def log(self) -> Callable[[Mapping[str, float], int], object]:
        """A function of the metrics of an evaluation, by name, and the number of rounds done, which logs them.

        If the process is killed after it has returned, nothing is lost.
        """

    @property
    def close(self) -> Callable[[], object]: ...


class _Calls(NamedTuple):
    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


@dataclass(frozen=True, config=STRICT)
class TensorBoard:
    """Scalars as TensorBoard event files in <run folder>/tensorboard. Raises UserError if TensorBoard is not installed."""

    def __post_init__(self) -> None:
        _library("torch.utils.tensorboard")

    def start(self, folder: Path, first: int) -> Tracker:
        """Begin tracking.

        folder: the run's folder. first: the first round to be logged; existing records of this round and later ones are
            dropped.
        """
        path = _inside(folder, "tensorboard")
        writer = _library("torch.utils.tensorboard").SummaryWriter(str(path), purge_step=first)

        def log(row: Mapping[str, float], step: int) -> None:
            for name, value in row.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return _Calls(log, writer.close)


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
        _library("wandb")

    def start(self, folder: Path, first: int) -> Tracker:
        """Begin tracking.

        Metrics are plotted over rounds. After a resume, rounds after the last checkpoint are logged a second time.

        folder: the run's folder. first: the first round to be logged. 0 begins a new run of Weights & Biases; else the one
            that the folder names continues.
        """
        _inside(folder, "wandb")
        wandb, mode = _library("wandb"), self.mode or os.environ.get("WANDB_MODE", "offline")
        if mode == "online" and not wandb.login(prompt=False):
            raise UserError("logger=wandb: nobody is logged in; run wandb login, or set logger.wandb.mode=offline")
        run = wandb.init(
            project=self.project,
            name=folder.name,
            id=_run_id(folder, "wandb", first, lambda: uuid4().hex[:8]),
            resume="allow",
            dir=folder,
            mode=mode,
            config=_params(folder),
            settings=wandb.Settings(silent=True, console="off", save_code=False),
        )
        run.define_metric("*", step_metric="round")
        return _Calls(lambda row, step: run.log({**row, "round": step}), run.finish)


@dataclass(frozen=True, config=STRICT)
class MLflow:
    """A run of MLflow, with the config as parameters.

    Args:
        uri: The address of the tracking server or store. None: MLflow's default.
        experiment: The name of the experiment; it is created if it does not exist.

    Raises:
        UserError: MLflow is not installed.
    """

    uri: str | None = None
    experiment: str = "fedopt"

    def __post_init__(self) -> None:
        _library("mlflow")

    def start(self, folder: Path, first: int) -> Tracker:
        """Begin tracking. folder, first: as in `WandB.start`. After a resume, some rounds are logged a second time here too."""
        mlflow, entities = _library("mlflow"), _library("mlflow.entities")
        client = mlflow.MlflowClient(self.uri)

        def begun() -> str:
            with suppress(mlflow.MlflowException):  # it is there, made by another run just now perhaps
                client.create_experiment(self.experiment)
            experiment = client.get_experiment_by_name(self.experiment)
            run = client.create_run(experiment.experiment_id, run_name=folder.name).info.run_id
            params = [entities.Param(key, str(value)[:LONGEST]) for key, value in _params(folder).items()]
            for k in range(0, len(params), BATCH):
                client.log_batch(run, params=params[k : k + BATCH])
            return str(run)

        run = _run_id(folder, "mlflow", first, begun)
        client.update_run(run, "RUNNING")

        def log(row: Mapping[str, float], step: int) -> None:
            now = int(1000 * time())
            client.log_batch(run, metrics=[entities.Metric(name, value, now, step) for name, value in row.items()])

        def close() -> None:
            client.set_terminated(run, ENDS.get(RunFolder(folder).summary().get("status", ""), "FAILED"))

        return _Calls(log, close)


def _library(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        name = module.partition("torch.utils.")[2] or module
        raise UserError(f"logger={name}: the library is not installed; pip install 'fedopt[{name}]'") from None


def _inside(folder: Path, name: str) -> Path:
    if (path := folder / name).is_symlink():
        raise UserError(f"{path}: is a link, so that writing would go elsewhere; choose another output_dir")
    return path


def _params(folder: Path) -> dict[str, Any]:
    return flat(RunFolder(folder).config())


def _run_id(folder: Path, library: str, first: int, new: Callable[[], str]) -> str:
    """Return a library's id of the run, kept as <library>.json in the run's folder, so that a resumed run continues there.

    folder: the run's. library: its name. first: the first round to be logged; 0 begins a new run. new: makes a new id.
    """
    name = f"{library}.json"
    known = read_json(folder / name, {"id": str}).get("id") if first else None
    run = known or new()
    RunFolder(folder).write_json(name, {"id": run})
    return str(run)
