"""The problem classes, such as minimisation, minimax and bilevel problems.

A problem defines what *one* client computes on one sample of its own data. All variables are flat vectors. Problems are
dataclasses whose fields are `world`, which provides the data, and the keys of `conf/problem/<name>.yaml`;
`__post_init__` prepares the computation.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Model, Ragged, World
from fedopt.errors import UserError
from fedopt.metrics import Metric

Rows = Mapping[str, tuple[Tensor, Tensor]]  # for each split: row indices of examples [B], their weights [B]
Weighting = Literal["samples", "uniform"]


@dataclass(eq=False)
class _InWorld:
    """Base dataclass of everything that is built in a world.

    Args:
        world: The data, their partition, the seed, the device and the type of numbers.
    """

    world: World


class Problem(_InWorld, ABC):
    """Base class of all problems: it defines what one client computes on a sample of its own data.

    Attributes:
        splits: For each split, the indices of each client's examples. All problems have the split ``train``; problems whose
            outer objective uses other examples also have ``val``. All splits have the same number of clients.
        weighting: How clients count in the objective: by their numbers of training examples (``samples``), or equally
            (``uniform``, the default).
        per_client: Tensors with one row per client, by name.
        variables: Names of the vectors in an algorithm's point, in order. An algorithm may have fewer.
        metrics: The metrics that `evaluate` returns. Comparisons use the first one by default.
        labels: Class of each training example. None: there are no classes.
        class_names: Names of the classes; empty if they have none.
        feature_names: Names of the features; empty if they have none.
        remark: A description of the examples, which is printed at the start of a run; empty for none.
        notes: Further remarks on the data for the user, one line each.
        convolutional: Whether the functions consist mostly of convolutions.
        random: Whether the functions use random numbers, such as dropout masks. Each sample then gets a key that determines
            them.
        own_models: Whether `evaluate` accepts the clients' own models, ``[M, d]``, as an additional last entry of the point,
            from methods that train them.
        has_common: Whether the method of the run has a common model; set by `deploys`.
        client_metric: The metric by which clients are compared. None: there are no metrics of single clients.
        own_test_rows: Positions, from 0, of the clients' own test examples among the training examples of the data set. None:
            the problem does not hold out such examples.
        one_by_one: The reason why ``vmap`` cannot run the functions, which are then run for one client at a time; empty if
            ``vmap`` can run them.
        counted: Whether each client counts in `weights`, ``[M]``; set by `without`.
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
    counted: np.ndarray | float = 1.0

    @property
    def clients(self) -> int:
        """The number of clients M."""
        return len(self.splits["train"])

    def sizes(self) -> np.ndarray:
        """Return the number of training examples of each client, ``[M]``."""
        return self.splits["train"].sizes

    @property
    def weights(self) -> np.ndarray:
        """The weights ``p_i`` of the clients in the objective, ``[M]``, with sum 1. `evaluate` uses the same weights."""
        n = self.sizes() if getattr(self, "weighting", "uniform") == "samples" else np.ones(self.clients)
        n = n * self.counted
        return n / n.sum()

    def weigh(self) -> None:
        """Compute the solution, and whatever else depends on `weights` and serves only metrics. By default, do nothing."""

    def without(self, clients: np.ndarray) -> "Problem":
        """Return a copy in which some clients have the weight 0, so that its metrics and solution ignore them.

        Args:
            clients: The indices of these clients.

        Raises:
            UserError: The solution was not computed by `weigh`, so that it cannot be computed for the other clients.
        """
        if self.solution() is not None and type(self).weigh is Problem.weigh:
            why = f"the solution of {type(self).__name__} without some clients is unknown"
            raise UserError(f"participation.hostile: {why}; choose another problem, or set it to null")
        others = copy(self)
        others.counted = ~np.isin(np.arange(self.clients), clients)
        others.weigh()
        return others

    def pooled(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """Return all clients' examples of a split as one large batch, which `sample` accepts in place of one client's rows.

        Args:
            split: Name of the split.

        Returns:
            The indices of the examples, ``[n]``, and their weights in the objective, ``[n]``, with sum 1.
        """
        rows = self.splits[split]
        weights = self.world.tensor(rows.example_weights(self.weights))
        return torch.from_numpy(rows.rows).to(weights.device), weights

    @abstractmethod
    def start(self) -> tuple[Tensor, ...]:
        """Return the initial point, one flat vector per variable."""

    @abstractmethod
    def sample(self, client: int | Tensor, rows: Rows) -> Any:
        """Return one client's sample: everything that ``f``, ``g`` and the other functions need to know of some examples.

        Args:
            client: Index of the client.
            rows: For each split, the indices of examples, ``[B]``, and their weights, ``[B]``. The weights sum to 1; padding
                has weight 0.
        """

    def keyed(self, sample: Any, key: Tensor) -> Any:
        """Return the sample with a key that determines the random numbers in the problem's functions.

        A problem with ``random = True`` must define this method.

        Args:
            sample: A result of `sample`.
            key: The key, an integer tensor.
        """
        raise NotImplementedError(f"{type(self).__name__} has random = True, and must define keyed")

    def deploys(self, own: bool, common: bool) -> None:
        """Tell the problem which models the method of the run has, before ``metrics`` are read.

        Args:
            own: Whether the method trains a model for each client, and the problem measures these models.
            common: Whether the method has a common model.
        """
        self.has_common = common

    def project_x(self, x: Tensor) -> Tensor:
        """Project x onto its constraint set. By default, x is unconstrained and returned unchanged.

        Only methods with ``projects_x = True`` accept a problem that defines this method.

        Args:
            x: The variable, ``[d]``.
        """
        return x

    @abstractmethod
    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric in ``metrics`` at a point, by the name of the metric.

        Args:
            point: The variables, in the order of ``variables``. Further entries are ignored.
        """

    def clients_table(self, *point: Tensor) -> Mapping[str, np.ndarray]:
        """Return the columns of ``clients.csv``, ``[M]`` each, such as test_rows and own_accuracy; {} for no such file.

        A number that is undefined for a client is nan.

        Args:
            point: The variables.
        """
        return {}

    def solution(self) -> tuple[Tensor, ...] | None:
        """Return the solution, in the order of ``variables``; None if no closed form is known."""
        return None

    def network(self, *point: Tensor) -> Model | None:
        """Return the trained network at a point, which takes raw examples of the data set; None if the problem has no network.

        Args:
            point: The variables.
        """
        return None

    def own(self, variables: Mapping[str, Tensor]) -> Tensor | None:
        """Return the parameters of each client's own model, ``[M, d]``; None if clients have no models of their own.

        Args:
            variables: The variables of a run, by name.
        """
        return variables.get("personal")


def named(problem: Problem, point: Sequence[Tensor], own: bool) -> dict[str, Tensor]:
    """Return the variables at a point by name. The clients' own models are named ``personal``.

    Args:
        problem: The problem, which names the variables.
        point: The variables. Entries without a name are left out.
        own: Whether the last entry of the point contains the clients' own models.
    """
    variables = dict(zip(problem.variables, point[:-1] if own else point, strict=False))
    return variables | ({"personal": point[-1]} if own else {})


class Minimisation(Problem):
    """Minimisation problems.

    The problem is::

        min_x sum_i p_i f_i(x)
    """

    @abstractmethod
    def f(self, x: Tensor, sample: Any) -> Tensor:
        """Return ``f_i(x)``, a scalar.

        Args:
            x: The variable, ``[d]``.
            sample: One client's sample, as `sample` returns it.
        """

    def last_layer(self) -> int:
        """Return the number of entries at the end of x that belong to the last layer of the network.

        Raises:
            UserError: The problem has no network with several layers.
        """
        raise UserError(f"{type(self).__name__} has no last layer; set algo.own to a number, or algo.own=all")


class Constrained(Problem):
    """Minimisation problems with K constraints that involve the clients' data.

    The problem is::

        min_x sum_i p_i f_i(x)    with    sum_i p_i h_ik(x) <= 0    for k = 1, ..., K

    If ``per_client`` contains ``h_weights``, the constraints are ratios: ``sum_i n_ik h_ik(x) / sum_i n_ik <= 0``.

    Attributes:
        largest_multiplier: Upper bound of the multipliers y of the constraints in ``f + y'h``, as minimax methods see it.
    """

    largest_multiplier: float = 100.0

    @abstractmethod
    def f(self, x: Tensor, sample: Any) -> Tensor:
        """Return the objective ``f_i(x)``, a scalar.

        Args:
            x: The variable, ``[d]``.
            sample: One client's sample, as `sample` returns it.
        """

    @abstractmethod
    def h(self, x: Tensor, sample: Any) -> Tensor:
        """Return ``h_i(x)``, ``[K]``, whose means over clients must be at most 0. Decorate it with ``@oracle(K)``.

        Args:
            x: The variable, ``[d]``.
            sample: One client's sample, as `sample` returns it.
        """


class MultiObjective(Problem):
    """Problems with K objectives, whose solutions are the Pareto optima.

    The problem is::

        min_x ( sum_i p_i h_i1(x), ..., sum_i p_i h_iK(x) )

    If ``per_client`` contains ``h_weights``, the objectives are ratios: ``sum_i n_ik h_ik(x) / sum_i n_ik``.
    """

    @abstractmethod
    def h(self, x: Tensor, sample: Any) -> Tensor:
        """Return the objectives ``h_i(x)``, ``[K]``. Decorate it with ``@oracle(K)``.

        Args:
            x: The variable, ``[d]``.
            sample: One client's sample, as `sample` returns it.
        """


class Conditional(Minimisation):
    """Conditional stochastic problems, in which a conditional expectation is inside a nonlinear function.

    The problem is::

        min_x  sum_i p_i E_xi f_xi( E_{eta | xi} r(x; eta, xi) )

    ``f`` evaluates ``f_xi`` at the mean of ``r`` over samples ``eta``.

    Attributes:
        inner: Number of samples eta for each example xi. With a finite number, ``f`` is biased. None: f uses the exact
            expectation.
    """

    inner: int | None


class Side(NamedTuple):
    """Examples of one client on one side (positive or negative) of the pairs of an `XRisk`.

    Attributes:
        inputs: Whatever the scores are computed from.
        weight: Weights of the examples, ``[B]``. Averaged over clients, a weighted sum over each client's examples is the
            mean over all examples of this side. Padding has weight 0.
        place: Positions of the examples among the client's examples of this side, ``[B]``.
    """

    inputs: Any
    weight: Tensor
    place: Tensor


class XRisk(Problem):
    """Risks of pairs of examples that may belong to different clients.

    The problem is::

        min_x  E_z F( E_z' l(h(x; z) - h(x; z')) )

    Here z is an example of the split ``positive``, and z' an example of the split ``negative``. Every example counts equally,
    whichever client owns it. Every client must have examples in both splits. A sample contains a `Side` for each split.
    """

    @abstractmethod
    def h(self, x: Tensor, sample: Side) -> Tensor:
        """Return the scores ``h(x; z)`` of examples, ``[B]``.

        Args:
            x: The variable, ``[d]``.
            sample: One client's positive or negative examples.
        """

    @abstractmethod
    def pair_loss(self, s: Tensor) -> Tensor:
        """Return the loss ``l(s)`` of each difference s of two scores, in the shape of s.

        Args:
            s: Differences of scores, of any shape.
        """

    @abstractmethod
    def slope(self, u: Tensor) -> Tensor:
        """Return the derivative ``F'(u)`` of the outer function at each u, in the shape of u.

        Args:
            u: Arguments of F, which are mean losses of pairs, of any shape.
        """


class Nested(Problem):
    """Base class of problems whose outer objective ``f(x, y)`` depends on the solution y of an inner problem.

    With the inner objective ``g``, the hypergradient is::

        grad_x f - grad^2_xy g [grad^2_yy g]^-1 grad_y f

    The attributes declare what is known about it, which saves computation.

    Attributes:
        direct: False if ``grad_x f`` is zero.
        indirect: False if ``grad_y f`` is zero at ``y*(x)``.
        identity: True if ``grad^2_yy g`` is the identity.
        nested: False if there is no y.
        f_split: Split whose examples f uses.
        g_split: Split whose examples g uses.
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

        Products of their derivatives on one sample would then be biased, so each derivative needs a sample of its own.
        """
        return self.indirect and self.f_split == self.g_split

    def hypergradient_samples(self, products: int) -> int:
        """Return the number of samples that one client needs for a hypergradient, so that no two factors share a sample.

        Args:
            products: Number of Hessian-vector products.
        """
        return 1 + products + self.shares_examples

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return the outer objective ``f_i(x, y)``, a scalar.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: One client's sample, as `sample` returns it.
        """

    @abstractmethod
    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return the inner objective ``g_i(x, y)``, a scalar.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: One client's sample, as `sample` returns it.
        """

    def project(self, y: Tensor) -> Tensor:
        """Project y onto the set Y. By default, Y is the whole space and y is returned unchanged.

        Y must be the whole space unless ``indirect`` is False, because ``y*(x)`` must be differentiable.

        Args:
            y: The inner variable, ``[dy]``.
        """
        return y


class Bilevel(Nested):
    """Bilevel problems with a lower level that all clients share.

    The problem is::

        min_x  sum_i p_i f_i(x, y*(x))    with    y*(x) = argmin_{y in Y} sum_i p_i g_i(x, y)

    `Nested` describes the attributes.
    """

    variables: Sequence[str] = ("x", "y", "v")  # v = [grad^2_yy g]^-1 grad_y f, a variable of some algorithms


class LocalBilevel(Nested):
    """Bilevel problems in which each client has its own lower level.

    The problem is::

        min_x  sum_i p_i f_i(x, y_i*(x))    with    y_i*(x) = argmin_y g_i(x, y)

    `start` returns x and one y for all clients. `evaluate` takes only x, and `solution` returns only x. `Nested` describes
    the attributes.
    """


class Minimax(Problem):
    """Minimax (saddle point) problems.

    The problem is::

        min_x max_{y in Y}  sum_i p_i f_i(x, y)
    """

    variables = ("x", "y")

    @abstractmethod
    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return ``f_i(x, y)``, a scalar.

        Args:
            x: The variable of the minimum, ``[dx]``.
            y: The variable of the maximum, ``[dy]``.
            sample: One client's sample, as `sample` returns it.
        """

    def project(self, y: Tensor) -> Tensor:
        """Project y onto the set Y. By default, Y is the whole space and y is returned unchanged.

        Args:
            y: The variable of the maximum, ``[dy]``.
        """
        return y


