"""The quadratic bilevel problems, whose lower level belongs to all clients or to each, against closed forms in NumPy."""

from functools import partial

import numpy as np
import pytest
import torch
from support.quadratics import SMALL, hypergradient, inner, solution, terms, zero_of

from fedopt.errors import UserError
from fedopt.federation.inverse import neumann_sum
from fedopt.federation.oracles import Oracles
from fedopt.testing.harness import small

X = np.array([0.3, -0.7])


def both(*words):
    return (
        small("fedbio_local", "quadratic_local_bilevel", *SMALL, *words).problem,
        small("fedbio", "quadratic_bilevel", *SMALL, *words).problem,
    )


def own_hypergradients(problem, x):
    return np.array([hypergradient(terms(problem, i), x) for i in range(problem.clients)])


def value(m, x):
    y = inner(m, x)
    return 0.5 * x @ m["D"] @ x - m["d"] @ x + 0.5 * y @ m["F"] @ y - m["e"] @ y + x @ m["G"] @ y


def test_closed_forms():
    local, common = both()
    x, means = torch.from_numpy(X), terms(common)
    np.testing.assert_allclose(local.hypergradient(x), own_hypergradients(local, X).mean(0), rtol=1e-12)
    np.testing.assert_allclose(common.hypergradient(x), hypergradient(means, X), rtol=1e-12)
    of_clients = np.mean([value(terms(local, i), X) for i in range(4)])
    assert local.evaluate(x)["objective"] == pytest.approx(of_clients, rel=1e-12)
    assert common.evaluate(x)["objective"] == pytest.approx(value(means, X), rel=1e-12)
    solved = zero_of(lambda x: own_hypergradients(local, x).mean(0), 2)
    np.testing.assert_allclose(local.solution()[0], solved, rtol=1e-12)
    for ours, theirs in zip(common.solution(), solution(means), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


def test_the_two_problems_have_the_same_numbers_and_different_solutions():
    local, common = both()
    assert all(torch.equal(local.per_client[name], common.per_client[name]) for name in local.per_client)
    assert torch.linalg.norm(local.solution()[0] - common.solution()[0]) > 0.05
    local, common = both("problem.heterogeneity=0")
    torch.testing.assert_close(local.solution()[0], common.solution()[0], rtol=0, atol=1e-12)


def test_the_gradient_is_the_mean_of_what_localbsg_estimates_at_the_clients_own_solutions():
    """Its Neumann sum, long enough."""
    local, _ = both("problem.noise=0")
    x, estimates = torch.from_numpy(X), []
    for i in range(4):
        xi = local.sample(i, {})
        y = torch.linalg.solve(xi.A, xi.B @ x + xi.c)
        inverse = partial(neumann_sum, N=200, l=1.0)
        estimates.append(Oracles(local).hypergradient(x, y, [xi] * 201, inverse))
    torch.testing.assert_close(torch.stack(estimates).mean(0), local.hypergradient(x), rtol=0, atol=1e-12)


def test_is_no_bilevel_problem_of_all_clients():
    with pytest.raises(UserError, match=r"do not fit: this problem is local_bilevel"):
        small("localbsgm", "quadratic_local_bilevel")
