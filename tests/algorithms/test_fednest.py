# ruff: noqa: B023 - the lambdas here are called before their variables change
"""FedNest and its family against NumPy derivations, closed forms, finite differences and Table 2."""

import dataclasses
import itertools
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from support.samples import rows_of, sampling

from fedopt.config.schedules import Constant, Fixed
from fedopt.federation.draws import Steps, draw
from fedopt.federation.inverse import conjugate_gradients, neumann_sum, neumann_term
from fedopt.federation.oracles import Oracles
from fedopt.federation.round import Round
from fedopt.problems.classes import TwoLevel
from fedopt.problems.reductions import TwoLevelAsBilevel
from fedopt.randomness import Purpose, keyed_rng
from fedopt.testing.harness import steps, tuned

F64 = torch.float64
FULL = ["algo.B=null", "algo.B_anchor=null", "algo.B_out=null"]
ALL = "participation.cohort=null"


def fednest(algo, problem, **keys):
    return tuned(algo, problem, *(f"{'algo.' if '.' not in k else ''}{k}={v}" for k, v in keys.items()))


class Written:
    """Alg. 1-6 on quadratic_bilevel in NumPy, all clients taking part."""

    def __init__(self, e):
        self.p, self.a, self.seed = e.problem, e.algorithm, e.federation.seed
        self.tau_in, self.tau_out = (work(0, e.problem.clients) for work in (e.algorithm.tau_in, e.algorithm.tau_out))
        self.m = {k: v.numpy() for k, v in e.problem.per_client.items()}
        self.clients = range(e.problem.clients)

    def noise(self, i, draws, name, k):
        """Of the client's k-th sample of that name in this exchange, for c (training) and d, e (validation)."""
        noise = dict.fromkeys("cde", 0.0)
        if draws[name].B is None:
            return noise
        rng_of = sampling(self.seed, self.r, self.exchange)
        whole, drawn = draw(draws, self.p.splits, np.array([i]), rng_of, torch.zeros((), dtype=F64))
        for term, split in (("c", "train"), ("d", "val"), ("e", "val")):
            if draws[name].split in (None, split):
                rows, weight = (t[0, k].numpy() for t in rows_of(whole, drawn[name], split))
                noise[term] = weight @ self.p._noise[term].numpy()[rows]
        return noise

    def G(self, i, x, y, n):
        return self.m["A"][i] @ y - self.m["B"][i] @ x - self.m["c"][i] - n["c"]

    def F(self, i, x, y, n):
        return self.m["D"][i] @ x - self.m["d"][i] - n["d"] + self.m["G"][i] @ y

    def f_y(self, i, x, y, n):
        return self.m["F"][i] @ y - self.m["e"][i] - n["e"] + self.m["G"][i].T @ x

    def mean(self, fn):
        self.exchange += 1
        return np.mean([fn(i) for i in self.clients], axis=0)

    def step(self, r, x, y):
        a = self.a
        self.r, self.exchange = r, 0
        self.products = int(keyed_rng(self.seed, Purpose.ESTIMATOR, r + 1).integers(a.N))
        outer = {"outer": Steps(self.tau_out, a.B_out, samples=1 + self.products)}
        if not a.alternating:
            inner = a.T * self.tau_in
            both = outer | {"inner": Steps(inner, a.B, split="train")}
            self.exchange = 1
            each = []
            for i in self.clients:
                y_i = self.sgd(i, x, y, both, inner)
                each.append((self.local_outer(i, x, y_i, both), y_i))
            return tuple(np.mean(part, axis=0) for part in zip(*each, strict=True))
        for _ in range(a.T):
            if a.inner == "svrg":
                one = {"anchor": Steps(1, a.B_anchor, split="train")}
                q = self.mean(lambda i: self.G(i, x, y, self.noise(i, one, "anchor", 0)))
                y = self.mean(lambda i: self.svrg(self.m["A"][i], y, q, a.beta(0), self.tau_in))  # noise cancels
            else:
                inner = {"inner": Steps(self.tau_in, a.B, split="train")}
                y = self.mean(lambda i: self.sgd(i, x, y, inner, self.tau_in))
        if a.outer == "sgd":
            return self.mean(lambda i: self.local_outer(i, x, y, outer)), y
        of_f = {"xi": Steps(1, a.B_out, split="val")}
        p = a.N / a.l * self.mean(lambda i: self.f_y(i, x, y, self.noise(i, of_f, "xi", 0)))
        for _ in range(self.products):
            p = self.mean(lambda i: p - self.m["A"][i] @ p / a.l)
        both = {"anchor": Steps(1, a.B_out)}
        h = self.mean(lambda i: self.F(i, x, y, self.noise(i, both, "anchor", 0)) + self.m["B"][i].T @ p)
        return self.mean(lambda i: self.svrg(self.m["D"][i], x, h, a.alpha(0), self.tau_out)), y

    def svrg(self, matrix, start, anchor, step, tau):
        z = start
        for _ in range(tau):
            z = z - step * (matrix @ (z - start) + anchor)
        return z

    def sgd(self, i, x, y, draws, steps):
        for k in range(steps):
            y = y - self.a.beta(0) * self.G(i, x, y, self.noise(i, draws, "inner", k))
        return y

    def local_outer(self, i, x, y, draws):
        a = self.a
        for nu in range(self.tau_out):
            n = self.noise(i, draws, "outer", nu * (1 + self.products))
            power = np.linalg.matrix_power(np.eye(len(y)) - self.m["A"][i] / a.l, self.products)
            p = a.N / a.l * power @ self.f_y(i, x, y, n)
            x = x - a.alpha(0) * (self.F(i, x, y, n) + self.m["B"][i].T @ p)
        return x


