"""Fed-Norm-SGDA, Local SGDA and their kin against NumPy derivations and closed forms; uneven work and partial participation."""

from itertools import combinations

import numpy as np
import pytest
import torch
from support.samples import real

from fedopt.config.settings import Participation
from fedopt.errors import UserError
from fedopt.federation.round import Federation, Round
from fedopt.problems.projections import ball
from fedopt.running.assemble import assemble
from fedopt.testing.harness import composed, iterate, small, steps
from fedopt.toolbox import sampled_iterate

SOLVERS = {
    "sgd": ["algo.rho=0"],
    "momentum": ["algo.rho=0.7"],
    "proximal": ["algo.mu=0.9"],
    "decaying": ["algo.decay=0.8"],
    "mixed": ["algo.rho=[0.7,0]", "algo.mu=[0,0.9]"],
    "all at once": ["algo.rho=[0.5,0.7]", "algo.mu=0.4", "algo.decay=0.9"],
}
TAU = (2, 5)


def experiment(*overrides, algo="fed_norm_sgda", problem="quadratic_minimax"):
    return assemble(
        composed(
            f"algo={algo}", f"problem={problem}", f"participation.work={list(TAU)}", "hardware.threads=1", *overrides
        )
    )


def solver(e, i, eta, tau):
    """a_i [tau] of App. A.1, and from the recursion's definition: the change of an iterate from gradients g_0, g_1, ..."""
    rho, mu, decay = (
        v if isinstance(v, float) else v[i % len(v)] for v in (e.algorithm.rho, e.algorithm.mu, e.algorithm.decay)
    )
    weights = np.zeros(tau)
    for k in range(tau):
        z = d = 0.0  # one gradient, the k-th, is 1
        for j in range(tau):
            d = rho * d + (j == k)
            z = z - eta * mu * z + decay**j * d
        weights[k] = z
    return weights, rho, mu, decay


def derivatives(problem, i):
    A, B, D, c, e = (problem.per_client[name][i].numpy() for name in "ABDce")
    return lambda x, y: A @ x - c + B @ y, lambda x, y: B.T @ x - D @ y + e


def inside(y, radius):
    """In the ball; no ball, the same."""
    return y if radius is None else y * min(1, radius / np.linalg.norm(y))


def numpy_round(e, x, y, x_hat, radius=None, tau=TAU, p=(0.5, 0.5), C=(0, 1)):
    """A round of Alg. 1 with local steps tau and weights p of all clients, and the cohort C; the gradients are weighted by a_i
    after the fact. y is projected in each local step and by the server."""
    a = e.algorithm
    eta_x, eta_y, gamma_x, gamma_y = (getattr(a, key)(0) for key in ("eta_x", "eta_y", "gamma_x", "gamma_y"))
    sums, norms, ends = [], [], []
    for i, tau_i in enumerate(tau):
        of_x, of_y = derivatives(e.problem, i)
        a_x, rho, mu, decay = solver(e, i, eta_x, tau_i)
        a_y = solver(e, i, eta_y, tau_i)[0]
        x_i, y_i, d_x, d_y, gradients = x, y, 0.0, 0.0, []
        for k in range(tau_i):
            g_x, g_y = of_x(x_i, y_i), of_y(x_i if x_hat is None else x_hat, y_i)
            gradients.append((g_x, g_y))
            d_x, d_y = rho * d_x + g_x, rho * d_y + g_y
            x_i = x_i - eta_x * (decay**k * d_x + mu * (x_i - x))
            y_i = inside(y_i + eta_y * (decay**k * d_y - mu * (y_i - y)), radius)
        sums.append([sum(w * g[j] for w, g in zip(v, gradients, strict=True)) for j, v in enumerate((a_x, a_y))])
        norms.append((a_x.sum(), a_y.sum()))
        ends.append((x_i, y_i))
        np.testing.assert_allclose(x_i, x - eta_x * sums[-1][0], rtol=1e-12)  # the iterate is the weighted sum
        if radius is None:
            np.testing.assert_allclose(y_i, y + eta_y * sums[-1][1], rtol=1e-12)
    C = list(C)
    p = np.array(p)
    if a.aggregation == "naive":
        mean_x, mean_y = (np.average([ends[i][j] for i in C], axis=0, weights=p[C]) for j in (0, 1))
        return x + gamma_x * (mean_x - x), inside(y + gamma_y * (mean_y - y), radius)
    g_x, g_y = (sum(p[i] * len(p) / len(C) * sums[i][j] / norms[i][j] for i in C) for j in (0, 1))
    of = C if a.tau_eff == "cohort" else range(len(p))
    eff_x, eff_y = (np.average([norms[i][j] for i in of], weights=[p[i] for i in of]) for j in (0, 1))
    return x - eff_x * gamma_x * eta_x * g_x, inside(y + eff_y * gamma_y * eta_y * g_y, radius)


