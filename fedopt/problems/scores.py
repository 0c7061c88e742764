"""Metrics of predicted classes, also for rare ones, as scikit-learn defines them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedopt.data import of_finite
from fedopt.errors import UserError, among
from fedopt.metrics import Metric

RARE = 0.4  # a class is rare below this share of what it would have if all classes were equally frequent
MOST_CLASSES = 10  # whose recall and precision are measured by default
EACH = ("recall", "precision")  # of which each class has its own
PLAIN = (
    "accuracy",
    "loss",
)  # what is measured by default; if a class is rare, accuracy says little, and comes after others
UNBALANCED = ("balanced_accuracy", "auc", "average_precision", *EACH, "brier", "calibration", *PLAIN)
SCORES = {
    "accuracy": Metric("accuracy", "accuracy", "%", "higher"),
    "loss": Metric("loss", "loss", bounds=True),
    "balanced_accuracy": Metric("balanced_accuracy", "mean recall of the classes", "%", "higher"),
    "recall": Metric("recall", "recall", "%", "higher"),
    "precision": Metric("precision", "precision", "%", "higher"),
    "auc": Metric("auc", "area under the ROC curve", better="higher"),
    "average_precision": Metric("average_precision", "average precision", better="higher"),
    "brier": Metric("brier", "Brier score"),
    "calibration": Metric("calibration", "predicted by observed share of the rarest class", better="neither"),
}


def area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the area under the ROC curve; nan without positive and negative examples, or with scores that are not finite.

    Args:
        scores: ``[n]``, larger for examples that look positive.
        positive: ``[n]`` of bool.
    """
    from sklearn.metrics import roc_auc_score

    return _defined(roc_auc_score, positive, scores)


def _defined(score: Callable[..., float], positive: np.ndarray, scores: np.ndarray) -> float:
    """Return a score of scikit-learn's; nan where it is not defined."""
    both = 0 < positive.sum() < len(positive)
    return float(score(positive, scores)) if both and np.isfinite(scores).all() else float("nan")


