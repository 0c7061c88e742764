"""Classification with a server that has data too, and personalised clients [ZO-HFL Sec. IV].

f1(x) = the server's mean cross-entropy,    f2_i(x, y) = M rho_i lam/2 |x - y|^2,
h_i(x, y) = the client's mean cross-entropy at y + mu/2 |x - y|^2,    y_i(x) = argmin_{y in Y_i(x)} h_i(x, y)
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt import models
from fedopt.data.world import World
from fedopt.problems import classes
from fedopt.problems.projections import ball
from fedopt.problems.supervised import (
    Batch,
    Fraction,
    cross_entropy,
    divided,
    losses,
    mean,
    own_accuracies,
    test_metrics,
)

FIT_BATCH = 64


class Sample(NamedTuple):
    """share: M rho_i; radius: r_i of the ball Y_i."""

    batch: Batch
    share: Tensor
    radius: Tensor


@dataclass(config=ConfigDict(extra="forbid"))
class Hierarchical(classes.Hierarchical):
    """x: the global model; y_i: the clients' own.

    weighting: rho_i by numbers of examples, or uniform.
    constraint: Y_i(x), everything, the ball |y - x| <= radius, or y >= 0.
    radius: r_i; of a list, client i has its entry i, and from the first again.
    test, server, own_test: as those of `classification`.
    fit, fit_step: metrics take y_i(x) from `fit` steps of client i's own from x, of the sizes fit_step /
        sqrt(t + 1): with 100 steps of 0.1, within 15 % of its distance from x on MNIST.
    """

    model: str
    widths: list[PositiveInt]
    lam: NonNegativeFloat
    mu: NonNegativeFloat
    weighting: Literal["samples", "uniform"]
    constraint: Literal["none", "ball", "orthant"]
    radius: PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)]
    test: Fraction | None
    server: Fraction
    own_test: Fraction
    fit: PositiveInt
    fit_step: PositiveFloat

    def build(self, world: World) -> "Hierarchical":
        self.train, self.labels, self.splits, own, self._server, self._test, count = divided(
            world, self.test, self.server, self.own_test
        )
        assert own is not None
        self._own = own
        self.net = models.build(self.model, self.widths, self.train.shape, count, world.seed, world.autocast)
        self.convolutional = self.net.convolutional
        self._start = self.net.initial.to(world.device, world.dtype)
        n = self.sizes() if self.weighting == "samples" else np.ones(self.clients)
        self.matrices = {
            "share": torch.from_numpy(n / n.mean()).to(self._start),
            "radius": torch.from_numpy(np.resize(self.radius, self.clients)).to(self._start),
        }
        self._rng = world.rng
        return self

    def start(self) -> tuple[Tensor, ...]:
        return (self._start,)

    def sample(self, client: int | Tensor, rows: Mapping[str, tuple[Tensor, Tensor]]) -> Sample:
        return Sample(self.train.batch(*rows["train"]), **self._of(client))

    def _of(self, client: int | Tensor) -> dict[str, Tensor]:
        return {name: v[client] for name, v in self.matrices.items()}

    def server_sample(self, rng: np.random.Generator, size: int | None) -> Batch:
        n = len(self._server)
        rows = torch.from_numpy(np.arange(n) if size is None else rng.integers(n, size=size)).to(self._start.device)
        return self._server.batch(rows, self._start.new_full(rows.shape, 1 / len(rows)))

    def f1(self, x: Tensor, sample: Batch) -> Tensor:
        return cross_entropy(self.net(x, sample.x), sample)

    def f1_gradient(self, x: Tensor, sample: Batch) -> Tensor | None:
        return self.net.gradient(x, *sample)

    def f2(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return 0.5 * self.lam * sample.share * torch.sum((x - y) ** 2)

    def h(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return cross_entropy(self.net(y, sample.batch.x), sample.batch) + 0.5 * self.mu * torch.sum((x - y) ** 2)

    def h_gradients(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor | None:
        gradient = self.net.gradient(y, *sample.batch)
        return None if gradient is None else gradient.add_(y - x, alpha=self.mu)

    def project(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        if self.constraint == "ball":
            return x + ball(y - x, sample.radius)
        return y.clamp(min=0) if self.constraint == "orthant" else y

    def personal(self, x: Tensor) -> Tensor:
        """y_i(x) of all clients, nearly, [M, d]; the same draws at every x."""
        split, z = self.splits["train"], x[None]
        positions = self._rng(3).random((self.fit, self.clients, FIT_BATCH)) * split.sizes[:, None]
        rows = torch.from_numpy(split.rows[split.offsets[:, None] + positions.astype(np.int64)]).to(x.device)
        weight = x.new_full((FIT_BATCH,), 1 / FIT_BATCH)

        def step(y: Tensor, rows: Tensor, of_client: dict[str, Tensor], size: float) -> Tensor:
            sample = Sample(self.train.batch(rows, weight), **of_client)
            gradient = self.h_gradients(z, y[None], sample)
            if gradient is None:
                gradient = torch.func.grad(lambda y: self.h(x, y, sample))(y)[None]
            return self.project(z, y - size * gradient, sample)[0]

        y, own = x.expand(self.clients, -1), [self._of(i) for i in range(self.clients)]
        for t, of_round in enumerate(rows):
            size = self.fit_step / math.sqrt(t + 1)
            if self.convolutional:  # which vmap makes slower
                y = torch.stack([step(*of_one, size) for of_one in zip(y, of_round, own, strict=True)])
            else:
                y = torch.func.vmap(step, (0, 0, 0, None))(y, of_round, self.matrices, size)
        return y

    def metrics(self, *point: Tensor) -> dict[str, float]:
        """objective: f1 + (1/M) sum f2_i at y_i(x); test_accuracy, test_loss: of x; personal_accuracy, worst_personal_accuracy: of
        y_i on client i's own test examples."""
        (x,) = point
        y = self.personal(x)
        f1 = mean(self._server, lambda batch: losses(self.net(x, batch.x), batch))
        f2 = 0.5 * self.lam * float(torch.sum((x - y) ** 2, 1) @ self.matrices["share"]) / self.clients
        return {
            "objective": f1 + f2,
            "server_loss": f1,
            **test_metrics(self._test, lambda images: self.net(x, images)),
            **own_accuracies(self.train, self._own, lambda i, images: self.net(y[i], images)),
        }
