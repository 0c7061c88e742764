"""Problems against closed forms, NumPy and finite differences; the reductions; the oracles against dense derivatives."""

import math

import numpy as np
import pytest
import torch
from torch.autograd.functional import hessian, jacobian

from fedopt import oracles
from fedopt.data.datasets import LabelledData
from fedopt.data.partitioners import Dirichlet, Iid
from fedopt.data.world import World
from fedopt.problems.classes import (
    Bilevel,
    Compositional,
    Hierarchical,
    Minimax,
    MinimaxAsBilevel,
    Minimisation,
    MinimisationAsCompositional,
    TwoLevel,
    TwoLevelAsBilevel,
    class_of,
    covered,
    reduce,
)
from fedopt.problems.classification import Classification
from fedopt.problems.imbalanced_mnist import ImbalancedMnist
from fedopt.problems.mco import Mco
from fedopt.problems.quadratic_bilevel import QuadraticBilevel
from fedopt.problems.quadratic_compositional import QuadraticCompositional
from fedopt.problems.saddle import Saddle

F64 = torch.float64


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def full(problem, client):
    """The sample of all examples of a client."""
    return problem.sample(client, {name: whole(split[client]) for name, split in problem.splits.items()})


def whole(rows):
    return torch.from_numpy(rows), torch.full((len(rows),), 1 / len(rows), dtype=F64)


def mean(problem, fn):
    """(1/M) sum_i fn(sample of all examples of client i)."""
    return sum(fn(full(problem, i)) for i in range(problem.clients)) / problem.clients


def central_differences(fn, x, step=1e-5):
    """The gradient of a scalar function, or the Jacobian of a vector one: [..., d]."""
    x = np.asarray(x, dtype=np.float64)
    columns = []
    for e in np.eye(len(x)) * step:
        high, low = (np.asarray(fn(torch.from_numpy(z)), dtype=np.float64) for z in (x + e, x - e))
        columns.append((high - low) / (2 * step))
    return np.stack(columns, axis=-1)


# mco


def mco(seed=0, clients=3, **changes):
    # 101 examples: clients of unequal sizes, whose means count the same
    fields = {"d": 4, "examples": 101, "lam": 0.7, "delta": 0.2, "noise_variance": 0.3, "x0": 0.5, **changes}
    return Mco(**fields).build(World(seed, Iid(clients), dtype=F64))


