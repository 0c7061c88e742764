"""Maximisation of the (partial) area under the ROC curve as a risk of pairs of examples [FeDXL, Guo et al. 2023].

Over all positive examples z and all negative examples z' of all clients, with the score h of an example under the
network w (entry 1 of the softmax)::

    min_w  1/n+ sum_z F( 1/n- sum_z' l(h(w; z) - h(w; z')) )

    pairwise   F(u) = u            l(s) = max(0, m - s)²
    partial    F(u) = lam log u    l(s) = exp(max(0, m - s)² / lam)

With a small lam, ``partial`` depends only on the negative examples with the largest scores; with a large lam it is
``pairwise``. We read ``partial`` in public code (ICML2023_FedXL); the loss of ``pairwise`` is chosen here.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Ragged
from fedopt.errors import UserError
from fedopt.metrics import OBJECTIVE, Metric
from fedopt.problems.auc import TEST_AUC, Ranking, one_class
from fedopt.problems.classes import Rows, Side, XRisk
from fedopt.problems.partition import ScoredRows
from fedopt.problems.supervised import Fraction

TEST_PARTIAL_AUC = Metric("test_partial_auc", "partial test AUC", better="higher")
PAIRS = 2**22  # number of pairs whose losses are computed together


def partial_area(scores: np.ndarray, positive: np.ndarray, most: float) -> float:
    """Return the area under the ROC curve up to a given false positive rate; nan if a score is not finite.

    It is scaled so that random guessing gives 1/2 and a perfect classifier 1 [McClish 1989].

    Args:
        scores: Scores, ``[n]``. A tie counts one half.
        positive: Whether each example is positive, ``[n]``, as booleans.
        most: The largest false positive rate, strictly between 0 and 1.
    """
    from sklearn.metrics import roc_auc_score  # slow to import

    return float(roc_auc_score(positive, scores, max_fpr=most)) if np.isfinite(scores).all() else np.nan


@dataclass(eq=False)
class XRiskAuc(Ranking, XRisk):
    """Maximisation of the area under the ROC curve (AUC), or of a partial area, as a risk of pairs of examples.

    A pair of a positive and a negative example has the loss max(0, m - s)² if the score of the positive one is larger by s. The
    docstring of the module has the formulas of both risks. `Supervised` describes the arguments that are not listed here.

    Args:
        examples: Number of training examples to use, chosen at random. None: all.
        positive: Index of the positive class. All other classes are negative.
        form: The risk. ``pairwise``: the mean loss of all pairs. ``partial``: a risk in which negative examples with large
            scores count most.
        margin: The margin m.
        lam: The temperature of ``form=partial``. With a large value, the risk is like ``pairwise``.
        max_fpr: False positive rate up to which the metric test_partial_auc is computed.

    Raises:
        UserError: A client has no positive or no negative examples.
    """

    examples: PositiveInt | None
    positive: NonNegativeInt
    form: Literal["pairwise", "partial"]
    margin: PositiveFloat
    lam: PositiveFloat
    max_fpr: Fraction

    metrics = (TEST_PARTIAL_AUC, TEST_AUC, replace(OBJECTIVE, label="risk of all training pairs", scale="linear"))

    def __post_init__(self) -> None:
        data = one_class(self.world.load(), self.positive)
        self.set_up(data, self.subset(data, self.examples))
        labels, own = self.train.y.cpu().numpy(), list(self.splits["train"])
        place, share = np.zeros(len(labels), dtype=np.int64), np.zeros(len(labels))
        for name, label in (("positive", 1), ("negative", 0)):
            of_clients = [rows[labels[rows] == label] for rows in own]
            if lacking := [i for i, rows in enumerate(of_clients) if not len(rows)]:
                remedy = "choose another partition, fewer clients or another problem.positive"
                raise UserError(f"problem=x_risk: client {lacking[0]} has no {name} examples; {remedy}")
            for rows in of_clients:
                place[rows] = np.arange(len(rows))
                share[rows] = len(own) * len(rows) / sum(map(len, of_clients))
            self.splits = {**self.splits, name: Ragged(of_clients)}
        self._place, self._share = torch.from_numpy(place).to(self.world.device), self.world.tensor(share)

    def sample(self, client: int | Tensor, rows: Rows) -> dict[str, Side]:
        def side(batch: Batch) -> Side:
            place = torch.where(batch.weight > 0, self._place.gather(0, batch.rows), 0)
            return Side(batch, batch.weight * self._share.gather(0, batch.rows), place)

        return {split: side(batch) for split, batch in super().sample(client, rows).items()}

    def keyed(self, sample: dict[str, Side], key: Tensor) -> dict[str, Side]:
        return {split: side._replace(inputs=side.inputs._replace(keys=(key,))) for split, side in sample.items()}

    def h(self, x: Tensor, sample: Side) -> Tensor:
        return self.scores(x, sample.inputs.x, *sample.inputs.keys)

    def pair_loss(self, s: Tensor) -> Tensor:
        hinge = torch.relu(self.margin - s) ** 2
        return hinge if self.form == "pairwise" else torch.exp(hinge / self.lam)

    def slope(self, u: Tensor) -> Tensor:
        return torch.ones_like(u) if self.form == "pairwise" else self.lam / u

    @torch.no_grad()
    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name. The objective is the risk of all pairs of training examples.

        Args:
            point: The variable x.
        """

        def scores(of: ScoredRows) -> Tensor:
            return torch.softmax(self.predictions(of, partial(self.net, point[0])), 1)[:, 1]

        a, b = (scores(ScoredRows.of(self.train, self.splits[split])).double() for split in ("positive", "negative"))
        tests, hits = scores(self.test_set).cpu().numpy(), self.test_set.y.cpu().numpy() == 1
        chunks = a.split(max(1, PAIRS // len(b)))
        inner = torch.cat([self.pair_loss(chunk[:, None] - b).mean(1) for chunk in chunks])
        return {
            **self.test_metrics(*self.models(*point)),
            "test_partial_auc": partial_area(tests, hits, self.max_fpr),
            "objective": float((inner if self.form == "pairwise" else self.lam * torch.log(inner)).mean()),
        }
