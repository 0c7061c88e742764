"""ZO-HFL against a NumPy derivation and closed forms; the hierarchical problems."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from support.softmax import examples, gradient, loss

from fedopt.algorithms.zo_hfl import State
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.federation.round import Federation
from fedopt.problems.classes import Hierarchical
from fedopt.randomness import Purpose, keyed_rng
from fedopt.running.assemble import assemble
from fedopt.testing.harness import composed, small, steps

F64 = torch.float64
UNEVEN = ["participation.cohort=null", "participation.stragglers=0.34", "algo.tau={kind: growing, tau: [1, 2.5]}"]


def directions(r, i, D, n):
    v = keyed_rng(0, Purpose.DIRECTIONS, r, client=i).standard_normal((D, n))
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def projected(p, x, y):
    if p.constraint == "orthant":
        return np.maximum(y, 0)
    if p.constraint == "ball":
        return x + (y - x) * min(1, p.radius / max(np.linalg.norm(y - x), 1e-300))
    return y


def numpy_round(e, r, x, H, D, gamma, eta):
    """Alg. 1 and 2 over all clients, on full batches."""
    p, n = e.problem, len(x)
    weights, g = p.sizes() if p.weighting == "samples" else np.ones(p.clients), 0
    for i in range(p.clients):
        data, f2 = examples(p.train, p.splits["train"][i]), []
        for v in directions(r + 1, i, D, n):
            for z in (x + eta * v, x - eta * v):
                y = z
                for t in range(H[i]):
                    y = projected(p, z, y - 0.1 / (t + 1) * (gradient(y, *data) + p.mu * (y - z)))
                f2.append(p.lam / 2 * np.sum((z - y) ** 2))
            g = g + weights[i] / weights.sum() * n / (2 * eta) * (f2[-2] - f2[-1]) * v / D
    return x - gamma / np.sqrt(r + 1) * (gradient(x, *examples(p.server_examples, range(len(p.server_examples)))) + g)


@pytest.mark.parametrize("model", ["softmax", "linear"])
def test_engines_agree_on_uneven_clients(model):
    """With a gradient written out and without one."""
    runs = []
    for engine in (Vectorised(), OneByOne(), Vectorised(2)):
        e = small("zo_hfl", "hierarchical", "algo.B=5", f"problem.model={model}", "algo.directions=2", *UNEVEN)
        e.federation.engine = engine
        runs.append((steps(e, 3)[-1].x, e.federation.ledger.columns()))
    for x, columns in runs[1:]:
        torch.testing.assert_close(x, runs[0][0], rtol=1e-10, atol=1e-12)
        assert columns == runs[0][1]


# The estimator


class Quadratic(Hierarchical):
    """f2 = 1/2 (y - c)'A(y - c) at y = x, which the local steps begin at and never leave."""

    metrics = ()

    def __init__(self, world):
        super().__init__(world)
        self.splits = world.split(world.partitioner.clients)
        rng = np.random.default_rng(0)
        root = rng.standard_normal((4, 4))
        self.A, self.c = torch.from_numpy(root @ root.T), torch.from_numpy(rng.standard_normal(4))

    def start(self):
        return (torch.ones(4, dtype=F64),)

    def sample(self, client, rows):
        return rows["train"][1]

    def server_sample(self, rng, size):
        return None

    def f1(self, x, sample):
        return 0 * x.sum()

    def f2(self, x, y, sample):
        return 0.5 * (y - self.c) @ self.A @ (y - self.c)

    def h(self, x, y, sample):
        return torch.sum((y - x) ** 2)

    def evaluate(self, *point):
        return {}


def estimate(algorithm, problem, federation, x, r):
    """g of round r at x: what a server's step of size 1 subtracts; the objective of the server is 0."""
    return x - algorithm.step(State(x), problem, federation.at(r)).x


def estimator(D):
    return small("zo_hfl", "implicit_toy", "algo.gamma=1", f"algo.directions={D}").algorithm


def test_estimator_is_unbiased_on_a_quadratic():
    """Smoothing a quadratic leaves its gradient as it is."""
    problem = Quadratic(World(0, Iid(5), dtype=F64))
    fed = Federation(problem, Vectorised(), 0)
    (x,) = problem.start()
    algorithm = estimator(4000)
    g = torch.stack([estimate(algorithm, problem, fed, x, r) for r in range(10)])
    expected = problem.A @ (x - problem.c)
    error = g.std(0) / np.sqrt(10)
    assert bool(((g.mean(0) - expected).abs() < 4 * error).all())
    assert bool((error < 0.02 * expected.norm()).all())


