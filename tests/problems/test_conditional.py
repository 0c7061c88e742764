"""Problems with an inner expectation for each example: invariant logistic regression, and meta-learning in both of its forms."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.derivatives import F64, central_differences, full, normal
from torch.autograd.functional import hessian

from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.federation.engines import OneByOne
from fedopt.federation.oracles import Oracles
from fedopt.problems.checks import check
from fedopt.problems.invariant_logistic import InvariantLogistic
from fedopt.problems.keyed import normal as keyed_normal
from fedopt.problems.keyed import uniform
from fedopt.problems.maml import POINTS, Maml, MamlConditional
from fedopt.testing.harness import steps, tuned

# Random numbers of a key


def test_keyed_numbers_are_of_their_distributions():
    key = torch.tensor(5)
    u, z = uniform(key, 4000, 5), keyed_normal(key, 4000, 5)
    assert 0 < u.min() < u.max() < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=5 / math.sqrt(12 * 20000))
    assert float(z.mean()) == pytest.approx(0, abs=5 / math.sqrt(20000))
    assert float(z.var()) == pytest.approx(1, abs=5 * math.sqrt(2 / 20000))
    assert float((z**4).mean()) == pytest.approx(3, abs=5 * math.sqrt(96 / 20000))
    assert torch.allclose(torch.corrcoef(z.T), torch.eye(5), atol=5 / math.sqrt(4000))
    assert abs(torch.corrcoef(torch.stack([z[:, 0], keyed_normal(key + 1, 4000, 5)[:, 0]]))[0, 1]) < 0.1
    assert torch.equal(z[:7], keyed_normal(key, 7, 5))  # padding a batch changes nothing
    stacked = torch.func.vmap(lambda key: keyed_normal(key, 3, 2))(torch.arange(4, 7))
    assert torch.equal(stacked[1], keyed_normal(key, 3, 2))


# invariant_logistic


def logistic(**changes):
    fields = {"d": 4, "examples": 61, "sigma": 2.0, "inner": 3, "lam": 0.05, "gamma": 3.0, **changes}
    return InvariantLogistic(World(0, Iid(3), dtype=F64), **fields)


def test_the_exact_objective_is_plain_logistic_regression():
    p, x = logistic(), normal(4, seed=1)
    a, b, z = p.a.numpy(), p.b.numpy(), x.numpy()
    np.testing.assert_array_equal(b, np.sign(a @ p.w.numpy()))
    penalty = 0.05 * np.sum(3 * z**2 / (1 + 3 * z**2))

    def objective(x):
        of_clients = [np.log1p(np.exp(-b[rows] * (a[rows] @ x))).mean() for rows in p.splits["train"]]
        return np.mean(of_clients)

    values = p.evaluate(x)
    assert values["objective"] == pytest.approx(objective(z) + penalty, rel=1e-12)
    gradient = central_differences(lambda x: p.evaluate(x)["objective"], x)
    assert values["gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
    assert values["error"] == pytest.approx(
        100 * np.mean([(np.sign(a[r] @ z) != b[r]).mean() for r in p.splits["train"]])
    )
    exact = logistic(inner=None)
    assert not exact.random
    assert float(exact.f(x, full(exact, 0))) == float(p.f(x, full(p, 0)))
    assert p.evaluate(p.w)["error"] == 0


def plugged_in(p, x, inner):
    """E of the loss at the mean of so many inner samples, by Gauss and Hermite: that mean's part along x is normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    margins = (p.b * (p.a @ x)).numpy()[:, None] + p.sigma / math.sqrt(inner) * float(x.norm()) * nodes
    return np.log1p(np.exp(-margins)) @ weights / weights.sum()


@pytest.mark.parametrize("inner", [1, 4])
def test_the_plug_in_has_the_mean_that_it_should(inner):
    p, x = logistic(inner=inner, lam=0.0), normal(4, seed=1)
    index = torch.arange(61)
    sample = p.sample(0, {"train": (index, torch.full((61,), 1 / 61, dtype=F64))})
    values = torch.func.vmap(lambda key: p.f(x, p.keyed(sample, key)))(1000 * torch.arange(2000))
    error = float(values.std()) / math.sqrt(len(values))
    assert float(values.mean()) == pytest.approx(plugged_in(p, x, inner).mean(), abs=4 * error)
    assert plugged_in(p, x, inner).mean() - p.evaluate(x)["objective"] > 10 * error  # which is not the exact one


def test_the_bias_falls_with_the_number_of_inner_samples():
    p, x = logistic(), normal(4, seed=1)
    exact = np.log1p(np.exp(-(p.b * (p.a @ x)).numpy()))
    bias = [np.mean(plugged_in(p, x, inner) - exact) for inner in (50, 100, 200)]
    assert min(bias) > 0
    for more, less in pairwise(bias):
        assert 1.8 <= more / less <= 2.2


def test_methods_draw_anew_and_the_same_on_every_engine():
    words = ["problem.inner=2", "algo.B=4", "algo.tau=3"]
    one, other = (tuned("fedavg", "invariant_logistic", *words) for _ in range(2))
    other.federation.engine = OneByOne()
    torch.testing.assert_close(steps(one, 2)[-1], steps(other, 2)[-1])
    exact = tuned("fedavg", "invariant_logistic", *words[1:])
    assert not torch.allclose(steps(one, 2)[-1].x, steps(exact, 2)[-1].x)
    p = one.problem
    assert p.random
    sample = full(p, 0)
    x = normal(10, seed=3)
    first, again, others = (float(p.f(x, p.keyed(sample, torch.tensor(k)))) for k in (1, 1, 2))
    assert first == again != others