def test_mco_composes_to_the_direct_formula():
    p = mco()
    a, b, x = p.a.numpy(), p.b.numpy(), normal(4, seed=1).numpy()
    parts = [p.splits["train"][i] for i in range(3)]
    assert len({len(rows) for rows in parts}) == 2

    def E(values):
        return np.mean([values[rows].mean() for rows in parts])

    U = (b - (a @ x) ** 2) ** 2
    objective = E(U) + 0.7 * math.sqrt(E(np.maximum(0, U - E(U)) ** 2) + 0.2)

    z = torch.from_numpy(x)
    for n, size in enumerate([4, 5, 2]):
        assert z.shape == (size,)
        z = mean(p, lambda sample, n=n, z=z: p.level(n, z, sample))
    assert p.dims == (4, 5, 2)
    assert float(z) == pytest.approx(objective, rel=1e-12)
    metrics = p.metrics(torch.from_numpy(x))
    assert metrics["objective"] == pytest.approx(objective, rel=1e-12)
    distance = min(np.linalg.norm(x - p.optimum.numpy()), np.linalg.norm(x + p.optimum.numpy()))
    assert metrics["distance"] == pytest.approx(distance, rel=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_mco_solutions(sign):
    p = mco(noise_variance=0.0)
    at = p.metrics(sign * p.optimum)
    assert at["objective"] == pytest.approx(0.7 * math.sqrt(0.2), rel=1e-9)
    assert at["distance"] == 0
    for seed in range(3):
        assert p.metrics(sign * p.optimum + 0.01 * normal(4, seed=seed))["objective"] > at["objective"]


def test_mco_last_level_takes_negative_estimates():
    assert float(mco().level(2, torch.tensor([3.0, -5.0], dtype=F64), None)) == pytest.approx(3 + 0.7 * math.sqrt(0.2))


def test_mco_start():
    (x,) = mco().start()
    assert x.tolist() == [0.5] * 4


def test_mco_distributions():
    # E tr(C^2) = E tr(A'A) = d^2, whose standard deviation is d sqrt(2) as tr(A'A) is chi-squared.
    draws = [mco(seed, clients=1, d=3, examples=3000) for seed in range(150)]
    square = np.mean([np.trace(np.linalg.matrix_power(p.a.numpy().T @ p.a.numpy() / 3000, 2)) for p in draws])
    assert square == pytest.approx(9, abs=5 * 3 * math.sqrt(2 / 150))
    noise = np.concatenate([(p.b - (p.a @ p.optimum) ** 2).numpy() for p in draws])
    assert noise.var() == pytest.approx(0.3, rel=0.02)
    assert noise.mean() == pytest.approx(0, abs=0.01)
    assert np.mean([(p.optimum**2).numpy() for p in draws]) == pytest.approx(1, abs=5 * math.sqrt(2 / 450))


# quadratic_bilevel


def quadratic(seed=0, clients=4, **changes):
    fields = {"dx": 3, "dy": 5, "conditioning": 10.0, "heterogeneity": 1.0, "noise": 2.0, "examples": 120, **changes}
    return QuadraticBilevel(**fields).build(World(seed, Iid(clients), dtype=F64))


@pytest.mark.parametrize(
    "changes", [{}, {"dx": 6, "dy": 2}, {"clients": 1}, {"heterogeneity": 5.0, "conditioning": 1.0}]
)
def test_quadratic_closed_forms(changes):
    p = quadratic(**changes)
    x = normal(p.dx, seed=1)

    def outer(x):
        return mean(p, lambda sample: p.f(x, p.inner_solution(x), sample))

    y = p.inner_solution(x)
    inner_gradient = central_differences(lambda y: mean(p, lambda sample: p.g(x, y, sample)), y)
    np.testing.assert_allclose(inner_gradient, 0, atol=1e-8)
    np.testing.assert_allclose(p.hypergradient(x), central_differences(outer, x), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(p.hypergradient(p.optimum), 0, atol=1e-12)
    np.testing.assert_allclose(central_differences(outer, p.optimum), 0, atol=1e-8)
    for seed in range(5):  # a minimum
        assert outer(p.optimum + 0.1 * normal(p.dx, seed=seed)) > outer(p.optimum)

    metrics = p.metrics(x, y)
    assert metrics["objective"] == pytest.approx(float(outer(x)), rel=1e-10)
    assert metrics["distance"] == pytest.approx(float((x - p.optimum).norm()), rel=1e-12)
    assert metrics["hypergradient_norm"] == pytest.approx(np.linalg.norm(central_differences(outer, x)), rel=1e-7)


def second_derivatives(p, client):
    """Of g in y, and of f in (x, y)."""
    sample = full(p, client)
    x, y = normal(p.dx, seed=1), normal(p.dy, seed=2)
    of_f = hessian(lambda u: p.f(u[: p.dx], u[p.dx :], sample), torch.cat([x, y]))
    return hessian(lambda y: p.g(x, y, sample), y), of_f


@pytest.mark.parametrize(("heterogeneity", "exact"), [(0.0, True), (1.0, False)])
def test_quadratic_conditioning_and_heterogeneity(heterogeneity, exact):
    p = quadratic(heterogeneity=heterogeneity)
    matrices = [second_derivatives(p, i) for i in range(p.clients)]
    for matrix in (m for of_client in matrices for m in of_client):
        eigenvalues = torch.linalg.eigvalsh(matrix)
        if exact:
            np.testing.assert_allclose(eigenvalues, np.linspace(0.1, 1, len(matrix)), rtol=1e-9)
        assert 0.1 - 1e-9 <= eigenvalues[0] <= eigenvalues[-1] <= 1 + 1e-9
    for one, other in zip(matrices[0], matrices[1], strict=True):
        assert torch.allclose(one, other) == exact


def test_quadratic_noise():
    noisy, quiet = quadratic(examples=4000), quadratic(examples=4000, noise=0.0)
    x, y = normal(3, seed=1), normal(5, seed=2)
    one = torch.ones(1, dtype=F64)
    for client in range(2):
        gradients = {}
        for name, p in (("noisy", noisy), ("quiet", quiet)):
            of_all = full(p, client)
            gradients[name] = [
                torch.func.grad(p.g, 1)(x, y, of_all),
                torch.func.grad(p.f, 0)(x, y, of_all),
                torch.func.grad(p.f, 1)(x, y, of_all),
            ]
        for a, b in zip(gradients["noisy"], gradients["quiet"], strict=True):  # a full local batch has none
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
        single = {"g": [], "f": []}
        for k in range(500):
            rows = {name: (torch.from_numpy(noisy.splits[name][client][k : k + 1]), one) for name in ("train", "val")}
            sample = noisy.sample(client, rows)
            single["g"].append(torch.func.grad(noisy.g, 1)(x, y, sample))
            single["f"].append(torch.cat(torch.func.grad(noisy.f, (0, 1))(x, y, sample)))
        exact = {"g": gradients["quiet"][0], "f": torch.cat(gradients["quiet"][1:])}
        for name, rows in single.items():  # all 500 of a client's examples of the split
            deviation = torch.stack(rows) - exact[name]
            np.testing.assert_allclose(deviation.mean(0), 0, atol=1e-10)
            np.testing.assert_allclose(deviation.std(0), 2.0, rtol=0.2)


def test_quadratic_objectives_use_their_own_split():
    p, x, y = quadratic(), normal(3, seed=1), normal(5, seed=2)
    train, val = (p.splits[name][0] for name in ("train", "val"))
    samples = [
        p.sample(0, {"train": whole(train[i : i + 2]), "val": whole(val[j : j + 2])})
        for i, j in [(0, 0), (2, 0), (0, 2)]
    ]
    # g sees the training examples alone, both linear terms of f the validation examples alone.
    g, f_x, f_y = (
        [torch.func.grad(fn, argument)(x, y, sample) for sample in samples]
        for fn, argument in ((p.g, 1), (p.f, 0), (p.f, 1))
    )
    for gradients, own, other in ((g, 1, 2), (f_x, 2, 1), (f_y, 2, 1)):
        assert torch.equal(gradients[other], gradients[0])
        assert (gradients[own] != gradients[0]).all()


# quadratic_compositional


def two_levels(clients=4, **changes):
    fields = {"d0": 3, "d1": 5, "conditioning": 10.0, "heterogeneity": 1.0, "noise": 2.0, "examples": 120, **changes}
    return QuadraticCompositional(**fields).build(World(0, Iid(clients), dtype=F64))


@pytest.mark.parametrize("changes", [{}, {"d0": 5}, {"clients": 1}, {"heterogeneity": 5.0, "conditioning": 1.0}])
def test_two_level_quadratic_closed_forms(changes):
    p = two_levels(**changes)
    x = normal(p.d0, seed=1)
    assert p.dims == (p.d0, p.d1)

    def composed(x):
        y = mean(p, lambda sample: p.level(0, x, sample))
        return mean(p, lambda sample: p.level(1, y, sample))

    np.testing.assert_allclose(p.gradient(x), central_differences(composed, x), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(p.gradient(p.optimum), 0, atol=1e-12)
    for seed in range(5):  # a minimum
        assert composed(p.optimum + 0.1 * normal(p.d0, seed=seed)) > composed(p.optimum)
    metrics = p.metrics(x)
    assert metrics["objective"] == pytest.approx(float(composed(x)), rel=1e-10)
    assert metrics["distance"] == pytest.approx(float((x - p.optimum).norm()), rel=1e-12)
    assert metrics["hypergradient_norm"] == pytest.approx(np.linalg.norm(central_differences(composed, x)), rel=1e-7)


def test_two_level_quadratic_noise_and_heterogeneity():
    noisy, quiet, equal = two_levels(), two_levels(noise=0.0), two_levels(heterogeneity=0.0)
    for i in range(4):
        of_noisy, of_quiet = full(noisy, i), full(quiet, i)
        for a, b in zip(of_noisy, of_quiet, strict=True):  # a full local batch has none
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
        for a, b in zip(full(equal, i), full(equal, 0), strict=True):
            torch.testing.assert_close(a, b)
        A, Q = full(equal, i).A, full(equal, i).Q
        torch.testing.assert_close(A.T @ A, torch.eye(3, dtype=F64))
        np.testing.assert_allclose(torch.linalg.eigvalsh(Q), np.linspace(0.1, 1, 5), rtol=1e-9)
        singles = [noisy.sample(i, {"train": whole(row[None])}) for row in noisy.splits["train"][i]]
        for name in "ce":
            deviation = torch.stack([getattr(s, name) - getattr(of_quiet, name) for s in singles])
            np.testing.assert_allclose(deviation.mean(0), 0, atol=1e-10)
            assert 1.5 < deviation.std() < 2.5


def test_two_level_quadratic_needs_a_unique_solution():
    with pytest.raises(ValueError, match="d0 must be at most d1"):
        two_levels(d0=6)


def test_what_clients_share_does_not_depend_on_their_number():
    one, many = (two_levels(clients=M, heterogeneity=0.0) for M in (1, 7))
    for a, b in zip(full(one, 0), full(many, 6), strict=True):
        torch.testing.assert_close(a, b)


# saddle


def test_saddle_closed_forms():
    fields = {"d": 4, "s": 3.0, "lam": 2.0, "t_max": 0.5, "x0": 7.0}
    p = Saddle(**fields).build(World(0, Iid(6), dtype=F64))
    x = normal(4, seed=1)
    t = p.matrices["t"].numpy()
    assert ((t >= 0) & (t <= 0.5)).all()
    np.testing.assert_allclose(p.linear["b"].mean(0), 0, atol=1e-12)
    assert [v.tolist() for v in p.start()] == [[7.0] * 4] * 2

    def f(x, y):
        return mean(p, lambda sample: p.f(x, y, sample))

    sample = full(p, 2)
    b, y = p.linear["b"][2].numpy(), normal(4, seed=2).numpy()
    direct = -(0.5 * y @ y - b @ y + y @ (t[2] * np.eye(4)) @ x.numpy()) + 2.0 / 2 * x.numpy() @ x.numpy()
    assert float(p.f(x, torch.from_numpy(y), sample)) == pytest.approx(direct, rel=1e-12)

    best = -t.mean() * x  # the maximiser
    np.testing.assert_allclose(central_differences(lambda y: f(x, y), best), 0, atol=1e-8)
    metrics = p.metrics(x, torch.from_numpy(y))
    assert metrics["objective"] == pytest.approx(float(f(x, best)), rel=1e-10)
    assert metrics["distance"] == metrics["distance_x"] == pytest.approx(float(x.norm()), rel=1e-12)
    assert metrics["distance_y"] == pytest.approx(np.linalg.norm(y), rel=1e-12)
    zero = torch.zeros(4, dtype=F64)
    np.testing.assert_allclose(central_differences(lambda x: f(x, zero), zero), 0, atol=1e-8)
    assert torch.equal(p.optimum, zero)


def test_saddle_spread():
    fields = {"d": 50, "s": 3.0, "lam": 2.0, "t_max": 0.5, "x0": 7.0}
    p = Saddle(**fields).build(World(0, Iid(200), dtype=F64))
    assert float(p.linear["b"].std()) == pytest.approx(3, rel=0.03)
    assert float(p.matrices["t"].mean()) == pytest.approx(0.25, rel=0.1)


# Classification, with and without tuning of the loss


class Given:
    """A data source that holds the data itself."""

    def __init__(self, data):
        self.data = data

    def load(self):
        return self.data


@pytest.fixture(scope="module")
def images():
    """Three classes, of unequal sizes, of 2 x 2 pixels; the pixels of test examples are recognisable: all above 200."""
    rng = np.random.default_rng(0)
    y_train, y_test = rng.permutation(np.repeat([0, 1, 2], [150, 90, 120])), rng.integers(0, 3, 50)
    x_train, x_test = rng.integers(0, 200, (360, 1, 2, 2)), rng.integers(201, 256, (50, 1, 2, 2))
    return LabelledData(x_train.astype(np.uint8), y_train, x_test.astype(np.uint8), y_test)


def normalised(data, x):
    pixels = data.x_train.astype(np.float64)
    return (x.reshape(len(x), -1) - pixels.mean()) / pixels.std()


def tuned_problem(data, partitioner=None, **changes):
    fields = {
        "model": "mlp",
        "widths": [3],
        "largest": 80,
        "imbalance": 0.25,
        "validation": 0.2,
        "ridge": 0.0,
        **changes,
    }
    return ImbalancedMnist(**fields).build(World(0, partitioner or Iid(4), Given(data), dtype=F64))


def plain_problem(data, partitioner=None):
    return Classification("mlp", [3], None, 0.0, None).build(World(0, partitioner or Iid(4), Given(data), dtype=F64))


def mlp_logits(flat, x):
    """4-3-3, from the flat parameters."""
    W, b, V, c = np.split(np.asarray(flat), np.cumsum([12, 3, 9]))
    return np.maximum(0, x @ W.reshape(3, 4).T + b) @ V.reshape(3, 3).T + c


def losses(logits, y):
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


def long_tail_rows(labels):
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate([80, 40, 20])]))


