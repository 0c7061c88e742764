"""DRFA and AFL against hand examples, NumPy derivations and closed forms."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.softmax import examples, gradient, loss

from fedopt.algorithms.drfa import Drfa, State
from fedopt.config.schedules import Constant
from fedopt.data.ragged import Ragged
from fedopt.federation.engines import Vectorised
from fedopt.federation.memory import Memory
from fedopt.federation.round import Federation
from fedopt.problems.classes import Minimisation
from fedopt.randomness import Purpose
from fedopt.testing.harness import small, steps


@dataclass(eq=False)
class Parabolas(Minimisation):
    """f_i(x) = a_i / 2 (x - b_i)^2."""

    a: tuple[float, ...]
    b: tuple[float, ...]

    def __post_init__(self):
        self.splits = {"train": Ragged([np.array([i]) for i in range(len(self.a))])}
        self.per_client = {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in "ab"}

    def start(self):
        return (torch.zeros(1, dtype=torch.float64),)

    def sample(self, client, rows):
        return self.per_client["a"][client], self.per_client["b"][client]

    def f(self, x, sample):
        a, b = sample
        return (a / 2 * (x - b) ** 2).sum()

    def evaluate(self, *point):
        return {}


def round_of(problem, step=0.1, tau=1, k=1):
    """(x, lambda_1) of two clients to the next, where both steps are the same."""
    drfa = Drfa(Constant(step), Constant(step), tau, None, "lambda", "kept", k)
    federation = Federation(problem, Vectorised(), 0)

    def next_point(point):
        x, first = torch.tensor(point, dtype=torch.float64)
        mixture = Memory(torch.stack([first, 1 - first])[:, None].unbind())
        state = drfa.step(State(x[None], mixture), problem, federation.at(0))
        return np.array([float(state.x), float(state.mixture.tensor()[0])])

    return next_point


def limit(next_point, start):
    """Where rounds end: Newton's method for next_point(z) = z, with differences as derivatives."""
    z, h = np.array(start), 1e-6
    for _ in range(4):
        residual = next_point(z) - z
        columns = [(next_point(z + h * unit) - (z + h * unit) - residual) / h for unit in np.eye(2)]
        z = z - np.linalg.solve(np.stack(columns, axis=1), residual)
    return z


def test_two_rounds_by_hand():
    next_point = round_of(Parabolas(None, (1.0, 1.0), (1.0, -2.0)))
    first = next_point([0, 0.5])
    np.testing.assert_allclose(first, [-0.05, 0.4325], atol=1e-12)
    np.testing.assert_allclose(next_point(first), [-0.11525, 0.3748], atol=5e-5)
    np.testing.assert_allclose(limit(next_point, first), [-0.5, 0.5], atol=1e-9)


SADDLE = Parabolas(None, (1.0, 4.0), (1.0, -2.0))  # x = -1, lambda = (2/3, 1/3)


def errors(tau, k):
    """Of x and of lambda_1 in the limit, with steps of 0.02 and of 0.01."""
    ends = [limit(round_of(SADDLE, step, tau, k), [-0.9, 0.6]) for step in (0.02, 0.01)]
    return abs(np.array(ends) - [-1, 2 / 3]).T


def test_points_kept_at_the_end_leave_no_error_of_x():
    """Four local steps leave one of lambda, of the order of the step."""
    of_x, of_mixture = errors(4, 4)
    assert of_x.max() < 1e-7
    assert 1.8 < of_mixture[0] / of_mixture[1] < 2.2


def test_one_local_step_is_exact():
    of_x, of_mixture = errors(1, 1)
    assert max(of_x.max(), of_mixture.max()) < 1e-7


def test_points_kept_in_between():
    """They leave an error of the order of the square of the step."""
    of_x, _ = errors(4, 2)
    assert of_x[0] / of_x[1] == pytest.approx(4, rel=0.1)
    assert of_x[0] == pytest.approx(0.0032, rel=0.02)


def experiment(algo, *overrides):
    return small(algo, "classification", "problem.model=softmax", "partitioner=dirichlet", *overrides)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_steps_of_lambda_it_is_fedavg(weighting):
    everyone = ["participation.cohort=6", f"problem.weighting={weighting}", "algo.tau=3", "algo.B=4"]
    fedavg, drfa = (
        steps(experiment(algo, *everyone, *words), 3)[-1].x
        for algo, words in (("fedavg", []), ("drfa", ["algo.gamma_l=0"]))
    )
    torch.testing.assert_close(drfa, fedavg, rtol=0, atol=1e-12)


def onto_the_simplex(v):
    falling = np.sort(v)[::-1]
    thresholds = (falling.cumsum() - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - thresholds[falling > thresholds][-1], 0)


