"""The minimax problems against NumPy, finite differences and closed forms."""

import numpy as np
import pytest
import torch
from support.derivatives import F64, Given, central_differences, full, mean, normal

from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import Dirichlet, Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems.fair_classification import FairClassification
from fedopt.problems.quadratic_minimax import QuadraticMinimax
from fedopt.problems.robust_nn import RobustNn
from fedopt.testing.harness import small

pytestmark = pytest.mark.smoke


def quadratic(clients=3, **changes):
    fields = {
        "dx": 4,
        "dy": 3,
        "conditioning": 5.0,
        "heterogeneity": 1.0,
        "noise": 2.0,
        "examples": 40,
        "mismatch": None,
    }
    return QuadraticMinimax(World(0, Iid(clients), dtype=F64), **{**fields, **changes})


def test_quadratic_saddle():
    """The gradient of sum_i w_i f_i is zero at `saddle`; it is the least in x of the largest in y."""
    p = quadratic()
    for weights in (np.ones(3), np.array([1.0, 5.0, 2.0])):
        x, y = p.saddle(weights)

        def f(x, y, weights=weights):
            return sum(w * p.f(x, y, full(p, i)) for i, w in enumerate(weights / weights.sum()))

        np.testing.assert_allclose(central_differences(lambda x, y=y: f(x, y), x), 0, atol=1e-8)
        np.testing.assert_allclose(central_differences(lambda y, x=x: f(x, y), y), 0, atol=1e-8)
        for seed in range(3):
            assert f(x + normal(4, seed=seed), y) > f(x, y) > f(x, y + normal(3, seed=seed))
    assert torch.equal(p.solution()[0], p.saddle(np.full(3, 7.0))[0])


def test_quadratic_metrics():
    p = quadratic(mismatch=[1.0, 5.0, 2.0])
    x, y = normal(4, seed=1), normal(3, seed=2)
    solution, mismatched = p.saddle(np.ones(3)), p.saddle(np.array([1.0, 5.0, 2.0]))
    metrics = p.evaluate(x, y)

    def distance(point):
        return float(torch.linalg.norm(torch.cat([x, y]) - torch.cat(point)))

    assert metrics["distance"] == pytest.approx(distance(solution), rel=1e-12)
    assert metrics["distance_mismatched"] == pytest.approx(distance(mismatched), rel=1e-12)
    assert metrics["distance"] ** 2 == pytest.approx(metrics["distance_x"] ** 2 + metrics["distance_y"] ** 2, rel=1e-12)
    for k in range(5):
        other = y + 0.1 * k * normal(3, seed=k)
        assert metrics["objective"] > float(mean(p, lambda s, other=other: p.f(x, other, s)))
    assert "distance_mismatched" not in quadratic().evaluate(x, y)


