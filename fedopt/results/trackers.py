"""Where metrics go besides metrics.csv: what the `logger` group of the config names.

tensorboard is imported when a tracker is built, not before.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from fedopt.errors import UserError


class Tracker(Protocol):
    def log(self, row: Mapping[str, float], step: int) -> None:
        """The metrics of an evaluation, by name; step: rounds done. They are on disk when this returns."""

    def close(self) -> None: ...


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TensorBoard:
    """Scalars as event files in <run folder>/tensorboard. Raises UserError where TensorBoard is not installed."""

    def __post_init__(self) -> None:
        try:
            import_module("torch.utils.tensorboard")
        except ImportError:
            raise UserError("logger=tensorboard: not installed; pip install tensorboard") from None

    def start(self, folder: Path, first: int) -> Tracker:
        """folder: the run's; first: the first step to be logged; what is there from that step on is dropped."""
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "tensorboard"
        if path.is_symlink():
            raise UserError(f"{path}: is a link, and is not written to; choose another output_dir")
        return _Events(SummaryWriter(str(path), purge_step=first))


class _Events:
    def __init__(self, writer: Any):
        self._writer = writer

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