@pytest.mark.parametrize("engine", ["vectorised", "one_by_one"])
def test_divided_steps(engine):
    """Unequal work with the steps of Theorem 3.1, on full batches: alpha / tau_i and beta / tau_i, three rounds."""
    alpha, beta, tau = 0.2, 0.6, [1, 2, 5]
    work = f"{{kind: growing, tau: {tau}, power: 0}}"
    settings = {
        "alpha": alpha,
        "beta": beta,
        "tau_in": work,
        "tau_out": work,
        "inverse": "cg",
        "N": 8,
        "divided": "true",
    }
    more = {"cohorts": "one", "partitioner.clients": 3, "participation.cohort": "null", "hardware.engine": engine}
    e = fednest("fednest", "quadratic_bilevel", **settings, B="null", B_out="null", **more)
    *_, state = steps(e, 3)
    w, none = Written(e), dict.fromkeys("cde", 0.0)
    m, (x, y) = w.m, (v.numpy() for v in e.problem.start())
    for _ in range(3):
        q = np.mean([w.G(i, x, y, none) for i in range(3)], axis=0)
        y = np.mean([w.svrg(m["A"][i], y, q, beta / tau[i], tau[i]) for i in range(3)], axis=0)
        p = np.linalg.solve(m["A"].mean(0), np.mean([w.f_y(i, x, y, none) for i in range(3)], axis=0))
        h = np.mean([w.F(i, x, y, none) + m["B"][i].T @ p for i in range(3)], axis=0)
        x = np.mean([w.svrg(m["D"][i], x, h, alpha / tau[i], tau[i]) for i in range(3)], axis=0)
    np.testing.assert_allclose(state.x, x, rtol=1e-9)
    np.testing.assert_allclose(state.y, y, rtol=1e-9)


def test_one_client_is_alternating_gradient_descent():
    """tau = 1, no noise, the exact inverse: y -= beta grad_y g, then x -= alpha of the exact hypergradient at that y."""
    alpha, beta = 0.1, 0.5
    settings = {"alpha": alpha, "beta": beta, "tau_in": 1, "inverse": "cg", "N": 8, "problem.noise": 0.0}
    e = fednest("fednest", "quadratic_bilevel", **settings, **{"partitioner.clients": 1, "participation.cohort": 1})
    m = {k: v[0].numpy() for k, v in e.problem.per_client.items()}
    x, y = (v.numpy() for v in e.problem.start())
    for _ in range(5):
        y = y - beta * (m["A"] @ y - m["B"] @ x - m["c"])
        f_y = m["F"] @ y - m["e"] + m["G"].T @ x
        x = x - alpha * (m["D"] @ x - m["d"] + m["G"] @ y + m["B"].T @ np.linalg.solve(m["A"], f_y))
    *_, state = steps(e, 5)
    np.testing.assert_allclose(state.x, x, rtol=1e-9)
    np.testing.assert_allclose(state.y, y, rtol=1e-9)


