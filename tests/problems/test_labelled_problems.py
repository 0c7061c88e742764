"""Data cleaning, regularisation and AUC against NumPy, finite differences and closed forms."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.derivatives import F64, Given, central_differences, full, normal

from fedopt.data.datasets import Digits
from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import Centralized, Dirichlet, Iid, Shards
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems import regularisation
from fedopt.problems.auc import Auc
from fedopt.problems.classification import Classification
from fedopt.problems.data_cleaning import DataCleaning
from fedopt.problems.loss_tuning import LossTuning
from fedopt.problems.regularisation import Regularisation
from fedopt.testing.harness import small, steps


def table(count=60, classes=3, features=4, seed=0):
    """Labels follow a linear model of the features."""
    rng = np.random.default_rng(seed)
    model = rng.standard_normal((features, classes))

    def some(n):
        x = rng.standard_normal((n, features))
        return x, (x @ model + rng.gumbel(size=(n, classes))).argmax(1)

    return Given(LabelledData(*some(count), *some(count // 2)))


def world(partitioner=None, data=None, seed=0):
    return World(seed, partitioner or Iid(4), data or table(), dtype=F64)


def losses(logits, labels):
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]


def pooled(p, fn):
    """sum_i p_i fn(sample of all examples of client i)."""
    return sum(w * fn(full(p, i)) for i, w in enumerate(p.weights))


def everything(p):
    """A sample of all examples of all clients, in which each weighs as much as in the objective."""
    splits = p.splits.items()
    rows = {name: (torch.from_numpy(of.rows), torch.from_numpy(of.example_weights(p.weights))) for name, of in splits}
    return p.sample(0, rows)


def inner_hessian(p, x, y):
    return torch.func.jacrev(torch.func.grad(p.g, 1), 1)(x, y, everything(p))


def fitted(p, x, y, steps=8):
    """y*(x) by Newton's method from y."""
    for _ in range(steps):
        inverse = torch.linalg.pinv(inner_hessian(p, x, y), rtol=1e-10, hermitian=True)  # biases may move together
        y = y - inverse @ torch.func.grad(p.g, 1)(x, y, everything(p))
    assert torch.func.grad(p.g, 1)(x, y, everything(p)).norm() < 1e-10
    return y


def outer_value(p, x, y):
    """f(x, y*(x)), with y near y*(x)."""
    return float(p.f(x, fitted(p, x, y, 2), everything(p)))


def adjoint(p, x, y):
    """v* at y = y*(x)."""
    return torch.linalg.pinv(inner_hessian(p, x, y), rtol=1e-10, hermitian=True) @ torch.func.grad(p.f, 1)(
        x, y, everything(p)
    )


def slopes(p, x, y):
    """Of f(x, y*(x)) along three directions, and the directions [3, dx]. y: y*(x)."""
    directions = normal(3, len(x), seed=9)
    step = 1e-4
    values = [[outer_value(p, x + sign * step * d, y) for sign in (1, -1)] for d in directions]
    return np.array([(high - low) / (2 * step) for high, low in values]), directions.numpy()


# Data cleaning


def cleaning(where=None, **changes):
    fields = {"model": "linear", "widths": [5], "validation": 0.3, "ridge": 0.4, "norms": 0.0, "dropout": 0.0}
    fields |= {"examples": None, "weighting": "samples", "corruption": 0.5, "per": "example", "x0": -2.0}
    return DataCleaning(where or world(), **{**fields, **changes})


def test_cleaning_is_the_pooled_problem_however_the_examples_are_divided():
    """g = (1/N) sum_j sigma(x_j) loss_j + ridge/2 |W|^2: clients weigh n_i / N."""
    p = cleaning(world(Dirichlet(4, 0.5, min_size=5)))
    x, y = normal(len(p.start()[0]), seed=1), normal(len(p.start()[1]), seed=2)
    rows = np.sort(p.splits["train"].rows)
    assert len(x) == len(rows) < 60
    assert len(set(p.sizes())) > 1
    W, b = y.numpy()[:12].reshape(3, 4), y.numpy()[12:]
    labels = p.train.y.numpy()
    of_each = losses(p.train.x.numpy() @ W.T + b, labels)
    expected = np.mean(of_each[rows] / (1 + np.exp(-x.numpy()))) + 0.2 * float(y[:12] @ y[:12])
    assert float(pooled(p, lambda s: p.g(x, y, s))) == pytest.approx(expected, rel=1e-12)
    val = pooled(p, lambda s: p.f(x, y, s))
    own_means = [of_each[rows].mean() for rows in p.splits["val"]]
    assert float(val) == pytest.approx(p.weights @ own_means, rel=1e-12)
    assert p.evaluate(x, y)["val_loss"] == pytest.approx(float(val), rel=1e-12)


