"""FedAvg, FedProx, SCAFFOLD, and what is reduced to minimisation, against NumPy derivations."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from support.softmax import examples, gradient

from fedopt.config.composed import compose
from fedopt.errors import UserError
from fedopt.running.assemble import assemble
from fedopt.testing.harness import small, steps

UNEQUAL = ["problem.model=softmax", "partitioner=dirichlet", "algo.B=null", "algo.tau=3"]


def experiment(algo, *overrides):
    return small(algo, "classification", *UNEQUAL, *overrides)


def clients_data(p):
    return [examples(p.train, rows) for rows in p.splits["train"]]


def cohorts(e, rounds):
    """Who takes part in each round, and everyone's number of local steps: 3, of a straggler 0."""
    found = []
    for r in range(rounds):
        fed = e.federation.at(r)
        found.append((fed.cohort(), fed.work(np.full(6, 3))))
    return found


late = pytest.mark.parametrize("stragglers", [0, 0.34])


def test_the_first_step_of_an_adaptive_server_is_a_sign():
    """Without memory, v_0 and epsilon, every coordinate that changes moves by gamma."""
    settings = ["algo.beta_1=0", "algo.beta_2=0", "algo.epsilon=1e-15", "algo.v_0=0", "algo.gamma=0.05"]
    for algo in ("fedadam", "fedyogi", "fedadagrad"):
        before, after = steps(experiment(algo, *settings), 1)
        moved = (after.x - before.x).abs()
        torch.testing.assert_close(moved[moved > 0], torch.full_like(moved[moved > 0], 0.05), rtol=1e-9, atol=0)
        assert (moved > 0).any()


def test_an_adaptive_server_has_no_other_momentum():
    with pytest.raises(UserError, match="beta_1"):
        experiment("fedadam", "algo.momentum=0.5")


@pytest.mark.parametrize("B", ["null", "4"])
def test_fedprox_without_its_term_is_fedavg(B):
    prox, avg = (steps(experiment(algo, f"algo.B={B}", "algo.mu=0"), 3)[-1].x for algo in ("fedprox", "fedavg"))
    assert torch.equal(prox, avg)
    assert not torch.equal(steps(experiment("fedprox", f"algo.B={B}"), 3)[-1].x, avg)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("stragglers", [0, 0.5])
def test_control_variates_average_to_the_servers(stragglers, weighting):
    """Their mean has the weights of the objective."""
    growing = [f"participation.stragglers={stragglers}", "algo.tau={kind: growing, tau: [1, 3]}"]
    e = experiment("scaffold", "algo.B=4", f"problem.weighting={weighting}", *growing)
    weights = torch.from_numpy(e.problem.weights)
    for state in steps(e, 6):
        torch.testing.assert_close(weights @ state.memory.tensor(), state.c, rtol=1e-10, atol=1e-14)
    assert float(state.c.norm()) > 0.01


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_scaffold_with_one_local_step_is_gradient_descent(weighting):
    """On the objective."""
    e = experiment("scaffold", "algo.tau=1", "participation.cohort=6", f"problem.weighting={weighting}")
    data, x, sizes = clients_data(e.problem), e.problem.start()[0].numpy(), e.problem.sizes()
    for state in steps(e, 5)[1:]:
        x = x - 0.1 * np.average(
            [gradient(x, *of) for of in data], axis=0, weights=sizes if weighting == "samples" else None
        )
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-9, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("K", [1, 4])
def test_where_local_steps_end_on_unlike_clients(K):
    """K steps of client i contract towards its own minimiser x_i: x - x_i becomes (I - eta A_i)^K (x - x_i). FedAvg ends where the
    mean of these moves is zero, SCAFFOLD at the solution; with one step they are the same point."""
    words = ["problem.dim=5", f"algo.tau={K}", "algo.B=null", "algo.eta=0.5", "participation.cohort=6"]
    ends, p = {}, None
    for algo in ("fedavg", "scaffold"):
        e = small(algo, "quadratic_minimisation", *words)
        p, ends[algo] = e.problem, steps(e, 200)[-1].x.numpy()
    A, c = (p.per_client[name].numpy() for name in ("A", "c"))
    moves = [np.eye(5) - np.linalg.matrix_power(np.eye(5) - 0.5 * A_i, K) for A_i in A]
    towards = [move @ np.linalg.solve(A_i, c_i) for move, A_i, c_i in zip(moves, A, c, strict=True)]
    drifted, solution = np.linalg.solve(sum(moves), sum(towards)), np.linalg.solve(A.mean(0), c.mean(0))
    np.testing.assert_allclose(ends["fedavg"], drifted, rtol=1e-9)
    np.testing.assert_allclose(ends["scaffold"], solution, rtol=1e-9)
    np.testing.assert_allclose(p.solution()[0].numpy(), solution, rtol=1e-12)
    assert (np.linalg.norm(drifted - solution) > 0.01) == (K > 1)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("algo", ["fedavg", "fedprox", "scaffold"])