def test_weights_of_the_solvers():
    """App. A.1 in closed form: the weights of the derivation above."""
    eta, tau = 0.3, 4
    k = np.arange(tau)
    closed = {
        "sgd": np.ones(tau),
        "momentum": (1 - 0.7 ** (tau - k)) / (1 - 0.7),
        "proximal": (1 - eta * 0.9) ** (tau - 1 - k),
        "decaying": 0.8**k,
    }
    for name, expected in closed.items():
        np.testing.assert_allclose(solver(experiment(*SOLVERS[name]), 0, eta, tau)[0], expected, rtol=1e-12)


LONGER = [
    pytest.param(name, "uniform", marks=pytest.mark.slow) for name in SOLVERS if name not in ("momentum", "mixed")
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "weighting"), [("momentum", "uniform"), ("mixed", "uniform"), ("mixed", "samples"), *LONGER]
)
def test_naive_averaging_finds_another_saddle_and_normalised_the_solution(name, weighting):
    """Eq. 2: with local steps that vanish, the weights are p_i |a_i|_1, or p_i."""
    vanishing = ["algo.eta_x=1e-6", "algo.eta_y=1e-6", "algo.gamma_x=6e4", "algo.gamma_y=6e4", "problem.conditioning=2"]
    ends, e = {}, None
    for aggregation in ("normalised", "naive"):
        e = experiment(*vanishing, *SOLVERS[name], f"algo.aggregation={aggregation}", "problem.examples=3")
        e.problem.weighting = weighting
        ends[aggregation] = torch.cat(e.algorithm.output(steps(e, 140)[-1]))
    p = np.array([2, 1]) / 3 if weighting == "samples" else np.ones(2) / 2
    norms = np.array([solver(e, i, 1e-6, tau)[0].sum() for i, tau in enumerate(TAU)])
    solution, mismatched = (torch.cat(e.problem.saddle(weights)) for weights in (p, p * norms))
    assert float((ends["normalised"] - solution).norm()) < 1e-4
    assert float((ends["naive"] - mismatched).norm()) < 1e-4
    assert float((solution - mismatched).norm()) > 1e-2


@pytest.mark.full
def test_gradient_where_naive_averaging_ends():
    """Corollary 1.1, where the surrogate's own gradient is 0: of Phi = max_y F at most 4 (chi^2 sigma_G^2 + L_f^2 |y* - y~*|^2),
    squared. With other weights than those of eq. 2 the surrogate's gradient is not 0 there."""
    vanishing = ["algo.eta_x=1e-6", "algo.eta_y=1e-6", "algo.gamma_x=6e4", "algo.gamma_y=6e4", "problem.conditioning=2"]
    e = experiment(*vanishing, "algo.aggregation=naive", "problem.examples=3")
    x = e.algorithm.output(steps(e, 140)[-1])[0]
    p, w = np.ones(2) / 2, np.array(TAU) / sum(TAU)

    def best(weights):
        _, B, D, _, e_ = e.problem.mean(weights)
        return torch.linalg.solve(D, e_ + B.T @ x)

    def gradient(weights, y):
        A, B, _, c, _ = e.problem.mean(weights)
        return A @ x - c + B @ y

    y, y_w = best(p), best(w)
    sigma2 = sum(w[i] * gradient(np.eye(2)[i], y_w).square().sum() for i in range(2))
    A, B, D, _, _ = e.problem.mean(p)
    L = torch.linalg.matrix_norm(torch.cat([torch.cat([A, B], 1), torch.cat([B.T, -D], 1)]), 2)
    bound = 4 * (((p - w) ** 2 / w).sum() * sigma2 + L**2 * (y - y_w).square().sum())
    assert gradient(w, y_w).norm() < 1e-3
    assert gradient(p, y_w).norm() > 1e-2
    assert gradient(p, y).square().sum() <= bound


