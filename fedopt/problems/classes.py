"""The five problem classes, and the reductions between them.

A problem says what *one* client computes on one sample of its own data, on flat vectors. Its files under `problems/` are
dataclasses whose fields are the keys of `conf/problem/<name>.yaml`; they are built with a `World`, which brings the data.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedopt.data.ragged import Ragged


class Problem(ABC):
    """What every class of problems has.

    splits: which examples are whose, by the name of the split (`train`, and `val` where the problem has an outer
        objective of its own); they all have the same number of clients.
    optimum: the solution in closed form, where there is one.
    convolutional: whether its functions are mostly convolutions.
    """

    splits: Mapping[str, Ragged]
    optimum: Tensor | None = None
    convolutional: bool = False

    @property
    def clients(self) -> int:
        """M."""
        return len(self.splits["train"])

    def sizes(self) -> np.ndarray:
        """Training examples of each client, [M]."""
        return self.splits["train"].sizes

    @abstractmethod
    def start(self) -> tuple[Tensor, ...]:
        """The starting point, one flat vector a variable."""

    @abstractmethod
    def sample(self, client: int | Tensor, rows: Mapping[str, tuple[Tensor, Tensor]]) -> Any:
        """What `f`, `g`, ... need of one client's examples.

        rows: for each split, (which examples [B], their weights [B]); the weights sum to one, padding weighs nothing.
        """

    def hold(self, x: Tensor, sample: Any) -> Any:
        """A sample with all that depends on x alone computed, say the features of a frozen layer, or None where there is
        nothing. The problem's functions take it in place of the sample; they are then constant in x."""
        return None

    def pick(self, held: Any, rows: Mapping[str, tuple[Tensor, Tensor]]) -> Any:
        """Some of the examples of what `hold` gave. rows: for each split, (positions among them [B], their weights [B])."""
        raise NotImplementedError

    @abstractmethod
    def metrics(self, *point: Tensor) -> dict[str, float]:
        """What is known of a point, by the names of metrics.csv."""


class Minimisation(Problem):
    """min_x (1/M) sum_i f_i(x)."""

    @abstractmethod
    def f(self, x: Tensor, sample: Any) -> Tensor:
        """f_i(x), a scalar."""

    def gradient(self, x: Tensor, sample: Any) -> Tensor | None:
        """grad f_i(x) where the problem has a faster way to it than automatic differentiation, else None."""
        return None

    def descend(self, x: Tensor, sample: Any, eta: float, plus: Tensor | None) -> Tensor | None:
        """x - eta (grad f_i(x) + plus) where the problem has a faster way to it than `gradient`, else None. It may be
        written over x. plus: [d], None for zero."""
        return None


class Bilevel(Problem):
    """min_x (1/M) sum_i f_i(x, y*(x)), y*(x) = argmin_{y in Y} (1/M) sum_i g_i(x, y).

    The hypergradient is grad_x f - grad^2_xy g [grad^2_yy g]^-1 grad_y f; what is known of its parts saves work:
    direct: False where grad_x f is zero; indirect: False where grad_y f is, at y*(x); identity: True where grad^2_yy g = I.
    f_split, g_split: the examples that f and g are taken on.
    """

    direct: bool = True
    indirect: bool = True
    identity: bool = False
    f_split: str = "val"
    g_split: str = "train"

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The outer objective f_i(x, y), a scalar."""

    @abstractmethod
    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The inner objective g_i(x, y), a scalar."""

    def inner_gradient(self, x: Tensor, y: Tensor, sample: Any) -> Tensor | None:
        """grad_y g_i(x, y), as `Minimisation.gradient`."""
        return None

    def inner_descend(self, x: Tensor, y: Tensor, sample: Any, eta: float, plus: Tensor | None) -> Tensor | None:
        """y - eta (grad_y g_i(x, y) + plus), as `Minimisation.descend`."""
        return None

    def project(self, y: Tensor) -> Tensor:
        """The point of Y nearest to y; Y is everything unless `indirect` is False, since y*(x) must be differentiable."""
        return y


class Minimax(Problem):
    """min_x max_{y in Y} sum_i p_i f_i(x, y)."""

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """f_i(x, y), a scalar."""

    def project(self, y: Tensor) -> Tensor:
        """The point of Y nearest to y."""
        return y


class Compositional(Problem):
    """min_x F^N o ... o F^0 (x), F^n = (1/M) sum_i f_i^n.

    dims: the dimensions (d_0, ..., d_N) of what the levels take: x has d_0, f^n maps d_n to d_{n+1}, f^N to a scalar.
    """

    dims: tuple[int, ...]

    @abstractmethod
    def level(self, n: int, z: Tensor, sample: Any) -> Tensor:
        """f_i^n(z)."""


class TwoLevel(Compositional):
    """A compositional problem with N = 1, min_x F^1(F^0(x)): the ones that are bilevel problems too."""