def test_cleaning_hypergradient_in_closed_form():
    """Coordinate j is -sigma'(x_j) <grad loss_j(y*), v*> / N."""
    p = cleaning(world(Dirichlet(4, 0.5, min_size=5)))
    x, start = normal(len(p.start()[0]), seed=1), p.start()[1]
    y = fitted(p, x, start)
    v = adjoint(p, x, y)
    rows, N = np.sort(p.splits["train"].rows), len(x)
    logits = p.train.x.numpy() @ y.numpy()[:12].reshape(3, 4).T + y.numpy()[12:]
    errors = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(3)[p.train.y.numpy()]
    along = np.einsum("jc,jc->j", errors, p.train.x.numpy() @ v.numpy()[:12].reshape(3, 4).T + v.numpy()[12:])
    sigma = 1 / (1 + np.exp(-x.numpy()))
    closed = -sigma * (1 - sigma) * along[rows] / N
    along, directions = slopes(p, x, y)
    np.testing.assert_allclose(directions @ closed, along, rtol=1e-5, atol=1e-8)


def test_full_trust_is_the_plain_classifier():
    p = cleaning()
    x, y = torch.full_like(p.start()[0], 50.0), normal(15, seed=3)
    of_each = losses(p.train.x.numpy() @ y.numpy()[:12].reshape(3, 4).T + y.numpy()[12:], p.train.y.numpy())
    expected = of_each[p.splits["train"].rows].mean() + 0.2 * float(y[:12] @ y[:12])
    assert float(pooled(p, lambda s: p.g(x, y, s))) == pytest.approx(expected, rel=1e-12)


def test_only_training_labels_are_made_wrong():
    data = table(count=4000, classes=4)
    p = cleaning(world(data=data))
    clean = data.data.y_train
    train, val = p.splits["train"].rows, p.splits["val"].rows
    labels = p.train.y.numpy()
    np.testing.assert_array_equal(labels[val], clean[val])
    np.testing.assert_array_equal(p.wrong, labels != clean)
    np.testing.assert_array_equal(p.labels, clean)  # what the examples are divided by, and drawn in pictures
    # Half of the labels are redrawn, and a quarter of those come out right
    assert p.wrong[train].mean() == pytest.approx(0.5 * 3 / 4, abs=5 * np.sqrt(0.25 / len(train)))
    assert not cleaning(corruption=0.0).wrong.any()


@pytest.mark.parametrize(("level", "size"), [("example", 44), ("class", 3), ("client", 4)])
def test_what_has_a_trust_of_its_own(level, size):
    p = cleaning(world(Iid(4)), per=level, validation=0.3)
    x, y = p.start()
    assert len(x) == size
    assert torch.equal(x, torch.full_like(x, -2.0))
    assert float(y.norm()) == 0
    x, y = normal(size, seed=1), normal(15, seed=2)
    of_each = losses(p.train.x.numpy() @ y.numpy()[:12].reshape(3, 4).T + y.numpy()[12:], p.train.y.numpy())
    rows = list(np.sort(p.splits["train"].rows))
    for client, own in enumerate(p.splits["train"]):
        place = {"example": [rows.index(j) for j in own], "class": p.train.y.numpy()[own], "client": client}[level]
        trust = 1 / (1 + np.exp(-x.numpy()[place]))
        expected = np.mean(trust * of_each[own]) + 0.2 * float(y[:12] @ y[:12])
        assert float(p.g(x, y, full(p, client))) == pytest.approx(expected, rel=1e-12)
    assert float(cleaning(model="mlp").start()[1].norm()) > 0  # zero would stay zero


def test_detection_is_the_f1_of_distrust():
    p = cleaning()
    rows, y = np.sort(p.splits["train"].rows), p.start()[1]
    wrong = torch.from_numpy(p.wrong[rows])
    oracle = torch.where(wrong, -1.0, 1.0).to(F64)
    assert p.evaluate(oracle, y)["detection_f1"] == 1
    assert p.evaluate(-oracle, y)["detection_f1"] == 0
    share = float(wrong.double().mean())
    assert p.evaluate(-torch.ones(len(rows), dtype=F64), y)["detection_f1"] == pytest.approx(2 * share / (1 + share))


