"""The run card: what it takes to make the same run again."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import fedopt
from fedopt.config import Asked
from fedopt.metrics import Metric

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "torchvision", "pandas", "pydantic", "safetensors")


def run_card(asked: Asked, seed: int, metrics: Sequence[Metric], clients: Sequence[str] = ()) -> dict[str, Any]:
    """How the run was asked for, seed, what the metrics say of themselves, the names of the clients where they have some, versions,
    machine, and the commit of the code where it is a git checkout."""
    return {
        "command": " ".join(sys.argv),
        **asdict(asked),
        "seed": seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "metrics": [asdict(metric) for metric in metrics],
        **({"clients": list(clients)} if clients else {}),
        "commit": _commit(),
        "versions": {
            "fedopt": fedopt.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "machine": {
            "platform": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """With `+changes` where the checkout has uncommitted ones."""
    root = Path(fedopt.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    commit = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
