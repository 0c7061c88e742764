"""fedopt: experiments in federated nested optimisation.

The public names are what runs are begun and read with from Python, and what algorithms and problems of one's own are made with.
Each is imported when it is first used, so that help and mistakes are answered without torch; `__init__.pyi` says the same to type
checkers.
"""

import os
from importlib import import_module
from typing import Any

PARENT = os.getppid()  # asked before anything that takes time: it is another one when that process was killed
__version__ = "0.4.0.dev0"

_NAMES = {
    "algorithms": ("Algorithm",),
    "api": ("Result", "compare", "frame", "load", "run", "sweep"),
    "bench.python": ("Tuning", "tune"),
    "config.composed": ("Composed", "compose", "recorded"),
    "data.examples": ("cross_entropy",),
    "data.world": ("World",),
    "errors": ("UserError",),
    "running.assemble": ("Experiment", "assemble"),
    "federation.client": ("Client",),
    "federation.draws": ("Epochs", "Full", "Steps"),
    "federation.memory": ("Memory",),
    "federation.round": ("Federation", "Round"),
    "metrics": ("TEST_ACCURACY", "TEST_LOSS", "VAL_LOSS", "Metric"),
    "problems.classes": (
        "Bilevel",
        "Compositional",
        "Conditional",
        "Hierarchical",
        "KnownOuter",
        "LocalBilevel",
        "LocalCompositional",
        "Minimax",
        "Minimisation",
        "Problem",
        "TwoLevel",
    ),
    "problems.function": ("function",),
    "problems.projections": ("ball", "box", "simplex"),
    "problems.supervised": ("Supervised",),
    "toolbox": (
        "Storm",
        "Vectors",
        "bilevel_maps",
        "bilevel_start",
        "chain",
        "conjugate_gradients",
        "descend",
        "independent_maps",
        "minimax_field",
        "moved",
        "neumann_sum",
        "neumann_term",
    ),
    "config.schedules": ("LocalWork", "Schedule"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedopt' has no attribute '{name}'")
    return getattr(import_module(f"fedopt.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