@pytest.mark.parametrize(("algo", "exchanges", "down", "up"), [("drfa", 2, 2, 2), ("afl", 1, 1, 1)])
@pytest.mark.parametrize("sampling", ["lambda", "normalised"])
def test_what_is_sent(algo, sampling, exchanges, down, up):
    """A point each way, of DRFA two points up, and down again for the losses, each of one number. Nobody is asked twice."""
    e = experiment(algo, f"algo.sampling={sampling}")
    steps(e, 1)
    fed, d, ledger = e.federation.at(0), 8 * len(e.problem.start()[0]), e.federation.ledger
    S = len(fed.drawn(e.problem.weights)[0] if sampling == "lambda" else fed.cohort())
    U = len(fed.new_cohort()) if algo == "drfa" else 0
    assert ledger.comm_rounds == exchanges
    assert ledger.down.sum() == (S + U) * d
    assert ledger.up.sum() == S * up * d + 8 * (U or S)


def test_draws_by_lambda():
    """Shares of draws with replacement, whose mean is lambda; lambda itself where the cohort is everyone."""
    e, mixture = experiment("drfa"), np.array([0.5, 0.3, 0.2, 0, 0, 0])
    shares = np.zeros(6)
    for r in range(2000):
        S, of_draws = e.federation.at(r).drawn(mixture)
        np.testing.assert_allclose(of_draws.sum(), 1)
        np.testing.assert_allclose(3 * of_draws, np.round(3 * of_draws))
        shares[S] += of_draws / 2000
    np.testing.assert_allclose(shares, mixture, atol=0.03)
    S, of_draws = experiment("drfa", "participation.cohort=6").federation.at(0).drawn(mixture)
    assert S.tolist() == [0, 1, 2]
    np.testing.assert_allclose(of_draws, mixture[:3])


@pytest.mark.full
@pytest.mark.parametrize("algo", ["drfa", "afl"])
def test_small_cohorts_of_unlike_clients_do_not_diverge(algo):
    """One class of digits a client, two of twenty take part: uniform cohorts with weights lambda_i M / |S| end above 5 and 100."""
    words = ["dataset=digits", "problem.model=linear", "partitioner=q_heterogeneity", "partitioner.q=1.0"]
    words += ["partitioner.clients=20", "participation.cohort=2"]
    before, *_, after = (
        e.problem.evaluate(state.x)["train_loss"]
        for e in [small(algo, "classification", *words)]
        for state in steps(e, 120)
    )
    assert after < 0.6 < 2 < before


@pytest.mark.parametrize(
    ("algo", "sampling", "tau"),
    [
        ("drfa", "lambda", 3),
        ("drfa", "lambda", 1),
        ("drfa", "uniform", 3),
        ("afl", "normalised", 2),
        ("afl", "lambda", 2),
    ],
)
def test_golden_numbers(algo, sampling, tau):
    """Cohorts of 3 out of 6, another one for the losses, full batches, five rounds."""
    eta, gamma_l = 0.2, 0.1
    values = {"eta": eta, "gamma_l": gamma_l, "tau": tau, "sampling": sampling, "B": "null"}
    e = experiment(algo, *(f"algo.{key}={value}" for key, value in values.items()))
    data, n = [examples(e.problem.train, rows) for rows in e.problem.splits["train"]], e.problem.sizes()
    x, mixture, drawn = e.problem.start()[0].numpy(), n / n.sum(), set()
    for r, state in enumerate(steps(e, 5)[1:]):
        fed = e.federation.at(r)
        k = int(fed.rng(Purpose.ESTIMATOR).integers(1, tau + 1))
        drawn.add(k)
        if sampling == "lambda":
            counts = fed.rng(Purpose.COHORT).multinomial(3, mixture / mixture.sum())
            S, weight = np.flatnonzero(counts), counts / 3
        else:
            S = fed.cohort()
            weight = mixture / mixture[S].sum() if sampling == "normalised" else mixture * 6 / 3
        change, x_s, losses = 0, x, np.zeros(6)
        for i in S:
            w, path = weight[i], [x]
            for _ in range(tau):
                path.append(path[-1] - eta * gradient(path[-1], *data[i]))
            change = change + w * (path[-1] - x)
            x_s = x_s + w * (path[k] - x)
            losses[i] = loss(path[-2], *data[i])
        if algo == "drfa":
            if sampling == "lambda":
                fed.new_cohort()  # the number of a draw counts
            U = fed.new_cohort()
            losses = np.array([tau * 2 * loss(x_s, *data[i]) if i in U else 0 for i in range(6)])
        mixture = onto_the_simplex(mixture + gamma_l * losses)
        x = x + change
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.mixture.tensor()[:, 0].numpy(), mixture, rtol=1e-9, atol=1e-12)
    assert (mixture == 0).any()
    assert len(drawn) == min(tau, 2)
