"""What the quadratic problems are made of: random matrices, families of them over clients, noise of single examples."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedopt.data.ragged import Ragged
from fedopt.data.world import World


def spd(rng: np.random.Generator, dim: int, conditioning: float) -> np.ndarray:
    """A random symmetric matrix with eigenvalues from 1 / conditioning to 1."""
    axes, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    return axes @ np.diag(np.linspace(1 / conditioning, 1.0, dim)) @ axes.T


def isometry(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A random matrix with orthonormal columns."""
    return np.linalg.qr(rng.standard_normal((rows, columns)))[0]


def gaussian(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Independent entries, of variance one over the last dimension."""
    return rng.standard_normal(shape) * (1 / np.sqrt(shape[-1]))


def family(draw: Callable[[], np.ndarray], clients: int, heterogeneity: float, world: World) -> Tensor:
    """An array for each client, [clients, ...]: one for all, mixed with the client's own in the proportion 1 : heterogeneity."""
    share = heterogeneity / (1 + heterogeneity)
    common, own = draw(), [draw() for _ in range(clients)]
    return tensor(np.stack([(1 - share) * common + share * mine for mine in own]), world)


def centred_noise(
    rng: np.random.Generator, deviation: float, examples: int, dim: int, splits: Mapping[str, Ragged], world: World
) -> Tensor:
    """Noise of each example, [examples, dim]; every client's sums to zero over each of its splits."""
    noise = deviation * rng.standard_normal((examples, dim))
    for split in splits.values():
        for rows in split:
            noise[rows] -= noise[rows].mean(0)
    return tensor(noise, world)


def tensor(array: np.ndarray, world: World) -> Tensor:
    return torch.from_numpy(array).to(world.device, world.dtype)
