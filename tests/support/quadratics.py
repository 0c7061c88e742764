"""Random quadratic bilevel problems as the tests use them: a hand example, solutions in NumPy, limits of affine rounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from support.samples import rows_of, sampling
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedopt.federation.draws import Steps, draw
from fedopt.running.assemble import Experiment
from fedopt.testing.harness import small

ALL = "participation.cohort=null"
EXACT = ["algo.B=null", ALL, "problem.noise=0"]  # full batches of everyone
SMALL = ["problem.dx=2", "problem.dy=2", "problem.conditioning=2", "partitioner.clients=4"]
LETTERS = "ABcDdFeG"
Terms = dict[str, np.ndarray]


def hand_example(algo: str, *words: str) -> Experiment:
    """f = 1/2 (y - 1)^2 + 1/2 x^2, g = (y - x)^2 on one client, from x = 1, y = 0, with full batches."""
    one = ["partitioner.clients=1", "problem.dx=1", "problem.dy=1", "problem.examples=8"]
    e = small(algo, "quadratic_bilevel", *EXACT, *one, *words)
    values = dict.fromkeys(LETTERS, 0.0) | {"A": 2.0, "B": 2.0, "D": 1.0, "F": 1.0, "e": 1.0}
    e.original.per_client = {k: torch.full_like(v, values[k]) for k, v in e.original.per_client.items()}
    return e


def terms(problem: Any, client: int | None = None, weights: Any = None) -> Terms:
    """A, B, c, ... of a client, or their weighted means."""
    if client is not None:
        return {k: v[client].numpy() for k, v in problem.per_client.items()}
    return {k: np.average(v.numpy(), axis=0, weights=weights) for k, v in problem.per_client.items()}


def inner(m: Terms, x: np.ndarray) -> np.ndarray:
    """y*(x)."""
    return np.linalg.solve(m["A"], m["B"] @ x + m["c"])


def adjoint(m: Terms, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[grad^2_yy g]^-1 grad_y f."""
    return np.linalg.solve(m["A"], m["F"] @ y - m["e"] + m["G"].T @ x)


def hypergradient(m: Terms, x: np.ndarray) -> np.ndarray:
    y = inner(m, x)
    return m["D"] @ x - m["d"] + m["G"] @ y + m["B"].T @ adjoint(m, x, y)


def zero_of(affine: Callable[[np.ndarray], np.ndarray], size: int) -> np.ndarray:
    """Where an affine function of so many numbers is zero."""
    constant = affine(np.zeros(size))
    matrix = np.stack([affine(unit) - constant for unit in np.eye(size)], axis=1)
    return np.linalg.solve(matrix, -constant)


def solution(m: Terms) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, v) at the solution of the problem whose terms are m."""
    x = zero_of(lambda x: hypergradient(m, x), len(m["d"]))
    y = inner(m, x)
    return x, y, adjoint(m, x, y)


def directions(m: Terms, z: Any, noise: tuple[Any, Any, Any] = (0, 0, 0)) -> list[np.ndarray]:
    """Dx, Dy, Dv at z. noise: of c, d and e."""
    (x, y, v), (c, d, e) = z, noise
    return [
        m["D"] @ x - m["d"] - d + m["G"] @ y + m["B"].T @ v,
        m["A"] @ y - m["B"] @ x - m["c"] - c,
        m["A"] @ v - (m["F"] @ y - m["e"] - e + m["G"].T @ x),
    ]


def noises(
    e: Experiment, r: int, client: int, name: str, wanted: Steps, exchange: int = 1
) -> list[tuple[Any, Any, Any]]:
    """Of (c, d, e), for each sample that a client is given under a name in an exchange of round r."""
    problem: Any = e.problem
    count = int(wanted.steps_of(problem.splits, np.array([client]))[0]) * (wanted.samples or 1)
    if wanted.B is None:
        return [(0, 0, 0)] * count
    like = torch.zeros((), dtype=torch.float64)
    rng_of = sampling(e.federation.seed, r, exchange)
    whole, drawn = draw({name: wanted}, problem.splits, np.array([client]), rng_of, like)
    rows = {split: [t[0].numpy() for t in rows_of(whole, drawn[name], split)] for split in drawn[name].sizes}

    def noise(letter: str, split: str, k: int) -> Any:
        if split not in rows:
            return 0
        index, weight = rows[split]
        return weight[k] @ problem._noise[letter].numpy()[index[k]]

    return [(noise("c", "train", k), noise("d", "val", k), noise("e", "val", k)) for k in range(count)]


def limit(e: Experiment, r: int = 1) -> Any:
    """The state that rounds lead to whose map is affine: all that are like round r, of full batches on a quadratic problem."""
    parts, structure = tree_flatten(e.algorithm.init(e.problem))
    sizes = [part.numel() for part in parts]

    def after(vector: np.ndarray) -> np.ndarray:
        split = torch.from_numpy(vector).split(sizes)
        state = tree_unflatten([v.view_as(part) for v, part in zip(split, parts, strict=True)], structure)
        new = tree_flatten(e.algorithm.step(state, e.problem, e.federation.at(r)))[0]
        return torch.cat([part.flatten() for part in new]).numpy()

    point = zero_of(lambda vector: after(vector) - vector, sum(sizes))
    split = torch.from_numpy(point).split(sizes)
    return tree_unflatten([v.view_as(part) for v, part in zip(split, parts, strict=True)], structure)
