"""The classes of problems.

A problem says what *one* client computes on one sample of its own data, on flat vectors. Problems are dataclasses whose fields
are the keys of `conf/problem/<name>.yaml`, and `world`, which brings the data; `__post_init__` prepares what they compute with.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedopt.data.ragged import Ragged
from fedopt.data.world import World
from fedopt.metrics import Metric

Rows = Mapping[str, tuple[Tensor, Tensor]]  # by split: numbers of examples [B], and their weights [B]
Weighting = Literal["samples", "uniform"]


@dataclass(eq=False)
class _InWorld:
    """world: the data and their division among clients, the seed, the device and the type of numbers."""

    world: World


class Problem(_InWorld, ABC):
    """What every class of problems has.

    splits: which examples are whose, by the name of the split (`train`, and `val` where the problem has an outer
        objective of its own); they all have the same number of clients.
    weighting: how much clients count in the objective: by their numbers of training examples, or uniformly; uniformly where a
        problem does not say.
    per_client: arrays that have a row for each client, by name.
    variables: the names of what an algorithm gives as its point, in that order; an algorithm may have fewer.
    metrics: what `evaluate` measures; the first one is what comparisons take unless another is named.
    labels: the class of each training example, None where there are no classes; class_names, feature_names: of the classes, and of
    the features, where they have some.
    remark: the examples as they are used, for the head of a run; empty for none. notes: what else a user should know of the data.
    convolutional: whether its functions are mostly convolutions.
    random: whether its functions draw random numbers, as dropout does: then each sample gets a key that they are functions of.
    alone: why vmap cannot run its functions, so that clients are run one by one; empty where it can.
    """

    splits: Mapping[str, Ragged]
    weighting: Weighting
    per_client: Mapping[str, Tensor] = {}
    variables: Sequence[str] = ("x",)
    metrics: Sequence[Metric]
    labels: np.ndarray | None = None
    class_names: Sequence[str] = ()
    feature_names: Sequence[str] = ()
    remark: str = ""
    notes: Sequence[str] = ()
    convolutional: bool = False
    random: bool = False
    alone: str = ""

    @property
    def clients(self) -> int:
        """The number of clients M."""
        return len(self.splits["train"])

    def sizes(self) -> np.ndarray:
        """The number of training examples of each client, [M]."""
        return self.splits["train"].sizes

    @property
    def weights(self) -> np.ndarray:
        """The weights p_i of the clients in the objective, [M], with sum 1: every method minimises, and `evaluate` measures, the
        weighted mean over clients."""
        n = self.sizes() if getattr(self, "weighting", "uniform") == "samples" else np.ones(self.clients)
        return n / n.sum()

    def pooled(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """All clients' examples of a split, as `sample` takes those of one: their numbers, and their weights in the objective."""
        rows = self.splits[split]
        weights = self.world.tensor(rows.example_weights(self.weights))
        return torch.from_numpy(rows.rows).to(weights.device), weights

    @abstractmethod
    def start(self) -> tuple[Tensor, ...]:
        """The starting point, one flat vector a variable."""

    @abstractmethod
    def sample(self, client: int | Tensor, rows: Rows) -> Any:
        """What `f`, `g`, ... need of one client's examples.

        rows: for each split, (numbers of examples [B], their weights [B]); the weights sum to one, padding has weight zero.
        """

    def keyed(self, sample: Any, key: Tensor) -> Any:
        """The sample with a key, one whole number, for the random numbers that its functions draw."""
        raise NotImplementedError(f"{type(self).__name__} is random and does not say how a sample gets its key")

    @abstractmethod
    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """The value of each of `metrics` at a point, by name. point: the variables; further ones are ignored."""

    def solution(self) -> tuple[Tensor, ...] | None:
        """The variables at the solution, in the order of `variables`; None where no closed form is known."""
        return None

    def network(self, *point: Tensor) -> nn.Module | None:
        """The network with the parameters of a point, which takes examples as the data set has them; None where there is none."""
        return None


def named(problem: Problem, point: Sequence[Tensor]) -> dict[str, Tensor]:
    """The variables at a point by their names."""
    return dict(zip(problem.variables, point, strict=False))


class Minimisation(Problem):
    """min_x sum_i p_i f_i(x)."""

    @abstractmethod
    def f(self, x: Tensor, sample: Any) -> Tensor:
        """f_i(x), a scalar."""


class Conditional(Minimisation):
    """min_x sum_i p_i E_xi f_xi(E_{eta | xi} r(x; eta, xi)).

    f: f_xi at the mean of r over `inner` samples eta of each example xi, which makes it biased; None: at the exact expectation.
    """

    inner: int | None


