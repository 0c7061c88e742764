"""What the quadratic problems are made of: random matrices, families of them over clients, noise of single examples."""

from collections.abc import Callable, Mapping

import numpy as np
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


class Families:
    """Arrays that the clients share in part: calling it gives one for each client, [clients, ...], the same for all mixed with
    the client's own in the proportion 1 : heterogeneity. What is the same does not depend on the number of clients.

    noise: the generator for what is no client's.
    """

    def __init__(self, clients: int, heterogeneity: float, world: World):
        self._clients, self._world = clients, world
        self._share = heterogeneity / (1 + heterogeneity)
        self._common, self._own, self.noise = (world.rng(part) for part in range(3))

    def __call__(self, draw: Callable[[np.random.Generator], np.ndarray]) -> Tensor:
        common, own = draw(self._common), [draw(self._own) for _ in range(self._clients)]
        return self._world.tensor(np.stack([(1 - self._share) * common + self._share * mine for mine in own]))


def centred_noise(
    rng: np.random.Generator, deviation: float, examples: int, dim: int, splits: Mapping[str, Ragged], world: World
) -> Tensor:
    """Noise of each example, [examples, dim]; every client's sums to zero over each of its splits."""
    noise = deviation * rng.standard_normal((examples, dim))
    for split in splits.values():
        for rows in split:
            noise[rows] -= noise[rows].mean(0)
    return world.tensor(noise)
