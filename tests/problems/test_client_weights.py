"""The learnt mixture of clients against ridge and softmax regression in NumPy, and finite differences."""

import runpy
from functools import partial

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
    fields |= {"examples": None, "target": None, "rho": RHO, "wrong": 0.0, "omit": [], **changes}
    return ClientWeights(World(0, partitioner or Iid(4), Given(data or table()), dtype=F64), **fields)


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def mixture(p, x):
    """w_i, 0 of clients that are omitted."""
    kept, w = np.setdiff1d(range(p.clients), p.omit), np.zeros(p.clients)
    w[kept] = softmax(np.asarray(x)[kept])
    return w


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
    w, outputs = mixture(p, x), p.classes or 1
    Y, weights = np.zeros((outputs, 4)), np.tile([1, 1, 1, 0], outputs)  # no ridge on biases
    for _ in range(12):
        terms = [of_client(Y, *a) for a in arrays(p, "train")]
        G, H = np.stack([g for _, g, _ in terms]), sum(w_i * h for w_i, (_, _, h) in zip(w, terms, strict=True))
        H = H + 0.2 * np.diag(weights)
        residual = w @ G + 0.2 * weights * Y.ravel()
        Y = Y - (np.linalg.pinv(H, 1e-10, hermitian=True) @ residual).reshape(Y.shape)
    assert np.abs(residual).max() < 1e-12
    return Y, G, H


def validated(p, Y):
    """The mean of v_i, and its gradient, of the clients that validate."""
    judges = np.setdiff1d(range(p.clients), p.omit) if p.target is None else np.atleast_1d(p.target)
    terms = [of_client(Y, *arrays(p, "val")[i]) for i in judges]
    return np.mean([v for v, *_ in terms]), np.mean([g for _, g, _ in terms], 0)


def divergence(p, x):
    w = mixture(p, x)[np.setdiff1d(range(p.clients), p.omit)]
    return np.sum(w * np.log(len(w) * w))


def objective(p, x):
    v, _ = validated(p, solved(p, x)[0])
    return v + p.rho * divergence(p, x)


def flat(Y):
    """y as the network has it: the weights, then the biases."""
    return torch.from_numpy(np.concatenate([Y[:, :-1].ravel(), Y[:, -1]]))


def closed_form(p, x):
    """-w_i <g_i - gbar, H^-1 grad v> + rho w_i (log w_i - sum w log w)."""
    w, (Y, G, H) = mixture(p, x), solved(p, x)
    b = validated(p, Y)[1]
    log = np.log(np.where(w > 0, w, 1))
    return -w * ((G - w @ G) @ (np.linalg.pinv(H, 1e-10, hermitian=True) @ b)) + p.rho * w * (log - w @ log)


def hypergradient(p, x):
    """From the problem's own functions and products, at y*(x) of NumPy, with a direct solve."""
    y = flat(solved(p, x)[0])
    H = torch.stack(
        [mean(p, lambda s, e=e: Oracles(p).inner_hessian(x, y, s)(e)) for e in torch.eye(len(y), dtype=F64)]
    )
    direct, b = (mean(p, lambda s, k=k: Oracles(p).outer_gradients(x, y, s)[k]) for k in (0, 1))
    v = torch.linalg.pinv(H, rtol=1e-10, hermitian=True) @ b
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
    mixtures = runpy.run_path(str(ROOT / "docs" / "studies" / "mixtures.py"))
    w = mixtures["Moments"](z, t, rows, ridge=0.2).learnt(z_val, t_val, rho=0.03)
    assert np.abs(closed_form(p, np.zeros(4))).max() > 1e-3
    np.testing.assert_allclose(closed_form(p, np.log(w)), 0, atol=1e-5)


@pytest.mark.parametrize("target", [None, [0, 3], 3])
@pytest.mark.parametrize("real", [False, True], ids=["softmax", "ridge"])
def test_exact_hypergradient_without_omitted_clients(real, target):
    """Clients 1 and 3 are out: of the mixture, of the divergence, and of validation unless they are named."""
    p = problem(table(real), target=target, omit=[1, 3])
    x = normal(4, seed=1)
    closed = closed_form(p, x)
    assert (closed[[1, 3]] == 0).all()
    np.testing.assert_allclose(closed, central_differences(lambda x: objective(p, x), x), atol=1e-8)
    np.testing.assert_allclose(hypergradient(p, x), closed, atol=1e-11)
    np.testing.assert_allclose(p.mixture(x), mixture(p, x), rtol=1e-14)
    assert objective(p, x) == pytest.approx(float(mean(p, lambda s: p.f(x, flat(solved(p, x)[0]), s))), rel=1e-12)


def test_an_omitted_client_leaves_no_trace():
    """All functions are those of another table of the omitted client's, and of one in which it never was."""
    one = table(n=60)
    owners = np.array(list("abcd")).repeat(15)
    validates = np.arange(60) % 3 == 0

    def of(rows, replaced=False, omit=()):
        x = np.where((owners == "b")[:, None] & replaced, 7.0, one.x_train)[rows]
        data = LabelledData(
            x, one.y_train[rows], one.x_test, one.y_test, pixels="raw", owners=owners[rows], validates=validates[rows]
        )
        return problem(data, ByColumn(), omit=[*omit])

    all_rows, others = np.arange(60), np.flatnonzero(owners != "b")
    with_it, changed, without = of(all_rows, omit=[1]), of(all_rows, replaced=True, omit=[1]), of(others)
    x, y = normal(4, seed=1), normal(16, seed=2)
    kept = torch.tensor([0, 2, 3])
    points = ((with_it, x), (changed, x), (without, x[kept]))
    for at_sample in (lambda p, x, s: p.f(x, y, s), lambda p, x, s: p.g(x, y, s)):
        values = [mean(p, partial(at_sample, p, at)) for p, at in points]
        torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)
        torch.testing.assert_close(values[0], values[2], rtol=1e-13, atol=0)
    torch.testing.assert_close(hypergradient(with_it, x)[kept], hypergradient(without, x[kept]), rtol=1e-9, atol=1e-12)


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
    for wrong in ({"target": 4}, {"target": [0, 4]}, {"omit": [4]}):
        with pytest.raises(UserError, match=rf"problem\.{next(iter(wrong))}: 4 is not a client; choose from 0 to 3"):
            problem(**wrong)
    for nobody in ({"omit": [0, 1, 2, 3]}, {"target": []}):
        with pytest.raises(UserError, match="no client is left"):
            problem(**nobody)


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
    errors = p.test_examples.x.numpy() @ y[:3].numpy() + float(y[3]) - p.test_examples.y.numpy()
    found = p.evaluate(x, y)
    assert set(found) == {m.name for m in p.metrics} == {"test_rmse", "val_loss", "wrong_weight"}
    assert found["test_rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-12)
    assert full(p, 0)["train"].y.is_floating_point()