class Composition(Problem):
    """Base class of compositions of the functions f_i^n of several levels n.

    Attributes:
        dims: Dimensions ``(d_0, ..., d_N)`` of the inputs of the levels: x has dimension d_0, f^n maps d_n to d_{n+1}, and
            f^N maps to a scalar.
    """

    dims: tuple[int, ...]

    @abstractmethod
    def level(self, n: int, z: Tensor, sample: Any) -> Tensor:
        """Return ``f_i^n(z)``, ``[d_{n+1}]``, or a scalar for the last level.

        Args:
            n: Index of the level, from 0.
            z: Input of the level, ``[d_n]``.
            sample: One client's sample.
        """


class Compositional(Composition):
    """Compositions of means over all clients.

    The problem is::

        min_x  F^N o ... o F^0 (x)    with    F^n = sum_i p_i f_i^n

    Attributes:
        dims: Dimensions ``(d_0, ..., d_N)`` of the inputs of the levels: ``f^n`` maps ``d_n`` to ``d_{n+1}``, and ``f^N``
            maps to a scalar.
    """

    @property
    def variables(self) -> Sequence[str]:  # type: ignore[override]
        """The names x, z1, z2, ...: x, and the values of all levels but the last."""
        return ("x", *(f"z{n}" for n in range(1, len(self.dims))))


