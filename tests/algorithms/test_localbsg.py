"""LocalBSGM, LocalBSGVRM and FedAvg-S against NumPy derivations and closed forms."""

import numpy as np
import pytest
import torch
from support.samples import rows_of, sampling

import fedopt
from fedopt.algorithms import localbsg
from fedopt.analysis.runs import read
from fedopt.errors import UserError
from fedopt.federation.draws import Steps, draw
from fedopt.papers import published
from fedopt.papers.seed_runs import SeedRuns
from fedopt.running.assemble import assemble
from fedopt.testing.harness import composed, small, steps

THETA, Q, P, RHO1, RHO2 = 0.7, 3, 2, 0.2, 0.5


def experiment(algo, *overrides):
    return small(
        algo,
        "quadratic_bilevel",
        "partitioner.clients=2",
        "participation.cohort=null",
        f"algo.theta={THETA}",
        f"algo.Q={Q}",
        f"algo.p={P}",
        f"algo.rho1={RHO1}",
        f"algo.rho2={RHO2}",
        *overrides,
    )


def noise_of_draws(e, r, client, B, iterations):
    """Of (c, d, e), for each iteration's first sample, which f, g and their gradients are of; its others are the Hessians'."""
    if B is None:
        return [dict.fromkeys("cde", 0.0)] * iterations
    like = torch.zeros((), dtype=torch.float64)
    rng_of = sampling(e.federation.seed, r, 1)
    draws = {"xi": Steps(iterations, B, samples=1 + Q)}
    whole, drawn = draw(draws, e.problem.splits, np.array([client]), rng_of, like)
    noise = [{} for _ in range(iterations)]
    for name, split in (("c", "train"), ("d", "val"), ("e", "val")):
        rows, weight = (t[0].numpy() for t in rows_of(whole, drawn["xi"], split))
        for k in range(iterations):
            first = k * (1 + Q)
            noise[k][name] = weight[first] @ e.problem._noise[name].numpy()[rows[first]]
    return noise


def numpy_estimates(problem, i, x, y, noise):
    """D_i and grad_y g_i; the matrices of this problem have no noise, so neither has the Neumann sum."""
    m = {k: v[i].numpy() for k, v in problem.per_client.items()}
    c, d, e = (m[k] + noise[k] for k in "cde")
    contraction = np.eye(len(y)) - THETA * m["A"]
    H = THETA * sum(np.linalg.matrix_power(contraction, q) for q in range(Q + 1))
    grad_x, grad_y = m["D"] @ x - d + m["G"] @ y, m["F"] @ y - e + m["G"].T @ x
    return grad_x + m["B"].T @ H @ grad_y, m["A"] @ y - m["B"] @ x - c


def average(clients):
    return [np.mean([of_client[j] for of_client in clients], axis=0) for j in range(4)]


@pytest.mark.full
@pytest.mark.parametrize(("algo", "cohort"), [("localbsgm", "null"), ("localbsgvrm", "null"), ("localbsgvrm", "2")])
def test_reaches_the_closed_form_solution(algo, cohort):
    """Equal clients, no noise, a long Neumann sum; also where two of four take part."""
    e = small(
        algo,
        "quadratic_bilevel",
        "partitioner.clients=4",
        f"participation.cohort={cohort}",
        "problem.heterogeneity=0",
        "problem.conditioning=2",
        "algo.B=null",
        "algo.Q=25",
        "algo.p=5",
        "algo.theta=1",
        "algo.rho1=0.3",
        "algo.rho2=1.5",
        "algo.alpha=1.8",
        "algo.beta=1.8",
    )
    after = e.problem.evaluate(*e.algorithm.output(steps(e, 30)[-1]))
    assert after["distance"] < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("algo", ["localbsgm", "localbsgvrm"])
