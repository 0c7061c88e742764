"""Rivals that are settings of other methods: their iterates against the rivals' own listings in NumPy."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.one_machine import Written
from support.samples import rows_of, sampling

from fedopt.algorithms.fed_norm_sgda import FedNormSgda
from fedopt.config.build import build_target
from fedopt.data.ragged import Ragged
from fedopt.federation.draws import Steps, draw
from fedopt.federation.engines import Vectorised
from fedopt.federation.round import Federation
from fedopt.problems.classes import Minimax
from fedopt.randomness import Purpose
from fedopt.results.identity import digits, identity
from fedopt.testing.harness import class_at, composed, config, small, steps
from fedopt.testing.harness import names as names_of


def same(ours, theirs):
    for mine, derived in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), derived, rtol=0, atol=1e-12)


def one_machine(algo, *words, problem="quadratic_bilevel"):
    return small(algo, problem, "partitioner.clients=1", "participation.cohort=null", *words)


def terms(problem):
    """The clients' means of the matrices and linear terms, by letter."""
    return {name: value.numpy() for name, value in problem._mean._asdict().items()}


def gradients(m, x, y):
    """grad_x f, grad_y f and grad_y g of the quadratic bilevel problem."""
    return (
        m["D"] @ x - m["d"] + m["G"] @ y,
        m["F"] @ y - m["e"] + m["G"].T @ x,
        m["A"] @ y - m["B"] @ x - m["c"],
    )


def noisy_terms(e, r, exchange, **draws):
    """For each sample that the one client takes in an exchange, the terms with its noise."""
    rng_of, (name,) = sampling(e.federation.seed, r, exchange), draws
    whole, drawn = draw(draws, e.problem.splits, np.array([0]), rng_of, torch.zeros((), dtype=torch.float64))
    rows = {split: [t[0].numpy() for t in rows_of(whole, drawn[name], split)] for split in ("train", "val")}
    found = []
    for k in range(len(rows["train"][0])):
        m = terms(e.problem)
        for letter, split in (("c", "train"), ("d", "val"), ("e", "val")):
            index, weight = (of[k] for of in rows[split])
            m[letter] = m[letter] + weight @ e.problem._noise[letter].numpy()[index]
        found.append(m)
    return found


# Bilevel: FedMSA with one step a round and no momentum


@pytest.mark.parametrize("B", [None, 3])
def test_soba(B):
    """Three directions at the old point, of one sample, steps c / (t + 1)^(1/2) for all [Dagréou et al. 2022, Alg. 1]."""
    e = one_machine("soba", f"algo.B={B or 'null'}")
    (x, y), v = (z.numpy() for z in e.problem.start()), 0
    v = 0 * y
    for t, state in enumerate(steps(e, 6)[1:]):
        (m,) = [terms(e.problem)] if B is None else noisy_terms(e, t, 1, xi=Steps(1, B, samples=1))
        f_x, f_y, g_y = gradients(m, x, y)
        eta, rho = 0.1 / np.sqrt(t + 1), 0.5 / np.sqrt(t + 1)
        x, y, v = x - eta * (f_x + m["B"].T @ v), y - rho * g_y, v - rho * (m["A"] @ v - f_y)
        same(state.u, (x, y, v))


@pytest.mark.parametrize(("algo", "step_sizes"), [("soba", (0.1, 0.5)), ("stsa", (0.05, 0.1))])
def test_a_cohort_answers_once(algo, step_sizes):
    """On minibatches: the server has u and the cohort's mean direction, and so the step. X + 2 Y each way."""
    e = small(algo, "quadratic_bilevel", "participation.cohort=3", "algo.B=3", "preset=none")
    w, z = Written(e), Written(e).start()
    for t, state in enumerate(steps(e, 4)[1:]):
        w.clients = e.federation.at(t).cohort()
        D = w.directions(z, w.noise(t, 1, Steps(1, 3, samples=1)))
        alpha, beta = (step / np.sqrt(t + 1) if algo == "soba" else step for step in step_sizes)
        z = [z_n - step * d for z_n, d, step in zip(z, D, (alpha, beta, beta), strict=True)]
        same(state.u, z)
    ledger, floats = e.federation.ledger, sum(map(len, z))
    assert ledger.comm_rounds == 4
    assert ledger.down.sum() == ledger.up.sum() == 4 * 3 * 8 * floats


def test_fedmsa_keeps_its_exchanges_where_clients_are_uneven():
    """The server does not know who takes its step; with K = 2 and even clients there are two exchanges too."""
    for words, exchanges in ((["algo.K=1"], 1), (["algo.K=1", "participation.stragglers=0.3"], 2), (["algo.K=2"], 2)):
        e = small("fedmsa", "quadratic_bilevel", *words)
        steps(e, 2)
        assert e.federation.ledger.comm_rounds == 2 * exchanges


