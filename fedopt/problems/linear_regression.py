"""Linear regression on a table, with test examples for each client's own model [Dinh et al. 2020, Goldstein et al. 1993].

With the features z of an example (and a 1 for the intercept), its target t, and the norm |x| without the intercept::

    f_i(x) = mean_train 1/2 (z'x - t)^2 + ridge/2 |x|^2

The results of all personalised methods are solutions of linear systems.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, LabelledData, Model
from fedopt.errors import UserError
from fedopt.metrics import DISTANCE, TRAIN_LOSS, Metric
from fedopt.networks import flat, number
from fedopt.problems import alone
from fedopt.problems.classes import Minimisation, Weighting
from fedopt.problems.function import function
from fedopt.problems.supervised import Labelled
from fedopt.randomness import Part

RANK = 1e-10  # relative rank tolerance; columns that sum to one make a Hessian singular
TEST_RMSE = Metric("test_rmse", "root mean squared error on test examples")


def squared(y: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean of 1/2 (z'y - t)^2 over a batch, a scalar.

    Args:
        y: The coefficients and the intercept, ``[features + 1]``.
        batch: The examples.
    """
    return 0.5 * (batch.x @ y - batch.y) ** 2 @ batch.weight


def gradient(y: Tensor, batch: Batch) -> Tensor:
    """Return the gradient of `squared` in y, ``[dy]``.

    Args:
        y: The coefficients and the intercept, ``[features + 1]``.
        batch: The examples.
    """
    return (batch.weight * (batch.x @ y - batch.y)) @ batch.x


def least(hessians: Tensor, constants: Tensor) -> Tensor:
    """Return the minimisers of quadratic functions 1/2 y'Hy - c'y that are nearest to 0, ``[..., d]``.

    Args:
        hessians: Matrices H, ``[..., d, d]``.
        constants: Vectors c, ``[..., d]``.
    """
    return (torch.linalg.pinv(hessians, rtol=RANK, hermitian=True) @ constants[..., None])[..., 0]