# maml


def maml(**changes):
    fields = {"widths": [5, 4], "a": 0.2, "new_tasks": 7, "points": 48, **changes}
    return Maml(World(0, Iid(4), dtype=F64), **fields)


def conditional(**changes):
    fields = {"widths": [5, 4], "a": 0.2, "new_tasks": 7, "tasks": 12, "inner": None, **changes}
    return MamlConditional(World(0, Iid(4), dtype=F64), **fields)


def adapted_gradient(loss, support, query, x, a):
    """(I - a grad^2 L) grad L(x - a grad L(x)), with the Hessian as a matrix."""
    gradient = torch.func.grad(loss)
    H = hessian(lambda w: loss(w, support), x)
    return (torch.eye(len(x), dtype=F64) - a * H) @ gradient(x - a * gradient(x, support), query)


def test_the_lower_level_is_one_gradient_step():
    p = maml()
    check(p)
    (x, _), sample = p.start(), full(p, 1)
    step = central_differences(lambda w: p.loss(w, sample["train"]), x)
    y = x - 0.2 * torch.from_numpy(step)
    torch.testing.assert_close(p.adapted(x, sample["train"]), y, rtol=1e-6, atol=1e-8)
    at = p.adapted(x, sample["train"])
    torch.testing.assert_close(torch.func.grad(p.g, 1)(x, at, sample), torch.zeros_like(at))
    torch.testing.assert_close(hessian(lambda y: p.g(x, y, sample), at), torch.eye(len(x), dtype=F64))


def test_the_hypergradient_is_that_of_meta_learning():
    p = maml()
    (x, _), sample = p.start(), full(p, 2)
    x = x + 0.3 * normal(len(x), seed=1)
    y = p.adapted(x, sample["train"])
    found = Oracles(p).hypergradient(x, y, [sample], inverse=None)
    torch.testing.assert_close(found, adapted_gradient(p.loss, sample["train"], sample["val"], x, 0.2))
    differences = central_differences(lambda x: p.f(x, p.adapted(x, sample["train"]), sample), x, step=1e-6)
    np.testing.assert_allclose(found, differences, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(found, Oracles(p).outer_gradient_y(x, y, sample))  # which the first-order form takes


def test_the_objective_is_the_mean_over_clients_after_adaptation():
    p = maml()
    (x, _), found = p.start(), p.evaluate(*p.start())
    losses = []
    for i in range(4):
        sample = full(p, i)
        losses.append(float(p.loss(x - 0.2 * torch.func.grad(p.loss)(x, sample["train"]), sample["val"])))
    assert found["objective"] == pytest.approx(p.weights @ losses, rel=1e-12)
    t, target, _ = full(p, 3)["val"]
    amplitude, phase = float(p.amplitude[3]), float(p.phase[3])
    np.testing.assert_allclose(target, amplitude * np.sin(t.numpy() + phase))
    assert 0.1 <= amplitude <= 5
    assert 0 <= phase <= np.pi
    p.a = 0.0  # without adaptation there is nothing to gain
    without = p.evaluate(x)
    assert without["new_task_loss"] == pytest.approx(without["new_task_start"], rel=1e-12)


def test_the_conditional_form_has_the_exact_gradient():
    p = conditional()
    (x,) = p.start()
    x = x + 0.3 * normal(len(x), seed=1)
    sample = full(p, 1)
    curves = [p.curve(A, phi) for A, phi in zip(sample.amplitude, sample.phase, strict=True)]
    wanted = sum(adapted_gradient(p.loss, c, c, x, 0.2) for c in curves) / len(curves)
    torch.testing.assert_close(torch.func.grad(p.f)(x, sample), wanted)
    assert p.evaluate(x)["objective"] == pytest.approx(np.mean([float(p.f(x, full(p, i))) for i in range(4)]))


def test_points_of_the_conditional_form_are_drawn_evenly_and_their_bias_falls():
    bias, (x,) = [], conditional().start()
    for inner in (1, 2, 4):
        p = conditional(inner=inner, a=0.02, tasks=4)
        sample = full(p, 0)
        exact = float(p.f(x, sample))
        keys = torch.arange(20000) * 1000
        values = torch.func.vmap(lambda key, p=p, sample=sample: p.f(x, p.keyed(sample, key)))(keys)
        bias.append((float(values.mean()) - exact, float(values.std()) / math.sqrt(len(keys))))
    assert all(value > 4 * error for value, error in bias)
    for (more, e), (less, f) in pairwise(bias):
        assert more / less == pytest.approx(2, abs=0.2 + 4 * (e / more + f / less))
    counts = torch.bincount((POINTS * uniform(torch.tensor(3), 50000)).long(), minlength=POINTS)
    assert len(counts) == POINTS
    assert (counts - 1000).abs().max() < 5 * math.sqrt(1000)


@pytest.mark.full
def test_steps_of_methods_improve_the_adaptation():
    words = ["problem.inner=5", "problem.a=0.05", "algo.eta=0.05", "algo.tau=5", "participation.cohort=6"]
    e = tuned("fedavg", "maml_conditional", *words)
    before, after = (e.problem.evaluate(x)["new_task_loss"] for x in (*e.problem.start(), steps(e, 20)[-1].x))
    assert after < 0.95 * before
