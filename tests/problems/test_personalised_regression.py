"""Personalised regression against least squares in NumPy, and finite differences."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from support.derivatives import F64, Given, central_differences, full, normal

from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import ByColumn, Iid, Proportions
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems.personalised_regression import PersonalisedRegression
from fedopt.testing.harness import small, steps

UNEQUAL = Proportions(4, [9, 4, 2, 1])
LAM = 0.4


def problem(data=None, partitioner=UNEQUAL, **changes):
    fields = {"lam": LAM, "validation": 0.3, "weighting": "samples", "examples": 60, "features": 3, "spread": 0.5}
    built = PersonalisedRegression(World(0, partitioner, data, dtype=F64), **(fields | changes))
    built.deploys(own=False, common=True)
    return built


def schools(seed=0):
    """A table of three schools of unequal size, with two columns that sum to one, and tests of a fourth school."""
    rng = np.random.default_rng(seed)
    owner, owner_test = np.array(["b", "a", "c"]).repeat([12, 7, 5]), np.array(["a", "c", "new", "b", "b"])

    def some(n):
        sex = rng.integers(2, size=n)
        x = np.stack([rng.standard_normal(n), sex, 1 - sex], axis=1)
        return x, x @ [1.0, 0.5, -0.5] + rng.standard_normal(n)

    return LabelledData(*some(24), *some(5), pixels="raw", owners=owner, owners_test=owner_test)


CASES = {
    "made": lambda: problem(),
    "equal": lambda: problem(weighting="uniform", partitioner=Iid(4)),
    "schools": lambda: problem(Given(schools()), ByColumn()),
}


def arrays(p, split, client):
    rows = p.splits[split][client]
    return p.train.x[rows].numpy(), p.train.y[rows].numpy()


def fitted(p, client, x):
    """y_i(x), as ordinary least squares with a row for each coefficient of x."""
    z, t = arrays(p, "train", client)
    rows = [z / np.sqrt(len(t)), np.sqrt(LAM) * np.eye(len(x))]
    return np.linalg.lstsq(np.concatenate(rows), np.concatenate([t / np.sqrt(len(t)), np.sqrt(LAM) * x]))[0]


def residuals(p, x):
    """Of all validation examples, so that half the sum of their squares is the outer objective."""
    parts = []
    for i, weight in enumerate(p.weights):
        z, t = arrays(p, "val", i)
        parts.append((z @ fitted(p, i, x) - t) * np.sqrt(weight / len(t)))
    return np.concatenate(parts)


def objective(p, x):
    return 0.5 * np.sum(residuals(p, np.asarray(x)) ** 2)


@pytest.mark.parametrize("case", CASES)
def test_closed_forms(case):
    p = CASES[case]()
    x = normal(4, seed=1)
    np.testing.assert_allclose(p.inner_solutions(x), [fitted(p, i, x.numpy()) for i in range(p.clients)], rtol=1e-9)
    assert p.evaluate(x)["objective"] == pytest.approx(objective(p, x), rel=1e-10)
    np.testing.assert_allclose(p.hypergradient(x), central_differences(lambda x: objective(p, x), x), atol=1e-8)
    at_0 = residuals(p, np.zeros(4))
    jacobian = np.stack([residuals(p, unit) - at_0 for unit in np.eye(4)], axis=1)
    best = np.linalg.lstsq(jacobian, -at_0, rcond=1e-8)[
        0
    ]  # of least norm where two columns and the intercept are one too many
    assert np.linalg.matrix_rank(jacobian, tol=1e-8) == (3 if case == "schools" else 4)
    np.testing.assert_allclose(p.solution()[0], best, atol=1e-9)
    found = p.evaluate(x)
    assert found["excess"] == pytest.approx(objective(p, x) - objective(p, best), rel=1e-9)
    assert found["distance"] == pytest.approx(np.linalg.norm(x.numpy() - best), rel=1e-9)


def test_the_functions_are_those_of_the_closed_forms():
    """g_i is least at y_i(x), and the mean of f_i there is the objective."""
    p, x = problem(), normal(4, seed=2)
    y, samples = p.inner_solutions(x), [full(p, i) for i in range(p.clients)]
    for y_i, sample in zip(y, samples, strict=True):
        np.testing.assert_allclose(central_differences(lambda y, s=sample: p.g(x, y, s), y_i), 0, atol=1e-8)
    values = [float(p.f(x, y_i, sample)) for y_i, sample in zip(y, samples, strict=True)]
    assert p.evaluate(x)["objective"] == pytest.approx(p.weights @ values, rel=1e-10)


def test_each_test_pupil_is_predicted_by_the_model_of_the_school():
    data = schools()
    p, x = problem(Given(data), ByColumn()), normal(4, seed=3)
    models = {name: fitted(p, i, x.numpy()) for i, name in enumerate("abc")} | {"new": x.numpy()}
    predicted = [np.append(z, 1) @ models[owner] for z, owner in zip(data.x_test, data.owners_test, strict=True)]
    assert p.evaluate(x)["test_rmse"] == pytest.approx(np.sqrt(np.mean((predicted - data.y_test) ** 2)), rel=1e-12)


@pytest.mark.parametrize("algo", ["fedbio_local", "fedbioacc_local"])
def test_methods_of_local_lower_levels_approach_the_minimum(algo):
    sizes = ["algo.eta=0.3", "algo.gamma=0.2", "algo.tau=0.2", "algo.B=null", *["algo.B1=null"] * ("acc" in algo)]
    words = ["partitioner=proportions", "partitioner.shares=[9,4,2,1]", "partitioner.clients=6", "problem.examples=120"]
    e = small(algo, "personalised_regression", *sizes, *words, "participation.cohort=null", "preset=none")
    excess = [e.original.evaluate(*e.algorithm.output(state))["excess"] for state in steps(e, 60)]
    assert excess[-1] < 0.05 * excess[0]


def test_images_and_classes_are_refused():
    rng = np.random.default_rng(0)
    images = LabelledData(rng.random((8, 1, 2, 2)), np.arange(8) % 2, rng.random((2, 1, 2, 2)), np.arange(2))
    with pytest.raises(UserError, match="needs a table"):
        problem(Given(images), Iid(2))


def test_metrics_of_the_clients_models():
    """The objective at any x is that of least squares with the pull to x; alone is a ridge."""
    p = problem()
    x = normal(4, seed=1)
    y, rmse, value = [], [], 0
    x_test, t_test = p.test_examples.x.numpy(), p.test_examples.y.numpy()
    for i, weight in enumerate(p.weights):
        z, t = arrays(p, "train", i)
        y.append(np.linalg.solve(z.T @ z / len(t) + LAM * np.eye(4), z.T @ t / len(t) + LAM * x.numpy()))
        own = np.arange(len(t_test)) % 4 == i
        fit = RidgeCV(len(t) * np.logspace(3, -3, 25)).fit(z[:, :-1], t)
        of_models = [
            np.mean((x_test[own] @ m - t_test[own]) ** 2) ** 0.5 for m in (y[i], np.append(fit.coef_, fit.intercept_))
        ]
        rmse.append(of_models)
        z, t = arrays(p, "val", i)
        value += weight * np.mean((z @ y[i] - t) ** 2) / 2
    np.testing.assert_allclose(p.inner_solutions(x), y, rtol=1e-9)
    found = p.evaluate(x)
    assert found["objective"] == pytest.approx(value, rel=1e-10)
    (own, alone) = np.array(rmse).T
    assert found["personal_rmse"] == pytest.approx(own.mean(), rel=1e-10)
    counts = np.bincount(np.arange(len(t_test)) % 4)
    assert found["alone_rmse"] == pytest.approx(np.sqrt(counts @ alone**2 / counts.sum()), rel=1e-7)
    assert found["better_than_alone"] == 100 * np.mean(own < alone)
    for i in range(4):
        sample = full(p, i)
        np.testing.assert_allclose(
            central_differences(lambda y, s=sample: p.g(x, y, s), torch.tensor(y[i])), 0, atol=1e-8
        )
