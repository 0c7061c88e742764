"""For tests of methods on one machine: the hand example, and the quadratic bilevel problem written out in NumPy."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from support.samples import rows_of, sampling
from torch import Tensor

from fedopt.data.ragged import Ragged
from fedopt.federation.draws import Steps, draw
from fedopt.federation.engines import OneByOne
from fedopt.federation.round import Federation
from fedopt.problems.classes import Bilevel
from fedopt.running.assemble import Experiment
from fedopt.testing.harness import small


class ByHand(Bilevel):
    """f = 1/2 (y - 1)^2 + 1/2 x^2, g = (y - x)^2 from x = 1, y = 0, with one client."""

    def __init__(self) -> None:
        self.splits = {split: Ragged([np.arange(1)]) for split in ("train", "val")}

    def start(self) -> tuple[Tensor, Tensor]:
        return torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)

    def sample(self, client: Any, rows: Any) -> tuple[()]:
        return ()

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return 0.5 * torch.sum((y - 1) ** 2) + 0.5 * torch.sum(x**2)

    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return torch.sum((y - x) ** 2)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        return {}


def by_hand(algorithm: Any, rounds: int) -> Any:
    """The state after so many rounds on the hand example."""
    problem = ByHand()
    federation = Federation(problem, OneByOne(), 0)
    state = algorithm.init(problem)
    for r in range(rounds):
        state = algorithm.step(state, problem, federation.at(r))
    return state


def on_quadratic(algo: str, *words: str, clients: int = 2) -> Experiment:
    """The algorithm on the quadratic bilevel problem, with all clients taking part."""
    return small(algo, "quadratic_bilevel", f"partitioner.clients={clients}", "participation.cohort=null", *words)


class Written:
    """The directions of the quadratic problem from its definition: means over `clients`, on the samples that they draw."""

    def __init__(self, e: Experiment):
        self.e, self.clients = e, np.arange(e.problem.clients)
        self.m = {k: v.numpy() for k, v in e.problem.per_client.items()}

    def start(self) -> list[np.ndarray]:
        x, y = (v.numpy() for v in self.e.problem.start())
        return [x, y, 0 * y]

    def noise(self, r: int, exchange: int, steps: Steps, k: int = 0) -> list[dict[str, Any]]:
        """Of c, d and e in the k-th sample of an exchange, for each of the clients that take part."""
        if steps.B is None:
            return [dict.fromkeys("cde", 0.0) for _ in self.clients]
        p, like, of_clients = cast(Any, self.e.problem), torch.zeros((), dtype=torch.float64), []
        for i in self.clients:
            rng_of = sampling(self.e.federation.seed, r, exchange)
            whole, drawn = draw({"xi": steps}, p.splits, np.array([i]), rng_of, like)
            noise = {}
            for key, split in (("c", "train"), ("d", "val"), ("e", "val")):
                rows, weight = (t[0, k].numpy() for t in rows_of(whole, drawn["xi"], split))
                noise[key] = weight @ p._noise[key].numpy()[rows]
            of_clients.append(noise)
        return of_clients

    def maps(self, i: Any, z: Sequence[np.ndarray], noise: dict[str, Any]) -> list[np.ndarray]:
        """Of client i: grad_y g, grad^2_yy g v, grad^2_xy g v, grad_x f, grad_y f."""
        x, y, v = z
        A, B, D, F, G = (self.m[k][i] for k in "ABDFG")
        c, d, e = (self.m[k][i] + noise[k] for k in "cde")
        return [A @ y - B @ x - c, A @ v, -B.T @ v, D @ x - d + G @ y, F @ y - e + G.T @ x]

    def mean(self, z: Sequence[np.ndarray], noise: list[dict[str, Any]]) -> list[np.ndarray]:
        """The clients' mean of `maps`; they have equally many examples."""
        of_clients = (self.maps(i, z, own) for i, own in zip(self.clients, noise, strict=True))
        return [np.mean(part, axis=0) for part in zip(*of_clients, strict=True)]

    def directions(self, z: Sequence[np.ndarray], noise: list[dict[str, Any]]) -> list[np.ndarray]:
        """(Dx, Dy, Dv)."""
        g_y, hessian, cross, f_x, f_y = self.mean(z, noise)
        return [f_x - cross, g_y, hessian - f_y]
