"""Functions that a problem marks with `oracle`: derivatives, ratios, constraints as a minimax problem, and projections of x."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.derivatives import F64, central_differences, normal

from fedopt.algorithms.fedavg_s import FedAvgS
from fedopt.algorithms.fedsgm import FedSgm
from fedopt.algorithms.fmgda import Fmgda, shortest
from fedopt.config.schedules import Constant, Fixed
from fedopt.config.settings import Participation
from fedopt.data import Ragged
from fedopt.errors import UserError
from fedopt.federation import Federation, OneByOne, Steps, Vectorised, ratio
from fedopt.problems import Constrained, Minimax, MultiObjective, covered, reduce
from fedopt.problems.checks import check
from fedopt.problems.function import oracle
from fedopt.running.assemble import assemble
from fedopt.testing.harness import composed, small, steps

M, D, K = 4, 5, 3
ENGINES = [OneByOne(), Vectorised(), Vectorised(3)]
ALL = {"xi": Steps(1, None)}


class Clients:
    """M clients whose sample is their row of each tensor."""

    metrics = ()

    def __init__(self, **per_client):
        super().__init__(world=None)
        self.per_client, self.splits = per_client, {"train": Ragged([np.array([i]) for i in range(M)])}

    def start(self):
        return (torch.linspace(-1, 1, D, dtype=F64),)

    def sample(self, client, rows):
        return {name: rows[client] for name, rows in self.per_client.items()}

    def evaluate(self, *point):
        return {}


class Curved(Clients, MultiObjective):
    """h_i(x) = tanh(A_i x)^2 and, under another name, cosines of two coordinates."""

    @oracle("K")
    def h(self, x, sample):
        return torch.tanh(sample["A"] @ x) ** 2

    @oracle(2)
    def waves(self, x, sample):
        return torch.cos(x[:2] * sample["A"][0, 0])

    K = K


class Two(Clients, MultiObjective):
    """h_is(x) = 1/2 |x - a_is|^2 for s = 1, 2."""

    @oracle(2)
    def h(self, x, sample):
        return 0.5 * torch.sum((x - sample["a"]) ** 2, 1)


class Within(Clients, Constrained):
    """min 1/2 |x - a|^2 with c'x <= b, for means a, c, b over clients. The shares of b are far from equal."""

    def start(self):
        """Beyond the constraint by 1/2."""
        a, c, b = (self.per_client[name].mean(0) for name in "acb")
        return (a - (c @ a - b - 0.5) / (c @ c) * c,)

    @oracle(1)
    def h(self, x, sample):
        return (sample["c"] @ x - sample["b"])[None]

    def f(self, x, sample):
        return 0.5 * torch.sum((x - sample["a"]) ** 2)


def within(b=-4.0):
    a, c = normal(M, D, seed=1), normal(M, D, seed=2) + 1
    return Within(a=a, c=c, b=b + 3 * (torch.arange(M, dtype=F64) - (M - 1) / 2))


def kkt(problem):
    """Its solution and multiplier, in closed form."""
    a, c, b = (problem.per_client[name].mean(0) for name in "acb")
    y = ((c @ a - b) / (c @ c)).clamp(min=0)
    return a - y * c, y


def rounds(algorithm, problem, number, participation=None, engine=None):
    """The federation, the reduced problem, and the states from the first to the last."""
    reduced = reduce(problem, algorithm.solves)
    fed = Federation(reduced, engine or Vectorised(), 0, participation or Participation())
    states = [algorithm.init(reduced)]
    for r in range(number):
        states.append(algorithm.step(states[-1], reduced, fed.at(r)))
    return fed, states


def const(value):
    return Constant(value)


def local(steps):
    return Fixed(steps)


# Oracles


