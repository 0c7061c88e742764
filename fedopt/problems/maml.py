"""Meta-learning of sinusoids: an initial point from which one gradient step fits a new curve [Finn et al. 2017].

With the mean squared error L_tau on a curve t -> A sin(t + phi), for A in [0.1, 5] and phi in [0, pi]::

    min_x  E_tau L_tau(x - a grad L_tau(x))

The step x - a grad L_tau(x) is called the adaptation. The exact gradient is::

    (I - a grad^2 L_tau(x)) grad L_tau(x - a grad L_tau(x))

There are two forms. In `Maml`, each client has one curve, and the adaptation is the client's lower level. In
`MamlConditional`, each client has many curves, and the adaptation is the inner expectation of a conditional problem.
The times t are one of POINTS numbers from -5 to 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import OBJECTIVE, Metric
from fedopt.networks import flat as models
from fedopt.problems.classes import Conditional, LocalBilevel, Problem, Rows
from fedopt.problems.keyed import uniform
from fedopt.randomness import Part

POINTS = 50
NEW_TASK_LOSS = Metric("new_task_loss", "squared error on new curves after the adaptation", bounds=True)
NEW_TASK_START = Metric("new_task_start", "squared error on new curves before the adaptation", better="neither")


class Curve(NamedTuple):
    """Points of one curve, or of several.

    Attributes:
        t: Times, ``[..., B]``.
        target: Values of the curve, ``[..., B]``.
        weight: Weights, ``[..., B]``, with sum 1 for each curve.
    """

    t: Tensor
    target: Tensor
    weight: Tensor


@dataclass(eq=False)
class _Sinusoids(Problem):
    """Base class of the two meta-learning problems.

    Args:
        widths: Widths of the network's hidden layers.
        a: Step size of the adaptation.
        new_tasks: Number of new curves, which no client has, on which the metrics are computed.
    """

    widths: list[PositiveInt]
    a: PositiveFloat
    new_tasks: PositiveInt

    metrics = (NEW_TASK_LOSS, NEW_TASK_START, OBJECTIVE)

    def set_up(self, curves: int) -> None:
        """Create the network and its initial parameters, the clients' curves, and the new curves of the metrics.

        Args:
            curves: Number of curves over all clients.
        """
        world = self.world
        self.net = models.build("mlp", self.widths, (1,), 1, world.seed, world.autocast)
        self._start = self.net.initial.to(world.device, world.dtype)
        self.grid = world.tensor(np.linspace(-5, 5, POINTS))
        rng, rng_new = world.rng(Part.CLIENTS), world.rng(Part.COMMON)
        self.amplitude, self.phase = self._curves(rng, curves)
        self._new = self.curve(*self._curves(rng_new, self.new_tasks))

    def _curves(self, rng: np.random.Generator, curves: int) -> tuple[Tensor, Tensor]:
        """Generate the amplitudes and the phases of random curves, ``[curves]`` each.

        Args:
            rng: Random generator.
            curves: Number of curves.
        """
        return self.world.tensor(rng.uniform(0.1, 5, curves)), self.world.tensor(rng.uniform(0, np.pi, curves))

    def curve(self, amplitude: Tensor, phase: Tensor, t: Tensor | None = None) -> Curve:
        """Return points of one curve or of several, with equal weights.

        Args:
            amplitude: Amplitudes of the curves, ``[...]``.
            phase: Phases of the curves, ``[...]``.
            t: Times of the points, ``[..., B]``. None: all times of the grid.
        """
        t = self.grid.expand(*amplitude.shape, POINTS) if t is None else t
        return Curve(t, amplitude[..., None] * torch.sin(t + phase[..., None]), torch.ones_like(t) / t.shape[-1])

    def loss(self, w: Tensor, points: Curve) -> Tensor:
        """Return the loss L(w) on points of one curve, a scalar.

        Args:
            w: Parameters of the network.
            points: The points.
        """
        return points.weight @ (self.net(w, points.t[:, None])[:, 0] - points.target) ** 2

    def adapted(self, x: Tensor, points: Curve) -> Tensor:
        """Adapt x to points of one curve and return the result, x - a grad L(x).

        Args:
            x: Parameters of the network.
            points: Points of one curve.
        """
        return x - self.a * torch.func.grad(self.loss)(x, points)

    def after(self, x: Tensor, support: Curve, query: Curve) -> Tensor:
        """Adapt x to each of several curves, and return the losses after the adaptation, ``[curves]``.

        Args:
            x: Parameters of the network.
            support: Points of the curves to which x is adapted.
            query: Points of the same curves on which the losses are then computed.
        """
        one = lambda support, query: self.loss(self.adapted(x, support), query)  # noqa: E731
        return torch.func.vmap(one)(support, query)

    def of_new_tasks(self, x: Tensor) -> dict[str, float]:
        """Return the metrics new_task_loss and new_task_start, the losses on the new curves after and before adaptation.

        Args:
            x: Parameters of the network.
        """
        before, after = torch.func.vmap(self.loss, (None, 0))(x, self._new), self.after(x, self._new, self._new)
        return {"new_task_loss": float(after.mean()), "new_task_start": float(before.mean())}


@dataclass(eq=False)
class Maml(_Sinusoids, LocalBilevel):
    """Meta-learning as a bilevel problem with one curve per client.

    The solution of the lower level is x, adapted by one gradient step on the training points of the client's curve::

        g_i(x, y) = 1/2 |y - (x - a grad L_i(x))|^2
        f_i(y)    = L_i(y) on the validation points

    Args:
        points: Number of points over all clients. Half of each client's points are for training.
    """

    points: Annotated[int, Field(ge=2)]

    direct = False
    identity = True

    def __post_init__(self) -> None:
        self.set_up(self.world.clients)
        self.splits = self.world.split(self.points, None, 0.5)
        self.t = self.grid[torch.from_numpy(self.world.rng(Part.EXAMPLES).integers(POINTS, size=self.points))]
        self.per_client = {"amplitude": self.amplitude, "phase": self.phase}

    def start(self) -> tuple[Tensor, ...]:
        return self._start, self._start.clone()

    def sample(self, client: int | Tensor, rows: Rows) -> Mapping[str, Curve]:
        own = self.per_client["amplitude"][client], self.per_client["phase"][client]
        return {split: self.curve(*own, self.t[at])._replace(weight=weight) for split, (at, weight) in rows.items()}

    def f(self, x: Tensor, y: Tensor, sample: Mapping[str, Curve]) -> Tensor:
        return self.loss(y, sample["val"])

    def g(self, x: Tensor, y: Tensor, sample: Mapping[str, Curve]) -> Tensor:
        return 0.5 * torch.sum((y - self.adapted(x, sample["train"])) ** 2)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name. The objective is sum_i p_i f_i(y_i*(x)) on each client's own points.

        Args:
            point: The variable x. Further entries are ignored.
        """
        (x, *_), losses = point, []
        for i in range(self.clients):
            rows = {split: torch.from_numpy(of_clients[i]).to(x.device) for split, of_clients in self.splits.items()}
            whole = {split: (index, x.new_full(index.shape, 1 / len(index))) for split, index in rows.items()}
            sample = self.sample(i, whole)
            losses.append(float(self.f(x, self.adapted(x, sample["train"]), sample)))
        return {"objective": float(self.weights @ losses), **self.of_new_tasks(x)}