def smoothed_derivative(x, eta):
    """d/dx_j of the mean of implicit_toy's objective over a disc of radius eta: the mean of (x_j + eta u + 1) where x_j + eta u is
    negative, u being a coordinate of a uniform point of the unit disc."""
    u = np.linspace(-1, 1, 200_001)
    density = 2 / np.pi * np.sqrt(1 - u**2)
    return np.trapezoid(density * np.where(x + eta * u < 0, x + eta * u + 1, 0), u)


def test_estimator_is_unbiased_on_the_implicit_function():
    e = small(
        "zo_hfl", "implicit_toy", "algo.gamma=1", "algo.directions=4000", "algo.eta=0.1", "participation.cohort=6"
    )
    x = torch.tensor([0.03, -0.04], dtype=F64)
    g = torch.stack([estimate(e.algorithm, e.problem, e.federation, x, r) for r in range(10)])
    expected = torch.tensor([smoothed_derivative(v, 0.1) for v in x.tolist()])
    error = g.std(0) / np.sqrt(10)
    assert bool(((g.mean(0) - expected).abs() < 4 * error).all())
    assert bool((error < 0.02).all())
    assert 0.05 < float(expected[0]) < 0.5  # which the function itself, flat there, does not have


@pytest.mark.full
def test_variance_falls_with_the_number_of_directions():
    problem = Quadratic(World(0, Iid(1), dtype=F64))
    fed = Federation(problem, OneByOne(), 0)
    (x,) = problem.start()
    variances = {}
    for D in (1, 4, 16):
        algorithm = estimator(D)
        variances[D] = torch.stack([estimate(algorithm, problem, fed, x, r) for r in range(200)]).var(0).sum().item()
    assert variances[1] / variances[4] == pytest.approx(4, rel=0.25)
    assert variances[1] / variances[16] == pytest.approx(16, rel=0.25)


def test_axes_give_the_gradient():
    """Central differences along all axes are exact for a quadratic."""
    problem = Quadratic(World(0, Iid(3), dtype=F64))
    (x,) = problem.start()
    g = estimate(estimator("null"), problem, Federation(problem, Vectorised(), 0), x, 1)
    torch.testing.assert_close(g, problem.A @ (x - problem.c), rtol=1e-10, atol=1e-12)


# implicit_toy


def end_of_toy(x0):
    e = assemble(composed("algo=zo_hfl", "problem=implicit_toy", f"problem.x0={x0}", "hardware.threads=1"))
    return e.problem.evaluate(*e.algorithm.output(steps(e, 200)[-1]))


@pytest.mark.full
@pytest.mark.parametrize("x0", [-5, -0.5, 0.05])
def test_toy_reaches_its_minimum(x0):
    """From below 0, and from above where the smoothing still sees the slope."""
    assert end_of_toy(x0)["distance"] < 1e-2


def test_toy_stays_where_it_is_flat():
    metrics = end_of_toy(5)
    assert metrics["objective"] == 0.5 * 2
    assert metrics["distance"] == pytest.approx(6 * np.sqrt(2))


# quadratic_hierarchical


def quadratic(*words):
    return small("zo_hfl", "quadratic_hierarchical", "algo.gamma=1", "algo.directions=null", *words)