@pytest.mark.parametrize("problem", ["quadratic_bilevel", "hyper_representation"])
def test_with_identical_clients_local_is_global(problem):
    """LFedNest = FedNest when all clients have the same data, and one local step."""
    runs = []
    for algo in ("fednest", "lfednest"):
        e = tuned(algo, problem, *FULL, "algo.inverse=truncated", "algo.tau_in=3", ALL)
        one = {name: split[1] for name, split in e.original.splits.items()}
        e.original.splits = {name: type(split)([one[name]] * 4) for name, split in e.original.splits.items()}
        if problem == "quadratic_bilevel":
            e.original.per_client = {k: v[1].expand(4, *v.shape[1:]) for k, v in e.original.per_client.items()}
        runs.append(steps(dataclasses.replace(e, federation=type(e.federation)(e.problem, e.federation.engine, 0)), 3))
    torch.testing.assert_close(*(run[-1] for run in runs))


def hypergradient(e, x, y):
    """What FedOut steps along, from one outer step of size 1 at (x, y) with inner steps that do nothing."""
    once = {"alpha": Constant(1.0), "beta": Constant(1e-300), "tau_out": Fixed(1)}
    algorithm = dataclasses.replace(e.algorithm, **once)
    return x - algorithm.step(algorithm.init(e.problem)._replace(x=x, y=y), e.problem, e.federation.at(0)).x


@pytest.mark.parametrize("algo", ["fednest", "fednest_sgd"])
@pytest.mark.parametrize(("inverse", "N"), [("cg", 8), pytest.param("truncated", 400, marks=pytest.mark.full)])
def test_hypergradient_in_closed_form(algo, inverse, N):
    e = tuned(algo, "quadratic_bilevel", *FULL, f"algo.inverse={inverse}", f"algo.N={N}", "algo.l=1.2", ALL)
    x = torch.randn(5, dtype=F64, generator=torch.Generator().manual_seed(1))
    estimate = hypergradient(e, x, e.problem.inner_solution(x))
    torch.testing.assert_close(estimate, e.problem.hypergradient(x), rtol=1e-8, atol=1e-9)


@pytest.mark.full
def test_bias_of_the_neumann_forms_falls_as_in_lemma_2_2():
    """|H^-1 - E H_hat| <= (1/mu) ((kappa - 1)/kappa)^N for the mean over N' of the randomised form; the bound is tight in
    the direction of the least eigenvalue."""
    e = tuned("fednest", "quadratic_bilevel", "problem.conditioning=8", ALL)
    H = e.problem.per_client["A"].mean(0)
    values, vectors = torch.linalg.eigh(H)
    mu, l = float(values[0]), float(values[-1])
    for b in (vectors[:, 0], vectors.sum(1)):
        for N in (1, 2, 4, 8, 16, 32):
            terms = [neumann_term(lambda v, n: H @ v, b, N, l, chosen) for chosen in range(N)]
            error = torch.linalg.norm(sum(terms) / N - torch.linalg.solve(H, b))
            bound = (1 - mu / l) ** N / mu * torch.linalg.norm(b)
            assert error <= bound * (1 + 1e-6)
            if b is vectors[:, 0]:
                assert error == pytest.approx(float(bound))
            whole = neumann_sum(lambda v, n: H @ v, b, N - 1, l)
            torch.testing.assert_close(sum(terms) / N, whole)


