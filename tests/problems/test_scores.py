"""Metrics of classes against scikit-learn, and where they are not defined."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from fedopt.errors import UserError
from fedopt.problems.scores import Scores, ranked

ALL = [
    "accuracy",
    "loss",
    "balanced_accuracy",
    "recall",
    "precision",
    "auc",
    "average_precision",
    "brier",
    "calibration",
]


def drawn(classes, n=300, dtype=torch.float64):
    """Logits with ties, and classes of which the last one is rare."""
    rng = np.random.default_rng(classes)
    shares = np.array([*[0.96 / (classes - 1)] * (classes - 1), 0.04])
    y = rng.choice(classes, n, p=shares)
    return torch.tensor(rng.normal(size=(n, classes)).round(1) + np.eye(classes)[y], dtype=dtype), torch.tensor(y)


@pytest.mark.parametrize("classes", [2, 4, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_are_those_of_scikit_learn(classes, dtype):
    z, y = drawn(classes, dtype=dtype)
    names = [f"c{i}" for i in range(classes)]
    found = Scores.of(y.numpy(), names, ALL, [y.numpy()]).scores(z, y)
    p, guess = torch.softmax(z.double(), 1).numpy(), z.argmax(1).numpy()
    each = np.eye(classes)[y]
    one = {"y_true": y, "y_score": p[:, 1]} if classes == 2 else {"y_true": y, "y_score": p, "multi_class": "ovr"}
    wanted = {
        "accuracy": 100 * metrics.accuracy_score(y, guess),
        "loss": metrics.log_loss(y, p),
        "balanced_accuracy": 100 * metrics.balanced_accuracy_score(y, guess),
        "auc": metrics.roc_auc_score(**one),
        "average_precision": metrics.average_precision_score(
            *(v[:, -1] for v in (each, p)) if classes == 2 else (each, p)
        ),
        "brier": metrics.brier_score_loss(y, p[:, 1] if classes == 2 else p),
        "calibration": p[:, -1].mean() / (y == classes - 1).double().mean().item(),
    }
    recalls = metrics.recall_score(y, guess, average=None, zero_division=0)
    precisions = metrics.precision_score(y, guess, average=None, zero_division=0)
    wanted |= {f"recall_{name}": 100 * value for name, value in zip(names, recalls, strict=True)}
    wanted |= {f"precision_{name}": 100 * value for name, value in zip(names, precisions, strict=True)}
    assert found == pytest.approx(wanted, rel=1e-6 if dtype == torch.float32 else 1e-12)


def test_each_client_has_its_own_scores():
    z, y = drawn(2)
    scores, owner = Scores.of(y.numpy(), ["no", "yes"], ALL, [y.numpy()]), np.arange(300) % 5
    y[owner == 3] = 0  # a client without events
    owner[owner == 4] = 2  # and one without examples
    found = scores.per_client(z, y, owner, 5)
    for i in range(3):
        mine = torch.from_numpy(owner == i)
        assert {name: of[i] for name, of in found.items()} == pytest.approx(scores.scores(z[mine], y[mine]))
    assert np.isnan(found["recall_yes"][3])
    assert np.isnan(found["auc"][3])
    assert np.isfinite(found["recall_no"][3])
    assert all(np.isnan(of[4]) for of in found.values())
    few = scores.per_client(z, y, owner, 5, means_only=True)
    np.testing.assert_array_equal(few.pop("accuracy"), found["accuracy"])
    assert not few


def test_areas_of_clients_are_means_over_their_classes():
    """With ties, clients that lack classes, one of a single class, and one of a score that is not finite."""
    z, y = drawn(4)
    owner = np.arange(300) % 6
    y[owner == 2] %= 2
    y[owner == 3] = 1
    z[4, 0] = np.inf  # client 4's
    found = Scores.of(y.numpy(), list("abcd"), ALL, [y.numpy()]).per_client(z, y, owner, 6)
    for i in (0, 1, 2, 5):
        mine = owner == i
        p, of, guess = (v.numpy() for v in (torch.softmax(z[mine], 1), y[mine], z[mine].argmax(1)))
        classes = np.unique(of)
        for name, score in (("auc", metrics.roc_auc_score), ("average_precision", metrics.average_precision_score)):
            assert found[name][i] == pytest.approx(np.mean([score(of == c, p[:, c]) for c in classes]), rel=1e-12)
        assert found["balanced_accuracy"][i] == pytest.approx(
            100 * metrics.recall_score(of, guess, average="macro", labels=classes)
        )
        absent = [
            f"{kind}_{name}" for c, name in enumerate("abcd") for kind in ("recall", "precision") if c not in classes
        ]
        assert {name for name, values in found.items() if np.isnan(values[i])} >= {*absent}
    assert np.isnan(found["auc"][3])
    assert found["balanced_accuracy"][3] == pytest.approx(found["recall_b"][3])
    assert all(np.isnan(of[4]) for of in found.values())


def test_precision_of_a_class_without_examples_is_left_out():
    y = np.repeat([0, 1, 2], 50)
    names = Scores.of(y, list("abc"), ["recall", "precision"], [y[:100]]).names
    assert names == ("recall_a", "recall_b", "precision_a", "precision_b")


def test_scores_of_outputs_that_are_not_finite_are_nan():
    z, y = drawn(2)
    scores = Scores.of(y.numpy(), ["no", "yes"], ALL, [y.numpy()])
    z[7] = np.nan
    assert all(np.isnan(value) for value in scores.scores(z, y).values())


def test_ties_count_one_half():
    owner = np.array([0, 0, 0, 0, 1, 1])
    scores, positive = np.array([0.1, 0.4, 0.4, 0.7, 1, 1]), np.array([0, 1, 0, 1, 1, 1], dtype=bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert ranked(scores, positive, owner, 2)[0] == pytest.approx([3.5 / 4, np.nan], nan_ok=True)


def test_what_is_measured_by_default():
    rare, even = np.repeat([0, 1], [81, 19]), np.repeat([0, 1], [80, 20])
    of = lambda labels, wanted=None, tested=even: Scores.of(labels, ["no", "yes: 2"], wanted, [tested])  # noqa: E731
    assert of(even).names == ("accuracy", "loss")
    assert of(rare).names[0] == "balanced_accuracy"
    assert {"recall_yes_2", "auc", "loss"} <= {*of(rare).names}
    assert (
        of(rare).note == "19.0 % of 100 training rows are yes: 2: always predicting no is right on 80.0 % of test rows"
    )
    assert not of(rare, ["auc"]).note
    assert [name for name in of(rare).names if "recall" in name] == ["recall_yes_2", "recall_no"]
    assert [m.name for m in of(rare).client_metrics] == ["loss", "auc"]
    assert [m.name for m in of(rare, ["auc"]).client_metrics] == ["accuracy"]
    left_out = of(rare, ["auc"], np.zeros(9, dtype=int)).note
    assert left_out == "problem.metrics: auc is left out: test or validation rows lack a class"
    without_events = of(rare, tested=np.zeros(9, dtype=int)).names
    assert {"accuracy", "balanced_accuracy", "recall_no"} <= {*without_events}
    assert not {"auc", "recall_yes_2", "calibration"} & {*without_events}
    with pytest.raises(UserError, match=r"problem\.metrics=auk: there is no such metric, did you mean auc\?"):
        of(even, ["auk"])
    labels = [metric.label for metric in of(even, ["recall"]).metrics("test", "test")]
    assert labels == ["test recall of no", "test recall of yes: 2"]
