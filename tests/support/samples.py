"""What tests draw and read by themselves: rows of samples, their generators, real data."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedopt.federation.draws import Drawn
from fedopt.randomness import Purpose, keyed_rng


def rows_of(whole: dict[str, Any], drawn: Drawn, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Which examples each sample takes and with what weights, [clients, samples, B]."""
    rows, weight = whole[split]
    if not drawn.positions:
        return rows[:, None], weight[:, None]
    positions, weight = drawn.positions[split]
    return torch.stack([own[at] for own, at in zip(rows, positions, strict=True)]), weight


def sampling(seed: int, r: int, exchange: int) -> Callable[[int], np.random.Generator]:
    """The generators of the clients' samples in an exchange, counted from 1, of round r = 0, 1, ..."""
    return lambda client: keyed_rng(seed, Purpose.SAMPLES, r + 1, exchange, client)


def real(path: str) -> Path:
    """The folder of the real data that has this file or folder; without it the test is skipped."""
    folder = os.environ.get("FEDOPT_DATA")
    if not folder:
        pytest.skip("needs data: FEDOPT_DATA is not set")
    if not (Path(folder) / path).exists():
        pytest.skip(f"needs data: {folder} has no {path}")
    return Path(folder)