@pytest.mark.parametrize("engine", ENGINES)
def test_derivatives_are_finite_differences_and_counted(engine):
    problem, w = Curved(A=normal(M, K, D, seed=3)), torch.tensor([0.5, -2.0, 1.0], dtype=F64)
    (x,), S = problem.start(), np.array([0, 2, 3])

    def asked(client, message):
        x, w = message
        xi = client.sample("xi")
        return client.h(x, xi), client.h_vjp(x, w, xi), client.h_jacobian(x, xi), client.waves_jacobian(x, xi)

    fed = Federation(problem, engine, 0)
    rows = fed.at(0).exchange(asked, (x, w), S, combine=lambda rows, _: rows, **ALL)
    for place, i in enumerate(S):
        sample = problem.sample(i, {})
        dense = torch.from_numpy(central_differences(lambda v, sample=sample: problem.h(v, sample), x))
        torch.testing.assert_close(rows[0][place], problem.h(x, sample))
        torch.testing.assert_close(rows[1][place], w @ dense, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(rows[2][place], dense, rtol=1e-6, atol=1e-8)
        waves = central_differences(lambda v, sample=sample: problem.waves(v, sample), x)
        torch.testing.assert_close(rows[3][place], torch.from_numpy(waves), rtol=1e-6, atol=1e-8)
    calls = fed.ledger.calls
    assert (calls.grad, calls.hvp, calls.jvp) == (len(S) * (1 + K + 2), 0, 0)
    assert calls.grad_examples == calls.grad  # each client has one example


@pytest.mark.parametrize("engine", ENGINES)
def test_means_over_clients_are_ratios(engine):
    """Weights n_ik, of which a client's is 0, in a cohort: neither the mean of means nor weights p_i."""
    n = torch.tensor([[1.0, 7, 2], [9, 0, 2], [4, 1, 2], [2, 2, 2]], dtype=F64)
    problem = Curved(A=normal(M, K, D, seed=3), h_weights=n)
    (x,), S = problem.start(), np.array([0, 1, 3])
    fed = Federation(problem, engine, 0)

    def values(client, x):
        return client.h_weighted(client.h(x, client.sample("xi")))

    def jacobians(client, x):
        return client.h_weighted(client.h_jacobian(x, client.sample("xi")))

    of_each = torch.stack([problem.h(x, problem.sample(i, {})) for i in S])
    by_hand = (n[S] * of_each).sum(0) / n[S].sum(0)
    torch.testing.assert_close(ratio(fed.at(0).exchange(values, x, S, **ALL)), by_hand)
    assert (by_hand - of_each.mean(0)).abs()[:2].min() > 1e-3
    assert (by_hand - of_each.mean(0)).abs()[2] < 1e-12
    assert fed.ledger.up.tolist() == [2 * K * 8 * int(i in S) for i in range(M)]
    dense = [torch.func.jacrev(problem.h)(x, problem.sample(i, {})) for i in S]
    by_hand = torch.einsum("ik,ikd->kd", n[S] / n[S].sum(0), torch.stack(dense))
    torch.testing.assert_close(ratio(fed.at(0).exchange(jacobians, x, S, **ALL)), by_hand)
    lacking = ratio(fed.at(0).exchange(values, x, np.array([1]), **ALL))
    assert lacking.isnan().tolist() == [False, True, False]


def test_without_weights_only_the_values_are_sent():
    problem, S = Curved(A=normal(M, K, D, seed=3)), np.arange(M)
    fed = Federation(problem, Vectorised(), 0)
    answer = fed.at(0).exchange(lambda c, x: c.h_weighted(c.h(x, c.sample("xi"))), problem.start()[0], S, **ALL)
    assert len(answer) == 1
    assert fed.ledger.up.tolist() == [K * 8] * M


def test_names_that_do_not_exist_are_refused():
    fed = Federation(within(), Vectorised(), 0)
    for name in ("g_vjp", "h_hvp", "waves"):
        with pytest.raises(AttributeError, match=rf"client\.{name} does not exist.*marks no such function"):
            fed.at(0).exchange(lambda client, x, name=name: getattr(client, name), torch.ones(1), np.arange(M))


class Unmarked(Curved):
    def h(self, x, sample):
        return torch.tanh(sample["A"] @ x) ** 2


class Short(Curved):
    K = 2


@pytest.mark.parametrize(("cls", "why"), [(Unmarked, r"h is not decorated with @oracle"), (Short, r"of shape \[2\]")])
def test_wrong_functions_are_refused_before_the_run(cls, why):
    problem = cls(A=normal(M, K, D, seed=3))
    problem.world = small("fedavg", "quadratic_minimisation").problem.world
    with pytest.raises(UserError, match=why):
        check(problem)


# Constraints


def test_constraints_are_a_minimax_problem_whose_limit_is_the_kkt_point():
    """Of one local step: closed form. Not so where the constraint is left out or counts otherwise."""
    problem = within()
    x, y = kkt(problem)
    assert y > 0.5
    found = rounds(FedAvgS(const(0.2), const(0.05), local(1), None), problem, 800)[1][-1].w
    torch.testing.assert_close(found[0], x, rtol=0, atol=1e-10)
    torch.testing.assert_close(found[1], y[None], rtol=0, atol=1e-10)
    assert covered((Minimax,)) == {"minimax", "constrained"}


def fed_norm_sgda():
    """With one step, whose server projects the mean of unprojected changes."""
    words = ["algo=fed_norm_sgda", "problem=quadratic_minimax", "algo.tau=1", "algo.B=null"]
    return composed(*words, "algo.eta_x=0.2", "algo.eta_y=0.05").parts["algo"]


def test_multipliers_stay_in_their_box():
    """Constraints that hold have the multiplier 0, also if some clients exceed them, and a bound of multipliers stops y."""
    slack = within(b=2.0)
    a, c = (slack.per_client[name].mean(0) for name in "ac")
    assert kkt(slack)[1] == 0
    assert max(float(slack.h(a, slack.sample(i, {}))) for i in range(M)) > 0
    found = rounds(fed_norm_sgda(), slack, 400)[1][-1]
    assert found.y.tolist() == [0]
    torch.testing.assert_close(found.x, a, rtol=0, atol=1e-10)
    # FedAvg-S averages what each client has projected, so y does not come to 0
    assert float(rounds(FedAvgS(const(0.2), const(0.05), local(1), None), slack, 400)[1][-1].w[1]) > 0.01
    bounded = within()
    bounded.largest_multiplier = 0.25
    found = rounds(fed_norm_sgda(), bounded, 400)[1][-1]
    assert found.y.tolist() == [0.25]
    torch.testing.assert_close(found.x, a - 0.25 * c, rtol=0, atol=1e-10)


def test_constraints_with_weights_are_ratios_in_the_reduction():
    """sum_i n_i (c_i'x - b_i) / sum n_i, whose multiplier and solution are of the means weighted by n."""
    problem, n = within(), torch.tensor([[1.0], [5.0], [0.0], [2.0]], dtype=F64)
    problem.per_client["h_weights"] = n
    a, p = problem.per_client["a"].mean(0), n[:, 0] / n.sum()
    c, b = p @ problem.per_client["c"], p @ problem.per_client["b"]
    y = (c @ a - b) / (c @ c)
    assert y > 0.5
    found = rounds(FedAvgS(const(0.2), const(0.05), local(1), None), problem, 800)[1][-1].w
    torch.testing.assert_close(found[0], a - y * c, rtol=0, atol=1e-9)
    algorithm = FedSgm(const(0.01), const(1.0), local(1), None, 1e-3, None)
    found = rounds(algorithm, problem, 800)[1][-1].x  # whose mean comes later
    assert (problem.start()[0] - (a - y * c)).norm() > 0.5
    assert (found - (a - y * c)).norm() < 0.05


@pytest.mark.parametrize("beta", [None, 20.0])
def test_fedsgm_comes_as_near_to_the_kkt_point_as_eps_says(beta):
    """The violation is at most eps, and the distance shrinks with it."""
    problem, distances = within(), []
    x, _ = kkt(problem)
    for eps, eta in ((0.2, 0.04), (0.02, 0.004)):
        algorithm = FedSgm(const(eta), const(1.0), local(1), None, eps, beta)
        fed, states = rounds(algorithm, problem, 400)
        (found,) = algorithm.output(states[-1])
        h = sum(float(problem.h(found, problem.sample(i, {}))) for i in range(M)) / M
        assert h <= eps + 1e-9
        distances.append(float((found - x).norm()))
    assert distances[0] < 0.5
    assert distances[1] < 0.2 * distances[0], distances
    per_client = 8 * (1 + D)  # one value, and a point
    assert fed.ledger.up.tolist() == [per_client * 400] * M
    assert fed.ledger.down.tolist() == [8 * (2 * D + 1) * 400] * M
    assert fed.ledger.calls.grad == M * 400 * (1 if beta is None else 2)


def test_fedsgm_averages_the_feasible_points():
    """From an infeasible start; before a feasible point, the last one counts."""
    problem = within()
    algorithm = FedSgm(const(0.05), const(1.0), local(2), None, 0.05, None)
    states = rounds(algorithm, problem, 40)[1]
    feasible = [s.x for s in states[:-1] if _mean_h(problem, s.x) <= 0.05]
    assert 0 < len(feasible) < 40
    torch.testing.assert_close(algorithm.output(states[-1])[0], torch.stack(feasible).mean(0))
    first = next(i for i, s in enumerate(states) if _mean_h(problem, s.x) <= 0.05)
    assert first == 0 or torch.equal(algorithm.output(states[first])[0], states[first].x)


def _mean_h(problem, x):
    return sum(float(problem.h(x, problem.sample(i, {}))) for i in range(M)) / M


# Several objectives


@pytest.mark.parametrize("tau", [1, 5])
def test_fmgda_ends_at_the_projection_onto_the_pareto_segment(tau):
    """Of two isotropic quadratics: the nearest point to the start on the segment between the means of a."""
    two = Two(a=normal(M, 2, D, seed=6))
    (x,), (p, q) = two.start(), two.per_client["a"].mean(0)
    share = ((x - p) @ (q - p) / ((q - p) @ (q - p))).clamp(0, 1)
    assert 0.05 < share < 0.95
    fed, states = rounds(Fmgda(const(0.2), const(1.0), local(tau), None), two, 200)
    torch.testing.assert_close(states[-1].x, p + share * (q - p), rtol=0, atol=1e-13)
    assert fed.ledger.calls.grad == 200 * M * 2 * tau
    assert fed.ledger.up.tolist() == [200 * 2 * D * 8] * M
    assert fed.ledger.down.tolist() == [200 * D * 8] * M


@pytest.mark.parametrize(("number", "dim"), [(1, 4), (2, 3), (3, 2), (5, 8), (6, 3), (9, 4)])
def test_the_shortest_combination_is_optimal(number, dim):
    """min_s D_s'd = |d|^2 for d = lam'D, also with more vectors than dimensions, where the hull may contain 0."""
    for seed in range(10):
        shift = torch.ones(dim, dtype=F64) * (seed % 3)
        vectors = normal(number, dim, seed=seed) + shift
        lam = shortest(vectors)
        assert lam.min() >= 0
        assert float(lam.sum()) == pytest.approx(1)
        d = lam @ vectors
        assert float((vectors @ d).min()) == pytest.approx(float(d @ d), abs=1e-10)


def test_the_shortest_combination_of_special_vectors():
    e = torch.eye(3, dtype=F64)
    torch.testing.assert_close(shortest(torch.stack([e[0], -e[0]])), e.new_tensor([0.5, 0.5]))
    assert shortest(0 * e).sum() == pytest.approx(1)
    torch.testing.assert_close(shortest(e), e.new_full((3,), 1 / 3))
    torch.testing.assert_close(shortest(torch.stack([e[0], 3 * e[0]])), e.new_tensor([1.0, 0.0]))
    lacking = torch.stack([e[0], torch.nan * e[1], e[2]])
    torch.testing.assert_close(shortest(lacking), e.new_tensor([0.5, 0.0, 0.5]))
    together = torch.func.vmap(shortest)(torch.stack([e, e * e.new_tensor([1.0, 2.0, 4.0])[:, None]]))
    torch.testing.assert_close(together[1], shortest(e * e.new_tensor([1.0, 2.0, 4.0])[:, None]))


def test_fmgda_waits_for_clients_that_have_an_objective():
    """In a cohort without one of them, the others decide."""
    n = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]], dtype=F64)
    problem = Two(a=normal(M, 2, D, seed=5), h_weights=n)
    algorithm = Fmgda(const(0.1), const(1.0), local(1), None)
    states = rounds(algorithm, problem, 4, Participation(cohort=1))[1]
    moves = [(b.x - a.x) for a, b in pairwise(states)]
    assert all(move.isfinite().all() and move.norm() > 0 for move in moves)