@pytest.mark.full
def test_soba_on_several_clients_is_soba_on_their_mean():
    e = small("soba", "quadratic_bilevel", "participation.cohort=6", "algo.B=null")
    m, (x, y) = terms(e.problem), (z.numpy() for z in e.problem.start())
    v = 0 * y
    for t, state in enumerate(steps(e, 6)[1:]):
        f_x, f_y, g_y = gradients(m, x, y)
        eta, rho = 0.1 / np.sqrt(t + 1), 0.5 / np.sqrt(t + 1)
        x, y, v = x - eta * (f_x + m["B"].T @ v), y - rho * g_y, v - rho * (m["A"] @ v - f_y)
        same(state.u, (x, y, v))


def test_soba_by_hand():
    """f = (y - 1)^2 / 2 + x^2 / 2, g = (y - x)^2, all steps 0.1: (0.83, 0.34, -0.16) after two."""
    e = one_machine("soba", "problem.dx=1", "problem.dy=1", "algo.B=null", "algo.alpha=0.1", "algo.beta=0.1")
    one = {"A": 2.0, "B": 2.0, "c": 0.0, "D": 1.0, "d": 0.0, "F": 1.0, "e": 1.0, "G": 0.0}
    for name, value in one.items():
        e.problem.per_client[name].fill_(value)
    for state, by_hand in zip(steps(e, 2)[1:], [(0.9, 0.2, -0.1), (0.83, 0.34, -0.16)], strict=True):
        same(state.u, [np.array([value]) for value in by_hand])


def test_stsa():
    """x and a tracker of the inner value move at the old point [Shen & Chen 2022, Alg. 1, with one sequence]."""
    e = one_machine("stsa", "algo.B=null", problem="quadratic_compositional")
    m, (x,), (alpha, beta) = terms(e.problem), (z.numpy() for z in e.problem.start()), (0.05, 0.1)
    z = np.zeros(len(m["c"]))
    for state in steps(e, 6)[1:]:
        x, z = x - alpha * (m["A"].T @ (m["Q"] @ z - m["e"])), z - beta * (z - (m["A"] @ x + m["c"]))
        same(state.u, (x, z))


# Bilevel: FedNest with inner SGD and one outer step

EQUAL = ["algo.alpha=0.1", "algo.beta=0.2", "algo.l=2.0"]
RATES = [
    "algo.alpha={kind: inverse_power, initial: 0.1, power: 0.6}",
    "algo.beta={kind: inverse_power, initial: 0.2, power: 0.4}",
]


@pytest.mark.parametrize(
    ("algo", "T", "N", "rule", "words"),
    [
        ("alset", 5, 5, "random", EQUAL),
        ("bsa", 10, 10, "random", EQUAL),
        ("stocbio", 10, 10, "sum", EQUAL),
        ("ttsa", 1, 5, "random", [*RATES, "algo.l=2.0"]),
    ],
)
def test_methods_of_two_loops(algo, T, N, rule, words):
    """T inner steps, the Neumann series (a random one of its N terms times N, or all to the N-th power), one outer step."""
    e, l = one_machine(algo, *words, *(f"algo.{B}=null" for B in ("B", "B_anchor", "B_out"))), 2.0
    assert {key: config(f"algo={algo}")["algo"][key] for key in ("T", "tau_in", "tau_out", "N")} == {
        "T": 1,
        "tau_in": T,
        "tau_out": 1,
        "N": N,
    }
    m, (x, y) = terms(e.problem), (z.numpy() for z in e.problem.start())
    factor, drawn = np.eye(len(y)) - m["A"] / l, set()
    for t, state in enumerate(steps(e, 6)[1:]):
        alpha, beta = (0.1 / (t + 1) ** 0.6, 0.2 / (t + 1) ** 0.4) if algo == "ttsa" else (0.1, 0.2)
        for _ in range(T):
            y = y - beta * gradients(m, x, y)[2]
        f_x, f_y, _ = gradients(m, x, y)
        chosen = int(e.federation.at(t).rng(Purpose.ESTIMATOR).integers(N))
        powers = {n: np.linalg.matrix_power(factor, n) for n in range(N + 1)}
        inverse = sum(powers.values()) / l if rule == "sum" else N / l * powers[chosen]
        x = x - alpha * (f_x + m["B"].T @ (inverse @ f_y))
        same(state, (x, y))
        drawn.add(chosen)
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("algo", "exchanges"), [("alset", 1 + 5 + 2), ("bsa", 1 + 10 + 2), ("stocbio", 1 + 10 + 2), ("ttsa", 1 + 5 + 2)]
)
def test_the_server_takes_the_outer_step_that_it_knows(algo, exchanges):
    """T + N + 2, one fewer than FedNest_SGD, and the same iterates; clients that are uneven take it themselves."""
    words = ["algo.inverse=truncated", "participation.cohort=3"]
    ends = []
    for more, count in ((["algo.outer=server"], exchanges), (["algo.outer=svrg"], exchanges + 1)):
        e = small(algo, "quadratic_bilevel", *words, *more)
        ends.append(steps(e, 2)[-1])
        assert e.federation.ledger.comm_rounds == 2 * count
    assert config(f"algo={algo}")["algo"]["outer"] == "server"
    same(ends[0], [part.numpy() for part in ends[1]])
    late = small(algo, "quadratic_bilevel", *words, "participation.stragglers=0.3")
    steps(late, 1)
    assert late.federation.ledger.comm_rounds == exchanges + 1


