"""The quadratic whose composition is each client's, against finite differences and against its twin."""

import dataclasses

import numpy as np
import pytest
import torch
from support.derivatives import central_differences, full, mean, normal, two_levels

from fedopt.problems.quadratic_local_compositional import QuadraticLocalCompositional


def local(**changes):
    """With the terms of `two_levels`."""
    twin = two_levels(**changes)
    return QuadraticLocalCompositional(**{f.name: getattr(twin, f.name) for f in dataclasses.fields(twin)})


@pytest.mark.parametrize("changes", [{}, {"d0": 5}, {"clients": 1}, {"heterogeneity": 5.0, "conditioning": 1.0}])
def test_closed_forms(changes):
    p = local(**changes)
    x = normal(p.d0, seed=1)

    def composed(x):
        return mean(p, lambda sample: p.level(1, p.level(0, x, sample), sample))

    np.testing.assert_allclose(p.hypergradient(x), central_differences(composed, x), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(p.hypergradient(p.solution()[0]), 0, atol=1e-12)
    metrics = p.evaluate(x)
    assert metrics["objective"] == pytest.approx(float(composed(x)), rel=1e-10)
    assert metrics["distance"] == pytest.approx(float((x - p.solution()[0]).norm()), rel=1e-12)
    assert metrics["hypergradient_norm"] == pytest.approx(np.linalg.norm(central_differences(composed, x)), rel=1e-7)


def test_the_twins_differ_in_their_solution_alone():
    p, twin = local(), two_levels()
    for i in range(p.clients):
        for a, b in zip(full(p, i), full(twin, i), strict=True):
            assert torch.equal(a, b)
    assert torch.linalg.norm(p.solution()[0] - twin.solution()[0]) > 0.3
    assert twin.evaluate(*p.solution())["hypergradient_norm"] > 0.05
    assert p.evaluate(*twin.solution())["hypergradient_norm"] > 0.05


def test_equal_clients_have_the_solution_of_the_twin():
    equal = {"heterogeneity": 0.0}
    torch.testing.assert_close(local(**equal).solution()[0], two_levels(**equal).solution()[0])
