"""The learnt mixture of clients against ridge and softmax regression in NumPy, and finite differences."""

import runpy

import numpy as np
import pytest
import torch
from support.command import ROOT
from support.derivatives import F64, Given, central_differences, full, mean, normal

from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import ByColumn, Dirichlet, Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.federation.oracles import Oracles
from fedopt.problems.client_weights import ClientWeights
from fedopt.testing.harness import small, steps

RHO = 0.3


def table(real=False, n=60, noise=1.0, seed=0):
    rng = np.random.default_rng(seed)
    model = rng.standard_normal((3, 1 if real else 4))

    def some(n):
        x = rng.standard_normal((n, 3))
        z = x @ model
        return x, z[:, 0] + noise * rng.standard_normal(n) if real else (z + noise * rng.gumbel(size=z.shape)).argmax(1)

    return LabelledData(*some(n), *some(20), pixels="raw")


def problem(data=None, partitioner=None, **changes):
    fields = {"model": "linear", "widths": [5], "validation": 0.3, "ridge": 0.2, "norms": 0.0, "dropout": 0.0}
    fields |= {"examples": None, "target": None, "rho": RHO, "wrong": 0.0, **changes}
    return ClientWeights(World(0, partitioner or Iid(4), Given(data or table()), dtype=F64), **fields)


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def arrays(p, split):
    """(features with a 1, targets) of each client; y in NumPy is [outputs, features + 1]."""
    x, t = p.train.x.numpy(), p.train.y.numpy()
    return [(np.column_stack([x[rows], np.ones(len(rows))]), t[rows]) for rows in p.splits[split]]


def of_client(Y, Z, t):
    """The mean loss, its gradient and its Hessian, [out * in, out * in], of one client at Y."""
    out = Z @ Y.T
    if t.dtype == np.float64:
        errors = out - t[:, None]
        value, curvature = 0.5 * np.mean(errors**2), np.ones((len(t), 1, 1))
    else:
        s = np.exp(out) / np.exp(out).sum(1, keepdims=True)
        errors, value = s - np.eye(len(Y))[t], -np.mean(np.log(s[np.arange(len(t)), t]))
        curvature = np.einsum("na,ab->nab", s, np.eye(len(Y))) - np.einsum("na,nb->nab", s, s)
    hessian = np.einsum("nab,ni,nj->aibj", curvature, Z, Z).reshape(Y.size, Y.size) / len(t)
    return value, (errors.T @ Z / len(t)).ravel(), hessian


def solved(p, x):
    """Y*(x) by Newton's method, and the clients' gradients and the mixture's Hessian there."""
    w, outputs = softmax(np.asarray(x)), p.classes or 1
    Y = np.zeros((outputs, 4))
    for _ in range(12):
        terms = [of_client(Y, *a) for a in arrays(p, "train")]
        G, H = np.stack([g for _, g, _ in terms]), sum(w_i * h for w_i, (_, _, h) in zip(w, terms, strict=True))
        H = H + 0.2 * np.eye(Y.size)
        residual = w @ G + 0.2 * Y.ravel()
        Y = Y - np.linalg.solve(H, residual).reshape(Y.shape)
    assert np.abs(residual).max() < 1e-12
    return Y, G, H


def validated(p, Y):
    judges = range(p.clients) if p.target is None else [p.target]
    terms = [of_client(Y, *arrays(p, "val")[i]) for i in judges]
    return np.mean([v for v, *_ in terms]), np.mean([g for _, g, _ in terms], axis=0)


def objective(p, x):
    w = softmax(np.asarray(x))
    return validated(p, solved(p, x)[0])[0] + p.rho * np.sum(w * np.log(len(w) * w))


def flat(Y):
    """y as the network has it: the weights, then the biases."""
    return torch.from_numpy(np.concatenate([Y[:, :-1].ravel(), Y[:, -1]]))


def closed_form(p, x):
    """-w_i <g_i - gbar, H^-1 grad v> + rho w_i (log w_i - sum w log w)."""
    w, (Y, G, H) = softmax(np.asarray(x)), solved(p, x)
    v = np.linalg.solve(H, validated(p, Y)[1])
    return -w * ((G - w @ G) @ v) + p.rho * w * (np.log(w) - w @ np.log(w))


def hypergradient(p, x):
    """From the problem's own functions and products, at y*(x) of NumPy, with a direct solve."""
    y = flat(solved(p, x)[0])
    H = torch.stack(
        [mean(p, lambda s, e=e: Oracles(p).inner_hessian(x, y, s)(e)) for e in torch.eye(len(y), dtype=F64)]
    )
    direct, b = (mean(p, lambda s, k=k: Oracles(p).outer_gradients(x, y, s)[k]) for k in (0, 1))
    v = torch.linalg.solve(H, b)
    return direct - mean(p, lambda s: Oracles(p).cross_product(x, y, v, s))


@pytest.mark.parametrize("target", [None, 2])
@pytest.mark.parametrize("real", [False, True], ids=["softmax", "ridge"])
def test_exact_hypergradient(real, target):
    """With clients of unequal sizes and labels, some of them wrong."""
    data = table(real)
    p = problem(data, Iid(4) if real else Dirichlet(4, 0.5, min_size=5), target=target, wrong=0.5)
    x = normal(4, seed=1)
    Y, closed = solved(p, x)[0], closed_form(p, x)
    np.testing.assert_allclose(closed, central_differences(lambda x: objective(p, x), x), atol=1e-8)
    np.testing.assert_allclose(hypergradient(p, x), closed, atol=1e-11)
    gradient = mean(p, lambda s: Oracles(p).inner_gradient(x, flat(Y), s))
    np.testing.assert_allclose(gradient, 0, atol=1e-12)
    assert p.evaluate(x, flat(Y))["val_loss"] == pytest.approx(validated(p, Y)[0], rel=1e-12)
    assert objective(p, x) == pytest.approx(float(mean(p, lambda s: p.f(x, flat(Y), s))), rel=1e-12)


