"""Classification with a global model trained on the server's data, and personalised models [ZO-HFL, Sec. IV].

With client weights p_i (rho_i in the paper)::

    f1(x)     = mean cross-entropy on the server's examples
    f2(x, y)  = lam/2 |x - y|^2
    h_i(x, y) = mean cross-entropy of y on the client's examples + mu/2 |x - y|^2
    y_i(x)    = argmin_{y in Y_i(x)} h_i(x, y)
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Logits, cross_entropy
from fedopt.metrics import OBJECTIVE, TEST_ACCURACY, TEST_LOSS, Metric
from fedopt.problems import classes
from fedopt.problems.classes import Rows
from fedopt.problems.function import function
from fedopt.problems.projections import ball
from fedopt.problems.server import WithServer
from fedopt.problems.supervised import Fraction
from fedopt.randomness import Part

FIT_BATCH = 64
SERVER_LOSS = Metric("server_loss", "loss on the server's examples")
PERSONAL_DISTANCE = Metric("personal_distance", "distance of x from the clients' own models", "", "neither", "log")
CLIENT_CLASSES = Metric("client_classes", "classes of a client", better="neither")


class Sample(NamedTuple):
    """One client's sample.

    Attributes:
        batch: The training examples.
        radius: Radius r_i of the ball Y_i, a scalar.
    """

    batch: Batch
    radius: Tensor


@dataclass(eq=False)
class Hierarchical(WithServer, classes.Hierarchical):
    """Learning a global model x together with each client's own model y_i [ZO-HFL].

    The global model is trained on the server's examples, and pulled towards the models y_i, which are trained on the clients'
    examples and pulled towards x. The docstring of the module has the formulas. `WithServer` and `Supervised` describe the
    arguments that are not listed here.

    Args:
        lam: Factor of |x - y|^2 / 2 in f2.
        mu: Factor of |x - y|^2 / 2 in h_i.
        constraint: The set Y_i(x): the whole space (``none``), the ball |y - x| <= radius (``ball``), or y >= 0
            (``orthant``).
        radius: Radius of the ball. For a list, client i uses entry i modulo its length.
        fit: Number of SGD steps on h_i, starting at x, by which the metrics approximate y_i(x). 100 steps with
            ``fit_step=0.1`` find y_i(x) up to 15 % of its distance from x on MNIST.
        fit_step: Step t has the size fit_step / sqrt(t + 1).
    """

    lam: NonNegativeFloat
    mu: NonNegativeFloat
    constraint: Literal["none", "ball", "orthant"]
    radius: PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)]
    server: Fraction
    own_test: Fraction
    fit: PositiveInt
    fit_step: PositiveFloat

    metrics = (TEST_ACCURACY, TEST_LOSS, OBJECTIVE, SERVER_LOSS, PERSONAL_DISTANCE, CLIENT_CLASSES)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.client_classes = float(np.mean([self._classes_of(rows) for rows in self.splits["train"]]))
        self.per_client = {"radius": torch.from_numpy(np.resize(self.radius, self.clients)).to(self._start[0])}

    def sample(self, client: int | Tensor, rows: Rows) -> Sample:
        return Sample(self.train.batch(*rows["train"], self.training_keys), self.per_client["radius"][client])

    def keyed(self, sample: Sample, key: Tensor) -> Sample:
        return sample._replace(batch=sample.batch._replace(keys=(key,)))

    def server_sample(self, rng: np.random.Generator, size: int | None) -> Batch:
        return self.server_batch(rng, size)

    def f1(self, x: Tensor, sample: Batch) -> Tensor:
        return cross_entropy(self.net(x, sample.x, *sample.keys), sample)

    def f2(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return 0.5 * self.lam * torch.sum((x - y) ** 2)

    @function(where=lambda problem: problem.net.dense)
    def h(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        loss = cross_entropy(self.net(y, sample.batch.x, *sample.batch.keys), sample.batch)
        return loss + 0.5 * self.mu * torch.sum((x - y) ** 2)

    @h.steps
    def h(self, x: Tensor, y: Tensor, sample: Sample, gamma: float) -> Tensor:
        a, b, weight, rows = (field.unsqueeze(0) for field in sample.batch[:4])  # the same batch for all points
        y = self.net.descend(y, Batch(a, b, weight, rows), gamma, None, None, None, 1 - gamma * self.mu)
        return y.add_(x, alpha=gamma * self.mu) if self.mu else y

    def project(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        if self.constraint == "ball":
            return x + ball(y - x, sample.radius)
        return y.clamp(min=0) if self.constraint == "orthant" else y

    def personal(self, x: Tensor) -> Tensor:
        """Return y_i(x) for all clients, ``[M, d]``, approximated by projected SGD steps from x.

        The minibatches are the same for every x.

        Args:
            x: The global model, ``[d]``.
        """
        split, z = self.splits["train"], x[None]
        positions = self.world.rng(Part.FIT).random((self.fit, self.clients, FIT_BATCH)) * split.sizes[:, None]
        rows = torch.from_numpy(split.rows[split.offsets[:, None] + positions.astype(np.int64)]).to(x.device)
        weight = x.new_full((FIT_BATCH,), 1 / FIT_BATCH)

        def step(y: Tensor, rows: Tensor, radius: Tensor, size: float) -> Tensor:
            sample = Sample(self.train.batch(rows, weight), radius)
            gradient = torch.func.grad(lambda y: self.h(x, y, sample))(y)[None]
            return self.project(z, y - size * gradient, sample)[0]

        y, radii = x.expand(self.clients, -1), self.per_client["radius"]
        for t, of_round in enumerate(rows):
            size = self.fit_step / math.sqrt(t + 1)
            if self.convolutional or self.one_by_one:  # vmap would be slower, or is impossible
                y = torch.stack([step(*of_one, size) for of_one in zip(y, of_round, radii, strict=True)])
            else:
                y = torch.func.vmap(step, (0, 0, 0, None))(y, of_round, radii, size)
        return y

    def _classes_of(self, rows: np.ndarray) -> float:
        """Return the effective number of classes among examples, which is the exponential of the entropy of their labels.

        If k classes are equally frequent, the number is k.

        Args:
            rows: Indices of the examples.
        """
        shares = np.bincount(self.train.y[rows].cpu().numpy()) / len(rows)
        present = shares[shares > 0]
        return math.exp(-present @ np.log(present))

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        * ``objective``: f1 + sum_i p_i f2 at y_i(x).
        * ``server_loss``: f1, the loss on the server's examples.
        * ``test_accuracy``, ``test_loss``: accuracy and loss of x on the test examples.
        * ``personal_accuracy``, ``worst_personal_accuracy``: mean and minimum over clients of the accuracy of y_i on their own
          test examples.
        * ``personal_distance``: sqrt(sum_i p_i |x - y_i(x)|^2).
        * ``client_classes``: mean over clients of the effective number of classes in their training examples, the same in all
          rounds.

        Args:
            point: The global model x.
        """
        (x,) = point
        y = self.personal(x)
        f1, _ = self.server_examples.loss_and_accuracy(partial(self.net, x))
        squared = float(torch.sum((x - y) ** 2, 1) @ torch.from_numpy(self.weights).to(x))
        assert self.local_set is not None  # because own_test is a fraction
        return {
            "objective": f1 + 0.5 * self.lam * squared,
            "server_loss": f1,
            "personal_distance": math.sqrt(squared),
            "client_classes": self.client_classes,
            **self.test_metrics(partial(self.net, x)),
            **self.means_of_clients(self.predictions(self.local_set, None, y)),
        }

    def models(self, *point: Tensor) -> tuple[Logits, Tensor]:
        return partial(self.net, point[0]), self.personal(point[0])
