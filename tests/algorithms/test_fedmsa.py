"""FedMSA against NumPy derivations and closed forms."""

import dataclasses

import numpy as np
import pytest
import torch
from support.samples import rows_of, sampling

from fedopt.algorithms import fedmsa
from fedopt.algorithms.fedmsa import FedMSA
from fedopt.config.schedules import Constant
from fedopt.config.settings import Participation
from fedopt.data.ragged import Ragged
from fedopt.errors import UserError
from fedopt.federation.draws import Steps, draw
from fedopt.federation.engines import Vectorised
from fedopt.federation.round import Federation
from fedopt.problems.classes import Compositional
from fedopt.running.assemble import assemble
from fedopt.testing.harness import composed, small, steps


def numpy_maps(problem, i, u, noise):
    """P, S_w, S_v of client i of the quadratic problem, from its definition; noise: of (c, d, e) on this sample."""
    m = {k: v[i].numpy() for k, v in problem.per_client.items()}
    x, w, v = u
    c, d, e = (m[k] + noise[k] for k in "cde")
    return (
        m["D"] @ x - d + m["G"] @ w - (-m["B"].T) @ v,  # grad_x f - grad^2_xw g v
        m["A"] @ w - m["B"] @ x - c,  # grad_w g
        m["A"] @ v - (m["F"] @ w - e + m["G"].T @ x),  # grad^2_ww g v - grad_w f
    )


def sample_noise(problem, seed, r, exchange, client, B, k, steps_drawn):
    """Of local step k, from the rows that the client draws."""
    if B is None:
        return dict.fromkeys("cde", 0.0)
    like = torch.zeros((), dtype=torch.float64)
    draws = {"xi": Steps(steps_drawn, B, samples=1)}
    whole, drawn = draw(draws, problem.splits, np.array([client]), sampling(seed, r, exchange), like)
    noise = {}
    for key, split in (("c", "train"), ("d", "val"), ("e", "val")):
        rows, weight = (t[0, k].numpy() for t in rows_of(whole, drawn["xi"], split))
        noise[key] = weight @ problem._noise[key].numpy()[rows]
    return noise


@pytest.mark.full
def test_reaches_the_closed_form_solution():
    """Deterministic oracles, heterogeneous clients, three of eight chosen: x within 1e-6 of x*."""
    e = small("fedmsa", "quadratic_bilevel", "partitioner.clients=8")
    before = e.problem.evaluate(*e.problem.start())
    after = e.problem.evaluate(*e.algorithm.output(steps(e, 120)[-1]))
    assert before["distance"] > 0.5
    assert after["distance"] < 1e-6
    assert after["hypergradient_norm"] < 1e-6


def test_damping_adds_lambda_v():
    undamped, damped = (
        steps(small("fedmsa", "quadratic_bilevel", f"algo.damping={lam}", "algo.rho=1"), 2) for lam in (0.0, 0.7)
    )
    v = damped[1].u[2]
    torch.testing.assert_close(damped[1].u, undamped[1].u)  # v = 0 at first
    torch.testing.assert_close(damped[2].d[2], undamped[2].d[2] + 0.7 * v)
    assert v.norm() > 0


@pytest.mark.full
def test_random_iterate_is_uniform():
    """Over many seeds, the sampled iterate comes from each of the K local steps of the rounds equally often."""
    settings = ["algo.iterate=random", "algo.K=2", "problem.examples=24", "hardware.threads=1"]
    described = composed("algo=fedmsa", "problem=quadratic_bilevel", *settings)
    seeds, counts = 120, np.zeros(3)
    for seed in range(seeds):
        e = assemble(described.changed(seed=seed))
        _, one, two = states = steps(e, 2)
        second = one.u[0] - e.algorithm.alpha(1) * two.d[0]  # of round 2, for all clients
        iterates = (states[0].u[0], one.u[0], second)  # round 1 has K = 1
        counts[[torch.allclose(two.sampled[0], x, rtol=1e-12) for x in iterates].index(True)] += 1
    assert abs(counts - seeds / 3).max() < 4 * np.sqrt(seeds * 2 / 9)


def test_warm_up_moves_only_z():
    states = steps(small("fedmsa", "mco", "algo.warm_up=2"), 3)
    assert torch.equal(states[2].u[0], states[0].u[0])
    assert not torch.equal(states[2].u[1], states[0].u[1])
    assert not torch.equal(states[3].u[0], states[0].u[0])