def test_quadratic_closed_forms():
    p = quadratic().problem
    m = {k: v.numpy() for k, v in p.per_client.items()}

    def F(x):
        y = [np.linalg.solve(A, B @ x + c) for A, B, c in zip(m["A"], m["B"], m["c"], strict=True)]
        return 0.5 * x @ x + np.mean([0.5 * np.sum((y_i - d) ** 2) for y_i, d in zip(y, m["d"], strict=True)])

    x, eps = np.array([0.3, -1.0, 0.5, 2.0]), 1e-5
    gradient = [(F(x + eps * v) - F(x - eps * v)) / (2 * eps) for v in np.eye(4)]
    np.testing.assert_allclose(p.hypergradient(torch.from_numpy(x)), gradient, rtol=1e-8)
    metrics = p.evaluate(torch.from_numpy(x))
    assert metrics["objective"] == pytest.approx(F(x), rel=1e-12)
    assert metrics["hypergradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-8)
    assert metrics["distance"] == pytest.approx(np.linalg.norm(x - p.solution()[0].numpy()), rel=1e-12)
    assert p.evaluate(p.solution()[0])["hypergradient_norm"] < 1e-12


EXACT = [
    "participation.cohort=6",
    "problem.conditioning=1",
    "algo.gamma_local=1",
    "algo.tau=1",
    "algo.B=null",
]  # A_i = I: one local step finds y_i


def test_estimate_is_the_gradient_where_local_steps_are_exact():
    """Lemma 4 (i): of the smoothed function, which a quadratic's smoothing leaves as it is."""
    e = quadratic(*EXACT)
    x = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=F64)
    g = estimate(e.algorithm, e.problem, e.federation, x, 0)
    torch.testing.assert_close(g, e.problem.hypergradient(x), rtol=1e-9, atol=1e-12)


def test_the_error_of_local_steps_does_not_grow_as_eta_falls():
    """On a quadratic: both points take the same samples, so that what local steps leave of f2's difference is proportional to eta.

    The factor n^2 / eta^2 of Lemma 4 (iii) is for samples of their own.
    """
    x = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=F64)
    words = ["problem.conditioning=1", "algo.B=1", "algo.tau=3"]
    wide, narrow, exact = (quadratic(*words, more) for more in ("algo.eta=0.1", "algo.eta=0.01", "algo.B=null"))
    g, h, k = (estimate(e.algorithm, e.problem, e.federation, x, 0) for e in (wide, narrow, exact))
    torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-12)
    assert torch.linalg.norm(g - k) > 1e-3  # there is an error


@pytest.mark.parametrize(
    "delay", [pytest.param(4, marks=pytest.mark.full), pytest.param(1e300, marks=pytest.mark.slow)]
)
def test_error_of_local_steps(delay):
    """Proposition 1: with A = I, e_H = sum_t gamma_t zeta_t prod_{s > t} (1 - gamma_s), and the estimate is off by B'e_H."""
    H, rounds = 12, 150
    step = f"algo.gamma_local={{kind: inverse_power, initial: 0.5, delay: {delay}}}"
    words = ["problem.conditioning=1", "partitioner.clients=1", "participation.cohort=1", step, f"algo.tau={H}"]
    noisy, exact = quadratic(*words, "algo.B=1"), quadratic(*words, "algo.B=null")
    p, x = noisy.problem, noisy.problem.solution()[0]
    g = estimate(exact.algorithm, p, exact.federation, x, 0)
    off = torch.stack([estimate(noisy.algorithm, p, noisy.federation, x, r) - g for r in range(rounds)])
    gamma = 0.5 / (1 + np.arange(H) / delay)
    share = gamma * np.cumprod(np.append(1, 1 - gamma[:0:-1]))[::-1]
    zeta = p._noise["c"].numpy()
    variance = np.sum(share**2) * np.sum(
        (p.per_client["B"][0].numpy().T @ np.cov(zeta.T, ddof=0)) * p.per_client["B"][0].numpy().T
    )
    assert float((off**2).sum(1).mean()) == pytest.approx(variance, rel=0.3)
    bound = 2 * np.trace(np.cov(zeta.T, ddof=0)) * 2**2 / (2 - 1) / (H + 4)  # mu = 1, gamma = 2, Gamma = 4
    inner = np.sum(share**2) * np.trace(np.cov(zeta.T, ddof=0))
    assert inner <= bound