def point(p):
    return [0.7 * normal(len(variable), seed=j) for j, variable in enumerate(p.start())]


def padded_batch(p):
    """Rows of both splits with unequal weights, the last of which is padding."""
    weight = torch.tensor([0.5, 0.2, 0.3, 0.0], dtype=F64)
    rows = {name: np.array([*split[1][:3], 0]) for name, split in p.splits.items()}
    return rows, weight, p.sample(1, {name: (torch.from_numpy(index), weight) for name, index in rows.items()})


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_loss_tuning(images, ridge):
    p = tuned_problem(images, ridge=ridge)
    kept = long_tail_rows(images.y_train)
    x_all, y_all = normalised(images, images.x_train[kept]), images.y_train[kept]
    np.testing.assert_array_equal(p.labels, y_all)
    x, y = point(p)
    delta, shift = np.split(x.numpy(), 2)
    rows, weight, sample = padded_batch(p)

    logits = mlp_logits(y, x_all)
    tuned = losses(logits / (1 + np.exp(-delta)) + shift, y_all)
    inner = weight.numpy() @ tuned[rows["train"]] + ridge / 2 * np.sum(y.numpy() ** 2)
    assert float(p.g(x, y, sample)) == pytest.approx(inner, rel=1e-12)

    val = p.splits["val"].rows
    assert set(p.splits["val"].sizes) == {7}
    counts = np.bincount(y_all[val], minlength=3)
    class_weight = 28 / (3 * counts)
    balanced = class_weight[y_all] * losses(logits, y_all)
    assert float(p.f(x, y, sample)) == pytest.approx(weight.numpy() @ balanced[rows["val"]], rel=1e-12)

    metrics = p.metrics(x, y)
    train_loss = np.mean([tuned[rows].mean() for rows in p.splits["train"]])
    assert metrics["train_loss"] == pytest.approx(train_loss, rel=1e-12)
    class_means = [losses(logits, y_all)[val][y_all[val] == c].mean() for c in range(3)]
    assert metrics["val_loss"] == pytest.approx(np.mean(class_means), rel=1e-12)
    assert_test_metrics(metrics, images, y)


