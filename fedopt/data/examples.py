"""Normalised examples on the device, minibatches, and the loss of a minibatch."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedopt.data.labelled import LabelledData
from fedopt.data.world import World
from fedopt.networks import Batch, Tuning, number

CHUNK = 2**22  # numbers that are normalised together
Logits = Callable[[Tensor], Tensor]  # function from inputs [B, features] to logits [B, classes]
Batches = Mapping[str, Batch]  # a sample: one batch per split, by name


Values = Callable[[Batch], tuple[Tensor, ...]]  # function from a batch to tensors [B]


def tuned(logits: Tensor, tuning: Tuning) -> Tensor:
    """Return ``scale * logits + shift``, ``[B, classes]``.

    Args:
        logits: Logits, ``[B, classes]``.
        tuning: The pair (scale, shift), ``[classes]`` each. None: the logits are returned unchanged.
    """
    return logits if tuning is None else logits * tuning[0] + tuning[1]


def losses(logits: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each example, ``[B]``, without the weights of the batch.

    This is the cross-entropy for classification, and half the squared error of the first output for regression.

    Args:
        logits: Outputs of the network, ``[B, outputs]``.
        batch: The examples.
    """
    if batch.y.is_floating_point():
        return 0.5 * (logits[:, 0] - batch.y) ** 2
    return F.cross_entropy(logits, batch.y, reduction="none")


def of_finite(judged: Tensor, scores: Tensor) -> Tensor:
    """Convert Boolean results to numbers, ``[B]``: 1 or 0, or nan where the scores that were compared are not finite.

    Args:
        judged: Result for each example, ``[B]``, such as whether the largest score is the score of the true class.
        scores: The scores that were compared, ``[B]`` or ``[B, classes]``. One infinite or nan score of an example suffices for
            the result nan.
    """
    return judged.to(scores).where(scores.isfinite().reshape(len(judged), -1).all(1), torch.nan)


def cross_entropy(logits: Tensor, batch: Batch, class_weight: Tensor | None = None) -> Tensor:
    """Return the weighted cross-entropy of a batch, a scalar.

    With the weight w_j of example j and its class y_j, it is::

        sum_j  w_j class_weight[y_j] CE_j

    Args:
        logits: Logits, ``[B, classes]``.
        batch: The examples, with their classes and weights.
        class_weight: Weight of each class, ``[classes]``. None: all weights are 1.

    Example:
        >>> x, y, weight = torch.zeros(2, 3), torch.tensor([0, 1]), torch.full((2,), 0.5)
        >>> fedopt.cross_entropy(torch.zeros(2, 2), fedopt.Batch(x, y, weight, rows=torch.arange(2)))
        tensor(0.6931)
    """
    weight = batch.weight if class_weight is None else batch.weight * class_weight[batch.y]
    return losses(logits, batch) @ weight


class Examples:
    """Labelled examples on the device, such as ``problem.test_examples``.

    Attributes:
        x: Inputs ``[n, features]``, normalised by the statistics of the training set, or token ids ``[n, length]``.
        y: Classes or regression targets, ``[n]``.
        normalisation: Mean and standard deviation of each channel or column. None: the inputs are token ids.

    Args:
        x: Raw inputs, in the layout of `LabelledData`.
        y: Their classes or targets, ``[n]``.
        data: The data set, which provides the normalisation.
        world: The `World` of the problem, which provides the device and the type of the tensors.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, data: LabelledData, world: World):
        self.y = world.tensor(y) if data.real else torch.from_numpy(y).to(world.device)
        self.shape = x.shape[1:]
        self.normalisation = None if data.tokens else data.normalisation()
        if self.normalisation is None:
            self.x = torch.from_numpy(x).to(world.device)
            return
        mean, std = self.normalisation
        scale, ones = 1 / std, (1,) * (x.ndim - 2)
        factor, shift = (world.tensor(v).view(-1, *ones) for v in (scale, -mean * scale))
        self.x = torch.empty(x.shape, dtype=world.dtype, device=world.device)
        step = max(1, CHUNK // int(np.prod(x.shape[1:])))  # process the examples in chunks, to bound memory
        for rows in (slice(start, start + step) for start in range(0, len(x), step)):
            if x.dtype == np.uint8:
                self.x[rows] = (world.tensor(x[rows]) * factor).add_(shift)
            else:  # in double precision: a column's mean may be much larger than its deviation
                self.x[rows] = world.tensor((x[rows] - mean.reshape(-1, *ones)) * scale.reshape(-1, *ones))
        self.x = self.x.flatten(1)

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, rows: Tensor, weight: Tensor, keys: tuple[Tensor, ...] = ()) -> Batch:
        """Return a minibatch.

        Args:
            rows: Indices of the examples, ``[B]``.
            weight: Weights of the examples, ``[B]``.
            keys: A tuple with the integer tensor that determines the dropout masks. Empty: no dropout.
        """
        # F.embedding copies rows; under vmap, index_select copies single numbers, which is ten times slower
        return Batch(F.embedding(rows, self.x), self.y.gather(0, rows), weight, rows, keys)

    @torch.no_grad()
    def means(self, values: Values, rows: np.ndarray | None = None, weights: np.ndarray | None = None) -> list[float]:
        """Return weighted means over examples.

        Examples are processed in chunks of 2048, which bounds memory.

        Args:
            values: Function from a `Batch` to a tuple of tensors ``[B]``, each with one number per example.
            rows: Indices of the examples. None: all examples.
            weights: Weights of the examples, with sum 1. None: equal weights.

        Returns:
            One mean for each tensor that ``values`` returns.
        """
        rows = np.arange(len(self)) if rows is None else rows
        weights = np.full(len(rows), 1 / len(rows)) if weights is None else weights
        sums = list[Tensor]()
        for start in range(0, len(rows), 2048):
            index, weight = (torch.from_numpy(a[start : start + 2048]).to(self.y.device) for a in (rows, weights))
            of_chunk = [value.double() @ weight for value in values(self.batch(index, weight))]
            # Accumulate in place: keeping one small tensor per chunk would fragment the memory of the activations
            sums = [total.add_(more) for total, more in zip(sums, of_chunk, strict=True)] if sums else of_chunk
        return list(map(number, sums))

    def loss_and_accuracy(self, logits: Logits, rows: np.ndarray | None = None) -> list[float]:
        """Return the mean cross-entropy and the accuracy (from 0 to 1); nan if a logit is not finite.

        Args:
            logits: Function from inputs ``[B, features]`` to logits ``[B, classes]``.
            rows: Indices of the examples. None: all examples.
        """

        def loss_and_hit(batch: Batch) -> tuple[Tensor, ...]:
            out = logits(batch.x)
            return losses(out, batch), of_finite(out.argmax(1) == batch.y, out)

        return self.means(loss_and_hit, rows)
