"""Metrics of predicted classes, including metrics for rare classes, defined as in scikit-learn."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedopt.errors import MOST_NAMED, UserError, among, joined
from fedopt.metrics import CLIENT_ACCURACY, CLIENT_AUC, CLIENT_LOSS, Metric

Means = Callable[[np.ndarray], np.ndarray]  # from one number per example, [n], to the means of the clients, [M]
Values = dict[str, np.ndarray]  # the values of the clients, [M], by the name of a score
RARE = 0.4  # a class is rare if its share is below this fraction of 1 / (number of classes)
MOST_CLASSES = 10  # with more classes, recall and precision are not measured by default
EACH = ("recall", "precision")  # metrics of single classes
# Default metrics. If a class is rare, accuracy is not informative and comes last
PLAIN = ("accuracy", "loss")
UNBALANCED = ("balanced_accuracy", "auc", "average_precision", *EACH, "brier", "calibration", *PLAIN)
SCORES = {
    "accuracy": Metric("accuracy", "accuracy", "%", "higher"),
    "loss": Metric("loss", "loss", bounds=True),
    "balanced_accuracy": Metric("balanced_accuracy", "mean recall of the classes", "%", "higher"),
    "recall": Metric("recall", "recall", "%", "higher"),
    "precision": Metric("precision", "precision", "%", "higher"),
    "auc": Metric("auc", "AUC", better="higher"),
    "average_precision": Metric("average_precision", "average precision", better="higher"),
    "brier": Metric("brier", "Brier score"),
    "calibration": Metric("calibration", "predicted by observed share of the rarest class", better="neither"),
}


def ranked(scores: np.ndarray, positive: np.ndarray, owner: np.ndarray, clients: int) -> np.ndarray:
    """Return the area under the ROC curve and the average precision of each client.

    In the area, a tie between a positive and a negative example counts one half.

    Args:
        scores: Finite scores of the examples of all clients, ``[n]``.
        positive: Whether each example is positive, ``[n]``, as booleans.
        owner: Index of the client of each example, ``[n]``.
        clients: Number M of clients.

    Returns:
        Areas and average precisions, ``[2, M]``; nan for a client without positive or without negative examples.
    """
    order = np.lexsort((-scores, owner))
    scores, positive, owner = scores[order], positive[order], owner[order]
    n, found = np.bincount(owner, minlength=clients), np.bincount(owner, positive, clients)
    ends = np.append((np.diff(scores) != 0) | (np.diff(owner) != 0), True)[: len(order)]
    last = np.flatnonzero(ends)  # last position of each run of equal scores
    of, rows, hits = owner[last], last + 1, np.cumsum(positive)[last]
    right, wrong = np.diff(hits, prepend=0), np.diff(rows - hits, prepend=0)
    rows, hits = rows - (np.cumsum(n) - n)[of], hits - (np.cumsum(found) - found)[of]
    pairs = found * (n - found)
    sums = [np.bincount(of, values, clients) for values in (wrong * (hits - right / 2), right * hits / rows)]
    return np.where(pairs, sums, np.nan) / [pairs, found]


@dataclass(frozen=True)
class Scores:
    """The metrics that are computed from a classifier's logits. `Scores.of` chooses them.

    Args:
        classes: Names of the classes, or their numbers as texts.
        rarest: Index of the class with the fewest training examples.
        names: The chosen metrics, such as accuracy and recall_yes.
        each: For each metric of one class, such as recall_yes: the kind of metric, recall, and the index of the class.
        client_metrics: Metrics that are computed for each client: the accuracy, or, if a class is rare, the loss and the area under
            the ROC curve. The first one is also computed for the baseline that each client fits to its own examples.
        note: A line for the user about the share of the rarest class; empty if no class is rare.
    """

    classes: tuple[str, ...]
    rarest: int
    names: tuple[str, ...]
    each: Mapping[str, tuple[str, int]]
    client_metrics: tuple[Metric, ...] = (CLIENT_ACCURACY,)
    note: str = ""

    @classmethod
    def of(
        cls, labels: np.ndarray, classes: Sequence[str], wanted: Sequence[str] | None, tested: list[np.ndarray]
    ) -> "Scores":
        """Choose the metrics of a problem.

        Args:
            labels: Classes of the training examples, ``[n]``.
            classes: Names of the classes.
            wanted: The user's choice (``problem.metrics``). None: accuracy and loss, and all others if a class is rare.
            tested: Classes of each set of examples on which metrics are computed; the first set contains the test examples.
                Metrics that are undefined on one of the sets are left out.

        Raises:
            UserError: A metric in ``wanted`` does not exist.
        """
        counts = np.bincount(labels, minlength=len(classes))
        rarest = int(np.where(counts, counts, len(labels) + 1).argmin())
        unbalanced = wanted is None and counts[rarest] < RARE * len(labels) / np.count_nonzero(counts)
        spelt = [re.sub(r"[^\w-]+", "_", name) for name in classes]
        spelt = spelt if len({*spelt}) == len(spelt) else [f"{name}_{c}" for c, name in enumerate(spelt)]
        order = sorted(range(len(classes)), key=lambda c: unbalanced and c != rarest)  # the rarest class first
        each = {f"{kind}_{spelt[c]}": (kind, c) for kind in EACH for c in order}
        few = wanted is not None or len(classes) <= MOST_CLASSES
        known = {kind: [name for name, (of, _) in each.items() if of == kind and few] for kind in EACH}
        known |= {name: [name] for name in (*SCORES, *each) if name not in EACH}
        default = UNBALANCED if unbalanced else PLAIN
        for name in wanted or ():
            if name not in known:
                raise UserError(f"problem.metrics={name}: there is no such metric{among(name, [*known])}")
        names = dict.fromkeys(full for name in wanted or default for full in known[name])
        scores = cls(tuple(classes), rarest, tuple(names), each)
        if unbalanced:
            note = scores._note(counts, tested[0])
            scores = replace(scores, client_metrics=(CLIENT_LOSS, CLIENT_AUC), note=note)
        blank = [scores.scores(torch.zeros(len(y), len(classes)), torch.from_numpy(y)) for y in tested if len(y)]
        defined = tuple(name for name in names if all(np.isfinite(values[name]) for values in blank))
        if wanted is not None and (lacking := [name for name in names if name not in defined]):
            note = f"problem.metrics: {joined(lacking, MOST_NAMED)} is left out: test or validation rows lack a class"
            scores = replace(scores, note=note)
        return replace(scores, names=defined)

    def _note(self, counts: np.ndarray, y: np.ndarray) -> str:
        """Return a line for the user that says how rare the rarest class is, and how often the most frequent class is right.

        Args:
            counts: Number of training examples of each class, ``[C]``.
            y: Classes of the test examples, ``[n]``.
        """
        rare, usual = self.classes[self.rarest], int(counts.argmax())
        share, right = counts[self.rarest] / counts.sum(), np.mean(y == usual)
        always = f"always predicting {self.classes[usual]} is right on {100 * right:.1f} % of test rows"
        return f"{100 * share:.1f} % of {counts.sum():,} training rows are {rare}: {always}"

    def metrics(self, prefix: str, where: str) -> tuple[Metric, ...]:
        """Return the chosen metrics with the names and labels that they have on one set of examples.

        Args:
            prefix: First part of the names, such as ``test``.
            where: First part of the labels, which describes the examples, such as ``test``.
        """
        found = []
        for name in self.names:
            kind, *of = self.each.get(name, (name,))
            label = " ".join([where, SCORES[kind].label, *(f"of {self.classes[c]}" for c in of)])
            found.append(replace(SCORES[kind], name=f"{prefix}_{name}", label=label))
        return tuple(found)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return the values of the chosen metrics over all examples by name, without a prefix. Rates are in percent.

        All values are nan if an output is not finite.

        Args:
            outputs: Logits, ``[n, classes]``.
            y: Classes, ``[n]``.
        """
        values = self.per_client(outputs, y, np.zeros(len(y), dtype=np.int64), 1)
        return {name: float(values[name][0]) for name in self.names}

    def per_client(self, outputs: Tensor, y: Tensor, owner: np.ndarray, M: int, means_only: bool = False) -> Values:
        """Return the values of each client, ``[M]``, by name; nan where a value is undefined.

        For 100 clients with 100 examples of ten classes each, this takes 50 milliseconds; calling scikit-learn for each client
        takes 4 seconds.

        Args:
            outputs: Logits, ``[n, classes]``.
            y: Classes, ``[n]``.
            owner: Index of the client of each example, ``[n]``.
            M: Number of clients.
            means_only: Whether to compute only ``client_metrics``, whose means over clients are metrics.
        """
        wanted = dict.fromkeys([metric.name for metric in self.client_metrics])
        wanted |= {} if means_only else dict.fromkeys(self.names)
        finite, hit = (v.cpu().numpy() for v in (outputs.isfinite().all(1), outputs.argmax(1) == y))
        n = np.bincount(owner, minlength=M)

        def mean(of_rows: np.ndarray) -> np.ndarray:
            return np.bincount(owner, of_rows, M) / n

        with np.errstate(invalid="ignore", divide="ignore"):
            found = {"accuracy": 100 * mean(hit)}
            if "loss" in wanted:
                found["loss"] = mean(F.cross_entropy(outputs, y, reduction="none").double().cpu().numpy())
            if not {*wanted} <= {*PLAIN}:
                found |= self._of_shares(outputs, y, owner, M, mean)
            usable = mean(finite) == 1
            return {name: np.where(usable, found[name], np.nan) for name in wanted}

    def _of_shares(self, outputs: Tensor, y: Tensor, owner: np.ndarray, M: int, mean: Means) -> Values:
        """Return the metrics of `per_client` other than accuracy and loss.

        Args:
            outputs: Logits, ``[n, classes]``.
            y: Classes, ``[n]``.
            owner: Index of the client of each example, ``[n]``.
            M: Number of clients.
            mean: Function from one number per example, ``[n]``, to the clients' means, ``[M]``.
        """
        C = len(self.classes)
        p, of, guess = (v.cpu().numpy() for v in (torch.softmax(outputs.double(), 1), y, outputs.argmax(1)))

        def counts(classes: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
            return np.bincount(owner * C + classes, weight, M * C).reshape(M, C)

        present, hits = counts(of), counts(of, of == guess)
        recall = 100 * hits / present
        precision = np.where(present, 100 * hits / np.maximum(counts(guess), 1), np.nan)
        found = {
            "balanced_accuracy": np.where(present, recall, 0).sum(1) / (present > 0).sum(1),
            "brier": mean(((p - np.eye(C)[of]) ** 2).sum(1)) / (2 if C == 2 else 1),
            "calibration": np.where(present[:, self.rarest], mean(p[:, self.rarest]), np.nan) / mean(of == self.rarest),
        }
        if CLIENT_AUC in self.client_metrics or not {"auc", "average_precision"}.isdisjoint(self.names):
            judged = [self.rarest] if C == 2 else np.arange(C)
            areas = np.array([ranked(np.nan_to_num(p[:, c]), of == c, owner, M) for c in judged])
            known = present[:, judged].T[:, None] > 0
            areas = np.where(known, areas, 0).sum(0) / known.sum(0)
            found |= zip(("auc", "average_precision"), areas, strict=True)
        of_class = {"recall": recall.T, "precision": precision.T}
        return found | {name: of_class[kind][c] for name, (kind, c) in self.each.items()}