def assert_test_metrics(metrics, images, parameters):
    logits = mlp_logits(parameters, normalised(images, images.x_test))
    assert metrics["test_loss"] == pytest.approx(losses(logits, images.y_test).mean(), rel=1e-12)
    assert metrics["test_accuracy"] == pytest.approx(100 * np.mean(logits.argmax(1) == images.y_test), rel=1e-12)


@pytest.mark.parametrize("partitioner", [Iid(4), Dirichlet(6, 0.5, min_size=5)])
def test_validation_loss_is_balanced(images, partitioner):
    p = tuned_problem(images, partitioner)
    x, y = point(p)
    kept = long_tail_rows(images.y_train)
    of_each = losses(mlp_logits(y, normalised(images, images.x_train[kept])), images.y_train[kept])
    # (1/M) sum_i f_i is the mean over classes of the class's mean loss, an example of client i weighing 1 / (M n_i).
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in p.splits["val"]])
    rows = p.splits["val"].rows
    masks = [images.y_train[kept][rows] == c for c in range(3)]
    expected = np.mean([np.average(of_each[rows][mask], weights=weights[mask]) for mask in masks])
    assert float(mean(p, lambda sample: p.f(x, y, sample))) == pytest.approx(expected, rel=1e-12)


def test_classification(images):
    p = plain_problem(images)
    (x,) = point(p)
    rows, weight, sample = padded_batch(p)
    of_each = losses(mlp_logits(x, normalised(images, images.x_train)), images.y_train)
    assert float(p.f(x, sample)) == pytest.approx(weight.numpy() @ of_each[rows["train"]], rel=1e-12)
    metrics = p.metrics(x)
    train_loss = np.mean([of_each[rows].mean() for rows in p.splits["train"]])
    assert metrics["train_loss"] == pytest.approx(train_loss, rel=1e-12)
    assert_test_metrics(metrics, images, x)