@pytest.mark.parametrize("aggregation", ["normalised", "naive"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_what_is_minimised_is_what_train_loss_reports(weighting, aggregation):
    """One local step on full batches, clients of unequal sizes: the step is along the derivatives of train_loss."""
    settings = [
        "partitioner=dirichlet",
        "participation.cohort=6",
        "problem.examples=200",
        "problem.eps=100",
        "problem.ascent=0",
    ]
    one = ["algo.tau=1", "algo.B=null", "algo.eta_x=0.01", "algo.eta_y=0.02", f"algo.aggregation={aggregation}"]
    e = small("fed_norm_sgda", "robust_nn", *settings, *one, f"problem.weighting={weighting}")
    assert len(set(e.problem.sizes())) > 2
    before, after = steps(e, 1)
    of_x, of_y = (before.x - after.x) / 0.01, (after.y - before.y) / 0.02
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        d_x, d_y = (torch.randn(v.shape, generator=generator, dtype=v.dtype) for v in (of_x, of_y))
        ahead, behind = (
            e.problem.evaluate(before.x + h * d_x, before.y + h * d_y)["train_loss"] for h in (1e-6, -1e-6)
        )
        assert float(of_x @ d_x + of_y @ d_y) == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)


@pytest.mark.parametrize(("weighting", "cohort"), [("uniform", 3), ("samples", 6)])
def test_local_sgda_is_fed_norm_sgda_of_even_clients(weighting, cohort):
    """Equal tau_i, SGD, gamma = 1: of cohorts, and of all clients where they do not weigh the same."""
    settings = ["algo.B=8", "algo.tau=4", "problem.examples=23", f"participation.cohort={cohort}"]
    runs = []
    for algo in ("fed_norm_sgda", "local_sgda"):
        e = small(algo, "quadratic_minimax", *settings)
        e.problem.weighting = weighting
        runs.append(steps(e, 5)[-1])
    torch.testing.assert_close(*(run[:2] for run in runs), rtol=1e-12, atol=1e-14)


def test_local_sgda_averages_the_iterates():
    """As FedAvg-S does, on even clients."""
    overrides = ["partitioner.clients=3", "participation.cohort=2"]
    ours = small("local_sgda", "saddle", *overrides, "algo.eta_x=0.03", "algo.eta_y=0.2", "algo.tau=3")
    theirs = small("fedavg_s", "saddle", *overrides, "algo.alpha=0.03", "algo.beta=0.2", "algo.tau=3")
    torch.testing.assert_close(steps(ours, 4)[-1][:2], tuple(steps(theirs, 4)[-1].w), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("tau_eff", ["all", "cohort"])
def test_step_of_a_cohort_is_unbiased(tau_eff, weighting, monkeypatch):
    """Eq. 3: over all cohorts of 2 out of 5, the mean of the server's steps is that of all clients; with tau_eff of the cohort,
    only that of its aggregates."""
    settings = [
        "partitioner.clients=5",
        "problem.examples=23",
        "participation.least=1",
        "participation.cohort=2",
        f"algo.tau_eff={tau_eff}",
        "algo.B=3",
    ]
    e = small("fed_norm_sgda", "quadratic_minimax", *settings)
    e.problem.weighting = weighting
    ends, aggregates = [], []
    exchange = Round.exchange

    def spy(fed, *arguments, **more):
        answer = exchange(fed, *arguments, **more)
        aggregates.append(torch.cat(answer))
        return answer

    monkeypatch.setattr(Round, "exchange", spy)
    for cohort in [*combinations(range(5), 2), range(5)]:
        monkeypatch.setattr(Round, "cohort", lambda fed, cohort=cohort: np.array(cohort))
        ends.append(torch.cat(steps(e, 1)[-1][:2]))
    mean = torch.stack(ends[:-1]).mean(0)
    assert torch.allclose(mean, ends[-1], rtol=1e-12, atol=1e-14) == (tau_eff == "all")
    torch.testing.assert_close(torch.stack(aggregates[:-1]).mean(0), aggregates[-1], rtol=1e-12, atol=1e-14)
    sizes = e.problem.sizes()
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("tau_eff", ["all", "cohort"])
def test_where_cohorts_lead(tau_eff, monkeypatch):
    """One client of two a round, 2 and 5 local steps that vanish: the mean step is zero at the solution, but with tau_eff of the
    one at the saddle of naive averaging, since then each weighs as much as it works."""
    vanishing = ["algo.eta_x=1e-7", "algo.eta_y=1e-7", "algo.gamma_x=1e7", "algo.gamma_y=1e7"]
    e = experiment(*vanishing, "participation.cohort=1", f"algo.tau_eff={tau_eff}")
    lengths = {}
    for where, weights in (("solution", (1, 1)), ("mismatched", TAU)):
        x, y = e.problem.saddle(np.array(weights))
        moves = []
        for client in (0, 1):
            monkeypatch.setattr(Round, "cohort", lambda fed, client=client: np.array([client]))
            start = e.algorithm.init(e.problem)._replace(x=x, y=y)
            state = e.algorithm.step(start, e.problem, e.federation.at(0))
            moves.append(torch.cat([state.x - x, state.y - y]))
        lengths[where] = float(torch.norm(sum(moves)) / torch.norm(moves[0]))
    there, elsewhere = ("solution", "mismatched") if tau_eff == "all" else ("mismatched", "solution")
    assert lengths[there] < 1e-5
    assert lengths[elsewhere] > 1e-2


def test_snapshot_is_sent_only_where_it_is_not_x():
    e = small("fed_norm_sgda_plus", "quadratic_minimax", "algo.S=3")
    down = [e.federation.ledger.columns()["bytes_down"] for _ in iterate(e, 6)]
    vectors = np.diff(down) / (3 * 8)
    np.testing.assert_array_equal(vectors, [7, 11, 11, 7, 11, 11])


# The output


def test_random_output():
    """Line 22: one of the iterates 1, ..., T, each as often as the others, whatever T."""
    e = small("fed_norm_sgda", "quadratic_minimax", "algo.iterate=random", "algo.S=2")
    last, number = steps(small("fed_norm_sgda", "quadratic_minimax", "algo.S=2"), 4), 0
    for r, state in enumerate(iterate(e, 4)):
        number = r if r and sampled_iterate(e.federation.at(r - 1)) else number
        assert all(map(torch.equal, e.algorithm.output(state), last[number][:2]))
        assert torch.equal(state.x, last[r].x)
    drawn = []
    for seed in range(3000):
        fed = Federation(e.problem, None, seed)
        drawn.append(max(r + 1 for r in range(4) if sampled_iterate(fed.at(r))))
    assert [abs(drawn.count(t) / 3000 - 1 / 4) < 0.03 for t in (1, 2, 3, 4)] == [True] * 4


# Uneven local work


def work(federation, rounds, most):
    return np.array([federation.at(r).work(most) for r in range(rounds)])


def test_uneven_work_is_uniform_by_client_and_round():
    problem = small("fed_norm_sgda", "quadratic_minimax").problem
    drawn = work(Federation(problem, None, 0, Participation(least=2)), 500, 5)
    assert drawn.shape == (500, 6)
    assert [abs((drawn == tau).mean() - 0.25) < 0.03 for tau in (2, 3, 4, 5)] == [True] * 4
    assert set(np.unique(drawn)) == {2, 3, 4, 5}
    assert abs(np.corrcoef(drawn.T) - np.eye(6)).max() < 0.2
    np.testing.assert_array_equal(drawn, work(Federation(problem, None, 0, Participation(least=2)), 500, 5))
    assert Federation(problem, None, 0).at(0).work(5) == 5
    fixed = Federation(problem, None, 0, Participation(work=[3] * 6)).at(0)
    np.testing.assert_array_equal(fixed.work(5), [3] * 6)


def test_work_that_is_drawn_once():
    """Uniform over clients and seeds, and the same in all rounds: a run with the drawn numbers given is the same run."""
    problem = small("fed_norm_sgda", "quadratic_minimax").problem
    once = Participation(least=2, work="once")
    drawn = np.stack([work(Federation(problem, None, seed, once), 3, 5) for seed in range(300)])
    assert (drawn == drawn[:, :1]).all()
    assert [abs((drawn == tau).mean() - 0.25) < 0.03 for tau in (2, 3, 4, 5)] == [True] * 4
    assert abs(np.corrcoef(drawn[:, 0].T) - np.eye(6)).max() < 0.2
    fed = Federation(problem, None, 0, once).at(7)
    np.testing.assert_array_equal(fed.work(5, np.array([4, 1])), drawn[0, 0, [4, 1]])
    kinds = (["participation.least=2", "participation.work=once"], [f"participation.work={drawn[0, 0].tolist()}"])
    ends = [steps(small("local_sgda", "quadratic_minimax", "algo.tau=5", *kind), 4)[-1] for kind in kinds]
    assert torch.equal(ends[0].x, ends[1].x)


@pytest.mark.parametrize("engine", ["vectorised", "one_by_one"])
@pytest.mark.parametrize("unit", [["algo.tau=3epochs"], ["algo.tau=3"]])
def test_clients_take_their_own_steps(engine, unit):
    """Epochs or steps of each client, counted where they are taken."""
    e = small(
        "local_sgda",
        "quadratic_minimax",
        "participation.cohort=null",
        "participation.work=[1,2,3,4,5,6]",
        "algo.B=4",
        "problem.examples=60",
        *unit,
        f"hardware.engine={engine}",
    )
    steps(e, 1)
    batches = 3 if unit[0] == "algo.tau=3epochs" else 1  # 10 examples in batches of 4
    assert e.federation.ledger.calls.grad == batches * 21


def test_dropout():
    """Of a cohort, a share; never all."""
    problem = small("fed_norm_sgda", "quadratic_minimax").problem
    fed = Federation(problem, None, 0, Participation(cohort=4, dropout=0.3))
    full = Federation(problem, None, 0, Participation(cohort=4))
    sizes = []
    for r in range(1500):
        present = fed.at(r).cohort()
        assert set(present) <= set(full.at(r).cohort())
        sizes.append(len(present))
    assert np.mean(sizes) == pytest.approx(4 * 0.7 + 0.3**4, abs=0.1)
    assert min(sizes) == 1
    assert not fed.at(0).complete
    assert full.at(0).cohort_size == 4


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["participation.least=9"], ["participation.least=9", "at most algo.tau, which is 5 steps"]),
        (["participation.work=[1,2,3]"], ["participation.work", "2 clients"]),
        (["participation.least=2", "++participation.work=[1,2]"], ["least and work cannot be combined"]),
        (["participation.work=once"], ["work=once needs participation.least"]),
        (["participation.least=2", "participation.work=twice"], ["participation.work=twice", "'once'"]),
        (["algo=localbsgm", "participation.least=2"], ["LocalBSGM", "equal work"]),
        (
            ["algo=fednest", "participation.least=2"],
            ["participation.least=2", "at most algo.tau_out, which is 1 steps"],
        ),
        (["algo=fednest", "participation.work=[1,2]"], ["participation.work=[1, 2]", "algo.tau_in and algo.tau_out"]),
        (["algo=fedmsa", "participation.least=9"], ["participation.least=9", "at most algo.K, which is 5 steps"]),
        (["participation.dropout=1"], ["participation.dropout=1", "less than 1"]),
        (["algo.tau=5 passes"], ["algo.tau=5 passes", "a number of steps, such as 5", "a number of epochs"]),
        (["algo.rho=[]"], ["at least 1 item"]),
        (
            ["algo.mu=2", "algo.eta_y={kind: piecewise, values: [0.1, 0.6], boundaries: [9]}"],
            ["mu * eta_x and mu * eta_y"],
        ),
        (["problem.mismatch=[1,2,3]"], ["problem.mismatch", "2 clients"]),
    ],
)
def test_mistakes(overrides, words):
    with pytest.raises(UserError) as error:
        steps(assemble(composed("algo=fed_norm_sgda", "problem=quadratic_minimax", *overrides)), 1)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.slow
