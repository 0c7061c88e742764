"""FeDXL and its problem against NumPy, automatic differentiation and brute force."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.derivatives import F64, Given, normal

from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import Proportions, Shards
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems.x_risk import XRiskAuc, partial_area
from fedopt.randomness import Purpose
from fedopt.testing.harness import small, steps

LAM, MARGIN = 0.7, 0.9


def experiment(form, *words):
    sizes = ["partitioner=proportions", "partitioner.shares=[3,1,2]", "partitioner.clients=3", "problem.examples=90"]
    form = [f"problem.form={form}", f"problem.lam={LAM}", f"problem.margin={MARGIN}"]
    return small("fedxl", "x_risk", *sizes, *form, "participation.cohort=3", *words)


def scores(W, Z):
    """And their derivatives, [B, d]: softmax[1] of a linear model, whose y has the two rows of weights, then the two biases."""
    Z1 = np.column_stack([Z, np.ones(len(Z))])
    V = np.column_stack([W[:-2].reshape(2, -1), W[-2:]])
    s = 1 / (1 + np.exp(Z1 @ (V[0] - V[1])))
    slope = (s * (1 - s))[:, None]
    return s, np.concatenate([-slope * Z, slope * Z, -slope, slope], axis=1)


def loss(s, form):
    """And its derivative."""
    hinge = np.maximum(0, MARGIN - s)
    if form == "pairwise":
        return hinge**2, -2 * hinge
    return np.exp(hinge**2 / LAM), -2 * hinge / LAM * np.exp(hinge**2 / LAM)


def slope(u, form):
    return np.ones_like(u) if form == "pairwise" else LAM / u


def of_clients(p, split):
    return [p.train.x.numpy()[rows] for rows in p.splits[split]]


@pytest.mark.parametrize("drawn", [None, 5])
@pytest.mark.parametrize("form", ["partial", "pairwise"])
def test_rounds_are_those_of_a_few_lines(form, drawn):
    """Full batches of three clients of unequal size; each positive and each negative example counts equally."""
    I, eta, beta, gamma = 2, 0.5, 0.3, 0.4
    words = [
        f"algo.I={I}",
        f"algo.eta={eta}",
        f"algo.beta={beta}",
        f"algo.gamma={gamma}",
        "algo.B1=null",
        "algo.B2=null",
    ]
    e = experiment(form, *words, f"algo.B_pool={'null' if drawn is None else drawn}")
    plus, minus = of_clients(e.problem, "positive"), of_clients(e.problem, "negative")
    assert len(set(map(len, plus))) == 3
    n, m = sum(map(len, plus)), sum(map(len, minus))
    w = e.problem.start()[0].numpy()
    v, us = np.zeros_like(w), [np.ones(len(Z)) for Z in plus]
    # In full batches each step of a round has all scores, so that I times as many count 1/I each
    pool_a, pool_b = (np.concatenate([np.tile(scores(w, Z)[0], I) for Z in side]) for side in (plus, minus))
    pool_u = np.ones_like(pool_a)
    for r, state in enumerate(steps(e, 3)[1:]):
        fed, answers = e.federation.at(r), []
        for i, (Z, Z_) in enumerate(zip(plus, minus, strict=True)):
            w_i, v_i, u, kept = w, v, us[i], []
            rng = fed.rng(Purpose.POOL, client=i)
            if drawn:
                at, at_ = (
                    rng.choice(len(pool), (I, drawn), p=np.full(len(pool), 1 / len(pool))) for pool in (pool_a, pool_b)
                )
            for k in range(I):
                a_, u_, b_ = (pool_a[at[k]], pool_u[at[k]], pool_b[at_[k]]) if drawn else (pool_a, pool_u, pool_b)
                (a, da), (b, db) = scores(w_i, Z), scores(w_i, Z_)
                u = (1 - gamma) * u + gamma * loss(a[:, None] - b_, form)[0].mean(1)
                of_a = 3 / n * slope(u, form) * loss(a[:, None] - b_, form)[1].mean(1)
                of_b = -3 / m * (slope(u_, form)[:, None] * loss(a_[:, None] - b, form)[1]).mean(0)
                v_i = (1 - beta) * v_i + beta * (of_a @ da + of_b @ db)
                w_i = w_i - eta * v_i
                kept.append((a, u, b))
            us[i] = u
            answers.append((w_i, v_i, *map(np.concatenate, zip(*kept, strict=True))))
        w, v = (np.mean([answer[j] for answer in answers], axis=0) for j in (0, 1))
        pool_a, pool_u, pool_b = (np.concatenate([answer[j] for answer in answers]) for j in (2, 3, 4))
        np.testing.assert_allclose(state.w, w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.v, v, rtol=1e-9, atol=1e-12)
        for i, u in enumerate(us):
            np.testing.assert_allclose(state.u.tensor()[i, : len(u)], u, rtol=1e-9)


def risk(p, w):
    s = {split: torch.softmax(p.net(w, p.train.x[of.rows]), 1)[:, 1] for split, of in p.splits.items()}
    hinge = torch.relu(MARGIN - (s["positive"][:, None] - s["negative"])) ** 2
    if p.form == "pairwise":
        return hinge.mean()
    return LAM * torch.log(torch.exp(hinge / LAM).mean(1)).mean()


@pytest.mark.parametrize(("form", "rounds"), [("pairwise", 1), ("partial", 2)])
def test_where_nothing_moves_the_direction_is_the_gradient_of_all_pairs(form, rounds):
    """The u of others are a round old, which matters to partial alone."""
    words = [
        "algo.eta=0",
        "algo.gamma=1",
        "algo.beta=1",
        "algo.B1=null",
        "algo.B2=null",
        "algo.B_pool=null",
        "algo.I=1",
    ]
    e = experiment(form, *words)
    *_, state = steps(e, rounds)
    exact = torch.func.grad(lambda w: risk(e.problem, w))(state.w)
    torch.testing.assert_close(state.v, exact, rtol=1e-10, atol=1e-13)
    assert e.problem.evaluate(state.w)["objective"] == pytest.approx(float(risk(e.problem, state.w)), rel=1e-10)


@pytest.mark.full
def test_small_samples_are_unbiased():
    """The mean of v over many rounds at one point is the gradient, for clients with fewer examples than a sample too."""
    words = ["algo.eta=0", "algo.gamma=1", "algo.beta=1", "algo.B1=2", "algo.B2=7", "algo.B_pool=6", "algo.I=2"]
    e = experiment("pairwise", *words)
    assert e.problem.splits["positive"].sizes.min() < 2 or e.problem.splits["negative"].sizes.min() > 7
    found = torch.stack([state.v for state in steps(e, 300)[1:]])
    exact = torch.func.grad(lambda w: risk(e.problem, w))(e.problem.start()[0])
    error = (found.mean(0) - exact).norm()
    assert error < 4 * found.std(0).norm() / 300**0.5
    assert error < 0.2 * exact.norm()


def test_what_is_sent():
    """w and v each way, the drawn entries down and the client's own scores up; before, all clients' scores at the start."""
    e = experiment("partial", "algo.I=3", "algo.B1=2", "algo.B2=4", "algo.B_pool=5", "participation.cohort=2")
    steps(e, 2)
    d, ledger = len(e.problem.start()[0]), e.federation.ledger
    assert ledger.comm_rounds == 3
    assert ledger.down.sum() == 8 * (3 * d + 4 * (2 * d + 3 * 3 * 5))
    assert ledger.up.sum() == 8 * (3 * 3 * (2 * 2 + 4) + 4 * (2 * d + 3 * (2 * 2 + 4)))
    assert ledger.calls.grad == 2 * 3 * 4


@pytest.mark.parametrize("form", ["partial", "pairwise"])
def test_the_area_grows(form):
    e = experiment(form, "algo.B1=4", "algo.eta=0.3")
    *_, state = steps(e, 40)
    before, after = (e.problem.evaluate(w) for w in (e.problem.start()[0], state.w))
    assert after["test_partial_auc"] > max(0.9, before["test_partial_auc"] + 0.1)
    assert after["objective"] < 0.7 * before["objective"]


def test_partial_area_by_counting():
    """The mean over the false positive rates up to `most` of the share of positives above so many negatives, after McClish."""
    rng = np.random.default_rng(0)
    values, positive = rng.standard_normal(60), rng.random(60) < 0.3
    values[positive] += 0.5
    negatives = np.sort(values[~positive])[::-1]
    above = np.array([np.mean(values[positive] > b) for b in negatives])
    for most in (0.05, 0.3, 0.5, 1.0):
        parts = np.clip(most * len(negatives) - np.arange(len(negatives)), 0, 1) / len(negatives)
        chance = most**2 / 2
        assert partial_area(values, positive, most) == pytest.approx(
            0.5 + 0.5 * (parts @ above - chance) / (most - chance)
        )
    assert partial_area(np.zeros(60), positive, 0.3) == pytest.approx(0.5)
    assert partial_area(positive.astype(float), positive, 0.3) == 1


def data(n=60):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, 3)), np.arange(n) % 3
    return LabelledData(x, y, x, y, pixels="raw")


def problem(partitioner, source=None, **changes):
    fields = {"model": "linear", "widths": [3], "examples": None, "positive": 2, "form": "partial", "margin": MARGIN}
    fields |= {"lam": LAM, "max_fpr": 0.3, **changes}
    return XRiskAuc(World(0, partitioner, Given(source or data()), dtype=F64), **fields)


def test_a_client_without_positive_examples_is_refused():
    with pytest.raises(UserError, match=r"client \d+ has no (positive|negative) examples"):
        problem(Shards(6, 1))
    with pytest.raises(UserError, match=r"problem\.positive=5"):
        problem(Proportions(2, [1]), positive=5)


def test_a_large_lam_is_the_pairwise_risk():
    w, p = normal(8, seed=1), problem(Proportions(2, [1]), lam=1e6)
    pairwise = replace(p, form="pairwise")
    assert p.evaluate(w)["objective"] == pytest.approx(pairwise.evaluate(w)["objective"], rel=1e-5)
