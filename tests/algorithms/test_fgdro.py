"""FGDRO against a NumPy derivation, FedAvg, and minimisers of the risks that scipy finds."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from support.softmax import examples, gradient, loss

from fedopt.testing.harness import small, steps

UNEQUAL = ["partitioner=proportions", "partitioner.shares=[9,4,2,1]", "partitioner.clients=6"]
FULL = ["participation.cohort=null", "algo.B=null"]


def softmax_model(algo, *words):
    data = ["dataset=digits", "problem.model=softmax", *UNEQUAL]
    return small(algo, "classification", *data, "preset=none", *words)


def counts(u, s, risk, alpha, mu, lam):
    if risk == "kl":
        return np.exp((u - s) / lam)
    return (expit((u - s) / mu) if mu else float(u > s)) / alpha


@pytest.mark.parametrize("cohort", [3, 6])
@pytest.mark.parametrize(("risk", "mu"), [("cvar", 0.0), ("cvar", 0.2), ("kl", 0.0)])
def test_rounds_are_those_of_a_few_lines(risk, mu, cohort):
    eta, eta_s, gamma, alpha, lam, tau = 0.2, 0.3, 0.4, 0.45, 0.6, 3
    values = {
        "eta": eta,
        "eta_s": eta_s,
        "gamma": gamma,
        "alpha": alpha,
        "lam": lam,
        "mu": mu,
        "tau": tau,
        "risk": risk,
    }
    e = softmax_model(
        "fgdro", *(f"algo.{k}={v}" for k, v in values.items()), "algo.B=null", f"participation.cohort={cohort}"
    )
    data, p = [examples(e.problem.train, rows) for rows in e.problem.splits["train"]], e.problem.weights
    w, s, u, seen = e.problem.start()[0].numpy(), 0.0, np.zeros(6), np.zeros(6, dtype=bool)
    weighed = set()
    for r, state in enumerate(steps(e, 5)[1:]):
        S, ends = e.federation.at(r).cohort(), []
        for i in S:
            w_i = w
            for _ in range(tau):
                u[i] = (1 - gamma) * u[i] + gamma * loss(w_i, *data[i]) if seen[i] else loss(w_i, *data[i])
                seen[i] = True
                c = 1 if r == 0 else counts(u[i], s, risk, alpha, mu, lam)
                weighed.add(float(c))
                w_i = w_i - eta * c * gradient(w_i, *data[i])
            ends.append(w_i)
        w = np.average(ends, axis=0, weights=p[S])
        q = p * seen / (p @ seen)
        if risk == "kl":
            s = lam * np.log(q @ np.exp(u / lam))
        elif r == 0:  # the worst share alpha of the clients that are known, at its least loss
            s = max(t for t in u[seen] if q @ (u >= t) >= alpha)
        else:
            s = s - eta_s * (
                1 - sum(q_i * counts(u_i, s, risk, alpha, mu, lam) for q_i, u_i in zip(q, u, strict=True) if q_i)
            )
        np.testing.assert_allclose(state.w, w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.s, s, rtol=1e-9)
        np.testing.assert_allclose(state.u.tensor(), np.stack([u, seen], axis=1), rtol=1e-9)
    assert len(weighed) > 2 or {0.0, 1 / alpha} <= weighed | {1.0}


@pytest.mark.parametrize("words", [["algo.risk=kl", "algo.lam=1e9"], ["algo.alpha=1"]])
def test_a_large_lam_and_alpha_1_are_fedavg(words):
    """With alpha = 1 where s is below all losses, to which its steps lead."""
    e = softmax_model("fgdro", "algo.eta=0.1", "algo.tau=4", "algo.B=8", *words)
    plain = softmax_model("fedavg", "algo.eta=0.1", "algo.tau=4", "algo.B=8")
    state, other = steps(e, 0)[0], steps(plain, 0)[0]
    for r in range(3):
        state = e.algorithm.step(state, e.problem, e.federation.at(r))
        state = state if "algo.risk=kl" in words else state._replace(s=0 * state.s)
        other = plain.algorithm.step(other, plain.problem, plain.federation.at(r))
    np.testing.assert_allclose(e.algorithm.output(state)[0], plain.algorithm.output(other)[0], rtol=1e-6, atol=1e-8)


def quadratics(*words):
    e = small("fgdro", "quadratic_minimisation", "partitioner.clients=6", "problem.dim=4", *FULL, "preset=none", *words)
    A, c = (e.problem.per_client[k].numpy() for k in "Ac")
    return e, lambda w: 0.5 * np.einsum("i,mij,j->m", w, A, w) - c @ w


def cvar(losses, alpha):
    """The mean of the worst share alpha by sorting, with a part of the last one."""
    share = np.clip(alpha * len(losses) - np.arange(len(losses)), 0, 1)
    return np.sort(losses)[::-1] @ share / (alpha * len(losses))


@pytest.mark.parametrize("alpha", [1 / 6, 1 / 3, 0.4, 1.0])
def test_the_first_threshold_is_exact_by_sorting(alpha):
    e, f = quadratics(f"algo.alpha={alpha}", "algo.eta=0", "algo.gamma=1")
    state = steps(e, 1)[-1]
    losses, s = f(state.w.numpy()), float(state.s)
    assert s + np.mean(np.maximum(0, losses - s)) / alpha == pytest.approx(cvar(losses, alpha), rel=1e-12)


@pytest.mark.parametrize(
    ("words", "risk"),
    [
        (["algo.risk=kl", "algo.lam=0.5"], lambda f: 0.5 * (logsumexp(2 * f) - np.log(6))),
        (["algo.alpha=0.5"], lambda f: cvar(f, 0.5)),
        (["algo.alpha=0.16666666666666666"], np.max),
        (["algo.alpha=1"], np.mean),
    ],
    ids=["kl", "cvar", "worst", "mean"],
)
def test_ends_at_the_minimiser_of_the_risk(words, risk):
    """1/M is AFL's worst client, 1 the mean. Constant steps circle a kink at a distance of the order of the steps."""
    e, f = quadratics(*words, "algo.tau=1", "algo.gamma=1", "algo.eta=0.01", "algo.eta_s=0.02")
    w = steps(e, 700)[-1].w.numpy()
    least = min(
        minimize(
            lambda w: risk(f(w)), start, method="Nelder-Mead", options={"maxiter": 20000, "fatol": 1e-12, "xatol": 1e-9}
        ).fun
        for start in (w, np.zeros(4))
    )
    start = risk(f(np.ones(4)))
    assert risk(f(w)) - least < 0.02 * (start - least)


def test_a_smoothed_hinge_ends_where_its_gradient_is_zero():
    mu, alpha = 0.3, 0.4
    e, f = quadratics(
        f"algo.alpha={alpha}", f"algo.mu={mu}", "algo.tau=1", "algo.gamma=1", "algo.eta=0.05", "algo.eta_s=0.1"
    )
    state = steps(e, 900)[-1]
    value = lambda z: z[0] + np.mean(mu * np.logaddexp(0, (f(z[1:]) - z[0]) / mu)) / alpha  # noqa: E731
    found = minimize(value, np.zeros(5), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(np.append(state.s, state.w), found, atol=1e-5)


def test_what_is_sent():
    """w and s down, w_i and u_i up, in one exchange."""
    e = softmax_model("fgdro", "participation.cohort=4", "algo.tau=3")
    steps(e, 2)
    d, ledger = len(e.problem.start()[0]), e.federation.ledger
    assert ledger.comm_rounds == 2
    assert ledger.down.sum() == ledger.up.sum() == 8 * 2 * 4 * (d + 1)
    assert ledger.calls.grad == 2 * 4 * 3