def test_wrong_number_of_betas():
    with pytest.raises(UserError, match=r"algo\.beta"):
        steps(small("fedmsa", "mco", "algo.beta=[0.1,0.1,0.1]"), 0)


def test_levels_have_samples_of_their_own(monkeypatch):
    """Three levels, three local steps: 3 samples for the directions, and 2 x 3 for the steps after the first, each used at the
    newest iterate and at the one before."""
    asked, chain_maps = [], fedmsa.chain_maps

    def spy(client, u, samples):
        asked.append([tuple(b.tolist()) for _, b, _ in samples])
        return chain_maps(client, u, samples)

    monkeypatch.setattr(fedmsa, "chain_maps", spy)
    e = small("fedmsa", "mco", "algo.K=3", "algo.B=4", "hardware.engine=one_by_one")
    steps(e, 2)
    clients = e.problem.clients
    of_round = asked[-(2 * clients + 4 * 3) :]
    new, old = of_round[::2], of_round[1::2]
    assert new == old
    assert all(len(set(samples)) == 3 for samples in new[:clients])
    local = new[clients:]
    assert all(len({*local[k], *local[k + 1]}) == 6 for k in range(0, 6, 2))


@pytest.mark.full
@pytest.mark.parametrize("radius", [None, 0.4])
def test_minimax(radius, monkeypatch):
    """The hypergradient is grad_x f, also where y* is on the border of Y and grad_y f is not zero there."""
    project = (lambda y: y) if radius is None else (lambda y: y * torch.clamp(radius / y.norm(), max=1))
    e = small("fedmsa", "quadratic_minimax", "partitioner.clients=4", "algo.B=null", "algo.alpha=0.2", "algo.beta=0.4")
    monkeypatch.setattr(e.original, "project", project, raising=False)
    state = steps(e, 100)[-1]
    assert len(state.u) == 2
    x, y = state.u
    m = {name: v.mean(0) for name, v in e.original.per_client.items()}
    of_y = m["B"].T @ x - m["D"] @ y + m["e"]
    torch.testing.assert_close(m["A"] @ x + m["B"] @ y, m["c"], rtol=0, atol=1e-6)
    torch.testing.assert_close(project(y + of_y), y, rtol=0, atol=1e-6)
    assert float(of_y.norm()) < 1e-6 if radius is None else float(of_y.norm()) > 0.1


@dataclasses.dataclass(eq=False)
class Chain(Compositional):
    """f_i^n(z) = A_i^n z + b_i^n for n < N, f_i^N(z) = 1/2 |z - c_i|^2: a least-squares problem in the mean matrices."""

    N: int
    own_jacobians: bool = False  # of each client, or the same for all

    metrics = ()

    def __post_init__(self):
        rng = np.random.default_rng(self.N)
        self.dims = tuple(3 for _ in range(self.N + 1))
        self.splits = {"train": Ragged([np.arange(i, i + 1) for i in range(4)])}
        shape = (4, self.N, 3, 3)
        self.A = torch.from_numpy(np.eye(3) + 0.2 * rng.standard_normal(shape))
        if not self.own_jacobians:
            self.A = self.A[:1].expand(shape)
        self.b, self.c = (torch.from_numpy(rng.standard_normal(s)) for s in (shape[:3], (4, 3)))
        A, b, c = self.A.mean(0).numpy(), self.b.mean(0).numpy(), self.c.mean(0).numpy()
        product, shift = np.eye(3), np.zeros(3)
        for n in range(self.N):
            product, shift = A[n] @ product, A[n] @ shift + b[n]
        self.optimum = torch.from_numpy(np.linalg.lstsq(product, c - shift, rcond=None)[0])

    def start(self):
        return (torch.ones(3, dtype=torch.float64),)

    def sample(self, client, rows):
        return self.A[client], self.b[client], self.c[client]

    def level(self, n, z, sample):
        A, b, c = sample
        return 0.5 * torch.sum((z - c) ** 2) if n == self.N else A[n] @ z + b[n]

    def evaluate(self, *point):
        return {"distance": float(torch.linalg.norm(point[0] - self.optimum))}


def end_of_run(problem, rounds=450):
    algorithm = FedMSA(
        Constant(0.02), Constant(0.5), rho=0.5, K=3, B=None, anchor="all", warm_up=0, damping=0, iterate="last"
    )
    federation = Federation(problem, Vectorised(), 0, Participation(cohort=1))
    state = algorithm.init(problem)
    assert problem.evaluate(*state.u)["distance"] > 0.5
    for r in range(rounds):
        state = algorithm.step(state, problem, federation.at(r))
    return state.u