def test_what_is_minimised_is_what_train_loss_reports(algo, weighting):
    """One local step on full batches, clients of unequal sizes: every step is along the gradient of train_loss."""
    e = experiment(algo, "algo.tau=1", "participation.cohort=6", f"problem.weighting={weighting}")
    assert len(set(e.problem.sizes())) > 2
    states = steps(e, 3)
    generator = torch.Generator().manual_seed(0)
    for before, after in pairwise(states):
        direction = torch.randn(before.x.shape, generator=generator, dtype=before.x.dtype)
        ahead, behind = (e.problem.evaluate(before.x + h * direction)["train_loss"] for h in (1e-5, -1e-5))
        step = (before.x - after.x) / 0.1
        assert float(step @ direction) == pytest.approx((ahead - behind) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("algo", ["fedavg", "scaffold"])
def test_stragglers_return_what_they_were_sent(algo):
    """Nobody else's work changes, and a control variate of a client without a step stays."""
    overrides = ["participation.cohort=6", "participation.stragglers=0.5", "algo.B=4", "algo.eta=0.1"]
    e = experiment(algo, *overrides)
    state = steps(e, 1)[-1]
    late = e.federation.at(0).work(3) == 0
    assert late.sum() == 3
    assert e.federation.ledger.calls.grad == 3 * 3
    if algo == "scaffold":
        assert not state.memory.tensor()[torch.from_numpy(late)].any()
        assert bool(state.memory.tensor()[torch.from_numpy(~late)].any(1).all())


@pytest.mark.parametrize("algo", ["fedavg", "fedprox", "scaffold"])
def test_unequal_steps_in_a_stack(algo):
    """A step is written over the iterate: not over that of a client that has finished."""
    uneven = ["algo.tau=5", "participation.least=1", "participation.cohort=6"]
    stack, alone = (
        steps(experiment(algo, *uneven, f"hardware.engine={engine}"), 3)[-1].x
        for engine in ("vectorised", "one_by_one")
    )
    torch.testing.assert_close(stack, alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("B", ["null", "4"])
@pytest.mark.parametrize("algo", ["lfednest", "lfednest_svrg", "lfednest_nonalt"])
def test_lfednest_on_minimisation_is_fedavg(algo, B):
    """LFedOut alone: local SGD, with the same samples, in one exchange."""
    common = ["problem.model=softmax", "partitioner=dirichlet"]
    ours = small(algo, "classification", *common, "algo.alpha=0.1", "algo.tau_out=1 epochs", f"algo.B_out={B}")
    theirs = small("fedavg", "classification", *common, "algo.eta=0.1", "algo.tau=1 epochs", f"algo.B={B}")
    torch.testing.assert_close(steps(ours, 3)[-1].x, steps(theirs, 3)[-1].x, rtol=1e-10, atol=1e-12)
    assert ours.federation.ledger.comm_rounds == theirs.federation.ledger.comm_rounds == 3
    assert ours.federation.ledger.calls.grad == theirs.federation.ledger.calls.grad


@pytest.mark.parametrize("algo", ["localbsgm", "localbsgvrm"])
def test_localbsg_on_minimisation(algo):
    """Momentum of local gradients [LocalBSG eq. 3.4, 3.8], full batches: u of the first iteration is the gradient."""
    keys = ["algo.B=null", "algo.p=1", "participation.cohort=6", "problem.weighting=uniform"]
    e = small(algo, "classification", "problem.model=softmax", "partitioner=dirichlet", *keys)
    a, data, x = e.algorithm, clients_data(e.original), e.problem.start()[0].numpy()
    before = u = None
    for state in steps(e, 4)[1:]:
        D = np.mean([gradient(x, *of) for of in data], axis=0)
        weight = a.alpha * (a.eta if algo == "localbsgm" else a.eta**2)
        kept = u if algo == "localbsgm" or u is None else u - before
        u = D if u is None else (1 - weight) * kept + (weight * D if algo == "localbsgm" else D)
        before, x = D, x - a.rho1 * a.eta * u
        np.testing.assert_allclose(state.z[0].numpy(), x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("replace", [True, False])
def test_samples_on_equal_terms(replace):
    """The same keys are the same samples as FedAvg's with replace=True, and others without."""
    e = small("fedavg", "quadratic_minimisation", "algo.tau=3", "algo.B=8")
    s, eta, fed = e.algorithm.init(e.problem), e.algorithm.eta(0), e.federation.at(0)

    def local_steps(client, x):
        return client.scan("local", lambda x_i, xi: x_i - eta * client.gradient(x_i, xi), x)

    local = fed.local(e.algorithm.tau, e.algorithm.B, replace=replace)
    own = fed.exchange(local_steps, s.x, fed.cohort(), local=local)
    theirs = e.algorithm.step(s, e.problem, e.federation.at(0)).x
    assert torch.allclose(own, theirs, rtol=1e-6, atol=1e-9) is replace


@pytest.mark.full
def test_drift_shows_as_shipped():
    """With the tuned values: SCAFFOLD comes to the solution, FedAvg and FedProx stop at points of their own beside it."""
    ends = {}
    for algo in ("fedavg", "fedprox", "scaffold"):
        e = assemble(compose([f"algo={algo}", "problem=quadratic_minimisation"]))
        ends[algo] = e.problem.evaluate(*e.algorithm.output(steps(e, 300)[-1]))["distance"]
    assert ends["scaffold"] < 1e-3 * min(ends["fedavg"], ends["fedprox"])
    assert abs(ends["fedavg"] - ends["fedprox"]) > 0.005 * ends["fedavg"]


@late
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(("gamma", "momentum", "mu"), [(1, 0, 0), (0.7, 0, 0.5), (1.2, 0.6, 0), (0.5, 0.9, 2)])
def test_golden_numbers_of_fedavg_and_fedprox(gamma, momentum, mu, weighting, stragglers):
    """Cohorts of 3 out of 6, full batches, three rounds; a straggler returns what it was sent."""
    overrides = [f"algo.gamma={gamma}", f"algo.momentum={momentum}", f"algo.mu={mu}", f"problem.weighting={weighting}"]
    e = experiment("fedavg", *overrides, f"participation.stragglers={stragglers}")
    data, sizes = clients_data(e.problem), e.problem.sizes()
    x, v = e.problem.start()[0].numpy(), 0
    for (S, steps_of), state in zip(cohorts(e, 3), steps(e, 3)[1:], strict=True):
        weights = sizes[S] if weighting == "samples" else np.ones(len(S))
        mean = 0
        for i, weight in zip(S, weights / weights.sum(), strict=True):
            x_i = x
            for _ in range(steps_of[i]):
                x_i = x_i - 0.1 * (gradient(x_i, *data[i]) + mu * (x_i - x))
            mean = mean + weight * x_i
        v = momentum * v + (mean - x)
        x = x + gamma * v
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("algo", ["fedadam", "fedyogi", "fedadagrad"])
def test_golden_numbers_of_adaptive_servers(algo):
    """Reddi et al. 2021, Alg. 2, on cohorts of 3 out of 6, full batches, four rounds."""
    gamma, beta_1, beta_2, epsilon, v_0 = 0.05, 0.8, 0.6, 1e-3, 1e-4
    settings = {"gamma": gamma, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "v_0": v_0}
    e = experiment(algo, *(f"algo.{key}={value}" for key, value in settings.items()))
    data, sizes = clients_data(e.problem), e.problem.sizes()
    x = e.problem.start()[0].numpy()
    m, v, shrank = np.zeros_like(x), np.full_like(x, v_0), False
    for (S, _), state in zip(cohorts(e, 4), steps(e, 4)[1:], strict=True):
        delta = 0
        for i, weight in zip(S, sizes[S] / sizes[S].sum(), strict=True):
            x_i = x
            for _ in range(3):
                x_i = x_i - 0.1 * gradient(x_i, *data[i])
            delta = delta + weight * (x_i - x)
        m = beta_1 * m + (1 - beta_1) * delta
        before = v
        if algo == "fedadam":
            v = beta_2 * v + (1 - beta_2) * delta**2
        elif algo == "fedyogi":
            v = v - (1 - beta_2) * delta**2 * np.sign(v - delta**2)
        else:
            v = v + delta**2
        shrank = shrank or (v < before).any()
        x = x + gamma * m / (np.sqrt(v) + epsilon)
        for ours, theirs in zip((state.x, *state.v), (x, m, v), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-12)
    assert shrank == (algo != "fedadagrad")


@late
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_golden_numbers_of_scaffold(weighting, stragglers):
    """Alg. 1 with option II on cohorts of 3 out of 6, full batches, four rounds; the control variate of a straggler stays. Means
    over clients have the weights of the objective: of the cohort, and for the server's control variate of all."""
    overrides = [f"problem.weighting={weighting}", f"participation.stragglers={stragglers}"]
    e = experiment("scaffold", "algo.eta_g=0.8", *overrides)
    data, eta, sizes = clients_data(e.problem), 0.1, e.problem.sizes()
    p = sizes / sizes.sum() if weighting == "samples" else np.full(6, 1 / 6)
    x = e.problem.start()[0].numpy()
    c, c_of = np.zeros_like(x), np.zeros((6, len(x)))
    for (S, steps_of), state in zip(cohorts(e, 4), steps(e, 4)[1:], strict=True):
        dx, dc = 0, 0
        for i in S:
            y, K = x, steps_of[i]
            for _ in range(K):
                y = y - eta * (gradient(y, *data[i]) - c_of[i] + c)
            c_plus = c_of[i] - c + (x - y) / (K * eta) if K else c_of[i]
            dx, dc, c_of[i] = dx + p[i] / p[S].sum() * (y - x), dc + p[i] * (c_plus - c_of[i]), c_plus
        x, c = x + 0.8 * dx, c + dc
        for ours, theirs in ((state.x, x), (state.c, c), (state.memory.tensor(), c_of)):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_golden_numbers_of_fednest(weighting):
    """FedOut alone [Sec. 3.3]: h = mean grad f_i(x) over the cohort, then local steps along grad f_i(x_i) - grad f_i(x) + h; two
    exchanges a round, and no client sends anything for y."""
    keys = ["algo.alpha=0.2", "algo.tau_out=3", "algo.B_out=null", "algo.T=4", f"problem.weighting={weighting}"]
    e = small("fednest", "classification", "problem.model=softmax", "partitioner=dirichlet", *keys)
    data, sizes = clients_data(e.original), e.problem.sizes()
    x = e.problem.start()[0].numpy()
    for r, state in enumerate(steps(e, 3)[1:]):
        S = e.federation.at(r).cohort()
        weights = sizes[S] if weighting == "samples" else np.ones(len(S))
        h = np.average([gradient(x, *data[i]) for i in S], axis=0, weights=weights)
        ends = []
        for i in S:
            x_i = x
            for _ in range(3):
                x_i = x_i - 0.2 * (gradient(x_i, *data[i]) - gradient(x, *data[i]) + h)
            ends.append(x_i)
        x = np.average(ends, axis=0, weights=weights)
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-9, atol=1e-12)
        assert state.y.numel() == 0
    ledger = e.federation.ledger
    assert ledger.comm_rounds == 3 * 2
    assert ledger.calls.grad == 3 * 3 * (1 + 2 * 2)  # the first local step is along h
    assert ledger.calls.hvp == ledger.calls.jvp == 0
    assert e.problem.evaluate(*e.algorithm.output(state)).keys() == e.original.evaluate(state.x).keys()