class TwoLevel(Compositional):
    """Compositions of two levels, which a reduction also makes accessible to bilevel algorithms.

    The problem is::

        min_x  F^1(F^0(x))
    """


class KnownOuter(TwoLevel):
    """A `TwoLevel` problem whose outer function F^1 is known: it is the same for all clients and uses no examples."""


class LocalCompositional(Composition):
    """Compositions of each client's own functions.

    The problem is::

        min_x  sum_i p_i f_i^N o ... o f_i^0 (x)

    Attributes:
        dims: Dimensions ``(d_0, ..., d_N)`` of the inputs of the levels: ``f^n`` maps ``d_n`` to ``d_{n+1}``, and ``f^N``
            maps to a scalar.
    """


class Hierarchical(Problem):
    """Problems with an objective of the server and a lower level for each client.

    The problem is::

        min_x  f1(x) + sum_i p_i f2_i(x, y_i(x))    with    y_i(x) = argmin_{y in Y_i(x)} h_i(x, y)

    All variables have the dimension of x.
    """

    @abstractmethod
    def server_sample(self, rng: np.random.Generator, size: int | None) -> Any:
        """Return a sample of the server's examples, which `f1` takes.

        Args:
            rng: Random generator.
            size: Number of examples, sampled with replacement. None: all examples.
        """

    @abstractmethod
    def f1(self, x: Tensor, sample: Any) -> Tensor:
        """Return ``f1(x)`` on a sample of the server's examples, a scalar.

        Args:
            x: The outer variable, ``[d]``.
            sample: A result of `server_sample`.
        """

    @abstractmethod
    def f2(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return ``f2_i(x, y)``, the client's part of the outer objective, a scalar.

        Args:
            x: The outer variable, ``[d]``.
            y: The client's inner variable, ``[d]``.
            sample: One client's sample, as `sample` returns it.
        """

    @abstractmethod
    def h(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Return ``h_i(x, y)``, the client's own inner objective, a scalar.

        Args:
            x: The outer variable, ``[d]``.
            y: The client's inner variable, ``[d]``.
            sample: One client's sample, as `sample` returns it.
        """

    def project(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """Project each of P points y onto its set ``Y_i(x)``. By default, y is returned unchanged.

        Args:
            x: Points, ``[P, d]``.
            y: Points, ``[P, d]``.
            sample: The client's sample.
        """
        return y


# In display order; an algorithm that solves several classes is listed under the first
CLASSES: tuple[type[Problem], ...] = (
    Bilevel,
    LocalBilevel,
    Compositional,
    TwoLevel,
    Minimax,
    Hierarchical,
    Minimisation,
    Constrained,
    MultiObjective,
    LocalCompositional,
    Conditional,
    KnownOuter,
    XRisk,
)


def name(cls: type[Problem]) -> str:
    """Return the name of a problem class in configs and messages, such as two_level for `TwoLevel`.

    Args:
        cls: One of `CLASSES`.
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def class_of(problem: type[Problem] | Problem) -> type[Problem]:
    """Return the most specific class in `CLASSES` that a problem belongs to.

    Args:
        problem: The problem, or its class.
    """
    kind = problem if isinstance(problem, type) else type(problem)
    return next(c for c in kind.__mro__ if c in CLASSES)