@pytest.mark.data
def test_vgg11_on_cifar10():
    """Two rounds of the published set-up at full size, but for the number of examples."""
    real("cifar10.npz")
    few = ["problem.examples=96", "partitioner.clients=3", "algo.tau=2epochs", "hardware=cpu", "hardware.threads=1"]
    e = assemble(composed("experiment=fednormsgda/fig3", *few))
    states = steps(e, 2)
    for before, after in zip(states[1:], states[:-1], strict=True):
        for a, b in zip(before[:2], after[:2], strict=True):
            assert torch.isfinite(b).all()
            assert not torch.equal(a, b)
    assert len(states[0].x) > 9e6
    assert float(states[-1].y.norm()) <= e.original.eps


@pytest.mark.parametrize("aggregation", ["normalised", "naive"])
@pytest.mark.parametrize("S", [None, 2])
@pytest.mark.parametrize("radius", [None, 0.7])
@pytest.mark.parametrize("name", SOLVERS)
def test_golden_numbers(name, radius, S, aggregation, monkeypatch):
    """Two clients with 2 and 5 local steps, three rounds: Alg. 1 written out; also with y in a ball, outside of which it starts."""
    rates = ["algo.eta_x=0.1", "algo.eta_y=0.2", "algo.gamma_x=0.8", "algo.gamma_y=1.3"]
    e = experiment(*rates, *SOLVERS[name], f"algo.S={S or 'null'}", f"algo.aggregation={aggregation}")
    if radius is not None:
        monkeypatch.setattr(e.problem, "project", lambda y: ball(y, radius), raising=False)
    x, y = (v.numpy() for v in e.problem.start())
    x_hat = None
    for r, state in enumerate(steps(e, 3)[1:]):
        if S is not None and r % S == 0:
            x_hat = x
        x, y = numpy_round(e, x, y, x_hat, radius=radius)
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-10)
        np.testing.assert_allclose(state.y.numpy(), y, rtol=1e-10)