@dataclass(frozen=True)
class Scores:
    """What is measured of logits.

    Args:
        classes: The names of the classes, or their numbers as texts.
        rarest: The class with the fewest training examples.
        names: What is measured, such as accuracy and recall_yes.
        each: The metric and the class of names that are about one class.
        note: A line for the user on the share of the rarest class; empty if no class is rare.
    """

    classes: tuple[str, ...]
    rarest: int
    names: tuple[str, ...]
    each: Mapping[str, tuple[str, int]]
    note: str = ""

    @classmethod
    def of(
        cls, labels: np.ndarray, classes: Sequence[str], wanted: Sequence[str] | None, tested: Sequence[np.ndarray]
    ) -> "Scores":
        """Return what a problem measures.

        Args:
            labels: ``[n]``, the classes of the training examples.
            classes: The names of the classes.
            wanted: The user's choice, ``problem.metrics``. None: accuracy and loss, and all others if a class is rare.
            tested: The classes of each set of examples that is measured, the first of which are the test examples. What is
                not defined on one of them is left out.

        Raises:
            UserError: There is no such metric.
        """
        counts = np.bincount(labels, minlength=len(classes))
        rarest = int(np.where(counts, counts, len(labels) + 1).argmin())
        unbalanced = counts[rarest] < RARE * len(labels) / np.count_nonzero(counts)
        spelt = [re.sub(r"[^\w-]+", "_", name) for name in classes]
        spelt = spelt if len({*spelt}) == len(spelt) else [f"{name}_{c}" for c, name in enumerate(spelt)]
        each = {f"{kind}_{name}": (kind, c) for kind in EACH for c, name in enumerate(spelt)}
        few = wanted is not None or len(classes) <= MOST_CLASSES
        known = {kind: [name for name, (of, _) in each.items() if of == kind and few] for kind in EACH}
        known |= {name: [name] for name in (*SCORES, *each) if name not in EACH}
        default = UNBALANCED if unbalanced else PLAIN
        for name in wanted or ():
            if name not in known:
                raise UserError(f"problem.metrics={name}: there is no such metric{among(name, [*known])}")
        names = dict.fromkeys(full for name in wanted or default for full in known[name])
        scores = cls(tuple(classes), rarest, tuple(names), each)
        note = scores._note(counts, tested[0]) if unbalanced and wanted is None else ""
        blank = [scores.scores(torch.zeros(len(y), len(classes)), torch.from_numpy(y)) for y in tested if len(y)]
        defined = tuple(name for name in names if all(np.isfinite(values[name]) for values in blank))
        return replace(scores, names=defined, note=note)

    def _note(self, counts: np.ndarray, y: np.ndarray) -> str:
        rare, usual = self.classes[self.rarest], int(counts.argmax())
        share, right = counts[self.rarest] / counts.sum(), np.mean(y == usual)
        always = f"always {self.classes[usual]} is right on {100 * right:.1f} % of test rows"
        return f"{100 * share:.1f} % of {counts.sum():,} training rows are {rare}: {always}"

    def metrics(self, prefix: str, where: str) -> tuple[Metric, ...]:
        """Return the metrics. prefix: the first part of their names. where: the examples, for their labels."""
        found = []
        for name in self.names:
            kind, *of = self.each.get(name, (name,))
            label = " ".join([where, SCORES[kind].label, *(f"of {self.classes[c]}" for c in of)])
            found.append(replace(SCORES[kind], name=f"{prefix}_{name}", label=label))
        return tuple(found)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return the values by name, those that are percentages in percent; nan if an output is not finite.

        Args:
            outputs: The logits, ``[n, classes]``.
            y: The classes, ``[n]``.
        """
        found = {
            "accuracy": 100 * float(of_finite(outputs.argmax(1) == y, outputs).double().mean()),
            "loss": float(F.cross_entropy(outputs, y, reduction="none").double().mean()),
        }
        if {*self.names} <= {*PLAIN} or not outputs.isfinite().all():
            return {name: found.get(name, float("nan")) for name in self.names}
        from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

        C = len(self.classes)
        p, of, guess = (v.cpu().numpy() for v in (torch.softmax(outputs.double(), 1), y, outputs.argmax(1)))
        precision, recall, _, counts = precision_recall_fscore_support(of, guess, labels=range(C), zero_division=0)
        recall = np.where(counts, recall, np.nan)
        observed = counts[self.rarest] / len(of)
        found |= {
            "balanced_accuracy": 100 * float(np.nanmean(recall)),
            "brier": float(((p - np.eye(C)[of]) ** 2).sum(1).mean()) / (2 if C == 2 else 1),
            "calibration": float(p[:, self.rarest].mean() / observed) if observed else float("nan"),
        }
        judged = [self.rarest] if C == 2 else np.flatnonzero(counts)
        for name, score in (("auc", roc_auc_score), ("average_precision", average_precision_score)):
            if name in self.names:
                found[name] = float(np.mean([_defined(score, of == c, p[:, c]) for c in judged]))
        of_class = {"recall": 100 * recall, "precision": 100 * precision}
        found |= {name: float(of_class[kind][c]) for name, (kind, c) in self.each.items()}
        return {name: found[name] for name in self.names}

    def of_clients(self, outputs: Tensor, y: Tensor, owner: np.ndarray, clients: int) -> np.ndarray:
        """Return the accuracy of each client in percent, ``[M]``; nan without examples.

        Args:
            outputs: The logits, ``[n, classes]``.
            y: The classes, ``[n]``.
            owner: The client of each example, ``[n]``.
            clients: The number of clients M.
        """
        hits = of_finite(outputs.argmax(1) == y, outputs).double().cpu().numpy()
        with np.errstate(invalid="ignore"):
            return 100 * np.bincount(owner, hits, clients) / np.bincount(owner, minlength=clients)

    def per_client(self, outputs: Tensor, y: Tensor, owner: np.ndarray, clients: int) -> dict[str, np.ndarray]:
        """Return the values of each client, ``[M]``, by name; nan where they are not defined. The arguments: as in `of_clients`."""
        table = np.full((clients, len(self.names)), np.nan)
        for i in np.unique(owner):
            rows = torch.from_numpy(np.flatnonzero(owner == i)).to(y.device)
            table[i] = [*self.scores(outputs[rows], y[rows]).values()]
        return dict(zip(self.names, table.T, strict=True))
