"""Training a network against one perturbation of all inputs [Fed-Norm-SGDA, eq. 7].

Over the n examples (a_j, b_j) of all clients::

    min_x max_{|y| <= eps}  (1/n) sum_j loss(h_x(a_j + y), b_j)
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

    The variable y is the perturbation, ``[features]``, in the units of the pixels that the model sees. `SupervisedMinimax`
    describes the arguments that are not listed here.

    Args:
        eps: Radius of the ball that contains y.
        norm: Norm of the ball: ``l1``, ``l2`` or ``linf``.
        ascent: Number of ascent steps in the search for the worst perturbation. Each step uses a different part of the test set;
            together they use it once. 0: no search.
    """

    eps: PositiveFloat
    norm: Norm
    ascent: NonNegativeInt

    def __post_init__(self) -> None:
        super().__post_init__()
        (x,) = self._start
        if not self.train.x.is_floating_point():
            raise UserError("problem=robust_nn: needs pixels or features, not token ids; set dataset.tokens=false")
        self._start = (x, x.new_zeros(int(np.prod(self.train.shape))))
        robust = (ROBUST_ACCURACY,) if self.ascent else ()
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, PERTURBED_ACCURACY, *robust)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["train"]
        return cross_entropy(self.net(x, batch.x + y, *batch.keys), batch)

    def project(self, y: Tensor) -> Tensor:
        return ball(y, self.eps, self.norm)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        * ``test_accuracy``: accuracy on the unchanged test examples.
        * ``perturbed_accuracy``: accuracy on test examples perturbed by y.
        * ``robust_accuracy``: the lower of ``perturbed_accuracy`` and the accuracy under the perturbation that `worst` finds;
          missing with ``ascent=0``.

        Args:
            point: The variables (x, y).
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
        """Return the test accuracy of the network x under the perturbation y, in percent.

        Args:
            x: Parameters of the network.
            y: The perturbation, ``[features]``.
        """
        return 100 * self.test_examples.loss_and_accuracy(lambda images: self.net(x, images + y))[1]

    def worst(self, x: Tensor, y: Tensor) -> Tensor:
        """Search for a perturbation with a large test loss by projected ascent from y, and return it, ``[features]``.

        Each step is normalised, and uses the next chunk of the test set.

        Args:
            x: Parameters of the network.
            y: Initial perturbation.
        """
        for rows in torch.arange(len(self.test_examples), device=y.device).chunk(self.ascent):
            batch = self.test_examples.batch(rows, torch.full(rows.shape, 1 / len(rows)).to(y))
            y = y.detach().requires_grad_()
            (g,) = torch.autograd.grad(cross_entropy(self.net(x, batch.x + y), batch), y)
            y = self._climbed(y.detach(), g)
        return y

    def _climbed(self, y: Tensor, g: Tensor) -> Tensor:
        """Take one step of `worst`, of length 2.5 eps / ascent, and return the new perturbation, ``[features]``.

        Args:
            y: The perturbation before the step, ``[features]``.
            g: Gradient of the test loss with respect to the perturbation, ``[features]``.
        """
        steepest = g.sign() if self.norm == "linf" else g / torch.linalg.vector_norm(g).clamp(min=1e-37)
        return self.project(y + 2.5 * self.eps / self.ascent * steepest)  # all steps together can cross the ball