def test_the_bias_of_local_hessians(algo):
    """With unequal clients and p = 1 the methods solve mean_i D_i = 0, mean_i grad_y g_i = 0, which is linear here and not
    what the solution solves: the mean of the clients' own inverses is not the inverse of the mean."""
    e = experiment(algo, "algo.B=null", "algo.p=1", "algo.rho1=0.4", "algo.rho2=1.2", "algo.alpha=1.8", "algo.beta=1.8")
    p = e.problem
    x0, y0 = (np.zeros_like(v.numpy()) for v in p.start())
    quiet = dict.fromkeys("cde", 0.0)

    def residual(point):
        x, y = np.split(point, [len(x0)])
        return np.mean([np.concatenate(numpy_estimates(p, i, x, y, quiet)) for i in (0, 1)], axis=0)

    constant = residual(np.concatenate([x0, y0]))
    matrix = np.stack([residual(unit) - constant for unit in np.eye(len(constant))], axis=1)
    fixed = np.linalg.solve(matrix, -constant)
    x, y = e.algorithm.output(steps(e, 130)[-1])
    np.testing.assert_allclose(np.concatenate([x.numpy(), y.numpy()]), fixed, atol=1e-6)
    assert p.evaluate(x, y)["distance"] > 0.02


def test_warm_up_moves_only_y():
    states = steps(small("localbsgvrm", "quadratic_bilevel", "algo.warm_up=2"), 3)
    assert torch.equal(states[2].z[0], states[0].z[0])
    assert not torch.equal(states[2].z[1], states[1].z[1])
    assert not torch.equal(states[3].z[0], states[0].z[0])


@pytest.mark.parametrize("algo", ["localbsgm", "localbsgvrm"])
@pytest.mark.parametrize("key", ["alpha", "beta"])
def test_weights_beyond_one(algo, key):
    with pytest.raises(UserError, match=rf"{key} \* eta"):
        steps(small(algo, "quadratic_bilevel", "algo.eta=0.5", f"algo.{key}=4.1"), 0)


# FedAvg-S


def saddle(*overrides):
    return assemble(composed("algo=fedavg_s", "problem=saddle", "hardware.threads=1", *overrides))


@pytest.mark.full
def test_fedavg_s_stalls_at_a_floor_that_grows_with_the_spread():
    """s from 1 to 10: the squared distances end 100 times as far off [FedNest Fig. 4]."""
    ends = []
    for s in (1, 10):
        e = saddle(f"problem.s={s}", "partitioner.clients=10", "algo.alpha=0.05", "algo.beta=0.1")
        ends.append(e.problem.evaluate(*e.algorithm.output(steps(e, 80)[-1])))
    for name in ("distance_x", "distance_y"):
        assert ends[0][name] > 1e-6
        assert (ends[1][name] / ends[0][name]) ** 2 == pytest.approx(100, rel=0.05)


def test_fedavg_s_projects_every_local_step(monkeypatch):
    e = saddle("partitioner.clients=3")
    monkeypatch.setattr(type(e.problem), "project", lambda self, y: torch.clamp(y, max=7.0))
    _, y = e.algorithm.output(steps(e, 1)[-1])
    assert (y <= 7).all()


# The claims of conf/experiment/localbsg, which must fail for a method that is wrong


def kept(tmp_path, name, line, *further):
    """Whether the claims that are about this line alone hold on one seed, in the order of the file."""
    described = published.load(name)
    (task,) = published.tasks(name, described, 1, further, lines=[line])
    fedopt.run([*task.composed.overrides, f"output_dir={tmp_path}"])
    runs = SeedRuns({line: read(tmp_path, described.x)}, described.x, described.y[0], {}, {})
    about = [claim for claim in described.claims if claim.measure.lines(described.points) == [line]]
    return [claim.verdict(claim.measure.value(runs), 0.0, 2) == "supported" for claim in about]


EIGHT, ONE = "LocalBSGM, K = 8", "LocalBSGM, K = 1 with the step size of K = 8"
OTHER = "LocalBSGM with the step size of LocalBSGVRM, eps = 0.3"
SHORT = "budget.rounds=60"


