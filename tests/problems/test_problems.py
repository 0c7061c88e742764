"""Problems against closed forms, NumPy and finite differences."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from support.cases import few
from support.derivatives import F64, Given, central_differences, full, mean, normal, quadratic, two_levels, whole
from torch.autograd.functional import hessian

from fedopt.data.examples import of_finite
from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import Dirichlet, Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.federation.oracles import Oracles
from fedopt.problems.checks import check, measured
from fedopt.problems.classification import Classification
from fedopt.problems.loss_tuning import LossTuning
from fedopt.problems.mco import Mco
from fedopt.problems.reductions import MinimisationAsCompositional
from fedopt.problems.saddle import Saddle
from fedopt.problems.x_risk import partial_area
from fedopt.testing.harness import small, usual_pairs

# mco


def mco(seed=0, clients=3, **changes):
    # 101 examples: clients of unequal sizes, whose means count the same
    fields = {"d": 4, "examples": 101, "lam": 0.7, "delta": 0.2, "noise_variance": 0.3, "x0": 0.5, **changes}
    return Mco(World(seed, Iid(clients), dtype=F64), **fields)


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
    metrics = p.evaluate(torch.from_numpy(x))
    assert metrics["objective"] == pytest.approx(objective, rel=1e-12)
    distance = min(np.linalg.norm(x - p.planted.numpy()), np.linalg.norm(x + p.planted.numpy()))
    assert metrics["distance"] == pytest.approx(distance, rel=1e-12)
    U = (b - (a @ p.planted.numpy()) ** 2) ** 2
    at_solution = E(U) + 0.7 * math.sqrt(E(np.maximum(0, U - E(U)) ** 2) + 0.2)
    assert metrics["suboptimality"] == pytest.approx(objective - at_solution, rel=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_mco_solutions(sign):
    p = mco(noise_variance=0.0)
    at = p.evaluate(sign * p.planted)
    assert at["objective"] == pytest.approx(0.7 * math.sqrt(0.2), rel=1e-9)
    assert at["distance"] == at["suboptimality"] == 0
    for seed in range(3):
        assert p.evaluate(sign * p.planted + 0.01 * normal(4, seed=seed))["objective"] > at["objective"]


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
    noise = np.concatenate([(p.b - (p.a @ p.planted) ** 2).numpy() for p in draws])
    assert noise.var() == pytest.approx(0.3, rel=0.02)
    assert noise.mean() == pytest.approx(0, abs=0.01)
    assert np.mean([(p.planted**2).numpy() for p in draws]) == pytest.approx(1, abs=5 * math.sqrt(2 / 450))


# quadratic_bilevel


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
    np.testing.assert_allclose(p.hypergradient(p.solution()[0]), 0, atol=1e-12)
    np.testing.assert_allclose(central_differences(outer, p.solution()[0]), 0, atol=1e-8)
    for seed in range(5):  # a minimum
        assert outer(p.solution()[0] + 0.1 * normal(p.dx, seed=seed)) > outer(p.solution()[0])

    metrics = p.evaluate(x, y)
    assert metrics["objective"] == pytest.approx(float(outer(x)), rel=1e-10)
    assert metrics["distance"] == pytest.approx(float((x - p.solution()[0]).norm()), rel=1e-12)
    assert metrics["hypergradient_norm"] == pytest.approx(np.linalg.norm(central_differences(outer, x)), rel=1e-7)


def second_derivatives(p, client):
    """Of g in y, and of f in (x, y)."""
    sample = full(p, client)
    x, y = normal(p.dx, seed=1), normal(p.dy, seed=2)
    of_f = hessian(lambda u: p.f(u[: p.dx], u[p.dx :], sample), torch.cat([x, y]))
    return hessian(lambda y: p.g(x, y, sample), y), of_f


def test_alike_clients_have_the_same_problem():
    """Each client has the means, which are those of unlike clients; so are the solution and the value."""
    unlike, alike = quadratic(), quadratic(alike=True)
    for name, terms in alike.per_client.items():
        expected = np.tensordot(unlike.weights, unlike.per_client[name].numpy(), 1)
        np.testing.assert_allclose(terms.numpy(), np.broadcast_to(expected, terms.shape), atol=1e-12)
    for one, other in zip(unlike.solution(), alike.solution(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


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


@pytest.mark.parametrize("changes", [{}, {"d0": 5}, {"clients": 1}, {"heterogeneity": 5.0, "conditioning": 1.0}])
def test_two_level_quadratic_closed_forms(changes):
    p = two_levels(**changes)
    x = normal(p.d0, seed=1)
    assert p.dims == (p.d0, p.d1)

    def composed(x):
        y = mean(p, lambda sample: p.level(0, x, sample))
        return mean(p, lambda sample: p.level(1, y, sample))

    np.testing.assert_allclose(p.hypergradient(x), central_differences(composed, x), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(p.hypergradient(p.solution()[0]), 0, atol=1e-12)
    for seed in range(5):  # a minimum
        assert composed(p.solution()[0] + 0.1 * normal(p.d0, seed=seed)) > composed(p.solution()[0])
    metrics = p.evaluate(x)
    assert metrics["objective"] == pytest.approx(float(composed(x)), rel=1e-10)
    assert metrics["distance"] == pytest.approx(float((x - p.solution()[0]).norm()), rel=1e-12)
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
    with pytest.raises(UserError, match=r"^problem\.d0=6: must be at most problem\.d1=5"):
        two_levels(d0=6)


def test_what_clients_share_does_not_depend_on_their_number():
    one, many = (two_levels(clients=M, heterogeneity=0.0) for M in (1, 7))
    for a, b in zip(full(one, 0), full(many, 6), strict=True):
        torch.testing.assert_close(a, b)


# saddle


def test_saddle_closed_forms():
    fields = {"d": 4, "s": 3.0, "lam": 2.0, "t_max": 0.5, "x0": 7.0}
    p = Saddle(World(0, Iid(6), dtype=F64), **fields)
    x = normal(4, seed=1)
    t = p.per_client["t"].numpy()
    assert ((t >= 0) & (t <= 0.5)).all()
    np.testing.assert_allclose(p.per_client["b"].mean(0), 0, atol=1e-12)
    assert [v.tolist() for v in p.start()] == [[7.0] * 4] * 2

    def f(x, y):
        return mean(p, lambda sample: p.f(x, y, sample))

    sample = full(p, 2)
    b, y = p.per_client["b"][2].numpy(), normal(4, seed=2).numpy()
    direct = -(0.5 * y @ y - b @ y + y @ (t[2] * np.eye(4)) @ x.numpy()) + 2.0 / 2 * x.numpy() @ x.numpy()
    assert float(p.f(x, torch.from_numpy(y), sample)) == pytest.approx(direct, rel=1e-12)

    best = -t.mean() * x  # the maximiser
    np.testing.assert_allclose(central_differences(lambda y: f(x, y), best), 0, atol=1e-8)
    metrics = p.evaluate(x, torch.from_numpy(y))
    assert metrics["objective"] == pytest.approx(float(f(x, best)), rel=1e-10)
    assert metrics["distance"] == metrics["distance_x"] == pytest.approx(float(x.norm()), rel=1e-12)
    assert metrics["distance_y"] == pytest.approx(np.linalg.norm(y), rel=1e-12)
    zero = torch.zeros(4, dtype=F64)
    np.testing.assert_allclose(central_differences(lambda x: f(x, zero), zero), 0, atol=1e-8)
    assert torch.equal(p.solution()[0], zero)


def test_saddle_spread():
    fields = {"d": 50, "s": 3.0, "lam": 2.0, "t_max": 0.5, "x0": 7.0}
    p = Saddle(World(0, Iid(200), dtype=F64), **fields)
    assert float(p.per_client["b"].std()) == pytest.approx(3, rel=0.03)
    assert float(p.per_client["t"].mean()) == pytest.approx(0.25, rel=0.1)


# Classification, with and without tuning of the loss


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
        "norms": 0.0,
        "dropout": 0.0,
        **changes,
    }
    return LossTuning(World(0, partitioner or Iid(4), Given(data), dtype=F64), **fields)


def plain_problem(data, partitioner=None, weighting="samples"):
    fields = {"model": "mlp", "widths": [3], "test": None, "server": 0.0, "own_test": None, "weighting": weighting}
    fields |= {"pretrain": 0, "pretrain_step": 0.01}
    return Classification(World(0, partitioner or Iid(4), Given(data), dtype=F64), **fields)


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


@pytest.mark.parametrize(("ridge", "norms"), [(0.0, 0.0), (0.3, 0.0), (0.3, 0.2)])
def test_loss_tuning(images, ridge, norms):
    p = tuned_problem(images, ridge=ridge, norms=norms)
    kept = long_tail_rows(images.y_train)
    x_all, y_all = normalised(images, images.x_train[kept]), images.y_train[kept]
    np.testing.assert_array_equal(p.labels, y_all)
    x, y = point(p)
    delta, shift = np.split(x.numpy(), 2)
    rows, weight, sample = padded_batch(p)

    logits = mlp_logits(y, x_all)
    tuned = losses(logits / (1 + np.exp(-delta)) + shift, y_all)
    inner = weight.numpy() @ tuned[rows["train"]] + ridge / 2 * np.sum(
        np.delete(y.numpy(), [12, 13, 14, 24, 25, 26]) ** 2
    )  # without biases
    inner += norms * sum(map(np.linalg.norm, np.split(y.numpy(), np.cumsum([12, 3, 9]))))
    assert float(p.g(x, y, sample)) == pytest.approx(inner, rel=1e-12)
    slope = central_differences(lambda y: p.g(x, y, sample), y)
    anchor = y + 0.2 * normal(len(y), seed=8)
    less = central_differences(lambda y: p.g(x, y, sample), anchor)
    for plus, at in product((None, normal(len(y), seed=9)), (None, anchor)):  # written over y, by the problem's own way
        found = p.g.step(x, y.clone(), sample, 0.1, plus, at)
        expected = y.numpy() - 0.1 * (slope - (0 if at is None else less) + (0 if plus is None else plus.numpy()))
        np.testing.assert_allclose(found, expected, atol=1e-8)

    val = p.splits["val"].rows
    assert set(p.splits["val"].sizes) == {7}
    counts = np.bincount(y_all[val], minlength=3)
    class_weight = 28 / (3 * counts)
    balanced = class_weight[y_all] * losses(logits, y_all)
    assert float(p.f(x, y, sample)) == pytest.approx(weight.numpy() @ balanced[rows["val"]], rel=1e-12)

    metrics = p.evaluate(x, y)
    train_loss = np.mean([tuned[rows].mean() for rows in p.splits["train"]])
    assert metrics["train_loss"] == pytest.approx(train_loss, rel=1e-12)
    class_means = [losses(logits, y_all)[val][y_all[val] == c].mean() for c in range(3)]
    assert metrics["val_loss"] == pytest.approx(np.mean(class_means), rel=1e-12)
    assert_test_metrics(metrics, images, y)
    tuned = mlp_logits(y, normalised(images, images.x_test)) / (1 + np.exp(-delta)) + shift
    assert metrics["calibrated_loss"] == pytest.approx(losses(tuned, images.y_test).mean(), rel=1e-12)
    predicted, observed = np.exp(tuned) / np.exp(tuned).sum(1, keepdims=True), np.eye(3)[images.y_test]
    assert metrics["calibrated_brier"] == pytest.approx(((predicted - observed) ** 2).sum(1).mean(), rel=1e-12)
    ratio = predicted[:, 2].mean() / observed[:, 2].mean()  # class 2 keeps the fewest training examples
    assert metrics["calibrated_calibration"] == pytest.approx(ratio, rel=1e-12)


def assert_test_metrics(metrics, images, parameters):
    logits = mlp_logits(parameters, normalised(images, images.x_test))
    assert metrics["test_loss"] == pytest.approx(losses(logits, images.y_test).mean(), rel=1e-12)
    assert metrics["test_accuracy"] == pytest.approx(100 * np.mean(logits.argmax(1) == images.y_test), rel=1e-12)


EACH = {problem: algo for algo, problem in sorted(usual_pairs(), reverse=True)}
CONSTANT = {"client_classes", "alone_rmse", "alone_accuracy", "alone_loss"}


@pytest.mark.parametrize("name", few(sorted(EACH), ["data_cleaning", "invariant_logistic", "x_risk"].count))
def test_metrics_of_values_that_are_not_finite_are_nan(name):
    """By the problem itself, and as a run takes them, where one number is enough."""
    e = small(EACH[name], name)
    point = e.algorithm.output(e.algorithm.init(e.problem))
    found = e.problem.evaluate(*(v * np.nan for v in point))
    assert {metric for metric, value in found.items() if np.isfinite(value)} <= CONSTANT
    point[0].view(-1)[0] = np.inf
    assert all(np.isnan(value) for value in measured(e.problem, e.original, point).values())


def test_labels_of_scores_that_are_not_finite_are_nan():
    """One score is enough: of one example, one class, one client."""
    p = small("fedavg_s", "fair_classification").problem
    for bad in (np.nan, np.inf, -np.inf):

        def logits(x, bad=bad):
            return torch.nn.functional.pad(torch.tensor([[bad]], dtype=F64).expand(1, 10), (0, 0, 0, len(x) - 1))

        assert np.isnan(p.test_metrics(logits)["test_accuracy"])
        scores, positive = np.array([0.1, bad, 0.3, 0.4]), np.array([True, False, True, False])
        assert np.isnan(partial_area(scores, positive, 0.3))
        judged = of_finite(torch.tensor([True, True, False]), torch.tensor([bad, 1.0, 2.0]))
        assert judged.isnan().tolist() == [True, False, False]


def test_the_worst_client_is_nan_if_one_model_is():
    """Whichever it is. It is not better than alone, and not worse."""
    p = small("local_only", "classification", "problem.own_test=0.3").problem
    (x,) = p.start()
    p.compares_with_alone, p.fit_alone = (
        lambda: True,
        lambda: p.predictions(p.local_set, p.models(x)[0]).expand(2, -1, -1),
    )
    for i in (0, 3, 5):
        models = x.repeat(6, 1)
        models[i] = np.nan
        found = p.means_of_clients(p.predictions(p.local_set, None, models))
        assert np.isfinite([found.pop(name) for name in ("alone_accuracy", "alone_loss")]).all()
        assert len(found) == 4
        assert all(np.isnan(value) for value in found.values())


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


WEIGHTINGS = ["samples", "uniform"]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("partitioner", [Iid(4), Dirichlet(6, 0.5)])
def test_classification(images, partitioner, weighting):
    """train_loss is the objective: the mean over all examples, or over clients of their own means."""
    p = plain_problem(images, partitioner, weighting)
    (x,) = point(p)
    rows, weight, sample = padded_batch(p)
    of_each = losses(mlp_logits(x, normalised(images, images.x_train)), images.y_train)
    assert float(p.f(x, sample)) == pytest.approx(weight.numpy() @ of_each[rows["train"]], rel=1e-12)
    metrics = p.evaluate(x)
    own_means = [of_each[rows].mean() for rows in p.splits["train"]]
    train_loss = of_each.mean() if weighting == "samples" else np.mean(own_means)
    assert metrics["train_loss"] == pytest.approx(train_loss, rel=1e-12)
    objective = sum(p_i * p.f(x, full(p, i)) for i, p_i in enumerate(p.weights))
    assert float(objective) == pytest.approx(train_loss, rel=1e-12)
    assert_test_metrics(metrics, images, x)


def test_weights_of_clients(images):
    """By numbers of training examples, uniform, or uniform where a problem does not say; their sum is one."""
    unequal = Dirichlet(6, 0.5, min_size=5)
    by_samples, uniform = (plain_problem(images, unequal, weighting) for weighting in WEIGHTINGS)
    sizes = np.array([len(rows) for rows in by_samples.splits["train"]])
    assert len(set(sizes)) > 1
    np.testing.assert_allclose(by_samples.weights, sizes / 360, rtol=1e-15)
    np.testing.assert_allclose(uniform.weights, np.full(6, 1 / 6), rtol=1e-15)
    silent = tuned_problem(images, unequal)
    assert not hasattr(silent, "weighting")
    np.testing.assert_allclose(silent.weights, np.full(6, 1 / 6), rtol=1e-15)
    for p in (by_samples, uniform, silent):
        assert p.weights.sum() == pytest.approx(1, rel=1e-15)
    np.testing.assert_array_equal(MinimisationAsCompositional(by_samples).weights, by_samples.weights)


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


def test_gradient_of_classification(images):
    p = plain_problem(images)
    (x,) = point(p)
    rows, weight, sample = padded_batch(p)
    data, labels = normalised(images, images.x_train)[rows["train"]], images.y_train[rows["train"]]
    expected = central_differences(lambda x: weight.numpy() @ losses(mlp_logits(x, data), labels), x)
    np.testing.assert_allclose(Oracles(p).gradient(x, sample), expected, rtol=1e-6, atol=1e-9)


# What every problem is held to once


@pytest.mark.parametrize(
    ("algo", "problem", "function", "value", "message"),
    [
        (
            "fednest",
            "quadratic_bilevel",
            "f",
            lambda self, x, y, s: y,
            r"returns .* \[8\]; .*one number",
        ),
        ("fednest", "quadratic_bilevel", "g", lambda self, x, y, s: y[:1], r"returns .* \[1\]"),
        ("fed_norm_sgda", "saddle", "f", lambda self, x, y, s: x, r"returns .* \[10\]"),
        ("fedavg", "classification", "f", lambda self, x, s: 0.5, "returns a float"),
        ("fedavg", "classification", "f", lambda self, x, s: None, "returns None"),
        ("fedmsa", "mco", "level", lambda self, n, z, s: z, r"returns .* \[10\]; .* \[11\]"),
        ("zo_hfl", "hierarchical", "h", lambda self, x, y, s: x - y, r"returns .* \[640\]"),
    ],
)
def test_objectives_are_one_number(algo, problem, function, value, message, monkeypatch):
    """What gives more is refused before the run, by the name of the class and the shape."""
    monkeypatch.setattr(type(small(algo, problem).original), function, value)
    with pytest.raises(UserError, match=message) as caught:
        small(algo, problem)
    assert "\n" not in str(caught.value)


# What every problem is held to


@pytest.mark.parametrize(
    ("algo", "problem", "hook", "of"),
    [
        ("local_sgda", "quadratic_minimax", "g", "minimax"),
        ("fednest", "quadratic_bilevel", "level", "bilevel"),
        ("fedmsa", "quadratic_compositional", "project", "two_level"),
        ("zo_hfl", "quadratic_hierarchical", "f", "hierarchical"),
        ("fedxl", "x_risk", "g_split", "x_risk"),
        ("fedavg", "classification", "server_sample", "minimisation"),
    ],
)
def test_what_a_class_never_calls_is_refused(algo, problem, hook, of):
    p = small(algo, problem).original
    p.__class__ = type("Own", (type(p),), {hook: lambda self, *_: None})
    with pytest.raises(UserError, match=f"has {hook}, which only .* problems use, not {of} problems"):
        check(p)
