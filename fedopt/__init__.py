"""fedopt: experiments in federated nested optimisation.

The names below are what algorithms and problems of one's own are made with. They are imported when they are first used, so that
help and mistakes are answered without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from fedopt.algorithms import Algorithm
    from fedopt.config import composed, resolve
    from fedopt.data.world import World
    from fedopt.errors import UserError
    from fedopt.experiment import Experiment, assemble
    from fedopt.federation.client import Client
    from fedopt.federation.draws import Epochs, Full, Steps
    from fedopt.federation.federation import Federation
    from fedopt.federation.round import Round
    from fedopt.metrics import Metric
    from fedopt.problems.classes import (
        Bilevel,
        Compositional,
        Hierarchical,
        Minimax,
        Minimisation,
        Problem,
        TwoLevel,
    )
    from fedopt.schedules import LocalWork, Schedule

_MODULES = {
    "algorithms": ["Algorithm"],
    "config": ["composed", "resolve"],
    "data.world": ["World"],
    "errors": ["UserError"],
    "experiment": ["Experiment", "assemble"],
    "federation.client": ["Client"],
    "federation.draws": ["Epochs", "Full", "Steps"],
    "federation.federation": ["Federation"],
    "federation.round": ["Round"],
    "metrics": ["Metric"],
    "problems.classes": ["Bilevel", "Compositional", "Hierarchical", "Minimax", "Minimisation", "Problem", "TwoLevel"],
    "schedules": ["LocalWork", "Schedule"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Algorithm",
    "Bilevel",
    "Client",
    "Compositional",
    "Epochs",
    "Experiment",
    "Federation",
    "Full",
    "Hierarchical",
    "LocalWork",
    "Metric",
    "Minimax",
    "Minimisation",
    "Problem",
    "Round",
    "Schedule",
    "Steps",
    "TwoLevel",
    "UserError",
    "World",
    "assemble",
    "composed",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedopt' has no attribute '{name}'")
    return getattr(import_module(f"fedopt.{_HOME[name]}"), name)