def wrong(factor, monkeypatch):
    right = localbsg.neumann_maps

    def maps(*args):
        D, G = right(*args)
        return factor * D, G

    monkeypatch.setattr(localbsg, "neumann_maps", maps)


@pytest.mark.slow
def test_the_step_of_eight_clients_is_too_noisy_for_one(tmp_path):
    assert kept(tmp_path / "8", "localbsg/speedup", EIGHT, SHORT) == [True]
    assert kept(tmp_path / "1", "localbsg/speedup", ONE, SHORT) == [True]
    assert kept(tmp_path / "quiet", "localbsg/speedup", ONE, SHORT, "problem.noise=0") == [False]


@pytest.mark.full
@pytest.mark.parametrize("factor", [5, -1])
def test_eight_clients_do_not_reach_eps_with_a_wrong_hypergradient(factor, tmp_path, monkeypatch):
    wrong(factor, monkeypatch)
    assert kept(tmp_path, "localbsg/speedup", EIGHT, SHORT) == [False]


@pytest.mark.slow
def test_without_noise_nothing_is_gained_by_variance_reduction(tmp_path):
    assert kept(tmp_path / "noisy", "localbsg/rates", OTHER, "budget.rounds=110") == [True]
    assert kept(tmp_path / "quiet", "localbsg/rates", OTHER, "budget.rounds=110", "problem.noise=0") == [False]


@pytest.mark.slow
def test_variance_reduction_with_a_wrong_weight_does_not_reach_eps(tmp_path):
    line = "LocalBSGVRM, eps = 0.3"
    assert kept(tmp_path / "right", "localbsg/rates", line) == [True]
    assert kept(tmp_path / "wrong", "localbsg/rates", line, "algo.alpha=12", "algo.beta=12") == [False]


@pytest.mark.full
def test_equal_clients_do_not_converge_with_a_wrong_hypergradient(tmp_path):
    line = "heterogeneity 0, p = 16"
    assert kept(tmp_path / "right", "localbsg/drift", line, "algo.Q=12") == [True]
    assert kept(tmp_path / "wrong", "localbsg/drift", line, "algo.Q=0") == [False]


@pytest.mark.full
def test_dropout_is_noise_too():
    """The first D and G of Alg. 2 are means over S xi also where full batches differ by dropout alone."""
    setting = ["algo.B=null", "participation.cohort=6", "problem.model=mlp", "problem.widths=[8]", "algo.p=2"]
    for dropout, same in ((0.5, False), (0, True)):
        words = [*setting, f"problem.dropout={dropout}"]
        ends = [steps(small("localbsgvrm", "hyper_representation", *words, f"algo.S={S}"), 1)[-1] for S in (1, 4)]
        assert torch.equal(ends[0].z[0], ends[1].z[0]) is same


