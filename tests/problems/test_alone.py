"""What clients do alone, penalties without biases and class weights, against NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from torch import nn

from fedopt.config.composed import compose
from fedopt.errors import UserError
from fedopt.networks.flat import build
from fedopt.networks.module import FlatModule
from fedopt.problems import alone
from fedopt.testing.harness import small

WORDS = ["problem.own_test=0.25", "preset=none"]


def classification(*words, algo="fedavg"):
    return small(algo, "classification", *WORDS, *words).original


@pytest.mark.parametrize("rows", [4, 30])
def test_ridge_alone_is_that_of_scikit_learn(rows):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 6)) + 3
    t = x @ rng.standard_normal(6) + 2 * rng.standard_normal(rows) + 50
    errors = []
    for ratio in alone.RATIOS:  # leave-one-out, one by one
        folds = [np.delete(np.arange(rows), j) for j in range(rows)]
        fits = [Ridge(rows * ratio).fit(x[fold], t[fold]) for fold in folds]
        errors.append(np.mean([(fit.predict(x[j : j + 1])[0] - t[j]) ** 2 for j, fit in enumerate(fits)]))
    best = Ridge(rows * alone.RATIOS[np.argmin(errors)]).fit(x, t)
    np.testing.assert_allclose(alone.ridge(x, t), [*best.coef_, best.intercept_], rtol=1e-7)
    cv = RidgeCV(rows * alone.RATIOS).fit(x, t)
    np.testing.assert_allclose(alone.ridge(x, t), [*cv.coef_, cv.intercept_], rtol=1e-6)


def test_ridge_alone_of_one_row_and_of_equal_columns():
    np.testing.assert_allclose(alone.ridge(np.ones((1, 3)), np.array([7.0])), [0, 0, 0, 7], atol=1e-12)
    found = alone.ridge(np.ones((5, 2)), np.arange(5.0))
    np.testing.assert_allclose(found, [0, 0, 2], atol=1e-12)


def test_logistic_regression_alone_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    x, weights = rng.standard_normal((80, 4)), np.array([1.0, 3.0, 1.0])
    y = (x[:, 0] + rng.standard_normal(80) > 0.7).astype(int)  # nobody of class 2
    common = {"class_weight": {0: 1, 1: 3}, "max_iter": 1000}
    cv = LogisticRegressionCV(
        Cs=np.logspace(-3, 3, 7), cv=5, scoring="neg_log_loss", l1_ratios=(0,), use_legacy_attributes=False, **common
    )
    found = np.exp(alone.logistic(x, y, x[:9], weights))
    known = 1 - 1 / 83  # the smoothed share of classes with rows
    np.testing.assert_allclose(found[0, :, :2], known * cv.fit(x, y).predict_proba(x[:9]), rtol=1e-6)
    np.testing.assert_allclose(found[:, :, 2], 1 / 83)
    single = np.where(np.arange(80) == 0, 1, 0)  # one row of a class: no folds
    fit = LogisticRegression(**common).fit(x, single)
    np.testing.assert_allclose(
        np.exp(alone.logistic(x, single, x[:9], weights))[0, :, :2], known * fit.predict_proba(x[:9])
    )
    constant = np.exp(alone.logistic(x[:6], np.ones(6, dtype=int), x[:2], weights))
    np.testing.assert_allclose(constant[0], [[1 / 9, 7 / 9, 1 / 9]] * 2)


def test_ties_are_reported_as_ties():
    own, of_alone = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 2.0, 5.0])
    assert alone.compared(own, of_alone, 1) == {"better_than_alone": 25, "as_good_as_alone": 50}
    assert alone.compared(own, of_alone, -1) == {"better_than_alone": 25, "as_good_as_alone": 50}
    zeros = np.zeros(2)
    assert alone.compared(zeros, zeros, 1) == {"better_than_alone": 0, "as_good_as_alone": 100}


def test_alone_in_linear_regression():
    p = small("fedavg", "linear_regression", "preset=none").original
    found = p.clients_table(*p.start())
    squares, unpenalised = [], []
    for i, rows in enumerate(p.splits["train"]):
        x, t = p.train.x[rows].numpy()[:, :-1], p.train.y[rows].numpy()
        tests = p.local_set.owner == i
        z, target = p.test_examples.x.numpy()[tests, :-1], p.test_examples.y.numpy()[tests]
        cv = RidgeCV(len(t) * alone.RATIOS).fit(x, t)
        squares.append((cv.predict(z) - target) ** 2)
        least = np.linalg.lstsq(np.column_stack([x, np.ones(len(t))]), t, rcond=None)[0]
        unpenalised.append(np.sqrt(np.mean((z @ least[:-1] + least[-1] - target) ** 2)))
    np.testing.assert_allclose(found["alone_unpenalised_rmse"], unpenalised, rtol=1e-6)
    np.testing.assert_allclose(found["alone_rmse"], [np.sqrt(of.mean()) for of in squares], rtol=1e-6)
    assert p.evaluate(*p.start())["alone_rmse"] == pytest.approx(np.sqrt(np.mean(np.concatenate(squares))))


def test_alone_in_classification():
    p = classification("problem.alone=true", "partitioner=iid", "problem.model=softmax")
    hits = []
    for i, rows in enumerate(p.splits["train"]):
        own = p.local_set.rows[p.local_set.owner == i]
        x, y = p.train.x.double().numpy(), p.train.y.numpy()
        scores = alone.logistic(x[rows], y[rows], x[own], np.ones(p.classes))
        hits.append(scores[0].argmax(1) == y[own])
    found = p.evaluate(*p.start())
    assert found["alone_accuracy"] == pytest.approx(100 * np.mean(np.concatenate(hits)))
    images = classification()
    assert "better_than_alone" not in images.evaluate(*images.start())
    with pytest.raises(UserError, match=r"problem\.alone=true: clients have no test examples"):
        classification("problem.alone=true", "problem.own_test=null")
    with pytest.raises(UserError, match=r"problem\.alone_steps: was removed; set problem\.alone=true"):
        compose(["algo=fedavg", "problem=classification", "problem.alone_steps=20"])


def test_a_ridge_leaves_the_intercept_free():
    """The minimiser for one client is scikit-learn's Ridge, whose intercept is free: targets are far from 0."""
    words = ["partitioner.clients=1", "participation.cohort=null", "problem.ridge=0.1", "preset=none"]
    p = small("fedavg", "linear_regression", *words).original
    x, t = p.train.x.numpy()[:, :-1] + 2, p.train.y.numpy() + 50
    p.train.x[:, :-1] += 2
    p.train.y += 50
    A, c, _ = p.moments("train")
    fit = Ridge(0.1 * len(t)).fit(x, t)
    exact = np.linalg.solve(A[0].numpy() + np.diag(p._ridges.numpy()), c[0].numpy())
    np.testing.assert_allclose(exact, [*fit.coef_, fit.intercept_], rtol=1e-8)
    at = torch.from_numpy(np.append(fit.coef_, fit.intercept_))
    sample = p.sample(0, {"train": p.pooled()})
    assert torch.linalg.norm(p.f.gradient(at, sample)) < 1e-8
    torch.testing.assert_close(torch.func.grad(lambda y: p.f(y, sample))(at + 1), p.f.gradient(at + 1, sample))