@pytest.mark.parametrize("build", [tuned_problem, plain_problem])
def test_clients_never_see_test_examples(images, build):
    p = build(images)
    rows = np.concatenate([split.rows for split in p.splits.values()])
    kept = long_tail_rows(images.y_train) if build is tuned_problem else np.arange(360)
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(kept)))
    seen = {name: np.concatenate([full(p, i)[name].x for i in range(p.clients)]) for name in p.splits}
    for name, split in p.splits.items():
        np.testing.assert_allclose(seen[name], normalised(images, images.x_train[kept[split.rows]]), atol=1e-12)
        assert seen[name].max() < normalised(images, images.x_test).min()


# Reductions


class Toy:
    """The parts of a problem that these tests do not use: a sample is whatever it is given."""

    splits = {}  # noqa: RUF012

    def start(self):
        return (torch.full((3,), 2.0, dtype=F64),)

    def sample(self, client, rows):
        return rows

    def metrics(self, *point):
        return {"first": float(point[0][0]), "variables": len(point)}


class ToySaddle(Toy, Minimax):
    """f_i = -(1/2 |y|^2 - b_i'y + y'A_i x) + lam/2 |x|^2; a sample is (A_i, b_i)."""

    lam = 3.0

    def start(self):
        return torch.ones(3, dtype=F64), torch.zeros(4, dtype=F64)

    def f(self, x, y, sample):
        A, b = sample
        return -(0.5 * y @ y - b @ y + y @ (A @ x)) + 0.5 * self.lam * x @ x


class TwoLevels(Toy, TwoLevel):
    """f_i^0(x) = tanh(A_i x), f_i^1(y) = 1/2 |y - b_i|^4; a sample is (A_i, b_i)."""

    dims = (3, 4)

    def level(self, n, z, sample):
        A, b = sample
        return torch.tanh(A @ z) if n == 0 else 0.5 * torch.sum((z - b) ** 2) ** 2


@pytest.fixture
def clients():
    """Five of them: A_i and b_i."""
    return list(zip(normal(5, 4, 3, seed=1), normal(5, 4, seed=2), strict=True))


def mean_over(clients, fn):
    return sum(fn(sample) for sample in clients) / len(clients)


def hypergradient(p, x, y, clients):
    """Of a bilevel problem with dense matrices: grad_x f - grad^2_xy g [grad^2_yy g]^-1 grad_y f, of the means."""

    def f(x, y):
        return mean_over(clients, lambda s: p.f(x, y, s))

    def g(x, y):
        return mean_over(clients, lambda s: p.g(x, y, s))

    f_x, f_y = jacobian(f, (x, y))
    (_, cross), (_, yy) = hessian(g, (x, y))
    return f_x - cross @ torch.linalg.solve(yy, f_y), cross, yy


def test_minimax_as_bilevel(clients):
    p = MinimaxAsBilevel(ToySaddle())
    x = normal(3, seed=3)
    A, b = (mean_over(clients, lambda s, j=j: s[j]) for j in (0, 1))
    y = b - A @ x  # the maximiser
    for seed in range(3):  # g is least where f is largest
        step = 0.1 * normal(4, seed=seed)
        assert mean_over(clients, lambda s: p.g(x, y, s)) < mean_over(clients, lambda s, d=step: p.g(x, y + d, s))
    gradient, cross, yy = hypergradient(p, x, y, clients)
    # phi(x) = max_y f = 1/2 |b - A x|^2 + lam/2 |x|^2
    torch.testing.assert_close(gradient, -A.T @ (b - A @ x) + 3.0 * x)
    torch.testing.assert_close(yy, torch.eye(4, dtype=F64))
    torch.testing.assert_close(cross, A.T)
    assert [len(v) for v in p.start()] == [3, 4]
    assert p.metrics(x, y) == {"first": float(x[0]), "variables": 2}