# hierarchical


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_objectives(weighting):
    settings = ["problem.lam=0.7", "problem.mu=0.3", "partitioner=dirichlet", f"problem.weighting={weighting}"]
    e = small("zo_hfl", "hierarchical", *settings, "problem.fit=400")
    p = e.problem
    rng = np.random.default_rng(0)
    x, y = (0.1 * rng.standard_normal(640) for _ in range(2))
    at = [torch.from_numpy(v) for v in (x, y)]
    rows = p.splits["train"][1]
    data = examples(p.train, rows)
    weight = torch.full((len(rows),), 1 / len(rows), dtype=F64)
    sample = p.sample(1, {"train": (torch.from_numpy(rows), weight)})
    assert float(p.f2(*at, sample)) == pytest.approx(0.35 * np.sum((x - y) ** 2), rel=1e-12)
    assert float(p.h(*at, sample)) == pytest.approx(loss(y, *data) + 0.15 * np.sum((x - y) ** 2), rel=1e-12)
    expected = gradient(y, *data) + 0.3 * (y - x)
    np.testing.assert_allclose(torch.func.grad(p.h, 1)(*at, sample), expected, rtol=1e-9, atol=1e-12)
    server = examples(p.server_examples, range(len(p.server_examples)))
    xi = p.server_sample(np.random.default_rng(0), None)
    assert float(p.f1(at[0], xi)) == pytest.approx(loss(x, *server), rel=1e-12)
    np.testing.assert_allclose(torch.func.grad(p.f1)(at[0], xi), gradient(x, *server), rtol=1e-9, atol=1e-12)

    personal = p.personal(at[0])
    metrics = p.evaluate(at[0])
    weights = p.sizes() if weighting == "samples" else None
    f2 = np.average(0.35 * np.sum((x - personal.numpy()) ** 2, 1), weights=weights)
    assert metrics["objective"] == pytest.approx(loss(x, *server) + f2, rel=1e-9)
    hits = []
    for i in range(p.clients):
        u, labels = examples(p.train, p.local_set.rows[p.local_set.owner == i])
        hits.append(100 * np.mean((u @ personal[i].numpy().reshape(10, -1).T).argmax(1) == labels))
    assert metrics["personal_accuracy"] == pytest.approx(np.mean(hits))
    assert metrics["worst_personal_accuracy"] == pytest.approx(min(hits))
    for i in range(p.clients):
        data = examples(p.train, p.splits["train"][i])

        def h(y, data=data):
            return loss(y, *data) + 0.15 * np.sum((x - y) ** 2), gradient(y, *data) + 0.3 * (y - x)

        exact = minimize(h, x, jac=True, method="L-BFGS-B", tol=1e-10).x
        assert np.linalg.norm(personal[i].numpy() - exact) < 0.15 * np.linalg.norm(x - exact)


@pytest.mark.parametrize("constraint", ["ball", "orthant"])
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_own_models_are_in_their_sets(constraint, model):
    """The radii of a ball go round: clients 0, 2, ... and 1, 3, ..."""
    p = small("zo_hfl", "hierarchical", f"problem.constraint={constraint}", f"problem.model={model}", "problem.widths=[3]",
              "problem.radius=[0.01, 0.02]").problem  # fmt: skip
    (x,) = p.start()
    y = p.personal(x)
    if constraint == "ball":
        np.testing.assert_allclose((y - x).norm(dim=1), np.resize([0.01, 0.02], p.clients), rtol=1e-9)
    else:
        assert float(y.min()) == 0


def test_cnn():
    """One after the other, by automatic differentiation."""
    e = small("zo_hfl", "hierarchical", "problem.model=cnn", "problem.fit=2", "algo.B=4", "algo.tau=2")
    assert isinstance(e.federation.engine, OneByOne)
    states = steps(e, 1)
    assert not torch.equal(states[0].x, states[1].x)
    assert set(e.problem.evaluate(states[1].x)) >= {"objective", "test_accuracy", "worst_personal_accuracy"}


def test_who_has_what():
    """90/10, 30 % of the training data on the server, 10 % of a client's for itself; the baselines' division is the same."""
    unit = "dataset.pixels=unit"  # so that pixels do not depend on the division
    ours = small("zo_hfl", "hierarchical", unit).original
    theirs = small("fedavg", "classification_with_server", "dataset=digits", "partitioner=iid", unit).original
    n = 1797
    training = n - round(0.1 * n)
    server = round(0.3 * training)
    assert (len(ours.test_examples), len(ours.server_examples), len(ours.train)) == (
        n - training,
        server,
        training - server,
    )
    assert len(ours.local_set.rows) == pytest.approx(0.1 * len(ours.train), abs=3)
    assert len(set(ours.local_set.rows) | set(ours.splits["train"].rows)) == len(ours.train)
    for a, b in ((ours.train, theirs.train), (ours.test_examples, theirs.test_examples)):
        assert torch.equal(a.x, b.x)
    for a, b in ((ours.splits["train"], theirs.splits["train"]), (ours.local_set, theirs.local_set)):
        np.testing.assert_array_equal(a.rows, b.rows)
    whole = np.concatenate([part.x.numpy() for part in (ours.train, ours.server_examples, ours.test_examples)])
    plain = small("fedavg", "classification", "partitioner=iid", unit).original
    everything = np.concatenate([plain.train.x.numpy(), plain.test_examples.x.numpy()])
    np.testing.assert_array_equal(*(np.sort(v.view([("", v.dtype)] * 64).ravel()) for v in (whole, everything)))