def test_the_script_of_the_page_ends_where_the_hypergradient_is_zero():
    p = problem(table(real=True), target=2, rho=0.03)
    (z, t), (z_val, t_val) = (
        (np.concatenate(parts) for parts in zip(*arrays(p, "train"), strict=True)),
        arrays(p, "val")[2],
    )
    rows = np.split(np.arange(len(t)), np.cumsum(p.splits["train"].sizes)[:-1])
    mixtures = runpy.run_path(str(ROOT / "scripts" / "mixtures"))
    w = mixtures["Moments"](z, t, rows, ridge=0.2).learnt(z_val, t_val, rho=0.03)
    assert np.abs(closed_form(p, np.zeros(4))).max() > 1e-3
    np.testing.assert_allclose(closed_form(p, np.log(w)), 0, atol=1e-5)


def test_of_two_clients_the_clean_one_takes_all_as_rho_falls():
    data, found = table(real=True, n=80, noise=0.0), []
    for rho in (1.0, 0.1, 0.01, 0.001):
        p = problem(data, Iid(2), rho=rho, wrong=0.5)
        (wrong,) = p.wrong_clients
        x = p.start()[0]
        for _ in range(60):
            x = x - 2 / (rho + 0.05) * torch.from_numpy(closed_form(p, x))
        np.testing.assert_allclose(hypergradient(p, x), closed_form(p, x), atol=1e-11)
        found.append(p.evaluate(x, p.start()[1])["wrong_weight"])
        assert found[-1] == pytest.approx(float(torch.softmax(x, 0)[wrong]))
    assert 0.5 > found[0] > found[1] > found[2] > found[3]
    assert found[-1] < 0.01


@pytest.mark.parametrize("rho", [0.0, RHO])
def test_uniform_weights_are_stationary_where_clients_are_alike(rho):
    one = table(n=15)
    many = [np.concatenate([v] * 3) for v in (one.x_train, one.y_train, np.arange(15) % 3 == 0)]
    data = LabelledData(
        *many[:2], one.x_test, one.y_test, pixels="raw", owners=np.array(list("abc")).repeat(15), validates=many[2]
    )
    p = problem(data, ByColumn(), rho=rho)
    np.testing.assert_allclose(hypergradient(p, p.start()[0]), 0, atol=1e-14)
    elsewhere = hypergradient(p, normal(3, seed=1)).norm()  # the divergence alone tells mixtures of alike clients apart
    assert elsewhere > 0.01 if rho else elsewhere < 1e-14
    assert p.direct == (rho > 0)


def test_only_training_labels_of_wrong_clients_are_redrawn():
    data = table(n=4000)
    p = problem(data, Iid(10), wrong=0.4)
    changed = p.train.y.numpy() != data.y_train
    assert len(p.wrong_clients) == 4
    assert not changed[p.splits["val"].rows].any()
    for i, rows in enumerate(p.splits["train"]):
        share = 1 - np.sum(np.bincount(data.y_train, minlength=4) ** 2) / 4000**2
        assert changed[rows].mean() == pytest.approx(share if i in p.wrong_clients else 0, abs=0.12)
    assert p.evaluate(*p.start())["wrong_weight"] == pytest.approx(0.4)
    assert not problem(data).wrong_clients.size


def test_a_client_that_is_not_there():
    with pytest.raises(UserError, match=r"problem\.target=4: the clients are 0 to 3"):
        problem(target=4)


@pytest.mark.parametrize(
    "algo", ["fedmsa", *(pytest.param(name, marks=pytest.mark.full) for name in ("fedbio", "first_order"))]
)
def test_methods_take_weight_from_wrong_clients(algo):
    e = small(
        algo,
        "client_weights",
        *["participation.cohort=null", "problem.examples=600", "problem.ridge=0.3", "hardware.dtype=float32"],
        *{
            "fedmsa": ["algo.alpha=20", "algo.beta=0.2"],
            "fedbio": ["algo.eta=2", "algo.gamma=0.2", "algo.tau=0.2"],
            "first_order": ["algo.eta_x=2", "algo.gamma_x=2", "algo.eta_y=0.05", "algo.gamma_y=0.05"],
        }[algo],
    )
    *_, state = steps(e, 40)
    p, point = e.original, e.algorithm.output(state)
    assert p.evaluate(*point)["wrong_weight"] < 0.5 * p.evaluate(*p.start())["wrong_weight"]


def test_regression_has_an_error_and_no_accuracy():
    p = problem(table(real=True))
    x, y = p.start()
    errors = p._test.x.numpy() @ y[:3].numpy() + float(y[3]) - p._test.y.numpy()
    found = p.evaluate(x, y)
    assert set(found) == {m.name for m in p.metrics} == {"test_rmse", "val_loss", "wrong_weight"}
    assert found["test_rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-12)
    assert full(p, 0)["train"].y.is_floating_point()
