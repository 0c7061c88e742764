"""Forms that problems write by hand: automatic differentiation of the function's own value gives the same."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.cases import few
from torch.func import grad, jacrev, vmap

from fedopt.config.composed import compose
from fedopt.federation.draws import Full, draw
from fedopt.federation.oracles import Oracles
from fedopt.problems.quadratic_minimisation import QuadraticMinimisation
from fedopt.running.assemble import assemble

CASES = {
    "quadratic_minimisation": "fedavg",
    "quadratic_minimax": "local_sgda",
    "quadratic_game": "local_sgda",
    "saddle": "local_sgda",
    "pl_minimax": "local_sgda",
    "quadratic_bilevel": "fedmsa",
    "quadratic_local_bilevel": "fedbioacc_local",
    "personalised_regression": "fedbio_local",
    "quadratic_compositional": "fedmsa",
    "quadratic_local_compositional": "local_scgd",
    "mco": "fedmsa",
    "regularisation": "fedmsa",
    "fair_classification": "local_sgda",
    "hyper_representation": "fedmsa",
    "imbalanced_mnist": "fedmsa",
    "data_cleaning": "fedmsa",
    "client_weights": "fedmsa",
}
NETWORKS = [*CASES][[*CASES].index("fair_classification") :]
NETWORK = [
    "dataset=digits",
    "partitioner=iid",
    "participation.cohort=null",
    "problem.model=mlp",
    "problem.widths=[7,5]",
]


def problem(name, *more):
    words = [
        f"algo={CASES[name]}",
        f"problem={name}",
        *(NETWORK if name in NETWORKS else []),
        *more,
        "partitioner.clients=3",
        "hardware=cpu",
        "hardware.dtype=float64",
    ]
    return assemble(compose(words)).problem


def sampled(p, client, share):
    """The problem's sample of some of a client's examples, with unequal weights."""
    rows, rng = {}, np.random.default_rng(5)
    for name, split in p.splits.items():
        of_client = split.rows[split.offsets[client] :][: split.sizes[client]]
        chosen = rng.choice(of_client, max(1, int(share * len(of_client))), replace=False)
        weights = rng.random(len(chosen))
        rows[name] = torch.from_numpy(chosen), torch.from_numpy(weights / weights.sum())
    return p.sample(client, rows)


@pytest.mark.parametrize("name", ["hyper_representation", "data_cleaning"])
def test_the_penalty_of_norms_at_a_layer_of_zeros(name):
    """Its gradient is 0 there, by the form and by autograd, and so are products with its Hessian; also of stacked clients."""
    p, plain = problem(name, "problem.norms=0.2"), problem(name)
    x, y = p.start()
    y = y + 0.1
    first, v = p.inner_net.sizes[0], torch.ones_like(y)
    y[:first] = 0
    products = []
    for one in (p, plain):
        xi = sampled(one, 1, 0.5)
        torch.testing.assert_close(one.g.gradient(x, y, xi), grad(one.g, 1)(x, y, xi), rtol=1e-10, atol=1e-11)
        product = lambda y, one=one, xi=xi: grad(lambda y: grad(one.g, 1)(x, y, xi) @ v)(y)  # noqa: E731
        torch.testing.assert_close(vmap(product)(torch.stack([y, y + 1]))[0], product(y), rtol=1e-10, atol=1e-11)
        products.append(product(y))
    assert torch.equal(products[0][:first], products[1][:first])
    assert products[0].isfinite().all()
    assert torch.dist(*products) > 0


CLASSES = ["problem.classes=3", "problem.per=class"]
PENALTIES = ["problem.ridge=0.3", "problem.norms=0.2"]


@pytest.mark.parametrize(
    ("name", "more"),
    [*((name, []) for name in CASES), *((name, PENALTIES) for name in NETWORKS[-4:]), ("regularisation", CLASSES)],
)
def test_forms_are_derivatives(name, more):
    p = problem(name, *more)
    xi, rng = sampled(p, 1, 0.5), np.random.default_rng(3)
    points = [torch.from_numpy(rng.standard_normal(len(v))) for v in (*p.start(), *p.start())]
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)  # noqa: E731
    if name == "quadratic_minimisation":
        close(p.f.gradient(points[0], xi), grad(p.f)(points[0], xi))
    elif hasattr(p, "level"):
        for n, d in enumerate(p.dims):
            z = torch.from_numpy(rng.standard_normal(d))
            if n == len(p.dims) - 1:
                for end in (1.0, -1.0):  # mco has a kink at 0
                    z[-1] = end * z[-1].abs()
                    close(p.level.gradient(n, z, xi), grad(lambda z, n=n: p.level(n, z, xi))(z))
                continue
            v = torch.from_numpy(rng.standard_normal(p.dims[n + 1]))
            value, pull = p.level.pullback(n, z, xi)
            close(value, p.level(n, z, xi))
            close(pull(v), v @ jacrev(lambda z, n=n: p.level(n, z, xi))(z))
    else:
        x, y, _, v = points
        y = (
            y
            if name in ("hyper_representation", "imbalanced_mnist", "data_cleaning", "client_weights")
            else p.project(y)
        )
        pairs = [(Oracles(p).outer_gradients(x, y, xi), p.f)]
        if hasattr(p, "g") and name not in NETWORKS:
            pairs.append((p.g.both(x, y, xi), p.g))
        for both, fn in pairs:
            for given, own in zip(both, grad(fn, argnums=(0, 1))(x, y, xi), strict=True):
                close(given, own)
        if hasattr(p, "g"):
            close(p.g.gradient(x, y, xi), grad(p.g, 1)(x, y, xi))
            if name in NETWORKS:
                return
            close(p.f.gradient(x, y, xi), grad(p.f, 1)(x, y, xi))
            gradient, hessian, cross = p.g.second(x, y, xi)
            close(gradient, grad(p.g, 1)(x, y, xi))
            close(hessian(v), grad(lambda y: grad(p.g, 1)(x, y, xi) @ v)(y))
            close(cross(v), grad(lambda x: grad(p.g, 1)(x, y, xi) @ v)(x))


@pytest.mark.parametrize(
    "name",
    few(
        [c for c in CASES if c not in ("saddle", "mco", "regularisation", "personalised_regression", *NETWORKS)],
        lambda name: "bilevel" not in name,
    ),
)
def test_full_samples_are_those_of_all_examples(name):
    p = problem(name)
    clients = np.arange(p.clients)
    whole, _ = draw({"all": Full()}, p.splits, clients, np.random.default_rng, p.start()[0])
    given = vmap(p.full_sample)(torch.from_numpy(clients))
    for one, other in zip(given, vmap(p.sample)(torch.from_numpy(clients), whole), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_problem_of_ones_own_keeps_neither():
    """A subclass with another function or other samples has none of the forms that were written for those."""

    @dataclass(eq=False)
    class Own(QuadraticMinimisation):
        def f(self, x, sample):
            return super().f(x, sample) ** 2

    @dataclass(eq=False)
    class OwnSamples(QuadraticMinimisation):
        def sample(self, client, rows):
            return super().sample(client, rows)

    assert not hasattr(Own.f, "gradient")
    assert hasattr(Own, "full_sample")
    assert not hasattr(OwnSamples, "full_sample")


def test_products_by_hand_count_as_calls():
    p = problem("quadratic_bilevel")
    (x, y), xi, oracles = p.start(), sampled(p, 0, 1.0), Oracles(p)
    oracles.inner_hessian(x, y, xi)(y)
    oracles.cross_product(x, y, y, xi)
    oracles.outer_gradients(x, y, xi)
    oracles.outer_gradient_x(x, y, xi)
    oracles.inner_gradients(x, y, xi)
    assert (oracles._counter.calls.grad, oracles._counter.calls.hvp, oracles._counter.calls.jvp) == (3, 1, 1)
