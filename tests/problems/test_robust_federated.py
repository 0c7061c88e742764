"""KL-robust federated learning, in its local and its global form, against NumPy and its limits."""

import numpy as np
import pytest
import torch
from support.derivatives import F64, Given, full, mean, normal

from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import Proportions
from fedopt.data.world import World
from fedopt.problems.robust_federated import RobustFederated, RobustFederatedGlobal

BOTH = [RobustFederated, RobustFederatedGlobal]


def data(n=90, seed=0):
    rng = np.random.default_rng(seed)
    return LabelledData(
        rng.standard_normal((n, 3)), rng.integers(0, 4, n), rng.standard_normal((20, 3)), np.arange(20) % 4
    )


def problem(cls, lam=0.7, shares=(10, 1), clients=3, **changes):
    fields = {"model": "linear", "widths": [3], "examples": 60, "lam": lam, **changes}
    return cls(World(0, Proportions(clients, list(shares)), Given(data()), dtype=F64), **fields)


def losses(p, x):
    """The clients' mean cross-entropies, in NumPy."""
    W, b = x[:12].numpy().reshape(4, 3), x[12:].numpy()
    found = []
    for i in range(p.clients):
        rows = p.splits["train"][i]
        logits = p.train.x.numpy()[rows] @ W.T + b
        labels = p.train.y.numpy()[rows]
        found.append(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), labels]))
    return np.array(found)


def composed(p, x):
    """The value that methods of the problem's class minimise, [1]."""
    if isinstance(p, RobustFederated):
        return mean(p, lambda sample: p.level(1, p.level(0, x, sample), sample))
    u = mean(p, lambda sample: p.level(0, x, sample))
    return mean(p, lambda sample: p.level(1, u, sample))


def test_one_big_client_and_nine_small():
    p = problem(RobustFederated, shares=(3, 1), clients=7, examples=90)
    assert p.splits["train"].sizes.tolist() == [30, *[10] * 6]
    assert problem(RobustFederated, shares=(1, 2, 3), examples=60).splits["train"].sizes.tolist() == [10, 20, 30]
    assert p.weights.tolist() == pytest.approx([1 / 7] * 7)


@pytest.mark.parametrize("lam", [0.2, 3.0])
def test_both_forms_are_the_exponential_mean(lam):
    x = normal(16, seed=1)
    local, together = (problem(cls, lam) for cls in BOTH)
    g = losses(local, x)
    wanted = lam * np.log(np.mean(np.exp(g / lam)))
    for p in (local, together):
        assert p.dims == (16, 1)
        values = p.evaluate(x)
        assert values["objective"] == pytest.approx(wanted, rel=1e-10)
        assert values["train_loss"] == pytest.approx(g.mean(), rel=1e-10)
        assert values["worst_loss"] == pytest.approx(g.max(), rel=1e-10)
    assert float(composed(together, x)) == pytest.approx(wanted, rel=1e-10)
    assert float(composed(local, x)) == pytest.approx(lam * np.mean(np.exp((g - np.log(4)) / lam)), rel=1e-10)


@pytest.mark.parametrize("cls", BOTH)
def test_limits_of_lam(cls):
    """A large lam is the mean over clients, with an error in 1 / lam; a small one the worst client, from below."""
    x = normal(16, seed=1)
    g = losses(problem(cls), x)
    off = [problem(cls, lam).evaluate(x)["objective"] - g.mean() for lam in (50.0, 100.0)]
    assert 1.8 <= off[0] / off[1] <= 2.2
    assert off[1] == pytest.approx(g.var() / 200, rel=0.05)
    assert problem(cls, 1e-3).evaluate(x)["objective"] == pytest.approx(g.max(), abs=1e-3 * np.log(3) + 1e-12)

    def direction(p):
        gradient = torch.func.grad(lambda x: composed(p, x))(x)
        return gradient / gradient.norm()

    p = problem(cls)
    erm = torch.func.grad(lambda x: mean(p, lambda sample: p.excess(x, sample)[0]))(x)
    torch.testing.assert_close(direction(problem(cls, 1e6)), erm / erm.norm(), rtol=0, atol=1e-5)
    p = problem(cls, 0.01)
    worst = full(p, int(g.argmax()))
    of_worst = torch.func.grad(lambda x: p.excess(x, worst)[0])(x)
    assert float(direction(p) @ of_worst / of_worst.norm()) == pytest.approx(1, abs=1e-6)


def test_both_forms_have_one_gradient_direction():
    """The logarithm is monotone: where one is stationary the other is too."""
    x = normal(16, seed=2)
    one, other = (torch.func.grad(lambda x, p=p: composed(p, x))(x) for p in map(problem, BOTH))
    torch.testing.assert_close(one / one.norm(), other / other.norm())


def test_the_outer_function_takes_any_estimate():
    p = problem(RobustFederatedGlobal)
    u = torch.tensor([-5.0], dtype=F64, requires_grad=True)
    value = p.level(1, u, None)
    (slope,) = torch.autograd.grad(value, u)
    assert value.item() == pytest.approx(0, abs=1e-12)  # no loss is less
    assert float(slope) == 0
    assert float(torch.func.grad(lambda u: p.level(1, u, None))(torch.zeros(1, dtype=F64))) == pytest.approx(p.lam)


def test_the_worst_client_gets_better_with_a_small_lam():
    found = {}
    for lam in (0.1, 100.0):
        p = problem(RobustFederatedGlobal, lam)
        (x,) = p.start()
        for _ in range(150):
            x = x - 0.3 * torch.func.grad(lambda x, p=p: composed(p, x))(x)
        found[lam] = p.evaluate(x)
    assert found[0.1]["worst_loss"] < found[100.0]["worst_loss"] - 0.02
    assert found[0.1]["train_loss"] > found[100.0]["train_loss"] + 0.02