class Hierarchical(Problem):
    """min_x f1(x) + (1/M) sum_i f2(x, y_i(x)), y_i(x) = argmin_{y in Y_i(x)} h_i(x, y)."""

    @abstractmethod
    def server_sample(self, rng: np.random.Generator, size: int | None) -> Any:
        """What `f1` needs of so many of the server's examples, drawn with replacement, or of all."""

    @abstractmethod
    def f1(self, x: Tensor, sample: Any) -> Tensor:
        """The server's own objective, on the server's data."""

    def f1_gradient(self, x: Tensor, sample: Any) -> Tensor | None:
        """grad f1(x) where the problem has a faster way to it than automatic differentiation, else None."""
        return None

    def h_gradients(self, x: Tensor, y: Tensor, sample: Any) -> Tensor | None:
        """grad_y h_i at several points, [P, d], as `f1_gradient`. x, y: [P, d]."""
        return None

    @abstractmethod
    def f2(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The client's part of the outer objective."""

    @abstractmethod
    def h(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The client's own inner objective."""

    def project(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The point of Y_i(x) nearest to y, at several points: x, y: [P, d]."""
        return y


CLASSES: tuple[type[Problem], ...] = (Minimisation, Bilevel, Minimax, TwoLevel, Compositional, Hierarchical)


class _Reduced(Problem):
    """A problem seen as one of another class; data, samples and metrics are those of the original."""

    source: ClassVar[type[Problem]]

    def __init__(self, original: Any):
        self.original = original
        self.splits = original.splits
        self.optimum = original.optimum
        self.convolutional = original.convolutional

    def sample(self, client: int | Tensor, rows: Mapping[str, tuple[Tensor, Tensor]]) -> Any:
        return self.original.sample(client, rows)


class MinimaxAsBilevel(_Reduced, Bilevel):
    """g_i = -f_i: the direct part of the hypergradient is all of it."""

    source = Minimax
    indirect = False
    f_split = "train"

    def start(self) -> tuple[Tensor, ...]:
        return self.original.start()

    def metrics(self, *point: Tensor) -> dict[str, float]:
        return self.original.metrics(*point)

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return self.original.f(x, y, sample)

    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return -self.original.f(x, y, sample)

    def project(self, y: Tensor) -> Tensor:
        return self.original.project(y)


class TwoLevelAsBilevel(_Reduced, Bilevel):
    """Two levels: f_i(y) = f_i^1(y), g_i(x, y) = 1/2 |y - f_i^0(x)|^2, so that y*(x) = F^0(x)."""

    source = TwoLevel
    direct = False
    identity = True
    f_split = "train"

    def start(self) -> tuple[Tensor, ...]:
        (x,) = self.original.start()
        return x, x.new_zeros(self.original.dims[1])

    def metrics(self, *point: Tensor) -> dict[str, float]:
        return self.original.metrics(point[0])

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return self.original.level(1, y, sample)

    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return 0.5 * torch.sum((y - self.original.level(0, x, sample)) ** 2)


class MinimisationAsCompositional(_Reduced, Compositional):
    """One level, f_i^0 = f_i."""

    source = Minimisation

    def __init__(self, original: Minimisation):
        super().__init__(original)
        self.dims = (original.start()[0].numel(),)

    def start(self) -> tuple[Tensor, ...]:
        return self.original.start()

    def metrics(self, *point: Tensor) -> dict[str, float]:
        return self.original.metrics(*point)

    def level(self, n: int, z: Tensor, sample: Any) -> Tensor:
        return self.original.f(z, sample)


REDUCTIONS: tuple[type[_Reduced], ...] = (MinimaxAsBilevel, TwoLevelAsBilevel, MinimisationAsCompositional)


def name(cls: type[Problem]) -> str:
    """`two_level` for TwoLevel: the class of a problem as configs and messages have it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def class_of(problem: type[Problem] | Problem) -> type[Problem]:
    """Which of the classes a problem belongs to."""
    kind = problem if isinstance(problem, type) else type(problem)
    return next(c for c in CLASSES if issubclass(kind, c))


def covered(solves: tuple[type[Problem], ...]) -> set[str]:
    """The names of the classes that an algorithm for `solves` covers, itself or through a reduction."""
    return {name(c) for c in CLASSES if issubclass(c, solves)} | {
        name(r.source) for r in REDUCTIONS if issubclass(r, solves)
    }


def reduce(problem: Problem, solves: tuple[type[Problem], ...]) -> Problem:
    """The problem itself if it is of one of the classes in `solves`, else its reduction to one of them.

    Raises TypeError when there is none.
    """
    if isinstance(problem, solves):
        return problem
    for reduction in REDUCTIONS:
        if isinstance(problem, reduction.source) and issubclass(reduction, solves):
            return reduction(problem)
    raise TypeError(f"no reduction from {name(class_of(problem))} to {', '.join(name(c) for c in solves)}")
