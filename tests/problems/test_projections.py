"""Projections against their definition, and where algorithms apply them."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.cases import few

from fedopt.problems.projections import ball, box, simplex
from fedopt.testing.harness import pairs, small, steps
from fedopt.toolbox.directions import projected
from fedopt.toolbox.vectors import Vectors

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
RADIUS = 1.5
SETS = {
    "simplex": (simplex, lambda z: bool((z >= 0).all()) and abs(float(z.sum()) - 1) < 1e-9),
    "scaled simplex": (
        lambda y: simplex(y, RADIUS),
        lambda z: bool((z >= 0).all()) and abs(float(z.sum()) - RADIUS) < 1e-9,
    ),
    "box": (lambda y: box(y, -0.5, 2.0), lambda z: bool(((z >= -0.5) & (z <= 2)).all())),
    **{
        f"{norm} ball": (
            lambda y, norm=norm: ball(y, RADIUS, norm),
            lambda z, p=p: float(torch.linalg.vector_norm(z, p)) <= RADIUS + 1e-9,
        )
        for norm, p in (("l1", 1), ("l2", 2), ("linf", float("inf")))
    },
}
points = arrays(np.float64, st.integers(1, 7), elements=st.floats(-10, 10))


def members(name, d, rng, count=200):
    """Points of a set, its corners among them."""
    u = rng.standard_normal((count, d)) * rng.choice([0.1, 1, 10], (count, 1))
    corners = np.concatenate([np.eye(d), -np.eye(d), np.zeros((1, d)), np.ones((1, d)), -np.ones((1, d))]) * RADIUS
    u = torch.from_numpy(np.concatenate([u, corners]))
    if "simplex" in name:
        total = RADIUS if "scaled" in name else 1.0
        return torch.cat([torch.softmax(u, 1), torch.eye(d, dtype=u.dtype)]) * total
    if name == "box":
        return u.clamp(-0.5, 2)
    p = {"l1": 1, "l2": 2, "linf": float("inf")}[name.split()[0]]
    return u * (RADIUS / torch.linalg.vector_norm(u, p, dim=1, keepdim=True).clamp(min=RADIUS))


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(y=points)
def test_nearest_point(name, y):
    """z is in the set, and (y - z)'(w - z) <= 0 for all w in it, which makes it the nearest."""
    project, inside = SETS[name]
    y = torch.from_numpy(y)
    z = project(y)
    assert inside(z)
    w = members(name, len(y), np.random.default_rng(0))
    assert float(((w - z) @ (y - z)).max()) <= 1e-8
    torch.testing.assert_close(project(z), z, **TIGHT)


@pytest.mark.parametrize("scale", [1e8, 1e20, 1e30, 3e38])
def test_large_numbers_in_single_precision(scale):
    """Equal numbers share the set's total, a number far above the others has it all, and a ball keeps the direction."""
    equal, apart = torch.full((4,), scale), torch.tensor([scale, 0.5 * scale, 0.0, -scale])
    stacked = torch.func.vmap(simplex)(torch.stack([equal, apart]))
    assert stacked.tolist() == [[0.25] * 4, [1, 0, 0, 0]]
    assert simplex(equal, RADIUS).tolist() == [RADIUS / 4] * 4
    assert simplex(equal, scale).tolist() == pytest.approx([scale / 4] * 4)
    assert ball(equal, 2.0).tolist() == pytest.approx([1] * 4)
    assert ball(-apart, 3.0).tolist() == pytest.approx([-2, -1, 0, 2])
    assert ball(-equal, 2.0, "l1").tolist() == [-0.5] * 4
    assert ball(apart, 2.0, "linf").tolist() == [2, 2, 0, -2]
    assert in_radius(equal, 2.0).tolist() == pytest.approx([1] * 4)


def in_radius(v, radius):
    """The v of nested methods."""
    return projected(SimpleNamespace(project=lambda y: y), Vectors((v, v, v)), radius)[2]


@pytest.mark.parametrize("name", SETS)
def test_stacked_clients_project_each_their_own(name):
    project, _ = SETS[name]
    y = torch.from_numpy(np.random.default_rng(1).normal(0, 2, (6, 5)))
    torch.testing.assert_close(torch.func.vmap(project)(y), torch.stack([project(row) for row in y]), **TIGHT)


MINIMAX = [a for a, p in pairs() if p == "quadratic_minimax"]


# As in their papers: ProxSkip-GDA projects means alone, and local extragradient no half point
OUTSIDE_BETWEEN = {"proxskip_gda", "local_eg"}


@pytest.mark.parametrize(
    ("algo", "engine"),
    few(
        itertools.product(MINIMAX, ["vectorised", "one_by_one"]),
        lambda case: MINIMAX.index(case[0]) % 9 == 0,
        pytest.mark.slow,
    ),
)
def test_every_algorithm_stays_in_the_set(algo, engine, monkeypatch):
    """At every gradient and in what it gives out; the start is inside."""
    e = small(algo, "quadratic_minimax", f"hardware.engine={engine}")
    minimax, seen = e.original, []
    f = type(minimax).f

    def spy(self, x, y, sample):
        seen.append(float(torch.linalg.vector_norm(y.detach()))) if engine == "one_by_one" else None
        return f(self, x, y, sample)

    monkeypatch.setattr(type(minimax), "f", spy)
    monkeypatch.setattr(type(minimax), "project", lambda self, y: ball(y, 1e-3))
    start = minimax.start()
    monkeypatch.setattr(type(minimax), "start", lambda self: (start[0], torch.zeros_like(start[1])))
    _, y = e.algorithm.output(steps(e, 4)[-1])[:2]
    assert 2e-4 < float(y.norm()) < 1e-3 + 1e-12  # clients are at the boundary, their mean is near it
    assert max(seen, default=0) < 1e-3 + 1e-12 or algo in OUTSIDE_BETWEEN
    assert seen or engine == "vectorised"