@pytest.mark.parametrize("B", [None, 3])
def test_golden_numbers_of_localbsgm(B):
    """Two clients, three communications after two iterations each: Alg. 1 written out."""
    alpha, beta, eta = 1.3, 0.9, 0.4
    e = experiment("localbsgm", f"algo.eta={eta}", f"algo.alpha={alpha}", f"algo.beta={beta}", f"algo.B={B or 'null'}")
    state = steps(e, 3)[-1]
    x, y = (v.numpy() for v in e.problem.start())
    clients = [[x, y, None, None] for _ in range(2)]
    for r in range(3):
        for i in (0, 1):
            noise = noise_of_draws(e, r, i, B, P)
            for k in range(P):
                x, y, u, v = clients[i]
                D, G = numpy_estimates(e.problem, i, x, y, noise[k])
                if r == 0 and k == 0:
                    u, v = D, G
                else:
                    u = (1 - alpha * eta) * u + alpha * eta * D
                    v = (1 - beta * eta) * v + beta * eta * G
                clients[i] = [x - RHO1 * eta * u, y - RHO2 * eta * v, u, v]
        clients = [average(clients) for _ in range(2)]
    for computed, derived in zip((*state.z, *state.d), clients[0], strict=True):
        np.testing.assert_allclose(computed.numpy(), derived, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("B", [None, 3])
@pytest.mark.parametrize(
    ("step_size", "p", "rounds", "L_Phi"), [("constant", 2, 3, 3.0), ("theorem", 2, 3, 3.0), ("theorem", 1, 7, 7.35)]
)
def test_golden_numbers_of_localbsgvrm(B, step_size, p, rounds, L_Phi):
    """Two clients, some communications after p iterations each: Alg. 2 written out. What is averaged is x_{t+1}, y_{t+1},
    u_t, v_t; a client's x_{t-1}, y_{t-1} stay its own. Each of the three bounds on w_t is met."""
    alpha, beta, eta, S, L, K = 2.0, 1.5, 0.4, 4, 2.5, 2
    e = experiment(
        "localbsgvrm",
        f"algo.step_size={step_size}",
        f"algo.p={p}",
        f"algo.eta={eta}",
        f"algo.L={L}",
        f"algo.L_Phi={L_Phi}",
        f"algo.alpha={alpha}",
        f"algo.beta={beta}",
        f"algo.S={S}",
        f"algo.B={B or 'null'}",
    )
    state = steps(e, rounds)[-1]

    def eta_of(t):
        if step_size == "constant":
            return eta
        w_t = max(2, K**2 * p**3 - t, 8 * RHO1**3 * L_Phi**3 * K**2 / L**3 - t)
        return (K ** (2 / 3) / L) / (w_t + t) ** (1 / 3)

    x, y = (v.numpy() for v in e.problem.start())
    clients, before = [[x, y, None, None] for _ in range(2)], [[x, y] for _ in range(2)]
    first_draws = 1 if B is None else S
    for r in range(rounds):
        extra = 0 if r else first_draws - 1
        for i in (0, 1):
            noise = noise_of_draws(e, r, i, B, p + extra)
            for k in range(p):
                t = r * p + k + 1
                x, y, u, v = clients[i]
                if t == 1:
                    first = [numpy_estimates(e.problem, i, x, y, noise[j]) for j in range(first_draws)]
                    u, v = (np.mean([pair[j] for pair in first], axis=0) for j in (0, 1))
                else:
                    of_t = noise[k + extra]
                    D, G = numpy_estimates(e.problem, i, x, y, of_t)
                    D_old, G_old = numpy_estimates(e.problem, i, *before[i], of_t)
                    u = (1 - alpha * eta_of(t - 1) ** 2) * (u - D_old) + D
                    v = (1 - beta * eta_of(t - 1) ** 2) * (v - G_old) + G
                before[i] = [x, y]
                clients[i] = [x - RHO1 * eta_of(t) * u, y - RHO2 * eta_of(t) * v, u, v]
        clients = [average(clients) for _ in range(2)]
    for computed, derived in zip((*state.z, *state.d), clients[0], strict=True):
        np.testing.assert_allclose(computed.numpy(), derived, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.memory.tensor().numpy(), [np.concatenate(pair) for pair in before], rtol=1e-10)


def test_golden_numbers_of_fedavg_s():
    alpha, beta = 0.03, 0.2
    e = saddle("partitioner.clients=3", f"algo.alpha={alpha}", f"algo.beta={beta}", "algo.tau=2")
    state = steps(e, 2)[-1]
    t, b = (e.problem.per_client[name].numpy() for name in "tb")
    x, y = (v.numpy() for v in e.problem.start())
    for _ in range(2):
        answers = []
        for i in range(3):
            x_i, y_i = x, y
            for _ in range(2):
                x_i, y_i = x_i - alpha * (10 * x_i - t[i] * y_i), y_i + beta * (b[i] - y_i - t[i] * x_i)
            answers.append((x_i, y_i))
        x, y = (np.mean([answer[j] for answer in answers], axis=0) for j in (0, 1))
    np.testing.assert_allclose(state.w[0], x, rtol=1e-12)
    np.testing.assert_allclose(state.w[1], y, rtol=1e-12)