def test_wrong_labels_come_to_be_trusted_less():
    e = small("fedmsa", "data_cleaning", "participation.cohort=6", "algo.alpha=300", "algo.beta=0.5", "algo.K=1")
    *_, state = steps(e, 40)
    x, y = e.algorithm.output(state)[:2]
    p = e.original
    trust, wrong = torch.sigmoid(x).numpy(), p.wrong[np.sort(p.splits["train"].rows)]
    assert trust[wrong].mean() < trust[~wrong].mean() - 0.1
    before, after = p.evaluate(*p.start()), p.evaluate(x, y)
    assert after["detection_f1"] > before["detection_f1"] + 0.05


# Regularisation


def regularised(where=None, **changes):
    fields = {"per": "feature", "validation": 0.3, "weighting": "samples", "examples": 80, "features": 5, "classes": 2}
    return Regularisation(where or World(0, Iid(4), dtype=F64), **{**fields, **changes})


@pytest.mark.parametrize(
    ("classes", "per", "sizes"), [(2, "feature", (5, 5)), (3, "class", (3, 15)), (3, "feature", (5, 15))]
)
def test_regularisation_hypergradient_in_closed_form(classes, per, sizes):
    """Coordinate k is -e^{x_k} <y*_k, v*_k>, with y_k what belongs to feature k, or to class k."""
    p = regularised(classes=classes, per=per)
    x, y = p.start()
    assert (len(x), len(y)) == sizes
    assert (x < 0).all()  # log U(0, 1)
    y = fitted(p, x, 0 * y)
    torch.testing.assert_close(p.inner_solution(x), y, rtol=0, atol=1e-5)
    products = (y * adjoint(p, x, y)).view(-1, 5).sum(0 if per == "feature" else 1)
    along, directions = slopes(p, x, y)
    np.testing.assert_allclose(directions @ -(torch.exp(x) * products).numpy(), along, rtol=1e-5, atol=1e-8)
    metrics = p.evaluate(x, 0 * y)
    assert metrics["fitted_loss"] == pytest.approx(outer_value(p, x, y), abs=1e-6)
    assert metrics["val_loss"] == pytest.approx(np.log(classes), rel=1e-12)


def test_regularisation_with_squared_loss_is_ridge_regression(monkeypatch):
    """y*(x) = (A'A/n + diag e^x)^-1 A'b/n."""
    monkeypatch.setattr(regularisation, "cross_entropy", lambda z, batch: 0.5 * (z[:, 1] - batch.y) ** 2 @ batch.weight)
    p = regularised(world(Dirichlet(3, 0.5, min_size=5), table(classes=2)))
    x = normal(4, seed=1)
    rows = p.splits["train"].rows
    A, b = p.train.x.numpy()[rows], p.labels[rows]
    ridge = np.linalg.solve(A.T @ A / len(rows) + np.diag(np.exp(x.numpy())), A.T @ b / len(rows))
    np.testing.assert_allclose(fitted(p, x, p.start()[1]), ridge, atol=1e-10)


def test_two_classes_have_the_logistic_loss():
    p, x, y = regularised(), normal(5, seed=1), normal(5, seed=2)
    sample = full(p, 1)
    signs = 2 * sample["train"].y.numpy() - 1
    loss = np.log1p(np.exp(-signs * (sample["train"].x.numpy() @ y.numpy()))).mean()
    penalty = 0.5 * np.exp(x.numpy()) @ y.numpy() ** 2
    assert float(p.g(x, y, sample)) == pytest.approx(loss + penalty, rel=1e-12)


def test_regularisation_of_a_run_that_diverges():
    """y* depends on x alone; where its strengths are no numbers, neither is y*."""
    p = regularised()
    x, y = p.start()
    for extreme in (1e30 * y, torch.inf * y, torch.nan * y):
        assert p.evaluate(x, extreme)["fitted_loss"] == p.evaluate(x, y)["fitted_loss"]
    for beyond in (1e30 * torch.ones_like(x), torch.nan * x):
        assert p.inner_solution(beyond).isnan().all()