class Nested(Problem):
    """An outer objective f of a variable x and of the solution y of an inner problem in g.

    The hypergradient is grad_x f - grad^2_xy g [grad^2_yy g]^-1 grad_y f; what is known of its parts saves work:
    direct: False where grad_x f is zero; indirect: False where grad_y f is zero at y*(x); identity: True where grad^2_yy g = I;
    nested: False where there is no y.
    f_split, g_split: the examples that f and g are taken on.
    """

    direct: bool = True
    indirect: bool = True
    identity: bool = False
    nested: bool = True
    f_split: str = "val"
    g_split: str = "train"

    @property
    def shares_examples(self) -> bool:
        """Whether f and g of one sample are of the same examples: a product of their derivatives is then biased, and takes two
        samples."""
        return self.indirect and self.f_split == self.g_split

    def hypergradient_samples(self, products: int) -> int:
        """The number of samples that a client's hypergradient takes with so many Hessian-vector products."""
        return 1 + products + self.shares_examples

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The outer objective f_i(x, y), a scalar."""

    @abstractmethod
    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The inner objective g_i(x, y), a scalar."""

    def project(self, y: Tensor) -> Tensor:
        """The point of Y nearest to y; Y is everything unless `indirect` is False, since y*(x) must be differentiable."""
        return y


class Bilevel(Nested):
    """min_x sum_i p_i f_i(x, y*(x)), y*(x) = argmin_{y in Y} sum_i p_i g_i(x, y): the lower level belongs to all clients."""

    variables: Sequence[str] = ("x", "y", "v")  # v: [grad^2_yy g]^-1 grad_y f, where an algorithm has it as a variable


class LocalBilevel(Nested):
    """min_x sum_i p_i f_i(x, y_i*(x)), y_i*(x) = argmin_y g_i(x, y): each client has a lower level of its own.

    `start` gives (x, y_i), the same y_i for all clients; `evaluate` and `solution` are of x.
    """


class Minimax(Problem):
    """min_x max_{y in Y} sum_i p_i f_i(x, y)."""

    variables = ("x", "y")

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """f_i(x, y), a scalar."""

    def project(self, y: Tensor) -> Tensor:
        """The point of Y nearest to y."""
        return y


class Composition(Problem):
    """Functions of functions, f_i^n.

    dims: the dimensions (d_0, ..., d_N) of what the levels take: x has d_0, f^n maps d_n to d_{n+1}, f^N to a scalar.
    """

    dims: tuple[int, ...]

    @abstractmethod
    def level(self, n: int, z: Tensor, sample: Any) -> Tensor:
        """f_i^n(z)."""


class Compositional(Composition):
    """min_x F^N o ... o F^0 (x), F^n = sum_i p_i f_i^n: every level is a mean over all clients."""

    @property
    def variables(self) -> Sequence[str]:  # type: ignore[override]
        """x, and z1, z2, ... for what the levels but the last one give."""
        return ("x", *(f"z{n}" for n in range(1, len(self.dims))))


class TwoLevel(Compositional):
    """A compositional problem with N = 1, min_x F^1(F^0(x)): the ones that are bilevel problems too."""


class KnownOuter(TwoLevel):
    """Two levels of which the last is one function that everyone knows: the same for all clients, and of no examples."""


class LocalCompositional(Composition):
    """min_x sum_i p_i f_i^N o ... o f_i^0 (x): each client has a composition of its own."""


class Hierarchical(Problem):
    """min_x f1(x) + sum_i p_i f2(x, y_i(x)), y_i(x) = argmin_{y in Y_i(x)} h_i(x, y)."""

    @abstractmethod
    def server_sample(self, rng: np.random.Generator, size: int | None) -> Any:
        """What `f1` needs of so many of the server's examples, drawn with replacement, or of all (None)."""

    @abstractmethod
    def f1(self, x: Tensor, sample: Any) -> Tensor:
        """The server's own objective, on the server's data."""

    @abstractmethod
    def f2(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The client's part of the outer objective."""

    @abstractmethod
    def h(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The client's own inner objective."""

    def project(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """The point of Y_i(x) nearest to y, at several points: x, y: [P, d]."""
        return y


CLASSES: tuple[type[Problem], ...] = (
    Conditional,
    Minimisation,
    Bilevel,
    LocalBilevel,
    Minimax,
    KnownOuter,
    TwoLevel,
    Compositional,
    LocalCompositional,
    Hierarchical,
)


def name(cls: type[Problem]) -> str:
    """`two_level` for TwoLevel: the class of a problem as configs and messages have it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def class_of(problem: type[Problem] | Problem) -> type[Problem]:
    """Which of the classes a problem belongs to."""
    kind = problem if isinstance(problem, type) else type(problem)
    return next(c for c in CLASSES if issubclass(kind, c))