@pytest.mark.parametrize("N", [pytest.param(1, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.slow)])
def test_chains_reach_their_closed_form(N):
    """Clients with different offsets and targets, one of four chosen."""
    problem = Chain(world=None, N=N)
    assert problem.evaluate(*end_of_run(problem))["distance"] < 1e-6


@pytest.mark.full
def test_chains_with_different_jacobians_have_a_bias():
    """The mean of the clients' products of Jacobians (eq. 11) is not the product of their means (eq. 3): with N = 1 the
    method solves mean_i A_i' (A x + b - c_i) = 0, which is not the minimiser of |A x + b - c|^2."""
    problem = Chain(world=None, N=1, own_jacobians=True)
    A, b, c = problem.A[:, 0].numpy(), problem.b[:, 0].numpy(), problem.c.numpy()
    mean = A.mean(0)
    fixed = np.linalg.solve(mean.T @ mean, np.einsum("mji,mj->i", A, c) / 4 - mean.T @ b.mean(0))
    x = end_of_run(problem)[0]
    np.testing.assert_allclose(x.numpy(), fixed, atol=1e-6)
    assert problem.evaluate(x)["distance"] > 0.1


def test_dropout_is_noise_too():
    """With full batches of all clients the bracket of eq. 5 stays where dropout is the only noise."""
    setting = [
        "algo.B=null",
        "participation.cohort=6",
        "problem.model=mlp",
        "problem.widths=[8]",
        "problem.dropout=0.5",
    ]
    ends = [steps(small("fedmsa", "hyper_representation", *setting, f"algo.rho={rho}"), 3)[-1] for rho in (0.1, 0.9)]
    assert not torch.equal(ends[0].u[0], ends[1].u[0])
    plain = [*setting[:-1], "problem.dropout=0"]
    ends = [steps(small("fedmsa", "hyper_representation", *plain, f"algo.rho={rho}"), 3)[-1] for rho in (0.1, 0.9)]
    assert torch.equal(ends[0].u[0], ends[1].u[0])


@pytest.mark.parametrize("anchor", ["all", "cohort"])
@pytest.mark.parametrize("B", [None, 3])
def test_golden_numbers(B, anchor):
    """Two clients, two rounds, K = 3, rho = 0.4: Alg. 1 written out, momentum and all evaluations included."""
    alpha, beta_w, beta_v, rho, K = 0.03, 0.2, 0.07, 0.4, 3
    e = small(
        "fedmsa",
        "quadratic_bilevel",
        "partitioner.clients=2",
        "participation.cohort=1",
        f"algo.alpha={alpha}",
        f"algo.beta=[{beta_w},{beta_v}]",
        f"algo.anchor={anchor}",
        f"algo.rho={rho}",
        f"algo.K={K}",
        f"algo.B={'null' if B is None else B}",
    )
    state = steps(e, 2)[-1]

    p, seed = e.problem, e.federation.seed
    u = tuple(t.numpy() for t in (*p.start(), torch.zeros(8, dtype=torch.float64)))
    u_prev, d = u, None
    for r in (0, 1):
        rho_r, K_r = (rho, K) if r else (1, 1)
        fed = e.federation.at(r)
        anchored = (0, 1) if anchor == "all" else fed.cohort()
        (chosen,) = fed.new_cohort()
        per_client = []
        for m in anchored:
            xi = sample_noise(p, seed, r, 1, m, B, 0, 1)
            new, old = numpy_maps(p, m, u, xi), numpy_maps(p, m, u_prev, xi)
            per_client.append(
                [n + (1 - rho_r) * ((0 if d is None else dj) - o) for n, o, dj in zip(new, old, d or u, strict=True)]
            )
        d = [np.mean(of_clients, axis=0) for of_clients in zip(*per_client, strict=True)]
        local, before, after = list(d), u, u
        for k in range(1, K_r + 1):
            xi = sample_noise(p, seed, r, 2, chosen, B, max(k - 2, 0), max(K_r - 1, 1))
            new, old = numpy_maps(p, chosen, after, xi), numpy_maps(p, chosen, before, xi)
            local = [n + h - o for n, h, o in zip(new, local, old, strict=True)]
            before, after = (
                after,
                tuple(a - step * h for a, h, step in zip(after, local, (alpha, beta_w, beta_v), strict=True)),
            )
        u_prev, u = u, after
    for computed, derived in zip((*state.u, *state.d), (*u, *d), strict=True):
        np.testing.assert_allclose(computed.numpy(), derived, rtol=1e-10, atol=1e-12)