def test_many_objectives_are_refused():
    problem = Curved(A=normal(M, 13, D, seed=3))
    problem.K = 13
    with pytest.raises(UserError, match="at most 12 objectives, not 13"):
        Fmgda(const(0.1), const(1.0), local(1), None).init(problem)


# The set of x


def test_methods_that_do_not_project_refuse_the_sphere():
    for algo in ("scaffold", "fednest"):
        with pytest.raises(UserError, match=r"(Scaffold|FedNest) does not project x, and Pca constrains x"):
            assemble(composed(f"algo={algo}", "problem=pca"))


@pytest.mark.parametrize("algo", ["fedavg", "fedadam"])
def test_every_point_is_on_the_sphere(algo):
    e = small(algo, "pca", "participation.cohort=3", "algo.tau=3", "algo.eta=0.5")
    for state in steps(e, 4):
        assert float(state.x.norm()) == pytest.approx(1, abs=1e-12)


def test_one_step_of_all_clients_is_the_power_method():
    e = small("fedavg", "pca", "participation.cohort=6", "algo.tau=1", "algo.B=null", "algo.eta=0.7")
    A = e.problem.hessians()[0]
    x = e.problem.start()[0]
    one = replace(e.algorithm, gamma=const(1.0))
    found = one.step(one.init(e.problem), e.problem, e.federation.at(0)).x
    locally = torch.stack([e.problem.project_x(x + 0.7 * Ai @ x) for Ai in e.problem.per_client["A"]]).mean(0)
    torch.testing.assert_close(found, locally / locally.norm())
    (component,) = e.problem.solution()
    torch.testing.assert_close(A @ component, torch.linalg.eigvalsh(A)[-1] * component)
