"""Compositions of each client to test with, and runs of methods on them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from support.derivatives import F64
from support.samples import rows_of, sampling
from torch import Tensor

from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.federation.draws import Steps, draw
from fedopt.federation.engines import Vectorised
from fedopt.federation.round import Federation
from fedopt.problems.classes import LocalCompositional
from fedopt.running.assemble import Experiment


class Chains(LocalCompositional):
    """f_i(z) = 1/2 z'Q_i z - e_i'z after r_i^k(z) = A_i^k z + c_i^k, k = 1, ..., K; a full sample has no noise.

    A, c: of each level, [M, d_k, d_(k-1)] and [M, d_k]; Q, e: [M, d_K, d_K] and [M, d_K].
    """

    metrics = ()

    def __init__(self, A: Any, c: Any, Q: Any, e: Any, x: Any):
        self.world = World(0, Iid(len(Q)), dtype=F64)
        self.splits = self.world.split(len(Q))
        self.terms = [[torch.as_tensor(v, dtype=F64) for v in part] for part in (A, c, [Q], [e])]
        self.x, self.dims = torch.as_tensor(x, dtype=F64), (len(x), *(level.shape[1] for level in self.terms[0]))

    def start(self) -> tuple[Tensor]:
        return (self.x,)

    def sample(self, client: Any, rows: Any) -> list[list[Tensor]]:
        return [[v[client] for v in part] for part in self.terms]

    def level(self, n: int, z: Tensor, sample: Any) -> Tensor:
        A, c, (Q,), (e,) = sample
        return 0.5 * z @ (Q @ z) - e @ z if n == len(A) else A[n] @ z + c[n]

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        return {}

    def solution(self) -> tuple[Tensor]:
        """Of mean_i f_i(r_i(x)), in NumPy."""
        levels, offsets, (Q,), (e,) = [[v.numpy() for v in part] for part in self.terms]
        hessian, linear = 0, 0
        for i in range(self.clients):
            A, c = np.eye(len(self.x)), np.zeros(len(self.x))
            for A_k, c_k in zip(levels, offsets, strict=True):
                A, c = A_k[i] @ A, A_k[i] @ c + c_k[i]
            hessian, linear = hessian + A.T @ Q[i] @ A, linear + A.T @ (e[i] - Q[i] @ c)
        return (torch.from_numpy(np.linalg.solve(hessian, linear)),)


def hand() -> Chains:
    """f(u) = u^2/2, r(x) = 2 x, at x = 1."""
    return Chains([[[[2.0]]]], [[[0.0]]], [[[1.0]]], [[0.0]], [1.0])


def unlike(M: int = 4, d: int = 4, K: int = 1, seed: int = 1) -> Chains:
    """Random ones, with eigenvalues from 0.7 to 1.4."""
    rng = np.random.default_rng(seed)

    def spd() -> np.ndarray:
        axes = np.linalg.qr(rng.standard_normal((M, d, d)))[0]
        return axes @ (rng.uniform(0.7, 1.4, (M, d, 1)) * axes.swapaxes(1, 2))

    A, c = [spd() for _ in range(K)], [rng.standard_normal((M, d)) for _ in range(K)]
    return Chains(A, c, spd(), rng.standard_normal((M, d)), np.zeros(d))


def states(algorithm: Any, problem: Any, rounds: int, seed: int = 0) -> tuple[list[Any], Federation]:
    """Of a run in which everyone takes part, the initial one first, and the federation."""
    federation = Federation(problem, Vectorised(), seed)
    found = [algorithm.init(problem)]
    for r in range(rounds):
        found.append(algorithm.step(found[-1], problem, federation.at(r)))
    return found, federation


def error(algorithm: Any, problem: Any, rounds: int) -> float:
    """The distance from the solution at the end of a run."""
    (*_, state), _ = states(algorithm, problem, rounds)
    return float(torch.linalg.norm(algorithm.output(state)[0] - problem.solution()[0]))


def noises(
    e: Experiment, r: int, client: int, steps: int, B: int | None, samples: int = 2, exchange: int = 1
) -> list[list[dict[str, Any]]]:
    """Of the terms c and e of a quadratic composition in every sample that a client draws: [steps][samples] of {name: noise}."""
    if B is None:
        return [[dict.fromkeys("ce", 0.0)] * samples] * steps
    draws = {"xi": Steps(steps, B, samples=samples)}
    rng_of, like = sampling(e.federation.seed, r, exchange), torch.zeros((), dtype=F64)
    problem: Any = e.problem
    whole, drawn = draw(draws, problem.splits, np.array([client]), rng_of, like)
    rows, weight = (t[0].numpy() for t in rows_of(whole, drawn["xi"], "train"))
    noise = {name: problem._noise[name].numpy() for name in "ce"}
    flat = [{name: w @ noise[name][at] for name in "ce"} for at, w in zip(rows, weight, strict=True)]
    return [flat[k * samples : (k + 1) * samples] for k in range(steps)]


def maps(problem: Any, i: int) -> tuple[Callable[..., Any], np.ndarray, Callable[..., Any]]:
    """In NumPy, client i's r(x, noise), its Jacobian, and grad f(u, noise)."""
    A, c, Q, e = (problem.per_client[name][i].numpy() for name in "AcQe")
    return lambda x, n: A @ x + c + n["c"], A, lambda u, n: Q @ u - e - n["e"]