# Bilevel: LocalBSGVRM with one iteration a round


@pytest.mark.parametrize("algo", ["mrbo", "sustain"])
@pytest.mark.parametrize("B", [None, 3])
def test_methods_of_variance_reduction(algo, B):
    """d = D(new) + (1 - eta_t)(d - D(old)) with one sample, for x and y; steps that fall as t^(-1/3), eta_t as t^(-2/3)."""
    rho1, rho2, theta, Q, S = 0.3, 0.6, 0.8, 4, 3
    words = [f"algo.rho1={rho1}", f"algo.rho2={rho2}", f"algo.theta={theta}", f"algo.Q={Q}", f"algo.S={S}"]
    e = one_machine(algo, *words, f"algo.B={B or 'null'}", "algo.step_size=theorem")
    weight, (x, y) = config(f"algo={algo}")["algo"]["alpha"], (z.numpy() for z in e.problem.start())
    assert config(f"algo={algo}")["algo"]["p"] == 1
    factor = np.eye(len(y)) - theta * terms(e.problem)["A"]

    def estimates(m, term, x, y):
        f_x, f_y, g_y = gradients(m, x, y)
        powers = [np.linalg.matrix_power(factor, n) for n in range(Q + 1)]
        inverse = theta * (sum(powers) if term is None else (Q + 1) * powers[term])
        return np.concatenate([f_x + m["B"].T @ (inverse @ f_y), g_y])

    d = before = None
    for t, state in enumerate(steps(e, 6)[1:]):
        count = S if t == 0 and B else 1
        samples = noisy_terms(e, t, 1, xi=Steps(count, B, samples=1 + Q))[:: 1 + Q] if B else [terms(e.problem)]
        chosen = e.federation.at(t).rng(Purpose.ESTIMATOR).integers(Q + 1, size=count).tolist()
        chosen = chosen if algo == "sustain" else [None] * count
        new = np.mean([estimates(m, term, x, y) for m, term in zip(samples, chosen, strict=True)], axis=0)
        eta = (t + 3) ** (-1 / 3)
        if d is not None:
            d = new + (1 - weight * (t + 2) ** (-2 / 3)) * (d - estimates(samples[0], chosen[0], *before))
        d = new if d is None else d
        before = x, y
        x, y = x - rho1 * eta * d[: len(x)], y - rho2 * eta * d[len(x) :]
        same(state.z[:2], (x, y))


LATER = {
    "localbsgvrm": ("neumann", "sum", "term"),
    "drfa": ("sampling", "uniform", "lambda"),
    "fedgda_gt": ("correction", "sample", "kept"),
    "ma_soba": ("order", "code", "paper"),
    "codasca": ("restart", False, True),
    "local_scgd": ("at", "new", "old"),
}


@pytest.mark.parametrize("algo", LATER)
def test_runs_from_before_a_key_are_the_same_runs(algo):
    key, before, other = LATER[algo]
    problem = "saddle" if algo in ("fedgda_gt", "codasca") else "quadratic_bilevel"
    problem = {"drfa": "quadratic_minimisation", "local_scgd": "quadratic_local_compositional"}.get(algo, problem)
    nodes, others = (composed(f"algo={algo}", f"problem={problem}", f"algo.{key}={v}").nodes for v in (before, other))
    old = {**nodes, "algo": {name: value for name, value in nodes["algo"].items() if name != key}}
    assert identity(old) == identity(nodes) != identity(others)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("algo=fedmsa problem=mco", "4eb90c3c1c"),
        ("algo=ma_soba problem=quadratic_bilevel", "1c7fb0de81"),
        ("algo=sgda problem=robust_nn", "ac917ec2ca"),
    ],
)
def test_runs_are_known_by_what_they_were(words, known):
    """The hash of a config stays: runs of earlier versions go on, are skipped and compared."""
    assert digits(composed(*words.split()).nodes) == known


# Minimax: Local SGDA


