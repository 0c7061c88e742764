"""The classes of problems.

A problem says what *one* client computes on one sample of its own data, on flat vectors. Problems are dataclasses whose fields
are the keys of `conf/problem/<name>.yaml`, and `world`, which brings the data; `__post_init__` prepares what they compute with.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Model, Ragged, World
from fedopt.errors import UserError
from fedopt.metrics import Metric

Rows = Mapping[str, tuple[Tensor, Tensor]]  # split -> (row indices of examples [B], their weights [B])
Weighting = Literal["samples", "uniform"]


@dataclass(eq=False)
class _InWorld:
    """A dataclass that is built in a world. world: the data, their partition, the seed, the device and the dtype."""

    world: World


class Problem(_InWorld, ABC):
    """A problem: what one client computes on a sample of its own data, on flat vectors.

    Attributes:
        splits: Who has which examples, by the name of the split. All problems have ``train``; those with an outer objective
            on other examples also have ``val``. All have the same number of clients.
        weighting: How much clients count in the objective: by their numbers of training examples (samples), or equally
            (uniform, the default).
        per_client: Arrays that have a row for each client, by name.
        variables: The names of the vectors of an algorithm's point, in that order. An algorithm may have fewer.
        metrics: The metrics that `evaluate` returns. Comparisons take the first one unless another is named.
        labels: The class of each training example; None if there are no classes.
        class_names: The names of the classes; empty if they have none.
        feature_names: The names of the features; empty if they have none.
        remark: The number and kind of the examples, for the head of a run; empty for none.
        notes: Further remarks on the data for the user, a line each.
        convolutional: Whether its functions are mostly convolutions.
        random: Whether its functions draw random numbers, as dropout does. Each sample then gets a key that determines them.
        own_models: Whether `evaluate` takes the clients' own models, ``[M, d]``, as a further entry of the point, which it gets
            from methods that have some.
        has_common: Whether the method of the run has a common model; `deploys` sets it.
        client_metric: The metric by which clients are compared; None if the problem measures no single client.
        own_test_rows: The places, from 0, that the clients' own test rows have among the data set's training rows, if the problem
            holds out some of them.
        one_by_one: The reason why ``vmap`` cannot run its functions, so that clients are run one by one; empty if it can.
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
    own_models: bool = False
    has_common: bool = True
    client_metric: Metric | None = None
    own_test_rows: Ragged | None = None
    one_by_one: str = ""

    @property
    def clients(self) -> int:
        """The number of clients M."""
        return len(self.splits["train"])

    def sizes(self) -> np.ndarray:
        """Return the number of training examples of each client, ``[M]``."""
        return self.splits["train"].sizes

    @property
    def weights(self) -> np.ndarray:
        """The weights ``p_i`` of the clients in the objective, ``[M]``, with the sum 1. `evaluate` uses the same."""
        n = self.sizes() if getattr(self, "weighting", "uniform") == "samples" else np.ones(self.clients)
        return n / n.sum()

    def pooled(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """Return the row indices of all clients' examples of a split, and their weights in the objective, with the sum 1.

        `sample` takes the two in place of one client's.
        """
        rows = self.splits[split]
        weights = self.world.tensor(rows.example_weights(self.weights))
        return torch.from_numpy(rows.rows).to(weights.device), weights

    @abstractmethod
    def start(self) -> tuple[Tensor, ...]:
        """Return the starting point, one flat vector for each variable."""

    @abstractmethod
    def sample(self, client: int | Tensor, rows: Rows) -> Any:
        """Return one client's sample: everything that ``f``, ``g`` and the other functions need of these examples.

        Args:
            client: The client's index.
            rows: split -> (row indices ``[B]`` of examples, their weights ``[B]``). The weights sum to 1; padding has weight
                0.
        """

    def keyed(self, sample: Any, key: Tensor) -> Any:
        """Return the sample with a key, an integer tensor, which determines the random numbers that its functions draw.

        A problem with ``random = True`` must define it.
        """
        raise NotImplementedError(f"{type(self).__name__} is random and does not say how a sample gets its key")

    def deploys(self, own: bool, common: bool) -> None:
        """Take note of the models that the method of a run has, before ``metrics`` are read.

        Args:
            own: Whether it trains a model for each client, and the problem measures them.
            common: Whether it has a common model.
        """
        self.has_common = common

    @abstractmethod
    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each of ``metrics`` at a point, by name.

        Args:
            point: The variables. Further ones are ignored.
        """

    def clients_table(self, *point: Tensor) -> Mapping[str, np.ndarray]:
        """Return the columns of ``clients.csv``, ``[M]`` each, such as test_rows and own_accuracy; {} for no such file.

        Args:
            point: As in `evaluate`. nan: a number is not defined for a client.
        """
        return {}

    def solution(self) -> tuple[Tensor, ...] | None:
        """Return the variables at the solution, in the order of ``variables``; None if no closed form is known."""
        return None

    def network(self, *point: Tensor) -> Model | None:
        """Return the network with the parameters of a point, for raw examples of the data set; None if there is no network."""
        return None

    def own(self, variables: Mapping[str, Tensor]) -> Tensor | None:
        """Return the parameters of each client's own network, ``[M, d]``, given the variables; None without own networks."""
        return variables.get("personal")


def named(problem: Problem, point: Sequence[Tensor], own: bool) -> dict[str, Tensor]:
    """Return the variables at a point by their names; the clients' own models are ``personal``. Others are left out.

    Args:
        problem: The problem.
        point: The variables.
        own: Whether the last ones are the clients' own models.
    """
    variables = dict(zip(problem.variables, point[:-1] if own else point, strict=False))
    return variables | ({"personal": point[-1]} if own else {})


class Minimisation(Problem):
    """Minimisation, ``min_x sum_i p_i f_i(x)``."""

    @abstractmethod
    def f(self, x: Tensor, sample: Any) -> Tensor:
        """Return ``f_i(x)``, a scalar."""

    def last_layer(self) -> int:
        """Return how many of the last numbers of x are the last layer of a network.

        Raises:
            UserError: There is no network with several layers.
        """
        raise UserError(f"{type(self).__name__} has no last layer; give algo.own as a number, or algo.own=all")


class Conditional(Minimisation):
    """An expectation within an expectation, ``min_x sum_i p_i E_xi f_xi(E_{eta | xi} r(x; eta, xi))``.

    ``f`` is ``f_xi`` at the mean of ``r`` over samples ``eta``.

    Attributes:
        inner: The number of samples eta of each example xi. A finite number makes ``f`` biased. None: the exact expectation.
    """

    inner: int | None


class Side(NamedTuple):
    """Some of one client's examples on one side of the pairs of an `XRisk`.

    Args:
        inputs: What the scores are computed from.
        weight: ``[B]``, the weights of the examples. Their mean over clients, each with all its examples, is that over all
            examples of this side; padding has weight 0.
        place: ``[B]``, the places of the examples among the client's own of this side.
    """

    inputs: Any
    weight: Tensor
    place: Tensor


class XRisk(Problem):
    """Risks of pairs of examples of all clients, ``min_x E_z F(E_z' l(h(x; z) - h(x; z')))``.

    z is from the split ``positive``, z' from the split ``negative``; each example counts equally, whose ever it is. Clients
    have the same weight, and examples of both splits. A sample has a `Side` for each of its splits.
    """

    @abstractmethod
    def h(self, x: Tensor, sample: Side) -> Tensor:
        """Return the scores ``h(x; z)`` of examples, ``[B]``."""

    @abstractmethod
    def pair_loss(self, s: Tensor) -> Tensor:
        """Return ``l(s)`` of each difference of two scores, in the shape of s."""

    @abstractmethod
    def slope(self, u: Tensor) -> Tensor:
        """Return ``F'(u)``, in the shape of u."""


class Nested(Problem):
    """Problems with an outer objective ``f(x, y)``, in which y solves an inner problem with the objective ``g``.

    The hypergradient is ``grad_x f - grad^2_xy g [grad^2_yy g]^-1 grad_y f``. The attributes say what is known of it; that saves
    work.

    Attributes:
        direct: False if ``grad_x f`` is zero.
        indirect: False if ``grad_y f`` is zero at ``y*(x)``.
        identity: True if ``grad^2_yy g`` is the identity.
        nested: False if there is no y.
        f_split: The split whose examples f uses.
        g_split: The split whose examples g uses.
    """

    direct: bool = True
    indirect: bool = True
    identity: bool = False
    nested: bool = True
    f_split: str = "val"
    g_split: str = "train"

    @property
    def shares_examples(self) -> bool:
        """Whether f and g use the same examples, and both enter the hypergradient.

        On one sample a product of their derivatives is then biased. Each derivative must be taken on a different sample.
        """
        return self.indirect and self.f_split == self.g_split

    def hypergradient_samples(self, products: int) -> int:
        """Return the number of samples that one client's hypergradient takes.

        Args:
            products: The number of its Hessian-vector products.
        """
        return 1 + products + self.shares_examples

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return the outer objective ``f_i(x, y)``, a scalar."""

    @abstractmethod
    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return the inner objective ``g_i(x, y)``, a scalar."""

    def project(self, y: Tensor) -> Tensor:
        """Return the point of Y nearest to y. By default Y is the whole space, and this is y.

        Y must be the whole space unless ``indirect`` is False, since ``y*(x)`` must be differentiable.
        """
        return y


class Bilevel(Nested):
    """Bilevel problems whose lower level belongs to all clients.

    ``min_x sum_i p_i f_i(x, y*(x))`` with ``y*(x) = argmin_{y in Y} sum_i p_i g_i(x, y)``. The attributes are those of `Nested`.
    """

    variables: Sequence[str] = ("x", "y", "v")  # v: [grad^2_yy g]^-1 grad_y f, where an algorithm has it as a variable


class LocalBilevel(Nested):
    """Bilevel problems in which each client has a lower level of its own.

    ``min_x sum_i p_i f_i(x, y_i*(x))`` with ``y_i*(x) = argmin_y g_i(x, y)``. `start` gives x and one y for all clients.
    `evaluate` takes x alone, and `solution` returns it alone. The attributes are those of `Nested`.
    """


class Minimax(Problem):
    """Saddle point problems, ``min_x max_{y in Y} sum_i p_i f_i(x, y)``."""

    variables = ("x", "y")

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return ``f_i(x, y)``, a scalar."""

    def project(self, y: Tensor) -> Tensor:
        """Return the point of Y nearest to y. By default Y is the whole space, and this is y."""
        return y


class Composition(Problem):
    """Compositions of functions f_i^n.

    dims: the dimensions (d_0, ..., d_N) of the levels' inputs: x has d_0, f^n maps d_n to d_{n+1}, and f^N maps to a scalar.
    """

    dims: tuple[int, ...]

    @abstractmethod
    def level(self, n: int, z: Tensor, sample: Any) -> Tensor:
        """Return ``f_i^n(z)``, ``[d_{n+1}]``, or a scalar for the last level. n counts from 0."""


class Compositional(Composition):
    """Compositions of means over all clients, ``min_x F^N o ... o F^0 (x)`` with ``F^n = sum_i p_i f_i^n``.

    Attributes:
        dims: The dimensions ``(d_0, ..., d_N)`` of the levels' inputs: ``f^n`` maps ``d_n`` to ``d_{n+1}``, and ``f^N`` maps
            to a scalar.
    """

    @property
    def variables(self) -> Sequence[str]:  # type: ignore[override]
        """The names x, z1, z2, ...: x, and the values of all levels but the last one."""
        return ("x", *(f"z{n}" for n in range(1, len(self.dims))))


class TwoLevel(Compositional):
    """Compositions of two levels, ``min_x F^1(F^0(x))``. Bilevel algorithms solve them too, by a reduction."""


class KnownOuter(TwoLevel):
    """A `TwoLevel` problem whose outer function F^1 everyone knows: it is the same for all clients, and uses no examples."""


class LocalCompositional(Composition):
    """Compositions of each client's own functions, ``min_x sum_i p_i f_i^N o ... o f_i^0 (x)``.

    Attributes:
        dims: As in `Compositional`.
    """


class Hierarchical(Problem):
    """Problems with an objective of the server, and a lower level for each client.

    ``min_x f1(x) + sum_i p_i f2_i(x, y_i(x))`` with ``y_i(x) = argmin_{y in Y_i(x)} h_i(x, y)``. All variables have the
    dimension of x.
    """

    @abstractmethod
    def server_sample(self, rng: np.random.Generator, size: int | None) -> Any:
        """Return a sample of the server's examples, as ``f1`` takes it.

        Args:
            rng: The generator to draw with.
            size: The number of examples, drawn with replacement; None for all.
        """

    @abstractmethod
    def f1(self, x: Tensor, sample: Any) -> Tensor:
        """Return ``f1(x)``, a scalar, on the server's examples. sample: as `server_sample` returns it."""

    @abstractmethod
    def f2(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return ``f2_i(x, y)``, the client's part of the outer objective, a scalar."""

    @abstractmethod
    def h(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return ``h_i(x, y)``, the client's own inner objective, a scalar."""

    def project(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return the points of ``Y_i(x)`` nearest to y, for P points: x and y are ``[P, d]``. By default this is y."""
        return y


# In the order in which they are listed: an algorithm that solves several is listed under the first
CLASSES: tuple[type[Problem], ...] = (
    Bilevel,
    LocalBilevel,
    Compositional,
    TwoLevel,
    Minimax,
    Hierarchical,
    Minimisation,
    LocalCompositional,
    Conditional,
    KnownOuter,
    XRisk,
)


def name(cls: type[Problem]) -> str:
    """Return the name of a class of problems in configs and messages, such as `two_level` for TwoLevel."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def class_of(problem: type[Problem] | Problem) -> type[Problem]:
    """Return the class in `CLASSES` that a problem belongs to, the most special one."""
    kind = problem if isinstance(problem, type) else type(problem)
    return next(c for c in kind.__mro__ if c in CLASSES)