def test_which_parameters_are_biases():
    net = build("mlp", [3], [4], 2, 0)
    assert net.penalised.tolist() == [1] * 12 + [0] * 3 + [1] * 6 + [0] * 2
    norm = FlatModule(nn.Sequential(nn.Linear(4, 3, bias=False), nn.LayerNorm(3), nn.GRU(3, 1)), [4])
    assert norm.penalised.tolist() == [1] * 12 + [1] * 3 + [0] * 3 + [1] * 12 + [0] * 6
    assert build("cnn", [], [1, 4, 4], 2, 0).penalised.sum() == 16 * 9 + 32 * 16 * 9 + 2 * 32


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_weights_of_classes_and_ridge_in_classification(model):
    words = [f"problem.model={model}", "problem.widths=[5]", "problem.ridge=0.3", "problem.class_weights=balanced"]
    p = classification(*words, "hardware.dtype=float64")
    rows = np.concatenate(list(p.splits["train"]))
    counts = np.bincount(p.train.y.numpy()[rows], minlength=p.classes)
    c = torch.from_numpy(len(rows) / (p.classes * counts))
    sample = p.sample(0, {"train": p.pooled()})
    (x,), batch = p.start(), sample["train"]
    factors = torch.cat([torch.full((v.numel(),), 0.3 * (v.ndim > 1)) for v in p.net.views(x)]).to(x)

    def f(x):
        ce = nn.functional.cross_entropy(p.net(x, batch.x), batch.y, reduction="none")
        return (batch.weight * c[batch.y] * ce).sum() + 0.5 * (factors * x**2).sum()

    torch.testing.assert_close(p.f(x, sample), f(x))
    gradient = torch.func.grad(f)
    torch.testing.assert_close(p.f.gradient(x, sample), gradient(x))
    anchor, plus = x + 0.1, torch.ones_like(x)
    for given, at in ((plus, anchor), (None, anchor), (plus, None), (None, None)):
        expected = gradient(x) - (0 if at is None else gradient(at)) + (0 if given is None else given)
        torch.testing.assert_close(p.f.step(x.clone(), sample, 0.2, given, at), x - 0.2 * expected)
    direction, h = torch.ones_like(x), 1e-5
    slope = (p.f(x + h * direction, sample) - p.f(x - h * direction, sample)) / (2 * h)
    torch.testing.assert_close(slope, p.f.gradient(x, sample) @ direction, rtol=1e-6, atol=1e-8)
    assert p.evaluate(x)["train_loss"] == pytest.approx(float(f(x)))


def test_engines_agree_on_weights_of_classes():
    from fedopt.testing.harness import steps

    words = ["problem.ridge=0.3", "problem.class_weights={3: 5}", "problem.model=linear", "preset=none"]
    ends = [
        steps(small("scaffold", "classification", *words, f"hardware.engine={engine}"), 2)[-1]
        for engine in ("vectorised", "one_by_one")
    ]
    torch.testing.assert_close(ends[0].x, ends[1].x)


def test_weights_of_classes_must_fit():
    p = classification("problem.class_weights={3: 5}")
    assert p._class_weight.tolist() == [1, 1, 1, 5, 1, 1, 1, 1, 1, 1]
    with pytest.raises(UserError, match="there is no class cat; choose from 0, 1"):
        classification("problem.class_weights={cat: 2}")
