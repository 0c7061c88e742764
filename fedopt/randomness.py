"""Keyed randomness: every draw is a function of (seed, purpose, round, exchange, client) and of nothing else.

A counter-based generator (Philox) makes this literal. The purpose is half of its key; round, exchange and client are the
high words of its counter, so that two keys never share a stream and no draw depends on what was drawn before it.
"""

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a draw is for."""

    PARTITION = 0
    SPLIT = 1
    PROBLEM = 2
    MODEL = 3
    COHORT = 4
    SAMPLES = 5
    OUTPUT = 6
    ESTIMATOR = 7
    DROPOUT = 8
    WORK = 9
    STRAGGLERS = 10
    SERVER = 11
    DIRECTIONS = 12
    NOISE = 13
    OWN = 14  # whatever an algorithm of one's own draws


def keyed_rng(seed: int, purpose: Purpose, round: int = 0, exchange: int = 0, client: int = 0) -> np.random.Generator:
    """The generator that belongs to a key; all numbers non-negative."""
    key = np.array([seed, purpose], dtype=np.uint64)
    counter = np.array([0, client, exchange, round], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def torch_seed(seed: int, purpose: Purpose) -> int:
    """A seed for a `torch.Generator` or `torch.manual_seed` that belongs to a key."""
    return int(keyed_rng(seed, purpose).integers(2**63 - 1))


def normal(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Standard normal numbers as a tensor."""
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)