class Curves(NamedTuple):
    """A sample of curves.

    Attributes:
        amplitude: Amplitudes, ``[B]``.
        phase: Phases, ``[B]``.
        weight: Weights with sum 1, ``[B]``.
        keys: The key of the inner samples, as a tuple with one element; empty if curves are adapted on all points.
    """

    amplitude: Tensor
    phase: Tensor
    weight: Tensor
    keys: tuple[Tensor, ...] = ()


@dataclass(eq=False)
class MamlConditional(_Sinusoids, Conditional):
    """Meta-learning as a conditional stochastic problem with many curves per client.

    An example xi is a curve, and an inner sample eta is one of its points. With the squared error l at one point, the loss
    L_xi on all points and the step size a of the adaptation::

        r(x; eta, xi) = x - a grad_x l(x; eta, xi)
        f_xi = L_xi

    Args:
        tasks: Number of curves over all clients.
        inner: Number of points on which a curve is adapted, new ones in every sample. None: all points.
    """

    tasks: PositiveInt
    inner: PositiveInt | None

    def __post_init__(self) -> None:
        self.set_up(self.tasks)
        self.splits, self.random = self.world.split(self.tasks), self.inner is not None

    def start(self) -> tuple[Tensor, ...]:
        return (self._start,)

    def sample(self, client: int | Tensor, rows: Rows) -> Curves:
        index, weight = rows["train"]
        return Curves(self.amplitude[index], self.phase[index], weight)

    def keyed(self, sample: Curves, key: Tensor) -> Curves:
        return sample._replace(keys=(key,))

    def f(self, x: Tensor, sample: Curves) -> Tensor:
        amplitude, phase, weight, keys = sample
        query = support = self.curve(amplitude, phase)
        for key in keys:
            places = (POINTS * uniform(key, len(weight), self.inner or 1)).long()
            support = self.curve(amplitude, phase, self.grid[places])
        return weight @ self.after(x, support, query)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name. The objective is exact, since curves are adapted on all points.

        Args:
            point: The variable x.
        """
        x = point[0]
        objective = self.f(x, self.sample(0, {"train": self.pooled()}))
        return {"objective": float(objective), **self.of_new_tasks(x)}
