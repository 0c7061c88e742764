"""Normalised examples on the device, their minibatches, and the losses of a minibatch."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedopt.data.labelled import LabelledData
from fedopt.data.world import World
from fedopt.networks import Batch, Tuning

PIECE = 2**22  # numbers that are normalised at once
Logits = Callable[[Tensor], Tensor]  # [B, classes] of images [B, features]
Batches = Mapping[str, Batch]  # a sample: a batch of each split, by name


Values = Callable[[Batch], tuple[Tensor, ...]]  # of each example, [B] each


def tuned(logits: Tensor, tuning: Tuning) -> Tensor:
    """Return the logits, scaled and shifted per class. tuning: (scale, shift), [classes] each. None: no change."""
    return logits if tuning is None else logits * tuning[0] + tuning[1]


def losses(logits: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each example, [B], without the batch's weights.

    It is the cross-entropy; for targets that are real numbers, half the squared error of the first output. logits: [B, classes].
    """
    if batch.y.is_floating_point():
        return 0.5 * (logits[:, 0] - batch.y) ** 2
    return F.cross_entropy(logits, batch.y, reduction="none")


def of_finite(judged: Tensor, scores: Tensor) -> Tensor:
    """Return what comparisons of scores have given, as numbers, and nan where a score is not finite.

    Args:
        judged: ``[B]``, such as whether the largest score is that of an example's class. A nan has an answer there, too.
        scores: ``[B]`` or ``[B, classes]``.
    """
    return judged.to(scores).where(scores.isfinite().reshape(len(judged), -1).all(1), torch.nan)


def cross_entropy(logits: Tensor, batch: Batch, class_weight: Tensor | None = None) -> Tensor:
    """Return the weighted cross-entropy ``sum_j weight_j class_weight[y_j] CE_j``, a scalar.

    Args:
        logits: ``[B, classes]``.
        batch: The classes ``y`` of the examples, and their weights.
        class_weight: ``[classes]``, the weight of each class. None: all are 1.

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
        x: ``[n, features]``, normalised by the training set's statistics, or token ids ``[n, length]``.
        y: ``[n]``, the classes, or targets that are real numbers.

    Args:
        x: The training or the test examples, as in ``data``.
        y: Their classes or targets.
        data: The data set, which gives the normalisation.
        world: The device and the type.
    """

    normalisation: (
        tuple[np.ndarray, np.ndarray] | None
    )  # mean and deviation of each channel or column, None for token ids

    def __init__(self, x: np.ndarray, y: np.ndarray, data: LabelledData, world: World):
        self.y = world.tensor(y) if data.real else torch.from_numpy(y).to(world.device)
        self.shape, self.normalisation = x.shape[1:], None
        if data.tokens:
            self.x = torch.from_numpy(x).to(world.device)
            return
        self.normalisation = mean, std = data.normalisation()
        scale, ones = 1 / std, (1,) * (x.ndim - 2)
        factor, shift = (world.tensor(v).view(-1, *ones) for v in (scale, -mean * scale))
        self.x = torch.empty(x.shape, dtype=world.dtype, device=world.device)
        step = max(1, PIECE // int(np.prod(x.shape[1:])))  # examples at once, which bounds memory
        for part in (slice(start, start + step) for start in range(0, len(x), step)):
            if x.dtype == np.uint8:
                self.x[part] = (world.tensor(x[part]) * factor).add_(shift)
            else:  # in double: a column may be large beside its deviation
                self.x[part] = world.tensor((x[part] - mean.reshape(-1, *ones)) * scale.reshape(-1, *ones))
        self.x = self.x.flatten(1)

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, rows: Tensor, weight: Tensor, keys: tuple[Tensor, ...] = ()) -> Batch:
        """Return the examples with these indices as a minibatch.

        Args:
            rows: ``[B]``, indices of examples.
            weight: ``[B]``, their weights.
            keys: The key of dropout, as in `Batch`.
        """
        # An embedding copies rows; under vmap index_select gathers their numbers one by one, ten times slower
        return Batch(F.embedding(rows, self.x), self.y.gather(0, rows), weight, rows, keys)

    @torch.no_grad()
    def means(self, values: Values, rows: np.ndarray | None = None, weights: np.ndarray | None = None) -> list[float]:
        """Return the weighted means over examples of the tensors that ``values`` gives, one number for each tensor.

        Examples are taken 2048 at a time, which bounds memory.

        Args:
            values: A function of a `Batch` that returns a tuple of tensors ``[B]``, a number for each example.
            rows: The indices of the examples. None: all.
            weights: Their weights, which sum to 1. None: equal weights.
        """
        rows = np.arange(len(self)) if rows is None else rows
        weights = np.full(len(rows), 1 / len(rows)) if weights is None else weights
        sums = list[Tensor]()
        for start in range(0, len(rows), 2048):
            index, weight = (torch.from_numpy(part[start : start + 2048]).to(self.y.device) for part in (rows, weights))
            of_piece = [value.double() @ weight for value in values(self.batch(index, weight))]
            # In place: a number kept of each piece would lie where its activations were, and the next ones need other memory
            sums = [total.add_(more) for total, more in zip(sums, of_piece, strict=True)] if sums else of_piece
        return list(map(float, sums))

    def loss_and_accuracy(self, logits: Logits, rows: np.ndarray | None = None) -> list[float]:
        """Return [mean cross-entropy, accuracy], the accuracy from 0 to 1; nan if a logit is not finite.

        Args:
            logits: A function from ``x`` ``[B, features]`` to logits ``[B, classes]``.
            rows: The indices of the examples. None: all.
        """

        def loss_and_hit(batch: Batch) -> tuple[Tensor, ...]:
            out = logits(batch.x)
            return losses(out, batch), of_finite(out.argmax(1) == batch.y, out)

        return self.means(loss_and_hit, rows)