def test_regularisation_is_solved_without_a_scale_too(monkeypatch):
    """A scale of all features is left out where it would be too large."""
    p = regularised(classes=3, per="class")
    x = normal(3, seed=1)
    scaled = p.inner_solution(x)
    monkeypatch.setattr(regularisation, "MOST_SCALES", 0)
    torch.testing.assert_close(p.inner_solution(x), scaled, rtol=0, atol=1e-5)


def test_regularisation_takes_any_data_set_of_features():
    p = regularised(World(0, Iid(4), Digits(), dtype=F64), per="class")
    assert [len(v) for v in p.start()] == [10, 640]
    made = regularised(examples=1000, features=6)
    assert len(made.train) == 800
    assert len(made.test_examples) == 200
    # Only the first half of the features matter to the labels
    correlations = np.abs(np.corrcoef(made.train.x.T.numpy(), made.labels)[-1, :-1])
    assert correlations[3:].max() < 5 / np.sqrt(800)
    assert correlations[:3].max() > 5 / np.sqrt(800)


# AUC


def areas(where=None, **changes):
    fields = {
        "model": "linear",
        "widths": [5],
        "examples": None,
        "weighting": "samples",
        "positive": 1,
        "form": "square",
    }
    return Auc(where or world(), **{**fields, **changes})


def scores_of(p, x):
    W, b = x.numpy()[:8].reshape(2, 4), x.numpy()[8:10]
    logits = np.exp(p.train.x.numpy() @ W.T + b)
    return logits[:, 1] / logits.sum(1)


@pytest.mark.parametrize("form", ["square", "margin"])
@pytest.mark.parametrize("partitioner", [Iid(4), Shards(4, 1)])
def test_auc_in_closed_form(form, partitioner):
    p = areas(world(partitioner), form=form)
    x, positive = normal(12, seed=1), p.labels == 1
    s, share = scores_of(p, x), positive.mean()
    assert p.p == pytest.approx(share, rel=1e-12)
    a, b = s[positive].mean(), s[~positive].mean()
    alpha = b - a + (form == "margin")
    x[-2:] = torch.tensor([a, b])

    def f(x, y):
        return pooled(p, lambda sample: p.f(x, y, sample))

    best = torch.tensor([alpha], dtype=F64)
    np.testing.assert_allclose(central_differences(lambda y: f(x, y), best), 0, atol=1e-8)
    np.testing.assert_allclose(central_differences(lambda x: f(x, best), x)[-2:], 0, atol=1e-8)
    if form == "square":
        pairs = s[positive][:, None] - s[~positive]
        value = np.mean((1 - pairs) ** 2) - 1
    else:
        value = s[positive].var() + s[~positive].var() + (1 + b - a) ** 2
    assert float(f(x, best)) == pytest.approx(share * (1 - share) * value, rel=1e-10)
    assert p.evaluate(x, best + 3)["objective"] == pytest.approx(float(f(x, best)), rel=1e-10)
    assert float(f(x, best + 0.1)) < float(f(x, best))  # a maximum


def test_auc_counts_the_pairs_in_order():
    p, x = areas(), normal(12, seed=1)
    W, b = x.numpy()[:8].reshape(2, 4), x.numpy()[8:10]
    logits = p.test_examples.x.numpy() @ W.T + b
    difference, positive = logits[:, 1] - logits[:, 0], p.test_examples.y.numpy() == 1
    pairs = difference[positive][:, None] - difference[~positive]
    assert p.evaluate(x, x[:1])["test_auc"] == pytest.approx(np.mean(pairs > 0), rel=1e-12)


def test_auc_needs_both_classes():
    with pytest.raises(UserError, match=r"problem\.positive=7.*training set"):
        areas(positive=7)


def test_local_methods_find_the_order():
    e = small("local_sgda", "auc", "participation.cohort=6")
    *_, state = steps(e, 20)
    assert e.original.evaluate(*e.algorithm.output(state))["test_auc"] > 0.95


# Loss tuning