def test_two_levels_as_bilevel(clients):
    p = TwoLevelAsBilevel(TwoLevels())
    x = normal(3, seed=3)
    matrices, targets = (np.stack([s[j].numpy() for s in clients]) for j in (0, 1))

    def inner(x):
        return np.tanh(matrices @ np.asarray(x)).mean(0)

    def composed(x):
        return np.mean([0.5 * np.sum((inner(x) - b) ** 2) ** 2 for b in targets])

    y = torch.from_numpy(inner(x))
    gradient, cross, yy = hypergradient(p, x, y, clients)
    np.testing.assert_allclose(gradient, central_differences(composed, x), rtol=1e-6)
    torch.testing.assert_close(yy, torch.eye(4, dtype=F64))
    np.testing.assert_allclose(cross, -central_differences(inner, x).T, rtol=1e-6, atol=1e-9)
    inner_gradient = central_differences(lambda y: mean_over(clients, lambda s: p.g(x, y, s)), y)
    np.testing.assert_allclose(inner_gradient, 0, atol=1e-8)

    # The oracle says the same of one client: Hessian I, cross derivative -J'.
    sample = clients[0]
    v = normal(4, seed=4)
    grad_y = oracles.inner_gradient(p, x, y, sample)
    cross_v, hessian_v = oracles.cross_product(p, x, y, v, sample), oracles.inner_hessian(p, x, y, sample)(v)
    J = central_differences(lambda x: np.tanh(matrices[0] @ np.asarray(x)), x)
    np.testing.assert_allclose(grad_y, y.numpy() - np.tanh(matrices[0] @ x.numpy()), rtol=1e-12)
    np.testing.assert_allclose(cross_v, -J.T @ v.numpy(), rtol=1e-6)
    torch.testing.assert_close(hessian_v, v)

    assert [variable.tolist() for variable in p.start()] == [[2.0] * 3, [0.0] * 4]
    assert p.metrics(x, y) == {"first": float(x[0]), "variables": 1}


class Minimised(Toy, Minimisation):
    """f(x) = sum(a x^3)."""

    def f(self, x, sample):
        return torch.sum(sample * x**3)


def test_minimisation_as_one_level():
    p = MinimisationAsCompositional(Minimised())
    a, x = normal(3, seed=1), normal(3, seed=2)
    assert p.dims == (3,)
    assert float(p.level(0, x, a)) == pytest.approx(float(np.sum(a.numpy() * x.numpy() ** 3)))
    (gradient,) = oracles.msa_maps(p, (x,), [a])
    torch.testing.assert_close(gradient, 3 * a * x**2)


def test_which_reduction():
    saddle, two, one = ToySaddle(), TwoLevels(), Minimised()
    assert reduce(two, (Compositional, Bilevel)) is two
    for problem, solves, expected in [
        (saddle, (Bilevel,), MinimaxAsBilevel),
        (two, (Bilevel,), TwoLevelAsBilevel),
        (one, (Bilevel, Compositional), MinimisationAsCompositional),
    ]:
        reduced = reduce(problem, solves)
        assert type(reduced) is expected
        assert reduced.original is problem
        assert reduced.splits is problem.splits
    with pytest.raises(TypeError, match="minimax to minimisation"):
        reduce(saddle, (Minimisation,))
    with pytest.raises(TypeError, match="compositional to bilevel"):
        reduce(Chain(3), (Bilevel,))
    assert [class_of(p) for p in (saddle, two, Minimised, MinimaxAsBilevel)] == [
        Minimax,
        TwoLevel,
        Minimisation,
        Bilevel,
    ]
    assert covered((Bilevel,)) == {"bilevel", "minimax", "two_level"}
    assert covered((Bilevel, Compositional)) == {"bilevel", "minimax", "compositional", "two_level", "minimisation"}
    assert covered((Hierarchical,)) == {"hierarchical"}


# Oracles against dense derivatives. Each is asked for four clients, one after another and stacked by vmap.

STACK = 4


def both_ways(fn, *stacked):
    """fn of every client's arguments, [(answers of all clients, calls)] of a loop and of vmap."""
    loop, vmapped = oracles.Calls(), oracles.Calls()
    answers = []
    for arguments in zip(*stacked, strict=True):
        with oracles.running(1, False, loop):
            answers.append(fn(*arguments))
    with oracles.running(STACK, True, vmapped):
        at_once = torch.func.vmap(fn)(*stacked)
    return [(tuple(torch.stack(answer) for answer in zip(*answers, strict=True)), loop), (at_once, vmapped)]


def assert_both_ways(fn, dense, calls, *stacked):
    expected = [dense(*arguments) for arguments in zip(*stacked, strict=True)]
    for answers, counted in both_ways(fn, *stacked):
        assert counted == calls
        for got, *wanted in zip(answers, *expected, strict=True):
            torch.testing.assert_close(got, torch.stack(wanted), rtol=1e-10, atol=1e-12)
            assert not got.requires_grad


class Network(Toy, Bilevel):
    """A 3-4-1 network w ([16]) on inputs scaled by x ([3]); a sample is (inputs [B, 3], targets [B])."""

    def output(self, w, inputs):
        return torch.tanh(inputs @ w[:12].view(4, 3).T) @ w[12:]

    def f(self, x, w, sample):
        inputs, targets = sample
        return torch.mean(torch.cos(self.output(w, inputs + x) - targets)) + torch.sum(x**3) * w[0]

    def g(self, x, w, sample):
        inputs, targets = sample
        ridge = torch.exp(x[0]) + 1
        return 0.5 * torch.mean((self.output(w, inputs * x) - targets) ** 2) + 0.5 * ridge * torch.sum(w**2)


class Flat(Toy, Bilevel):
    """What has no derivative of some kind: g = w'Bx is linear in w, f = c'w does not know x; a sample is (B, c)."""

    def f(self, x, w, sample):
        return sample[1] @ w

    def g(self, x, w, sample):
        return w @ (sample[0] @ x)


class Unconcerned(Network):
    """f knows neither variable, g does not know x."""

    def f(self, x, w, sample):
        return sample[1].sum()

    def g(self, x, w, sample):
        return torch.mean(self.output(w, sample[0]) ** 2)


