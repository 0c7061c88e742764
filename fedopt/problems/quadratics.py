"""Building blocks of the quadratic problems: random matrices, their variation over clients, and noise of single examples."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, HYPERGRADIENT_NORM, OBJECTIVE
from fedopt.networks import at_once, number
from fedopt.problems.classes import Problem, Rows
from fedopt.problems.function import written_for
from fedopt.randomness import Part


def spd(rng: np.random.Generator, count: int, dim: int, conditioning: float) -> np.ndarray:
    """Generate random symmetric matrices with eigenvalues from 1 / conditioning to 1, ``[count, dim, dim]``.

    Args:
        rng: Random generator.
        count: Number of matrices.
        dim: Dimension.
        conditioning: Condition number. The eigenvalues are evenly spaced.
    """
    axes = isometry(rng, count, dim, dim)
    return axes @ np.diag(np.linspace(1 / conditioning, 1.0, dim)) @ axes.swapaxes(1, 2)


def isometry(rng: np.random.Generator, count: int, rows: int, columns: int) -> np.ndarray:
    """Generate random matrices with orthonormal columns, ``[count, rows, columns]``.

    Args:
        rng: Random generator.
        count: Number of matrices.
        rows: Number of rows of each matrix.
        columns: Number of columns of each matrix, at most ``rows``.
    """
    return np.linalg.qr(rng.standard_normal((count, rows, columns)))[0]


def gaussian(rng: np.random.Generator, count: int, *shape: int) -> np.ndarray:
    """Generate independent normal numbers with variance 1 / shape[-1], ``[count, *shape]``.

    Args:
        rng: Random generator.
        count: Number of arrays.
        shape: Shape of each array.
    """
    return rng.standard_normal((count, *shape)) * (1 / np.sqrt(shape[-1]))


def of_client(terms: Mapping[str, Tensor], client: int | Tensor) -> list[Tensor]:
    """Return the terms (matrices and vectors) of one client, as a list in the order of ``terms``.

    Args:
        terms: Terms of all clients, ``[M, ...]`` each.
        client: Index of the client.
    """
    return at_once(lambda clients: [term[clients] for term in terms.values()])(client)


@dataclass(eq=False)
class Quadratic(Problem):
    """Base class of quadratic problems.

    Clients differ in their matrices and linear terms. The examples of a client differ in their linear terms, and in a factor
    of the matrices if ``curvature_noise`` is positive.

    Args:
        conditioning: Ratio of the largest to the smallest eigenvalue of each random positive definite matrix. A client's
            mixture of two such matrices has at most this ratio.
        heterogeneity: h mixes common terms and each client's own terms in the proportion 1 : h. With 0, all clients are
            equal.
        noise: Standard deviation of the linear terms of examples around their client's term. A full local batch has no
            noise.
        curvature_noise: Standard deviation, around 1, of the random factor by which an example multiplies the client's
            matrices. A full local batch has the factor 1. Unlike ``noise``, it does not cancel if gradients of one sample at two
            points are subtracted.
        examples: Number of examples over all clients.
        alike: Whether every client gets the mean of all clients' terms, so that all clients are equal and the mean problem
            stays the same.
        delta: Heterogeneity relative to a mean problem that depends neither on delta nor on the number of clients. A
            positive definite term has a mean M with log-spaced eigenvalues, and client i has ``M^1/2 (I + delta S_i)
            M^1/2``, with matrices S_i that sum to zero and have norm at most 1. Another term is its mean plus a part whose
            root mean square over clients is delta times the norm of the mean. None: terms are mixed according to
            ``heterogeneity``, which has no effect otherwise.
    """

    conditioning: Annotated[float, Field(ge=1)]
    heterogeneity: NonNegativeFloat
    noise: NonNegativeFloat
    examples: PositiveInt
    alike: bool = field(default=False, kw_only=True, metadata={"before": False})
    delta: Annotated[float, Field(ge=0, le=1)] | None = field(default=None, kw_only=True, metadata={"before": None})
    curvature_noise: NonNegativeFloat = field(default=0.0, kw_only=True, metadata={"before": 0.0})

    def families(self) -> Callable[..., Tensor]:
        """Return a function ``family(generate, *args)`` that generates a random term for each client, ``[M, ...]``.

        Its argument is a function such as `spd` or `gaussian`: ``generate(rng, count, *args)`` returns ``count`` random terms.
        Without delta, one common term and each client's own term are mixed in the proportion 1 : heterogeneity. The common term
        does not depend on the number of clients. With delta, deviations whose mean is zero are added to the common term.
        """
        own_share, delta = self.heterogeneity / (1 + self.heterogeneity), self.delta or 0.0
        rng_common, rng_own = self.world.rng(Part.COMMON), self.world.rng(Part.CLIENTS)

        def mixed(generate: Callable[..., np.ndarray], *args: float) -> Tensor:
            common, own = generate(rng_common, 1, *args), generate(rng_own, self.clients, *args)
            return self.world.tensor((1 - own_share) * common + own_share * own)

        def zero_sum(*shape: int) -> np.ndarray:
            own = rng_own.standard_normal((self.clients, *shape))
            return own - np.tensordot(self.weights, own, 1)

        def around(generate: Callable[..., np.ndarray], *args: Any) -> Tensor:
            if generate is spd:
                dim, conditioning = args
                root = isometry(rng_common, 1, dim, dim)[0] * np.sqrt(np.geomspace(1 / conditioning, 1.0, dim))
                S = zero_sum(dim, dim)
                S += S.swapaxes(1, 2)
                norm = abs(np.linalg.eigvalsh(S)).max() or 1.0  # S = 0 for a single client
                return self.world.tensor(root @ (np.eye(dim) + delta / norm * S) @ root.T)
            mean = generate(rng_common, 1, *args)
            own = zero_sum(*mean.shape[1:])
            rms = np.sqrt(self.weights @ np.sum(own.reshape(self.clients, -1) ** 2, axis=1)) or 1.0
            return self.world.tensor(mean + delta * np.linalg.norm(mean) / rms * own)

        return mixed if self.delta is None else around

    @abstractmethod
    def hessians(self) -> tuple[Tensor, ...]:
        """Return the Hessian of the outer objective in x and, if there is a y, the Hessian in y of the mean lower level."""

    def constants(self) -> dict[str, float]:
        """Return constants of the mean problem by name.

        ``kappa`` is the condition number of the outer objective; ``L_x`` and ``L_y`` are the largest eigenvalues of `hessians`.
        """
        values = [torch.linalg.eigvalsh(hessian) for hessian in self.hessians()]
        kappa = float(values[0][-1] / values[0][0])
        return {"kappa": kappa, **{f"L_{name}": float(v[-1]) for name, v in zip("xy", values, strict=False)}}

    def set_up(self, terms: Any, noisy: Mapping[str, str]) -> None:
        """Set the clients' terms and generate the noise of their examples.

        The noise is added to vectors and multiplies matrices. It sums to zero over each client's examples of a split.

        Args:
            terms: A named tuple of the clients' matrices and linear terms, ``[M, ...]`` each.
            noisy: name of a term -> the split whose examples have its noise.
        """
        self.per_client = terms._asdict()
        self._sample_type = type(terms)
        self._noisy = {name: split for name, split in noisy.items() if getattr(terms, name).ndim == 2}
        self._scaled = {name: noisy[name] for name in noisy if name not in self._noisy and self.curvature_noise}
        if self.alike:
            means = self.mean(self.weights)._asdict()
            self.per_client = {name: means[name].expand_as(v) for name, v in self.per_client.items()}
        rng = self.world.rng(Part.EXAMPLES)

        def zero_sum(deviation: float, size: int) -> Tensor:
            noise = deviation * rng.standard_normal((self.examples, size))
            for split in self.splits.values():
                sums = np.add.reduceat(noise[split.rows], split.offsets)
                noise[split.rows] -= np.repeat(sums / split.sizes[:, None], split.sizes, axis=0)
            return self.world.tensor(noise)

        self._noise = {name: zero_sum(self.noise, self.per_client[name].shape[1]) for name in self._noisy}
        self._factors = zero_sum(self.curvature_noise, 1)[:, 0]

    def mean(self, weights: np.ndarray) -> Any:
        """Return the weighted means of the clients' terms, as a named tuple.

        Args:
            weights: Weights of the clients, ``[M]``, up to a factor.
        """
        w = torch.from_numpy(weights / weights.sum())
        return self._sample_type(*(torch.tensordot(w.to(v), v, dims=1) for v in self.per_client.values()))

    def sample(self, client: int | Tensor, rows: Rows) -> Any:
        """Return the client's terms with the mean noise of the examples in ``rows``. Splits without rows add no noise.

        Args:
            client: Index of the client.
            rows: For each split, the indices of examples, ``[B]``, and their weights, ``[B]``.
        """
        own = dict(zip(self.per_client, of_client(self.per_client, client), strict=True))
        for name, split in self._noisy.items():
            if split in rows:
                index, weight = rows[split]
                own[name] = own[name] + weight @ self._noise[name][index]
        chosen = {split: rows[split] for split in {*self._scaled.values()} if split in rows}
        factors = {split: 1 + weight @ self._factors[index] for split, (index, weight) in chosen.items()}
        own |= {name: own[name] * factors[split] for name, split in self._scaled.items() if split in factors}
        return self._sample_type(**own)

    @written_for(sample)
    def full_sample(self, client: int | Tensor) -> Any:
        """Return the client's terms without noise, because the noise of all examples sums to zero.

        Args:
            client: Index of the client.
        """
        return self._sample_type(*of_client(self.per_client, client))


class Outer(NamedTuple):
    """Quadratic functions of x.

    Attributes:
        hessian: Hessian, ``[..., dx, dx]``.
        constant: Gradient at 0, ``[..., dx]``.
        value: Value at 0, ``[...]``.
    """

    hessian: Tensor
    constant: Tensor
    value: Tensor

    def mean(self, weights: np.ndarray) -> "Outer":
        """Return the weighted mean of the functions of M clients.

        Args:
            weights: Weights of the clients, ``[M]``, with sum 1.
        """
        p = torch.from_numpy(weights).to(self.value)
        return Outer(*(torch.tensordot(p, term, dims=1) for term in self))


@dataclass(eq=False)
class Reduced(Quadratic):
    """Base class of quadratic problems whose objective, as a function of x alone, is quadratic too.

    Its gradient is the hypergradient.

    Attributes:
        each_client: Whether each client has its own lower level. Otherwise, the lower level is the mean of the clients'.
    """

    each_client = False
    metrics = (DISTANCE, OBJECTIVE, HYPERGRADIENT_NORM)

    def set_up(self, terms: Any, noisy: Mapping[str, str]) -> None:
        super().set_up(terms, noisy)
        self.weigh()

    def weigh(self) -> None:
        self._mean = self.mean(self.weights)
        if self.each_client:
            self._outer = self.reduced(self._sample_type(**self.per_client)).mean(self.weights)
        else:
            self._outer = self.reduced(self._mean)
        self._x = -torch.linalg.solve(self._outer.hessian, self._outer.constant)

    @abstractmethod
    def reduced(self, terms: Any) -> Outer:
        """Return the objective as a quadratic function of x alone.

        Args:
            terms: The terms of one problem. With terms of M problems, ``[M, ...]`` each, the result contains M functions.
        """

    def hypergradient(self, x: Tensor) -> Tensor:
        """Return the exact gradient of the objective at x, ``[dx]``, where y is the solution of the lower level.

        Args:
            x: The point, ``[dx]``.
        """
        return self._outer.hessian @ x + self._outer.constant

    def hessians(self) -> tuple[Tensor, ...]:
        return self._outer.hessian, self._mean.A

    def solution(self) -> tuple[Tensor, ...]:
        return (self._x,)

    def start(self) -> tuple[Tensor, ...]:
        return (torch.ones_like(self._x),)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, hypergradient = point[0], self.hypergradient(point[0])
        return {
            "objective": number(0.5 * x @ (hypergradient + self._outer.constant) + self._outer.value),
            "distance": number(torch.linalg.norm(x - self._x)),
            "hypergradient_norm": number(torch.linalg.norm(hypergradient)),
        }


def columns(terms: Any) -> list[Tensor]:
    """Return the terms as a list of matrices, in which vectors ``[..., d]`` have become columns ``[..., d, 1]``.

    Args:
        terms: A named tuple, whose matrices have upper-case names and whose vectors have lower-case names.
    """
    return [term if name.isupper() else term[..., None] for name, term in terms._asdict().items()]