@dataclass(eq=False)
class Table(Labelled):
    """Base class of problems about linear models of a table, with test examples of each client.

    Args:
        weighting: How clients count in the objective: by their numbers of training examples (``samples``), or equally
            (``uniform``).
        examples: Number of training examples of the artificial table, which is used if no data set is chosen. It has a fifth
            as many test examples.
        features: Number of features of this table.
        spread: Standard deviation of the clients' coefficients in this table around common coefficients, whose standard
            deviation is 1.
    """

    weighting: Weighting
    examples: PositiveInt
    features: PositiveInt
    spread: NonNegativeFloat

    noise = 1.0

    def set_table(self, choice: str, held_out: float | None) -> None:
        """Partition the table among the clients.

        Args:
            choice: Name of the problem, for messages.
            held_out: Fraction of each client's examples that goes to the split ``val``. None: there is no such split.

        Raises:
            UserError: The data set is not a table of numbers with real targets, or no client has training and test examples.
        """
        validation = held_out is not None
        made = self.world.dataset is None
        data = self._made(held_out) if made else self.world.load(validation=validation, real=True)
        if data.tokens or data.x_train.ndim != 2 or data.class_names:
            remedy = "choose dataset=csv with dataset.real=true, dataset=npz, or dataset=none"
            raise UserError(f"problem={choice}: needs a table [n, features] with numbers as targets; {remedy}")
        self.partition(data, held_out=held_out)
        for of in {self.train, self.test_set.examples, *([self.val_set.examples] if self.val_set else [])}:
            of.x, of.y = F.pad(of.x, (0, 1), value=1.0), of.y.to(of.x)
        self.local_set = self.test_set.known()
        if not len(self.local_set.rows):
            raise UserError(f"problem={choice}: no client has both training and test examples; use another partition")

    def _made(self, held_out: float | None) -> LabelledData:
        """Generate a table whose targets are linear in the features, with different coefficients for each client, plus noise.

        Args:
            held_out: Fraction of each client's examples that will go to the split ``val``. None: there is no such split.
        """
        rng, M, n = self.world.rng(Part.EXAMPLES), self.world.clients, self.examples
        owner = np.empty(n, dtype=np.int64)
        for split in self.world.split(n, None, held_out).values():
            owner[split.rows] = np.repeat(np.arange(M), split.sizes)
        owner = np.concatenate([owner, np.arange(max(n // 5, 1)) % M])
        z = rng.standard_normal((len(owner), self.features))
        model = rng.standard_normal(self.features) + self.spread * rng.standard_normal((M, self.features))
        t = (z * model[owner]).sum(1) + self.noise * rng.standard_normal(len(owner))
        return LabelledData(z[:n], t[:n], z[n:], t[n:], pixels="raw")

    def moments(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the means of zz', tz and t^2 / 2 over each client's examples in double precision.

        With the features z, including a 1, and the target t of an example, their shapes are ``[M, d, d]``, ``[M, d]`` and ``[M]``.

        Args:
            split: Name of the split.
        """
        of_clients = []
        for rows in self.splits[split]:
            z, t = self.train.x[rows].double(), self.train.y[rows].double()
            of_clients.append([term / len(rows) for term in (z.T @ z, t @ z, 0.5 * t @ t)])
        A, c, halves = (torch.stack(terms) for terms in zip(*of_clients, strict=True))
        return A, c, halves

    def network(self, *point: Tensor) -> Model:
        """Return the common model at a point, on the CPU. It takes raw examples of the data set.

        Args:
            point: The variables.
        """
        net = flat.build("linear", [], self.train.shape, 1, self.world.seed)
        return self.model_of(net.trained(point[0][: net.dim].cpu()), {"model": "linear", "widths": []})

    def predicted(self, model: Tensor, x: Tensor) -> Tensor:
        return x @ model[:, None]

    def compares_with_alone(self) -> bool:
        return True

    def fit_alone(self) -> Tensor:
        """Fit ridge regression and least squares to each client's own examples and predict the clients' test examples.

        Returns:
            Outputs, ``[2, n, 1]``: of ridge regression, and of least squares.
        """
        x, y = (v.double().cpu().numpy() for v in (self.train.x[:, :-1], self.train.y))
        ridges = np.array([alone.ridge(x[rows], y[rows]) for rows in self.splits["train"]])
        models = torch.from_numpy(ridges), least(*self.moments("train")[:2])
        return torch.stack([self.predictions(self.test_set.known(), None, of.to(self.train.x)) for of in models])


@dataclass(eq=False)
class LinearRegression(Table, Minimisation):
    """Linear regression, with test examples for each client's own model.

    The variable x is a linear model with an intercept, ``[features + 1]``. `Table` describes the arguments that are not
    listed here.

    Args:
        ridge: Factor of the penalty ridge/2 |x|^2 in each f_i, without the intercept.
        noise: Standard deviation of the noise in the targets of the artificial table.
    """

    ridge: NonNegativeFloat
    noise: NonNegativeFloat

    own_models = True
    metrics = (TEST_RMSE, TRAIN_LOSS, DISTANCE)

    def __post_init__(self) -> None:
        self.set_table("linear_regression", None)
        A, c, halves = self.moments("train")
        self._ridges = F.pad(self.train.x.new_full((A.shape[1] - 1,), self.ridge), (0, 1))  # 0 for the intercept
        A = A + torch.diag(self._ridges).to(A)
        self._moments = A, c, halves
        self.weigh()

    def weigh(self) -> None:
        self._p = torch.from_numpy(self.weights).to(self._moments[0])
        self._A, self._c, self._half = (torch.tensordot(self._p, v, 1) for v in self._moments)
        self._x = least(self._A, self._c)

    def deploys(self, own: bool, common: bool) -> None:
        super().deploys(own, common)
        if own and not common:
            self.metrics = tuple(metric for metric in self.metrics if metric is not DISTANCE)  # type: ignore[assignment]

    def last_layer(self) -> int:
        return 1  # the intercept

    def start(self) -> tuple[Tensor, ...]:
        return (self.train.x.new_zeros(self.train.x.shape[1]),)

    def solution(self) -> tuple[Tensor, ...]:
        return (self._x.to(self.train.x),)

    @function
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        return squared(x, sample["train"]) + 0.5 * self._ridges @ x**2

    @f.gradient
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        return gradient(x, sample["train"]) + self._ridges * x

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        * ``train_loss``: sum_i p_i f_i at x, or at the clients' own models if the method has no common model.
        * ``distance``: distance of x from the minimiser of the objective.

        The other metrics measure the clients' own models (or x, if the method does not train them) and the baselines of
        `fit_alone`.

        Args:
            point: The common model x, followed by the clients' own models, ``[M, d]``, if the method trains them.
        """
        (common, own), x = self.models(*point), point[0].to(self._x)
        A, c, halves = self._moments
        models = x.expand(self.clients, -1) if common or own is None else own.to(x)
        losses = 0.5 * torch.einsum("id,ide,ie->i", models, A, models) - torch.sum(c * models, 1) + halves
        values = {**self.test_metrics(common, own), "train_loss": number(self._p @ losses)}
        return {**values, "distance": number(torch.linalg.norm(x - self._x))} if common else values