class Constants(Flat):
    """f knows neither variable, and the gradient of g is constant."""

    def f(self, x, w, sample):
        return sample[1].sum()

    def g(self, x, w, sample):
        return sample[1] @ w


BILEVEL = [
    (Network(), 3, 16, normal(STACK, 6, 3, seed=5), normal(STACK, 6, seed=6)),
    (Flat(), 3, 2, normal(STACK, 2, 3, seed=5), normal(STACK, 2, seed=6)),
    (Constants(), 3, 2, normal(STACK, 2, 3, seed=5), normal(STACK, 2, seed=6)),
    (Unconcerned(), 3, 16, normal(STACK, 6, 3, seed=5), normal(STACK, 6, seed=6)),
]


def dense_bilevel(p, x, w, sample):
    def zero(grad, like):
        return torch.zeros_like(like) if grad is None else grad

    x, w = (v.clone().requires_grad_() for v in (x, w))
    value = p.f(x, w, sample)
    f = torch.autograd.grad(value, (x, w), allow_unused=True) if value.requires_grad else (None, None)
    g_w = jacobian(lambda w: p.g(x.detach(), w, sample), w.detach())
    (_, cross), (_, yy) = hessian(lambda x, w: p.g(x, w, sample), (x.detach(), w.detach()))
    return zero(f[0], x).detach(), zero(f[1], w).detach(), g_w, cross, yy


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize(("p", "dx", "dw", "first", "second"), BILEVEL)
def test_msa_maps_of_bilevel_problems(p, dx, dw, first, second, damping):
    def maps(x, w, v, *sample):
        return oracles.msa_maps(p, (x, w, v), [sample], damping)

    def dense(x, w, v, *sample):
        f_x, f_w, g_w, cross, ww = dense_bilevel(p, x, w, sample)
        return f_x - cross @ v, g_w, ww @ v + damping * v - f_w

    variables = (normal(STACK, size, seed=j) for j, size in enumerate((dx, dw, dw)))
    calls = oracles.Calls(grad=2 * STACK, hvp=STACK, jvp=STACK)
    assert_both_ways(maps, dense, calls, *variables, first, second)


@pytest.mark.parametrize(("p", "dx", "dw", "first", "second"), BILEVEL)
def test_gradients_and_products(p, dx, dw, first, second):
    def all_of_them(x, w, v, *sample):
        H = oracles.inner_hessian(p, x, w, sample)
        both = oracles.outer_gradients(p, x, w, sample)
        alone = oracles.outer_gradient_x(p, x, w, sample), oracles.outer_gradient_y(p, x, w, sample)
        inner = oracles.inner_gradient(p, x, w, sample), oracles.cross_product(p, x, w, v, sample)
        return *both, *alone, *inner, H(v), H(torch.sin(v))

    def dense(x, w, v, *sample):
        f_x, f_w, g_w, cross, ww = dense_bilevel(p, x, w, sample)
        return f_x, f_w, f_x, f_w, g_w, cross @ v, ww @ v, ww @ torch.sin(v)

    variables = (normal(STACK, size, seed=j) for j, size in enumerate((dx, dw, dw)))
    calls = oracles.Calls(grad=4 * STACK, hvp=2 * STACK, jvp=STACK)
    assert_both_ways(all_of_them, dense, calls, *variables, first, second)


def spd(dim, seed):
    A = normal(dim, dim, seed=seed)
    return A @ A.T / dim + torch.eye(dim, dtype=F64)


def test_estimators_of_the_inverse():
    """Against powers of a dense matrix: the sum, its terms, whose mean over the chosen number is the sum, and CG."""
    H, b, N, l = spd(6, seed=1), normal(6, seed=2), 5, 9.0
    powers = [torch.linalg.matrix_power(torch.eye(6, dtype=F64) - H / l, n) @ b / l for n in range(N + 1)]

    def product(v, n):
        return H @ v

    torch.testing.assert_close(oracles.neumann_sum(product, b, N, l), sum(powers))
    terms = [oracles.neumann_term(product, b, N, l, chosen) for chosen in range(N)]
    torch.testing.assert_close(sum(terms) / N, sum(powers[:N]))
    torch.testing.assert_close(oracles.conjugate_gradients(product, b, 6), torch.linalg.solve(H, b))
    torch.testing.assert_close(oracles.conjugate_gradients(product, b, 12), torch.linalg.solve(H, b))
    x1 = (b @ b) / (b @ H @ b) * b
    torch.testing.assert_close(oracles.conjugate_gradients(product, b, 1), x1)
    torch.testing.assert_close(oracles.conjugate_gradients(product, 0 * b, 3), 0 * b)
    torch.testing.assert_close(oracles.conjugate_gradients(lambda v, n: -v, b, 3), 0 * b)


def test_neumann_sum_takes_products_in_turn():
    """Of other samples: sum_q prod_{j <= q} (I - theta H_j) b, H_0 first [LocalBSG eq. 3.3]."""
    H, b, theta = [spd(4, seed=s) for s in range(3)], normal(4, seed=9), 0.1
    A = [torch.eye(4, dtype=F64) - theta * h for h in H]
    expected = theta * (b + A[0] @ b + A[1] @ A[0] @ b + A[2] @ A[1] @ A[0] @ b)
    torch.testing.assert_close(oracles.neumann_sum(lambda v, n: H[n] @ v, b, 3, 1 / theta), expected)


