"""The saddle that is PL and not concave in y, against its definition, differences and numbers on grids."""

import numpy as np
import pytest
import torch
from support.derivatives import F64, central_differences, full, mean, normal
from torch.autograd.functional import hessian

from fedopt.config import compose
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems.pl_minimax import PlMinimax
from fedopt.running.assemble import assemble


def make(clients=4, **changes):
    fields = {
        "d": 4,
        "conditioning": 10.0,
        "heterogeneity": 1.0,
        "noise": 2.0,
        "examples": 40,
        "rho": 1.2,
        "coupling": 1.5,
    }
    return PlMinimax(World(0, Iid(clients), dtype=F64), **{**fields, "delta": 0.7, **changes})


def f(p, x, y):
    return mean(p, lambda sample: p.f(x, y, sample))


CASES = pytest.mark.parametrize("changes", [{}, {"delta": None}, {"clients": 1}, {"rho": 2.0, "coupling": 3.0}])


@CASES
def test_mean_is_what_the_formula_says(changes):
    """f = 1/2 x'A x - c'x - h(R (y - S x)), with R'R the mean of the D_i and S'S = coupling^2 I; client terms of y vanish."""
    p = make(**changes)
    own = {name: v.numpy().mean(0) for name, v in p.per_client.items()}
    x, y, R, S = (v.numpy() for v in (normal(4, seed=1), 2 * normal(4, seed=2), p._R, p._S))
    np.testing.assert_allclose(R.T @ R, own["D"], atol=1e-14)
    np.testing.assert_allclose(S.T @ S, p.coupling**2 * np.eye(4), atol=1e-13)
    z = R @ (y - S @ x)
    h = 0.5 * z @ z + p.rho * np.sum((1 - np.cos(2 * z)) / 2)
    expected = 0.5 * x @ own["A"] @ x - own["c"] @ x - h
    assert float(f(p, torch.from_numpy(x), torch.from_numpy(y))) == pytest.approx(expected, rel=1e-12)
    assert np.abs(own["e"]).max() < 1e-15


@CASES
def test_both_levels_are_solved(changes):
    p = make(**changes)
    x, y = p.solution()
    for of, at in ((lambda x: f(p, x, y), x), (lambda y: f(p, x, y), y)):
        np.testing.assert_allclose(central_differences(of, at), 0, atol=1e-8)
    for seed in range(5):
        other = x + normal(4, seed=seed)
        best = p._S @ other
        assert f(p, other, best) > f(p, x, y)
        assert all(f(p, other, best) > f(p, other, best + scale * normal(4, seed=seed)) for scale in (0.1, 1, 3, 10))
        metrics = p.evaluate(other, best)
        assert metrics["objective"] == pytest.approx(float(f(p, other, best)), rel=1e-12)
        slope = central_differences(lambda v: f(p, v, p._S @ v), other)
        assert metrics["hypergradient_norm"] == pytest.approx(np.linalg.norm(slope), rel=1e-7)
        assert metrics["distance"] == pytest.approx(float((other - x).norm()), rel=1e-12)
        assert metrics["distance_y"] == pytest.approx(float((best - y).norm()), rel=1e-12)


def test_derivatives_of_clients_are_differences():
    p, x, y = make(), normal(4, seed=1), normal(4, seed=2)
    sample = full(p, 2)
    of_x, of_y = p.f.both(x, y, sample)
    np.testing.assert_allclose(of_x, central_differences(lambda x: p.f(x, y, sample), x), atol=1e-8)
    np.testing.assert_allclose(of_y, central_differences(lambda y: p.f(x, y, sample), y), atol=1e-8)
    assert float(torch.cat([full(p, i).e - full(p, 0).e for i in range(1, 4)]).norm()) > 0.1


def test_it_is_not_concave_in_y():
    p = make()
    x, y = p.start()
    curvature = torch.linalg.eigvalsh(hessian(lambda y: -f(p, x, y), y))
    np.testing.assert_allclose(curvature, (1 - 2 * 1.2) * np.geomspace(0.1, 1, 4)[::-1], rtol=1e-9)


def slope_over_z(rho):
    z = np.linspace(1e-3, 60, 200_000)  # beyond it |sin| <= 1 is too small
    return (z + rho * np.sin(2 * z)) / z


def test_range_of_rho_is_where_h_is_pl():
    """Per coordinate h' vanishes at 0 alone for rho < 1 / (2 max(-sin t / t)), so that (h')^2 >= 2 mu h with some mu > 0."""
    assert slope_over_z(2.299).min() > 0 > slope_over_z(2.303).min()
    for rho in ("0.5", "2.3"):
        with pytest.raises(UserError, match=r"problem\.rho"):
            assemble(compose(["algo=fess_gda", "problem=pl_minimax", f"problem.rho={rho}"]))


@pytest.mark.parametrize("rho", [0.6, 1.2, 2.2])
def test_it_is_pl_in_y_on_a_grid(rho):
    """|grad_y f|^2 >= 2 mu (max_y f - f), where mu is that of a coordinate's h, on a fine grid, times the least eigenvalue of D."""
    z = np.linspace(1e-3, 20, 200_000)
    mu = np.min((z + rho * np.sin(2 * z)) ** 2 / (z**2 + 2 * rho * np.sin(z) ** 2))
    p = make(d=2, rho=rho)
    x, grid = normal(2, seed=1), torch.linspace(-8, 8, 40, dtype=F64)
    us = torch.cartesian_prod(grid, grid)
    slopes = torch.func.vmap(lambda u: p.f.both(x, p._S @ x + u, p._mean)[1])(us)
    gaps = f(p, x, p._S @ x) - torch.func.vmap(lambda u: p.f(x, p._S @ x + u, p._mean))(us)
    assert mu > 1e-3
    assert bool((torch.sum(slopes**2, dim=1) >= 2 * (1 - 1e-9) * mu * 0.1 * gaps).all())


def test_descent_ascent_needs_a_y_that_is_fast_enough():
    """With y moving coupling^2 times as fast as x, 2 max_y f - f falls along the flow; slower, the solution is unstable."""
    p = make()

    def value(x, y):
        return 2 * p.evaluate(x, y)["objective"] - float(f(p, x, y))

    at = [(normal(4, seed=s), 3 * normal(4, seed=s + 9)) for s in range(9)]
    for x, y in at:
        of_x, of_y = p.f.both(x, y, p._mean)
        slopes = central_differences(lambda x, y=y: value(x, y), x), central_differences(lambda y, x=x: value(x, y), y)
        assert slopes[0] @ -of_x.numpy() + slopes[1] @ (1.5**2 * of_y).numpy() < 0

    def flow(w, r):
        of_x, of_y = p.f.both(w[:4], w[4:], p._mean)
        return torch.cat([-of_x, r * of_y])

    solution = torch.cat(p.solution())
    fastest = [
        np.linalg.eigvals(central_differences(lambda w, r=r: flow(w, r), solution)).real.max() for r in (1.0, 2.25)
    ]
    assert fastest[0] > 0 > fastest[1]
