"""Draw the figures of a run at its end."""

from importlib import import_module
from typing import Any

from fedopt.config import key_of
from fedopt.console import note
from fedopt.errors import first_line
from fedopt.results import RunFolder
from fedopt.running.assemble import Experiment


def draw(folder: RunFolder, e: Experiment, source: str | None) -> None:
    """Draw metrics.png, partition.png and clients.png.

    The partition is drawn only for data with classes, and the clients only if the run has written clients.csv. If a figure cannot
    be drawn, a note is printed; the run and its numbers are complete anyway.

    Args:
        folder: The run's folder.
        e: The objects of the run.
        source: The folder of the run whose checkpoint this run started from. None: it started from the beginning.
    """
    problem, clients = e.original, folder.path / "clients.csv"
    shown: dict[str, tuple[Any, ...]] = {"metrics": (folder.metrics, e.problem.metrics, _title(folder), source or "")}
    if problem.labels is not None:
        shown["partition"] = problem.splits["train"], problem.labels, problem.class_names
    if clients.exists() and (metric := folder.card().get("client_metric")):
        shown["clients"] = clients, metric
    for name, facts in shown.items():
        path = folder.path / f"{name}.png"
        try:
            getattr(import_module("fedopt.drawing.run"), name)(path, *facts)
        except Exception as error:
            note(f"{path}: this figure cannot be drawn ({first_line(error)}); the run and its numbers are complete")


def _title(folder: RunFolder) -> str:
    """Return the title of a run's figure: its method, problem and seed, and the other overrides of its command.

    Args:
        folder: The run's folder.
    """
    card, config = folder.card(), folder.config()
    method, problem = (card.get("chosen", {}).get(group, "?") for group in ("algo", "problem"))
    placed = ("algo", "problem", "seed", "output_dir", "resume", "from", "name")
    overrides = [override for override in card.get("overrides", ()) if key_of(override) not in placed]
    return ", ".join([f"{method} on {problem}", f"seed {config.get('seed')}", *overrides])