class Chain(Toy, Compositional):
    """f^n(z) = sin(A_n z) + b, the last one summed and squared; a sample is b, a number."""

    def __init__(self, N):
        self.dims = (3, 4, 2, 5)[: N + 1]
        sizes = (*self.dims[1:], 6)
        self.A = [normal(b, a, seed=n) for n, (a, b) in enumerate(zip(self.dims, sizes, strict=True))]

    def level(self, n, z, sample):
        out = torch.sin(self.A[n] @ z) + sample
        return torch.sum(out) ** 2 if n == len(self.dims) - 1 else out


@pytest.mark.parametrize("N", [0, 1, 3])
def test_msa_maps_of_chains(N):
    """Each level of a sample of its own."""
    p = Chain(N)

    def maps(b, *u):
        return oracles.msa_maps(p, u, b)

    def dense(b, *u):
        product = jacobian(lambda z: p.level(N, z, b[N]), u[N])
        for n in reversed(range(N)):
            product = jacobian(lambda z, n=n: p.level(n, z, b[n]), u[n]).T @ product
        return product, *(u[n] - p.level(n - 1, u[n - 1], b[n - 1]) for n in range(1, N + 1))

    u = [normal(STACK, size, seed=10 + n) for n, size in enumerate(p.dims)]
    assert_both_ways(maps, dense, oracles.Calls(grad=STACK, jvp=N * STACK), normal(STACK, N + 1, seed=3), *u)


@pytest.mark.parametrize("N", [1, 3])
def test_msa_maps_of_a_consistent_chain_are_the_chain_rule(N):
    p, x, b = Chain(N), normal(3, seed=1), torch.tensor(0.3, dtype=F64)
    u = [x]
    for n in range(N):
        u.append(p.level(n, u[-1], b))

    def composed(x):
        for n in range(N + 1):
            x = p.level(n, x, b)
        return x

    gradient, *consistency = oracles.msa_maps(p, u, [b] * (N + 1))
    np.testing.assert_allclose(gradient, central_differences(composed, x), rtol=1e-6, atol=1e-8)
    assert all(not s.any() for s in consistency)


class Scalar(Toy, Minimisation):
    """f_i(x) = fn(x, sample)."""

    def __init__(self, fn):
        self.fn = fn

    def f(self, x, sample):
        return self.fn(x, sample)


class OwnGradient(Minimised):
    """Has a gradient of its own, which is twice that of f so that it shows."""

    def gradient(self, x, sample, out=None):
        return 6 * sample * x**2


class Constant(Minimised):
    def f(self, x, sample):
        return sample.sum()


@pytest.mark.parametrize(("p", "factor"), [(Minimised(), 3), (OwnGradient(), 6), (Constant(), 0)])
def test_gradient(p, factor):
    def of_client(a, x):
        return (oracles.gradient(p, x, a),)

    a, x = normal(STACK, 3, seed=1), normal(STACK, 3, seed=2)
    assert_both_ways(of_client, lambda a, x: (factor * a * x**2,), oracles.Calls(grad=STACK), a, x)


def test_gradient_of_classification(images):
    p = plain_problem(images)
    (x,) = point(p)
    rows, weight, sample = padded_batch(p)
    data, labels = normalised(images, images.x_train)[rows["train"]], images.y_train[rows["train"]]
    expected = central_differences(lambda x: weight.numpy() @ losses(mlp_logits(x, data), labels), x)
    np.testing.assert_allclose(oracles.gradient(p, x, sample), expected, rtol=1e-6, atol=1e-9)


def test_calls_count_for_those_who_still_work():
    calls, inner = oracles.Calls(), oracles.Calls()
    p, x = Minimised(), torch.ones(3)

    def once():
        oracles.gradient(p, x, x)

    with oracles.running(7, False, calls):
        once()
        oracles.count_for(3)
        once()
        with oracles.running(2, False, inner):
            once()
        once()
    once()
    assert calls == oracles.Calls(grad=13)
    assert inner == oracles.Calls(grad=2)


def test_oracles_of_a_problem_under_vmap():
    """The client's number and its examples are tensors there."""
    p = quadratic()
    splits = {name: [whole(split[i][:5]) for i in range(4)] for name, split in p.splits.items()}
    rows = {name: tuple(torch.stack(t) for t in zip(*of_clients, strict=True)) for name, of_clients in splits.items()}
    x, w, v = normal(3, seed=1), normal(4, 5, seed=2), normal(4, 5, seed=3)

    def one(client, w, v, rows):
        return oracles.msa_maps(p, (x, w, v), [p.sample(client, rows)])

    calls = oracles.Calls()
    with oracles.running(4, True, calls):
        stacked = torch.func.vmap(one)(torch.arange(4), w, v, rows)
    for i in range(4):
        sample = p.sample(i, {name: splits[name][i] for name in splits})
        f_x, f_w, g_w, cross, ww = dense_bilevel(p, x, w[i], sample)
        for got, expected in zip(stacked, (f_x - cross @ v[i], g_w, ww @ v[i] - f_w), strict=True):
            torch.testing.assert_close(got[i], expected, rtol=1e-10, atol=1e-12)
