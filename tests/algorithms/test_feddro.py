"""FedDRO against a NumPy derivation and closed forms."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.compositions import error, maps, noises, states
from support.derivatives import F64

from fedopt.algorithms.feddro import FedDro
from fedopt.config.schedules import Constant
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems.classes import KnownOuter
from fedopt.problems.quadratic_compositional import QuadraticCompositional
from fedopt.problems.reductions import reduce
from fedopt.running.assemble import assemble
from fedopt.testing.harness import composed


class Known(QuadraticCompositional, KnownOuter):
    """With the mean of the clients' outer functions."""

    def level(self, n, z, sample):
        return super().level(n, z, self._mean if n == 1 else sample)


def problem(clients=4, **changes):
    fields = {"d0": 3, "d1": 4, "conditioning": 2.0, "heterogeneity": 1.0, "noise": 1.0, "examples": 40, **changes}
    return Known(World(0, Iid(clients), dtype=F64), **fields)


def method(eta=0.5, beta=0.5, I=1, B=None):
    return FedDro(Constant(eta), beta, I, B)


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_exchanging_x_at_every_step_is_exact(beta):
    """Unlike clients, full batches: the solution of the global problem."""
    assert error(method(1.0, beta), problem(), 40) < 1e-4


@pytest.mark.full
def test_several_local_steps_leave_a_bias_of_the_order_of_the_step():
    errors = [error(method(eta, I=5), problem(), int(6 / eta)) for eta in (0.2, 0.1)]
    assert errors[1] > 1e-3
    assert 1.8 < errors[0] / errors[1] < 2.2


@pytest.mark.parametrize("I", [1, 4])
def test_y_is_exchanged_at_every_step_and_x_once(I):
    p = problem()
    _, federation = states(method(I=I), p, 2)
    ledger, (X, Y) = federation.ledger, p.dims
    assert ledger.comm_rounds == 2 * (I + 1)
    assert ledger.up.tolist() == [2 * 8 * (I * Y + X)] * 4
    assert ledger.down.tolist() == [2 * 8 * ((I + 1) * Y + X)] * 4
    assert (ledger.calls.grad, ledger.calls.jvp) == (4 * 2 * I, 4 * 2 * I)


def test_an_outer_function_that_only_clients_know_is_refused():
    with pytest.raises(UserError, match="known_outer"):
        assemble(composed("algo=feddro", "problem=quadratic_compositional"))
    p = QuadraticCompositional(problem().world, **{k: v for k, v in vars(problem()).items() if k in FIELDS})
    with pytest.raises(UserError, match=r"solves known_outer problems, .*is two_level"):
        reduce(p, FedDro.solves)


FIELDS = ("d0", "d1", "conditioning", "heterogeneity", "noise", "examples")


@pytest.mark.parametrize("B", [None, 3])
@pytest.mark.parametrize(("beta", "I"), [(0.4, 3), (0.4, 1), (1.0, 2)])
def test_golden_numbers(beta, I, B):
    """Three clients, three rounds, written out; with beta = 1 ybar is the mean of the newest values."""
    eta, p = 0.4, problem(clients=3)
    (*_, state), federation = states(method(eta, beta, I, B), p, 3, seed=5)
    e, M = SimpleNamespace(problem=p, federation=federation), range(3)
    Q, e_mean = p._mean.Q.numpy(), p._mean.e.numpy()
    value, jacobian = zip(*(maps(p, i)[:2] for i in M), strict=True)
    x = [p.start()[0].numpy()] * 3
    old, ybar = list(x), 0
    for r in range(3):
        for k in range(I + 1):
            n = 2 if 0 < k < I else 1
            (*xi,) = (noises(e, r, i, 1, B, samples=n, exchange=k + 1)[0] for i in M)
            if k > 0:
                old = x
                x = [x[i] - eta * jacobian[i].T @ (Q @ ybar - e_mean) for i in M]
            if k < I:
                rest = 0 if r == 0 else 1 - beta
                ybar = np.mean([value[i](x[i], xi[i][-1]) + rest * (ybar - value[i](old[i], xi[i][-1])) for i in M], 0)
        old, x = old, [np.mean(x, axis=0)] * 3
    np.testing.assert_allclose(state.x, x[0], rtol=1e-11)
    np.testing.assert_allclose(state.ybar, ybar, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(state.memory.tensor(), old, rtol=1e-11)
