"""Training a network against one perturbation of all inputs [Fed-Norm-SGDA eq. 7].

min_x max_{|y| <= eps} (1/n) sum_j loss(h_x(a_j + y), b_j), over the n examples j of all clients.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from fedopt.data import Batches, cross_entropy
from fedopt.errors import UserError
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, Metric
from fedopt.problems.projections import Norm, ball
from fedopt.problems.supervised import SupervisedMinimax

PERTURBED_ACCURACY = Metric("perturbed_accuracy", "test accuracy under the perturbation y", "%", better="higher")
ROBUST_ACCURACY = Metric("robust_accuracy", "test accuracy under the worst perturbation found", "%", better="higher")


@dataclass(eq=False)
class RobustNn(SupervisedMinimax):
    """Training a network that is robust against one perturbation of all inputs, a saddle point problem.

    y: the perturbation, [features], in the units of the pixels that the model sees.

    eps, norm: the radius of the ball that y is in, and its norm: l1, l2 or linf.
    ascent: the steps of the search for the worst perturbation, one pass over the test set in all; 0 leaves it out.
    """

    eps: PositiveFloat
    norm: Norm
    ascent: NonNegativeInt

    def __post_init__(self) -> None:
        super().__post_init__()
        (x,) = self._start
        if not self.train.x.is_floating_point():
            raise UserError(
                "problem=robust_nn perturbs pixels or features, and token ids are neither of them; use "
                "dataset.tokens=false, or another problem"
            )
        self._start = (x, x.new_zeros(int(np.prod(self.train.shape))))
        robust = (ROBUST_ACCURACY,) if self.ascent else ()
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, PERTURBED_ACCURACY, *robust)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["train"]
        return cross_entropy(self.net(x, batch.x + y, *batch.keys), batch)

    def project(self, y: Tensor) -> Tensor:
        return ball(y, self.eps, self.norm)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the metrics.

        test_accuracy: on the unchanged test set. perturbed_accuracy: under y.
        robust_accuracy: the lower one of that and the accuracy under `worst`; left out with ascent=0.
        """
        x, y = point[:2]
        perturbed = self._accuracy(x, y)
        robust = {"robust_accuracy": np.minimum(perturbed, self._accuracy(x, self.worst(x, y)))} if self.ascent else {}
        return {
            "train_loss": self.client_loss("train", lambda images: self.net(x, images + y)),
            **self.test_metrics(partial(self.net, x)),
            "perturbed_accuracy": perturbed,
            **robust,
        }

    def _accuracy(self, x: Tensor, y: Tensor) -> float:
        return 100 * self.test_examples.loss_and_accuracy(lambda images: self.net(x, images + y))[1]

    def worst(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a perturbation under which the test loss is large, [features], by projected ascent from y.

        The steps are normalised. Each uses the next part of the test set.
        """
        for rows in torch.arange(len(self.test_examples), device=y.device).chunk(self.ascent):
            batch = self.test_examples.batch(rows, torch.full(rows.shape, 1 / len(rows)).to(y))
            y = y.detach().requires_grad_()
            (g,) = torch.autograd.grad(cross_entropy(self.net(x, batch.x + y), batch), y)
            y = self._climbed(y.detach(), g)
        return y

    def _climbed(self, y: Tensor, g: Tensor) -> Tensor:
        """Return y after one step of `worst`. g: the gradient of the test loss."""
        steepest = g.sign() if self.norm == "linf" else g / torch.linalg.vector_norm(g).clamp(min=1e-37)
        return self.project(y + 2.5 * self.eps / self.ascent * steepest)  # far enough to cross the ball