def images(count=60, classes=3, shape=(1, 4, 4), seed=0):
    rng = np.random.default_rng(seed)

    def some(n):
        return rng.integers(0, 256, (n, *shape)).astype(np.uint8), rng.permutation(np.arange(n) % classes)

    return Given(LabelledData(*some(count), *some(count // 2)))


def world(partitioner=None, **more):
    return World(0, partitioner or Iid(4), images(**more), dtype=F64)


def robust(where=None, **changes):
    fields = {"model": "mlp", "widths": [5], "eps": 2.0, "norm": "l2", "examples": None, "ascent": 4}
    return RobustNn(where or world(), **{**fields, "weighting": "samples", **changes})


def numpy_logits(net, x, inputs):
    pieces = [v.numpy() for v in net.views(x)]
    h = inputs
    for j in range(0, len(pieces), 2):
        h = h @ pieces[j].T + pieces[j + 1]
        if j + 2 < len(pieces):
            h = np.maximum(h, 0)
    return h


def numpy_losses(logits, labels):
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]


def test_robust_objective_and_gradients():
    p = robust()
    x, y = p.start()[0] + 0.1 * normal(len(p.start()[0]), seed=3), normal(16, seed=4)
    assert float(p.start()[1].norm()) == 0
    sample = full(p, 1)
    batch = sample["train"]
    logits = numpy_logits(p.net, x, batch.x.numpy() + y.numpy())
    assert float(p.f(x, y, sample)) == pytest.approx(numpy_losses(logits, batch.y.numpy()).mean(), rel=1e-12)
    point = [v.clone().requires_grad_() for v in (x, y)]
    gradients = torch.autograd.grad(p.f(*point, sample), point)
    np.testing.assert_allclose(gradients[0], central_differences(lambda v: p.f(v, y, sample), x), atol=1e-7)
    np.testing.assert_allclose(gradients[1], central_differences(lambda v: p.f(x, v, sample), y), atol=1e-7)


@pytest.mark.parametrize(("norm", "p"), [("l1", 1), ("l2", 2), ("linf", float("inf"))])
def test_robust_metrics(norm, p):
    """Three accuracies: of the test set, under y, and under the worst perturbation of the same ball that is found."""
    problem = robust(norm=norm, eps=1.5, ascent=10)
    x, y = problem.start()[0], problem.project(normal(16, seed=5))
    test = problem.test_examples.batch(torch.arange(30), torch.full((30,), 1 / 30, dtype=F64))

    def accuracy(v):
        return 100 * np.mean(numpy_logits(problem.net, x, test.x.numpy() + v).argmax(1) == test.y.numpy())

    def loss(v):
        return numpy_losses(numpy_logits(problem.net, x, test.x.numpy() + v.numpy()), test.y.numpy()).mean()

    metrics = problem.evaluate(x, y)
    assert metrics["test_accuracy"] == pytest.approx(accuracy(0.0))
    assert metrics["perturbed_accuracy"] == pytest.approx(accuracy(y.numpy()))
    worst = problem.worst(x, y)
    assert float(torch.linalg.vector_norm(worst, p)) <= 1.5 + 1e-9
    # From a corner of the l1 ball steps lead inside
    assert loss(worst) > (loss(torch.zeros(16)) if norm == "l1" else loss(y))
    assert metrics["robust_accuracy"] == pytest.approx(min(accuracy(y.numpy()), accuracy(worst.numpy())))
    assert "robust_accuracy" not in robust(norm=norm, eps=1.5, ascent=0).evaluate(x, y)
    train = problem.train.batch(torch.arange(60), torch.full((60,), 1 / 60, dtype=F64))
    of_each = numpy_losses(numpy_logits(problem.net, x, train.x.numpy() + y.numpy()), train.y.numpy())
    assert metrics["train_loss"] == pytest.approx(of_each.mean(), rel=1e-12)


def test_some_training_examples():
    p = robust(examples=20)
    assert len(p.train) == len(p.labels) == sum(p.sizes()) == 20
    whole = robust()
    rows = [np.flatnonzero((whole.train.x == image).all(1))[0] for image in p.train.x]
    assert len(set(rows)) == 20
    np.testing.assert_array_equal(whole.labels[rows], p.labels)
    assert rows != list(range(20))


def fair(where=None, **changes):
    fields = {"model": "mlp", "widths": [5], "lam": 0.5, "examples": None, "weighting": "samples"}
    return FairClassification(where or world(), **{**fields, **changes})


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fair_objective_is_the_weighted_sum_of_the_classes_means(weighting):
    """However the examples are divided: an example of client i weighs p_i / n_i, the same for all where p_i is n_i / n."""
    p = fair(world(Dirichlet(4, 0.3)), weighting=weighting)
    sizes = p.sizes()
    p_i = sizes / sizes.sum() if weighting == "samples" else np.full(4, 1 / 4)
    assert max(sizes) > 0.3 * sizes.sum()

    def f(x, y):
        return sum(w * p.f(x, y, full(p, i)) for i, w in enumerate(p_i))

    x, y = p.start()[0], torch.tensor([0.2, 0.7, 0.1], dtype=F64)
    batch = p.train.batch(torch.arange(60), torch.full((60,), 1 / 60, dtype=F64))
    of_each, weight = numpy_losses(numpy_logits(p.net, x, batch.x.numpy()), batch.y.numpy()), np.zeros(60)
    for i, rows in enumerate(p.splits["train"]):
        weight[rows] = p_i[i] / sizes[i]
    of_class = [batch.y.numpy() == c for c in range(3)]
    F = np.array([np.average(of_each[c], weights=weight[c]) for c in of_class])
    expected = y.numpy() @ F - 0.25 * float(y @ y)
    assert float(f(x, y)) == pytest.approx(expected, rel=1e-12)
    assert p.evaluate(x, y)["train_loss"] == pytest.approx(y.numpy() @ F, rel=1e-12)
    np.testing.assert_allclose(p.start()[1], np.full(3, 1 / 3))
    gradient = central_differences(lambda v: f(x, v), y)
    np.testing.assert_allclose(gradient, F - 0.5 * y.numpy(), atol=1e-7)  # what y climbs


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_robust_training_loss_is_the_objective(weighting):
    """Of clients of unequal sizes: the weighted mean of their own means."""
    p = robust(world(Dirichlet(4, 0.3)), weighting=weighting)
    x, y = p.start()[0], p.project(normal(16, seed=4))
    batch = p.train.batch(torch.arange(60), torch.full((60,), 1 / 60, dtype=F64))
    of_each = numpy_losses(numpy_logits(p.net, x, batch.x.numpy() + y.numpy()), batch.y.numpy())
    own_means = [of_each[rows].mean() for rows in p.splits["train"]]
    expected = of_each.mean() if weighting == "samples" else np.mean(own_means)
    assert abs(of_each.mean() - np.mean(own_means)) > 1e-3
    assert p.evaluate(x, y)["train_loss"] == pytest.approx(expected, rel=1e-12)


def test_fair_metrics():
    p = fair(world(Dirichlet(4, 0.3)))
    x, y = p.start()[0], torch.tensor([0.2, 0.7, 0.1], dtype=F64)
    batch = p.test_examples.batch(torch.arange(30), torch.full((30,), 1 / 30, dtype=F64))
    hit = numpy_logits(p.net, x, batch.x.numpy()).argmax(1) == batch.y.numpy()
    of_class = [100 * hit[batch.y.numpy() == c].mean() for c in range(3)]
    metrics = p.evaluate(x, y)
    assert metrics["test_accuracy"] == pytest.approx(100 * hit.mean())
    assert metrics["worst_accuracy"] == pytest.approx(min(of_class))
    assert [metrics[f"weight_{c}"] for c in range(3)] == pytest.approx([0.2, 0.7, 0.1])
    assert (p.project(normal(3, seed=1)) >= 0).all()
    assert float(p.project(normal(3, seed=1)).sum()) == pytest.approx(1)


@pytest.mark.parametrize(("algo", "problem"), [("codasca", "auc"), ("fedxl", "x_risk")])
def test_a_test_set_without_the_class_has_no_auc(algo, problem, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"x_{of}": rng.normal(size=(40, 3)) for of in ("train", "test")}
    np.savez(tmp_path / "table.npz", y_train=np.arange(40) % 2, y_test=np.zeros(40, dtype=int), **arrays)
    table = ["dataset=npz", f"dataset.path={tmp_path / 'table.npz'}", "problem.positive=1", "problem.model=linear"]
    with pytest.raises(UserError, match="training set or the test set lacks examples of this class"):
        small(algo, problem, *table, "partitioner.clients=4")


@pytest.mark.parametrize(("size", "moves"), [(0.0, 0.0), (1e-17, 1.0), (1.0, 1.0)])
def test_a_step_to_the_worst_perturbation_has_one_length(size, moves):
    """2.5 eps / ascent, however flat the loss is; none where the gradient is 0, in single precision too."""
    p = small("local_sgda", "robust_nn", "problem.norm=l2", "problem.eps=6", "problem.ascent=5").problem
    y = torch.zeros_like(p.start()[1], dtype=torch.float32)
    g = torch.zeros_like(y)
    g[3] = size
    after = p._climbed(y, g)
    assert after[3].item() == pytest.approx(3 * moves, rel=1e-6)
    assert after.abs().sum().item() == pytest.approx(3 * moves, rel=1e-6)