def rare(count=400):
    """A table with one event in twenty, whose test examples are the training examples, each without a place of its own."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 3))
    y = (x @ [1.0, -1.0, 0.5] + rng.logistic(size=count) > 4.2).astype(int)
    validates = np.arange(count) % 5 == 0
    return LabelledData(x, y, x[~validates], y[~validates], validates=validates)


def loss_tuning(data):
    keys = {"model": "linear", "widths": [3], "validation": 0.2, "ridge": 0.0, "norms": 0.0, "dropout": 0.0}
    return LossTuning(world(Centralized(1), Given(data)), **keys, largest=None, imbalance=1.0)


def test_the_tuned_logits_predict_the_share_that_occurs():
    """A trained bias has no gradient, scale_c (mean p_c - share_c) = 0: the tuned logits are calibrated, the raw ones are not."""
    p = loss_tuning(data := rare())
    share = data.y_test.mean()
    assert 0.03 < share < 0.08
    assert not any("keep" in note for note in p.notes)
    for x in (p.start()[0], torch.tensor([-0.4, 0.7, 0.5, -1.2], dtype=F64)):
        y, flat = p.start()[1], lambda y, x=x: torch.func.grad(p.g, 1)(x, y, everything(p))
        for _ in range(60):  # softmax has a direction without curvature: the shortest Newton step
            y = y - torch.linalg.pinv(torch.func.jacrev(flat)(y), rtol=1e-9) @ flat(y)
        assert flat(y).norm() < 1e-9
        metrics = p.evaluate(x, y)
        assert metrics["calibrated_calibration"] == pytest.approx(1, rel=1e-7)
        assert metrics["calibrated_loss"] == pytest.approx(metrics["train_loss"], rel=1e-12)
        raw = p.net(y, p.test_examples.x).softmax(1)[:, 1].mean()
        assert abs(float(raw) / share - 1) > 0.3


@pytest.mark.parametrize(("scales", "moves"), [((0.3, 0.3), False), ((-0.4, 0.7), True)])
def test_inner_minimisers_differ_by_a_shift_of_the_biases(scales, moves):
    """t / sigmoid(Delta_c) on the bias of class c leaves g as it is, and f only if the scales are equal: docs/loss_tuning."""
    p = replace(loss_tuning(rare()), ridge=0.1)
    x, y = torch.tensor([*scales, 0.5, -1.2], dtype=F64), normal(8, seed=1)
    shift = torch.cat([torch.zeros(6, dtype=F64), 2 / x[:2].sigmoid()])
    g, f = (float(of(x, y + shift, everything(p)) - of(x, y, everything(p))) for of in (p.g, p.f))
    assert abs(g) < 1e-12
    assert (abs(f) > 0.01) == moves


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_classification_trains_with_a_tuned_loss(model, monkeypatch):
    """Its value by NumPy, its gradient and its step by autograd."""
    x, data = torch.tensor([-0.4, 0.7, 0.5, -1.2], dtype=F64), Given(rare())
    exported = SimpleNamespace(scale=torch.sigmoid(x[:2]), shift=x[2:], classes_=[0, 1])
    monkeypatch.setattr("fedopt.problems.loss_tuning.load_model", lambda path: exported)
    here = World(0, Iid(4), data, dtype=F64)
    keys = {"test": None, "server": 0.0, "own_test": None, "pretrain": 0, "pretrain_step": 0.01, "weighting": "samples"}
    p = Classification(here, model, [5], **keys, loss="model.json")
    w, sample = p.start()[0] + 0.3, full(p, 1)
    batch = sample["train"]
    z = p.net(w, batch.x).numpy() / (1 + np.exp(-x[:2].numpy())) + x[2:].numpy()
    assert float(p.f(w, sample)) == pytest.approx(losses(z, batch.y.numpy()).mean(), rel=1e-12)
    gradient = torch.func.grad(p.f)
    torch.testing.assert_close(p.f.gradient(w, sample), gradient(w, sample), rtol=1e-10, atol=1e-12)
    anchor, plus = w - 0.2, normal(len(w), seed=3)
    stepped = w - 0.1 * (gradient(w, sample) - gradient(anchor, sample) + plus)
    torch.testing.assert_close(p.f.step(w.clone(), sample, 0.1, plus, anchor), stepped, rtol=1e-10, atol=1e-12)
    assert p.evaluate(w)["train_loss"] == pytest.approx(pooled(p, lambda s: float(p.f(w, s))), rel=1e-12)
    assert p.evaluate(w)["test_loss"] == pytest.approx(
        losses(p.net(w, p.test_examples.x).numpy(), data.data.y_test).mean()
    )
    with pytest.raises(
        UserError, match="its classes are 0, 1, but the data have 0, 1, 2; use a model of a run on the same data"
    ):
        Classification(replace(here, dataset=table()), model, [5], **keys, loss="model.json")
