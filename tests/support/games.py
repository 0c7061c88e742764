"""Games of few numbers for the tests of minimax methods, with their fields in NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support.derivatives import F64
from support.samples import rows_of, sampling
from torch import Tensor

from fedopt.config.build import build_target
from fedopt.config.settings import Participation
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.federation.draws import Steps, draw
from fedopt.federation.engines import Vectorised
from fedopt.federation.round import Federation
from fedopt.problems.classes import Minimax
from fedopt.running.assemble import Experiment
from fedopt.testing.harness import config


@dataclass(eq=False)
class Game(Minimax):
    """f_i(x, y) = 1/2 x'A_i x - c_i'x + x'B_i y - 1/2 y'D_i y + e_i'y, y within [-box, box].

    terms: (A, B, D, c, e), [clients, ...] each; w_0: the start.
    """

    terms: tuple[Any, ...]
    w_0: tuple[Any, Any]
    box: float = np.inf

    metrics = ()

    def __post_init__(self) -> None:
        self.per_client = {name: torch.as_tensor(t, dtype=F64) for name, t in zip("ABDce", self.terms, strict=True)}
        self.splits = self.world.split(self.world.clients)

    def start(self) -> tuple[Tensor, Tensor]:
        x, y = (torch.as_tensor(v, dtype=F64) for v in self.w_0)
        return x, y

    def sample(self, client: Any, rows: Any) -> list[Tensor]:
        return [t[client] for t in self.per_client.values()]

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        A, B, D, c, e = sample
        return 0.5 * x @ (A @ x) - c @ x + x @ (B @ y) - 0.5 * y @ (D @ y) + e @ y

    def project(self, y: Tensor) -> Tensor:
        return y.clamp(-self.box, self.box)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        return {}

    def solution(self) -> tuple[Tensor, ...]:
        """The saddle of the mean without the box."""
        A, B, D, c, e = (t.mean(0) for t in self.per_client.values())
        F = torch.cat([torch.cat([A, B], dim=1), torch.cat([-B.T, D], dim=1)])
        return tuple(torch.linalg.solve(F, torch.cat([c, e])).split([len(c), len(e)]))


def game(terms: tuple[Any, ...], w_0: tuple[Any, Any], box: float = np.inf) -> Game:
    return Game(World(0, Iid(len(terms[0])), dtype=F64), terms, w_0, box)


def scalar(
    a: float, b: float, d: float, e: float = 0.0, box: float = np.inf, w_0: tuple[float, float] = (1.0, 1.0)
) -> Game:
    """One client, 1/2 a x² + b x y - 1/2 d y² + e y."""
    matrices, vectors = (np.full((1, 1, 1), float(v)) for v in (a, b, d)), (np.full((1, 1), v) for v in (0.0, e))
    return game((*matrices, *vectors), ([w_0[0]], [w_0[1]]), box)


def unlike(clients: int = 4, dx: int = 3, dy: int = 2, seed: int = 0) -> Game:
    """Clients with matrices of their own, eigenvalues in [.5, 2]."""
    rng = np.random.default_rng(seed)

    def spd(d: int) -> np.ndarray:
        axes = np.linalg.qr(rng.standard_normal((clients, d, d)))[0]
        return axes * rng.uniform(0.5, 2, (clients, 1, d)) @ axes.swapaxes(1, 2)

    B = rng.standard_normal((clients, dx, dy)) / 2
    return game(
        (spd(dx), B, spd(dy), *(rng.standard_normal((clients, d)) for d in (dx, dy))), (np.ones(dx), np.ones(dy))
    )


def quadratic_game(clients: int = 20, d: int = 10, functions: int = 100, seed: int = 0) -> Game:
    """Means over each client's functions: A and D with eigenvalues in [.01, 1], B in [0, 1], offsets N(0, 1); from zero."""
    rng, n = np.random.default_rng(seed), clients * functions

    def mean_spd(least: float) -> np.ndarray:
        axes = np.linalg.qr(rng.standard_normal((n, d, d)))[0]
        matrices = axes * rng.uniform(least, 1, (n, 1, d)) @ axes.swapaxes(1, 2)
        return matrices.reshape(clients, functions, d, d).mean(1)

    A, B, D = mean_spd(0.01), mean_spd(0), mean_spd(0.01)
    c, e = (rng.standard_normal((clients, functions, d)).mean(1) for _ in range(2))
    return game((A, B, D, c, e), (np.zeros(d), np.zeros(d)))


def algorithm(name: str, **changes: Any) -> Any:
    return build_target({**config(f"algo={name}")["algo"], **changes}, "algo")


def run(method: Any, problem: Any, rounds: int, cohort: int | None = None, seed: int = 0) -> list[Any]:
    """The states, the initial one first."""
    federation = Federation(problem, Vectorised(), seed, Participation(cohort=cohort))
    states = [method.init(problem)]
    for r in range(rounds):
        states.append(method.step(states[-1], problem, federation.at(r)))
    return states


def distance(method: Any, state: Any, problem: Any) -> float:
    """To the saddle, relative to the saddle's norm."""
    at, known = torch.cat(method.output(state)), torch.cat(problem.solution())
    return float((at - known).norm() / known.norm())


def numpy_field(problem: Any, i: int, w: np.ndarray, noise: tuple[Any, Any] = (0.0, 0.0)) -> np.ndarray:
    """F_i(w) of `Game` and `QuadraticMinimax`, [dx + dy]. noise: of c and of e."""
    A, B, D, c, e = (problem.per_client[name][i].numpy() for name in "ABDce")
    x, y = np.split(w, [len(c)])
    return np.concatenate([A @ x - c - noise[0] + B @ y, -(B.T @ x - D @ y + e + noise[1])])


def noise_of_draws(
    e: Experiment, r: int, exchange: int, client: int, **draws: Steps
) -> dict[str, list[tuple[Any, ...]]]:
    """Of (c, e) of `QuadraticMinimax`, for each sample that a client draws, by the name of the draws."""
    rng_of, like = sampling(e.federation.seed, r, exchange), torch.zeros((), dtype=F64)
    problem: Any = e.problem
    rows, drawn = draw(draws, problem.splits, np.array([client]), rng_of, like)
    noise = {}
    for name in draws:
        index, weight = (t[0].numpy() for t in rows_of(rows, drawn[name], "train"))
        terms = [problem._noise[term].numpy() for term in "ce"]
        noise[name] = [tuple(q @ term[at] for term in terms) for at, q in zip(index, weight, strict=True)]
    return noise


def numpy_start(problem: Any) -> np.ndarray:
    return np.concatenate([v.numpy() for v in problem.start()])
