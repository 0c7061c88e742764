"""Where metrics go besides metrics.csv: what the `logger` group of the config names.

The libraries are imported when a tracker is built, not before.
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

from fedopt.config.files import flat
from fedopt.errors import UserError
from fedopt.files.reading import read_json
from fedopt.results.folder import RunFolder

STRICT = ConfigDict(extra="forbid")
BATCH, LONGEST = 100, 500  # MLflow takes so many parameters at once, and so many characters of one
ENDS = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}  # MLflow's words; others are FAILED


class Tracker(Protocol):
    @property
    def log(self) -> Callable[[Mapping[str, float], int], object]:
        """A method of the metrics of an evaluation, by name, and the rounds done. They are on disk when it returns."""

    @property
    def close(self) -> Callable[[], object]: ...


class _Calls(NamedTuple):
    log: Callable[[Mapping[str, float], int], object]
    close: Callable[[], object]


@dataclass(frozen=True, config=STRICT)
class TensorBoard:
    """Scalars as event files in <run folder>/tensorboard. Raises UserError where TensorBoard is not installed."""

    def __post_init__(self) -> None:
        _library("torch.utils.tensorboard")

    def start(self, folder: Path, first: int) -> Tracker:
        """folder: the run's; first: the first step to be logged; what is there from that step on is dropped."""
        path = _inside(folder, "tensorboard")
        writer = _library("torch.utils.tensorboard").SummaryWriter(str(path), purge_step=first)

        def log(row: Mapping[str, float], step: int) -> None:
            for name, value in row.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return _Calls(log, writer.close)


@dataclass(frozen=True, config=STRICT)
class WandB:
    """A run of Weights & Biases, with the config, in <run folder>/wandb. Nobody is ever asked to log in.

    mode: None is what WANDB_MODE says, else offline. Raises UserError where wandb is not installed, or nobody is logged in.
    """

    project: str = "fedopt"
    mode: Literal["online", "offline", "disabled"] | None = None

    def __post_init__(self) -> None:
        _library("wandb")

    def start(self, folder: Path, first: int) -> Tracker:
        """As of `TensorBoard`. Metrics are over rounds; those after the last checkpoint are logged again."""
        _inside(folder, "wandb")
        wandb, mode = _library("wandb"), self.mode or os.environ.get("WANDB_MODE", "offline")
        if mode == "online" and not wandb.login(prompt=False):
            raise UserError("logger=wandb: nobody is logged in; wandb login, or logger.wandb.mode=offline")
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

    uri: of the tracking server or store; None is MLflow's own choice. Raises UserError where MLflow is not installed.
    """

    uri: str | None = None
    experiment: str = "fedopt"

    def __post_init__(self) -> None:
        _library("mlflow")

    def start(self, folder: Path, first: int) -> Tracker:
        """As of `WandB`."""
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
        raise UserError(f"logger={name}: not installed; pip install 'fedopt[{name}]'") from None


def _inside(folder: Path, name: str) -> Path:
    if (path := folder / name).is_symlink():
        raise UserError(f"{path}: is a link, and is not written to; choose another output_dir")
    return path


def _params(folder: Path) -> dict[str, Any]:
    return flat(RunFolder(folder).config())


def _run_id(folder: Path, library: str, first: int, new: Callable[[], str]) -> str:
    """What a library calls the run in a folder, kept there as <library>.json, so that a run that goes on is the same one there."""
    name = f"{library}.json"
    known = read_json(folder / name, {"id": str}).get("id") if first else None
    run = known or new()
    RunFolder(folder).write_json(name, {"id": run})
    return str(run)