@pytest.mark.full
@pytest.mark.parametrize("problem", ["hyper_representation", "imbalanced_mnist"])
def test_hypergradient_against_finite_differences_through_the_inner_solve(problem):
    """x -> mean f_i(x, y*(x)) for a small network with a ridge that makes y* unique, for which it is of the biases too."""
    settings = ["problem.ridge=1.0", "algo.inverse=cg", "algo.N=60", "partitioner.clients=3", ALL]
    if problem == "imbalanced_mnist":
        settings += ["problem.model=linear"]  # a convex inner problem
    e = tuned("fednest", problem, *FULL, *settings)
    p = e.problem
    p.ridges = torch.ones_like(p.ridges)
    M, oracles = p.clients, Oracles(p)
    whole = [
        p.sample(
            i,
            {
                s: (torch.from_numpy(split[i]), torch.full((len(split[i]),), 1 / len(split[i]), dtype=F64))
                for s, split in p.splits.items()
            },
        )
        for i in range(M)
    ]

    def mean(fn, x, y):
        return sum(fn(x, y, sample) for sample in whole) / M

    def solve(x, y):
        """Newton-CG on the mean inner objective."""
        for _ in range(12):
            g = sum(oracles.inner_gradient(x, y, s) for s in whole) / M
            if torch.linalg.norm(g) < 1e-11:
                return y
            H = [oracles.inner_hessian(x, y, s) for s in whole]
            y = y - conjugate_gradients(lambda v, n, H=H: sum(h(v) for h in H) / M, g, 60)
        raise AssertionError("not solved")

    generator = torch.Generator().manual_seed(0)
    x, y = p.start()
    x = x + 0.1 * torch.randn(x.shape, generator=generator, dtype=F64)
    y = solve(x, y)
    estimate = hypergradient(e, x, y)
    for _ in range(2):
        direction = torch.randn(x.shape, generator=generator, dtype=F64)
        step = 1e-6  # small: a ReLU that switches in between is an error
        ahead, behind = (x + sign * step * direction for sign in (1, -1))
        difference = (mean(p.f, ahead, solve(ahead, y)) - mean(p.f, behind, solve(behind, y))) / (2 * step)
        assert float(estimate @ direction) == pytest.approx(float(difference), rel=1e-5)


def test_held_samples_give_the_same_inner_gradient():
    e = tuned("fednest", "hyper_representation")
    p, (x, y) = e.problem, e.problem.start()
    rows, at = torch.from_numpy(p.splits["train"][0]), torch.tensor([3, 0, 5])
    weight = torch.tensor([0.5, 0.2, 0.3], dtype=F64)
    held = p.hold(x, p.sample(0, {"train": (rows, torch.zeros(len(rows), dtype=F64))}))
    picked = p.pick(held, {"train": (at, weight)})
    plain = p.sample(0, {"train": (rows[at], weight)})
    torch.testing.assert_close(Oracles(p).inner_gradient(x, y, picked), Oracles(p).inner_gradient(x, y, plain))


def test_penalty_by_norms_and_dropout():
    """0.3 (|W| + |b|) and hidden units dropped by the key, in g and in its gradient; the outer objective has no penalty."""
    p, q = (
        tuned("fednest", "hyper_representation", f"problem.norms={c}", "problem.dropout=0.5").problem for c in (0.3, 0)
    )
    x, y = p.start()
    rows, weight = torch.from_numpy(p.splits["train"][0][:4]), torch.full((4,), 0.25, dtype=F64)
    plain = p.sample(0, dict.fromkeys(("train", "val"), (rows, weight)))
    sample = p.keyed(plain, torch.tensor(7))
    W, b = np.split(y.numpy(), [90])
    penalty = 0.3 * (np.linalg.norm(W) + np.linalg.norm(b))
    assert float(p.g(x, y, sample) - q.g(x, y, sample)) == pytest.approx(penalty)
    assert float(p.f(x, y, sample)) == float(q.f(x, y, sample)) != float(p.f(x, y, plain))
    slope = torch.func.grad(lambda y: p.g(x, y, sample))(y)
    torch.testing.assert_close(Oracles(p).inner_gradient(x, y, sample), slope)
    torch.testing.assert_close(p.g.step(x, y.clone(), sample, 0.1, None, None), y - 0.1 * slope)


TABLE_2 = [
    ("fednest", lambda T, N: 2 * T + N + 3),
    ("fednest_sgd", lambda T, N: T + N + 3),
    ("lfednest", lambda T, N: T + 1),
    ("lfednest_svrg", lambda T, N: 2 * T + 1),
]