@pytest.mark.parametrize(
    "kind", [["algo.tau_eff=all"], ["algo.tau_eff=cohort"], ["algo.aggregation=naive"]], ids=["all", "cohort", "naive"]
)
@pytest.mark.parametrize("S", [None, 2])
def test_golden_numbers_of_cohorts(S, kind, monkeypatch):
    """Three of five clients, with as many local steps as their numbers and examples of their own: Alg. 1 with eq. 3's weights."""
    tau, cohorts = [1, 2, 3, 4, 5], [[0, 2, 3], [1, 2, 4], [0, 1, 4]]
    e = experiment(
        "partitioner.clients=5",
        "participation.cohort=3",
        f"participation.work={tau}",
        "problem.examples=23",
        "problem.mismatch=null",
        "algo.B=null",
        "algo.rho=[0.5,0]",
        "algo.eta_x=0.1",
        "algo.eta_y=0.2",
        f"algo.S={S or 'null'}",
        *kind,
        "hardware.dtype=float64",
    )
    e.problem.weighting = "samples"
    p = e.problem.sizes() / 23
    assert len(set(p)) > 1
    x, y = (v.numpy() for v in e.problem.start())
    x_hat = None
    todo = iter(cohorts)
    monkeypatch.setattr(Round, "cohort", lambda fed: np.array(next(todo)))
    for r, state in enumerate(steps(e, 3)[1:]):
        if S is not None and r % S == 0:
            x_hat = x
        x, y = numpy_round(e, x, y, x_hat, tau=tau, p=p, C=cohorts[r])
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-10)
        np.testing.assert_allclose(state.y.numpy(), y, rtol=1e-10)