@pytest.mark.parametrize("model", ["softmax", "cnn"])
def test_pretraining(model):
    """Steps of SGD on 128 of the server's examples each, drawn with replacement; the baselines start there too. Of a CNN, whose
    gradients are automatic, the server's loss alone is looked at."""
    settings = ["problem.pretrain=5", "problem.pretrain_step=0.03", f"problem.model={model}", "dataset=digits"]
    p, plain = (small("zo_hfl", "hierarchical", *s).problem for s in (settings, settings[2:]))
    baseline = small("scaffold", "classification_with_server", "partitioner=iid", *settings).problem
    assert torch.equal(p.start()[0], baseline.start()[0])
    if model == "softmax":
        rng, x = keyed_rng(0, Purpose.PROBLEM, 4), plain.start()[0].numpy()
        for _ in range(5):
            x = x - 0.03 * gradient(x, *examples(p.server_examples, rng.integers(len(p.server_examples), size=128)))
        np.testing.assert_allclose(p.start()[0], x, rtol=1e-10, atol=1e-13)
    everything = p.server_sample(np.random.default_rng(0), None)
    assert float(p.f1(p.start()[0], everything)) < float(p.f1(plain.start()[0], everything)) - 0.01


def test_classes_of_a_client_and_distance():
    """Of k equally frequent classes, k; and the distance is what f2 = lam/2 times its square says."""
    p = small("zo_hfl", "hierarchical", "partitioner=dirichlet", "partitioner.alpha=0.3", "problem.lam=0.7").problem
    labels = p.train.y.numpy()
    even = np.concatenate([np.flatnonzero(labels == c)[:5] for c in (1, 4, 7)])
    assert p._classes_of(even) == pytest.approx(3)
    shares = [np.unique(labels[rows], return_counts=True)[1] / len(rows) for rows in p.splits["train"]]
    metrics = p.evaluate(*p.start())
    assert metrics["client_classes"] == pytest.approx(np.mean([np.prod(s ** (-s)) for s in shares]))
    f2 = metrics["objective"] - metrics["server_loss"]
    assert metrics["personal_distance"] == pytest.approx(np.sqrt(2 * f2 / 0.7))


def test_equal_budgets():
    """A client of ZO-HFL takes at each of two points as many local steps as a baseline's."""
    growing = ["algo.tau={kind: growing, tau: 2}", "participation.cohort=2"]
    ours = small("zo_hfl", "hierarchical", *growing)
    theirs = small("scaffold", "classification_with_server", "dataset=digits", "partitioner=iid", *growing)
    calls = []
    for e in (ours, theirs):
        steps(e, 3)
        calls.append(e.federation.ledger.calls.grad)
    assert calls == [2 * 2 * (2 + 3 + 4), 2 * (2 + 3 + 4)]


@pytest.mark.parametrize("constraint", ["none", "ball", "orthant"])
@pytest.mark.parametrize(("D", "weighting"), [(1, "samples"), (3, "samples"), (3, "uniform")])
def test_golden_numbers(D, weighting, constraint):
    """Clients of unequal sizes and numbers of local steps, two of them stragglers: three rounds of the pseudocode."""
    overrides = [
        "problem.lam=0.7",
        "problem.radius=0.05",
        f"problem.constraint={constraint}",
        f"problem.weighting={weighting}",
        "algo.gamma.initial=0.02",
    ]
    full = ["algo.B=null", "algo.B_server=null", f"algo.directions={D}", "partitioner=dirichlet"]
    e = small("zo_hfl", "hierarchical", *full, *overrides, *UNEVEN)
    (x,) = (v.numpy() for v in e.problem.start())
    for r, state in enumerate(steps(e, 3)[1:]):
        H = e.federation.at(r).work(np.ceil(np.resize([1, 2.5], 6) * np.sqrt(r + 1)).astype(int))
        assert sorted(H)[:2] == [0, 0] < sorted(H)[2:]
        x = numpy_round(e, r, x, H, D, 0.02, 0.1)
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-9, atol=1e-11)