@pytest.mark.parametrize(("algo", "rounds"), TABLE_2)
@pytest.mark.parametrize(("T", "N"), [(1, 5), (3, 2)])
def test_communication_rounds_of_table_2(algo, rounds, T, N):
    e = fednest(algo, "quadratic_bilevel", T=T, N=N, inverse="truncated", tau_in=2)
    steps(e, 2)
    assert e.federation.ledger.comm_rounds == 2 * rounds(T, N)


def test_communication_rounds_of_lfednest_nonalt():
    e = fednest("lfednest_nonalt", "quadratic_bilevel", tau_in=2)
    steps(e, 2)
    assert e.federation.ledger.comm_rounds == 2


@pytest.mark.full
def test_lfednest_is_fednest_on_the_saddle_with_all_clients():
    """Its floor in figure 4 is that of client sampling: with all clients it is the same iteration. With a cohort it is not."""

    def ends(cohort):
        keys = {"T": 2, "tau_out": 3, "participation.cohort": cohort}
        return [steps(fednest(algo, "saddle", **keys), 3)[-1] for algo in ("lfednest", "fednest")]

    ours, theirs = ends("null")
    torch.testing.assert_close(ours.x, theirs.x, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(ours.y, theirs.y, rtol=1e-6, atol=1e-9)
    ours, theirs = ends(3)
    assert torch.linalg.norm(ours.y - theirs.y) > 1e-3


@pytest.mark.parametrize("cohorts", ["fresh", "one"])
def test_products_on_fresh_cohorts(cohorts, monkeypatch):
    """FedIHGP takes a new cohort for the gradient and for each product, or FedOut's for all."""
    e = fednest(
        "fednest", "quadratic_bilevel", N=3, inverse="truncated", cohorts=cohorts, **{"participation.cohort": 2}
    )
    asked = []
    exchange = Round.exchange

    def spy(fed, client_fn, message, cohort, **more):
        asked.append(tuple(cohort))
        return exchange(fed, client_fn, message, cohort, **more)

    monkeypatch.setattr(Round, "exchange", spy)
    steps(e, 1)
    inner, products, outer = asked[:2], asked[2:6], asked[6:]
    assert inner[0] == inner[1]
    assert outer[0] == outer[1]
    assert (len(set(products)) > 1) == (cohorts == "fresh")
    assert cohorts == "fresh" or set(products) == {outer[0]}


@pytest.mark.full
def test_fednest_reaches_the_solution_and_lfednest_a_biased_point():
    """Deterministic, heterogeneous, all clients: global hypergradients find x*; local Hessians do not."""
    settings = [
        *FULL,
        "algo.alpha=0.6",
        "algo.beta=0.8",
        "algo.T=2",
        "algo.tau_in=3",
        "algo.inverse=cg",
        "algo.N=8",
        ALL,
    ]
    ends = [tuned(algo, "quadratic_bilevel", *settings) for algo in ("fednest", "lfednest")]
    distance = [e.problem.evaluate(*e.algorithm.output(steps(e, 50)[-1]))["distance"] for e in ends]
    assert distance[0] < 1e-8
    assert distance[1] > 1e-3


def test_local_steps_or_epochs():
    """An epoch of a client with n examples is ceil(n / B) steps."""
    e = fednest("lfednest", "hyper_representation", tau_in="2epochs", B=7, tau_out=1, inverse="truncated", N=1)
    steps(e, 1)
    sizes = e.problem.splits["train"].sizes[e.federation.at(0).cohort()]
    assert e.federation.ledger.calls.grad == 2 * (-(-sizes // 7)).sum() + 3  # and an outer gradient each


@pytest.mark.parametrize("algo", ["fednest", "lfednest"])
def test_outer_epochs_pass_over_the_outer_data(algo):
    """Of FedOut and of LFedOut alike."""
    settings = {"tau_in": 1, "tau_out": "2epochs", "B_out": 7, "inverse": "truncated", "N": 1}
    e = fednest(algo, "hyper_representation", **settings, **{"problem.validation": 0.2})
    steps(e, 1)
    fed = e.federation.at(0)
    cohorts = [fed.new_cohort() for _ in range(2)]
    passes = [2 * (-(-e.problem.splits["val"].sizes[S] // 7)).sum() for S in cohorts]
    # FedNest: its anchor, grad_y f, grad_x f, and two gradients a step after the first; LFedNest: one a step of either kind
    expected = 3 + 3 + 3 + 2 * (passes[1] - 3) if algo == "fednest" else 3 + passes[1]
    assert e.federation.ledger.calls.grad == expected


class Signs(TwoLevel):
    """f^0(x) = a x, f^1(y) = a y; a sample is its a. With a = 1 or -1, equally often, the composition is 0 everywhere."""

    dims = (1, 1)
    splits: ClassVar = {}
    metrics = ()

    def start(self):
        return (torch.ones(1),)

    def sample(self, client, rows):
        raise NotImplementedError

    def level(self, n, x, sample):
        return sample * x.sum() if n else sample * x

    def evaluate(self, *point):
        return {}


def test_both_levels_have_samples_of_their_own():
    """Else the expectation of their product is E a^2 = 1, not (E a)^2 = 0."""
    problem = TwoLevelAsBilevel(Signs(world=None))
    assert problem.hypergradient_samples(0) == 2
    x, y = problem.start()
    signs = [torch.tensor(float(a)) for a in (1, -1)]
    inverse = partial(neumann_sum, N=1, l=1.0)
    products = [Oracles(problem).hypergradient(x, y, pair, inverse) for pair in itertools.product(signs, signs)]
    assert [float(h) for h in products] == [1, -1, -1, 1]


@pytest.mark.parametrize(("kind", "chosen"), [("truncated", 0), ("randomised", 2)])
def test_each_hessian_product_has_a_sample_of_its_own(kind, chosen):
    """The product over j of (I - A_j / l), the A_j of the samples after the first in turn [LocalBSG eq. 3.3, FedNest Alg. 5]."""
    e = tuned("fednest", "quadratic_bilevel", "partitioner.clients=1", "participation.cohort=null")
    problem, N, l = e.problem, 3, 5.0
    first = problem.sample(0, {})
    zetas = [first._replace(A=first.A * factor) for factor in (0.5, 2.0, 3.0)]
    x, y = (v + 0.3 for v in problem.start())
    m = {name: v.numpy() for name, v in first._asdict().items()}
    b = m["F"] @ y.numpy() - m["e"] + m["G"].T @ x.numpy()
    terms = [b]
    for zeta in zetas:
        terms.append(terms[-1] - zeta.A.numpy() @ terms[-1] / l)
    p = sum(terms) / l if kind == "truncated" else N / l * terms[chosen]
    grad_x = m["D"] @ x.numpy() - m["d"] + m["G"] @ y.numpy()
    estimate = neumann_sum if kind == "truncated" else partial(neumann_term, chosen=chosen)
    inverse = partial(estimate, N=N, l=l)
    found = Oracles(problem).hypergradient(x, y, [first, *zetas], inverse)
    np.testing.assert_allclose(found.numpy(), grad_x + m["B"].T @ p, rtol=1e-12)


@pytest.mark.parametrize("algo", ["fednest", "lfednest", "fednest_sgd", "lfednest_svrg", "lfednest_nonalt"])
def test_golden_numbers(algo):
    """Two clients, three rounds, noisy samples: the algorithms written out."""
    sizes = {"B": 3, "B_anchor": 4, "B_out": 5}
    settings = {"alpha": 0.05, "beta": 0.2, "T": 2, "tau_in": 3, "tau_out": 2, "N": 4, "l": 2.0, **sizes}
    e = fednest(algo, "quadratic_bilevel", **settings, **{"partitioner.clients": 2, "participation.cohort": "null"})
    *_, state = steps(e, 3)
    written = Written(e)
    x, y = (v.numpy() for v in e.problem.start())
    used = set()
    for r in range(3):
        x, y = written.step(r, x, y)
        used.add(written.products)
    assert used != {0}
    np.testing.assert_allclose(state.x, x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.y, y, rtol=1e-10, atol=1e-12)