@pytest.mark.parametrize(
    ("algo", "words", "snapshots"),
    [
        ("fsgda", ["algo.tau=3"], 1),
        ("fsgda", ["algo.tau=3", "algo.gamma_x=0.4", "algo.gamma_y=2"], 1),
        ("sgda", [], 1),
        ("cdma_nc", ["participation.cohort=3"], 1),
        ("fed_sgda_plus", ["algo.gamma_x=0.7", "algo.gamma_y=0.7", "algo.S=2"], 2),
    ],
)
def test_methods_of_local_steps(algo, words, snapshots):
    """Local steps in x and y at once, grad_y at the snapshot of x where there are some; the server's steps on the mean changes."""
    eta_x, eta_y = 0.05, 0.08
    all_words = ["participation.cohort=null", f"algo.eta_x={eta_x}", f"algo.eta_y={eta_y}", "algo.B=null", *words]
    e = small(algo, "quadratic_minimax", *all_words)
    tau, (gamma_x, gamma_y) = e.algorithm.tau(0, 6), (e.algorithm.gamma_x(0), e.algorithm.gamma_y(0))
    assert (tau, gamma_x == 1) == {"fsgda": (3, False), "sgda": (1, True), "cdma_nc": (12, True)}.get(algo, (10, False))
    of = {name: value.numpy() for name, value in e.problem.per_client.items()}
    x, y = (z.numpy() for z in e.problem.start())
    x_hat = x
    for r, state in enumerate(steps(e, 5)[1:]):
        x_hat = x if r % snapshots == 0 else x_hat
        ends = []
        for i in e.federation.at(r).cohort():
            A, B, D, c, of_y = (of[name][i] for name in "ABDce")
            x_i, y_i = x, y
            for _ in range(tau):
                at = x_hat if algo == "fed_sgda_plus" else x_i
                x_i, y_i = x_i - eta_x * (A @ x_i - c + B @ y_i), y_i + eta_y * (B.T @ at - D @ y_i + of_y)
            ends.append((x_i, y_i))
        assert len(ends) == (3 if algo == "cdma_nc" else 6)
        mean_x, mean_y = (np.mean(part, axis=0) for part in zip(*ends, strict=True))
        x, y = x + gamma_x * (mean_x - x), y + gamma_y * (mean_y - y)
        same((state.x, state.y), (x, y))


@dataclass(eq=False)
class Saddle(Minimax):
    """f = x^2 / 2 + x y - y^2 / 2, one client, from (1, 1)."""

    def __post_init__(self):
        self.splits = {"train": Ragged([np.array([0])])}

    def start(self):
        return torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)

    def sample(self, client, rows):
        return ()

    def f(self, x, y, sample):
        return (x**2 / 2 + x * y - y**2 / 2).sum()

    def evaluate(self, *point):
        return {}


@pytest.mark.parametrize(("gamma_x", "x"), [(1.0, 0.8), (1.5, 0.7), (0.0, 1.0)])
def test_fsgda_by_hand(gamma_x, x):
    """One local step of 0.1 goes to (0.8, 1), of which the server takes gamma_x."""
    words = ["algo.eta_x=0.1", "algo.eta_y=0.1", f"algo.gamma_x={gamma_x}", "algo.tau=1", "algo.B=null"]
    algorithm = build_target(composed("algo=fsgda", "problem=saddle", *words).nodes["algo"], "algo")
    assert isinstance(algorithm, FedNormSgda)
    problem = Saddle(None)
    state = algorithm.step(algorithm.init(problem), problem, Federation(problem, Vectorised(), 0).at(0))
    same((state.x, state.y), (np.array([x]), np.ones(1)))


@pytest.mark.parametrize(
    ("preset", "words", "reference", "others"),
    [
        ("fed_sgda_plus", ["algo.S=1"], "local_sgda_plus", ["algo.S=1", "algo.tau=10", "algo.B=100"]),
        ("fsgda", ["algo.gamma_x=1", "algo.gamma_y=1"], "local_sgda", []),
        ("cdma_nc", [], "local_sgda", ["algo.tau=12", "algo.B=10"]),
        ("sgda", ["algo.B=4"], "local_sgda", ["algo.tau=1", "algo.B=4"]),
    ],
)
def test_minimax_presets_are_settings(preset, words, reference, others):
    """On batches and a cohort, bit by bit."""
    one, other = (
        steps(small(algo, "quadratic_minimax", "preset=none", *given), 3)[-1]
        for algo, given in ((preset, words), (reference, others))
    )
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)


def test_presets_are_no_classes():
    """Each named configuration has the class of another one."""
    of_minimax, of_bilevel = ["fsgda", "fed_sgda_plus", "cdma_nc", "sgda"], ["soba", "stsa", "alset", "bsa", "stocbio"]
    named = [*of_minimax, *of_bilevel, "ttsa", "mrbo", "sustain"]
    others = {class_at("algo", name) for name in names_of("algo") if name not in named}
    assert {class_at("algo", name) for name in named} <= others
