"""Byz-EF21, written with documented names only, takes the steps of its authors' code under their attacks.

`theirs` is our own transcription of byz_ef21.py, functions.py and Experiments.ipynb in Nikosimus/CC-for-BR-Learning.
docs/papers-tried.md reports the differences.
"""

from pathlib import Path

import numpy as np
import pytest

from fedopt import assemble, compose

FOLDER = Path(__file__).parent / "byz_ef21"
ROUNDS = 25


def assembled(monkeypatch, *words):
    monkeypatch.syspath_prepend(str(FOLDER))
    return assemble(compose(["experiment=hostile", "hardware.threads=1", *words], [FOLDER / "myconf"]))


def ours(e, first=None):
    """The iterates of the rounds, of which the first one, perhaps of another experiment, stays at the starting point."""
    state, points = e.algorithm.init(e.problem), []
    for r in range(ROUNDS):
        of_round = first if first and r == 0 else e
        state = of_round.algorithm.step(state, of_round.problem, of_round.federation.at(r))
        points.append(state.x.numpy())
    return np.array(points)


def difference(x, y):
    """The largest difference between iterates, relative to their norm."""
    return np.max(np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1))


# Their code


def gradient(e, i, x):
    rows = e.problem.splits["train"][i]
    a, b = e.problem.a[rows].numpy(), e.problem.b[rows].numpy()
    return -a.T @ (b / (1 + np.exp(b * (a @ x)))) / len(rows) + e.problem.l2 * x


def top(v, k):
    kept = np.argsort(np.abs(v), kind="stable")[len(v) - k :]
    return np.where(np.isin(np.arange(len(v)), kept), v, 0)


def median_of_points(points, stop):
    """Weiszfeld's method as modified by Vardi and Zhang, for an iterate that may coincide with a point."""
    at = points.mean(0)
    while True:
        far = np.linalg.norm(points - at, axis=1)
        apart, inverse = far > 0, 1 / far[far > 0]
        new = inverse @ points[apart] / inverse.sum()
        if not apart.all():
            pull = np.linalg.norm((new - at) * inverse.sum())
            share = min(1, (~apart).sum() / pull) if pull else 1
            new = (1 - share) * new + share * at
        if np.linalg.norm(new - at) < stop:
            return new
        at = new


def robust(G, order, rule, size, short, stop):
    chunks = [G[order[i : i + size]] for i in range(0, len(G), size)]
    means = np.array([chunk.sum(0) / (size if short == "halved" else len(chunk)) for chunk in chunks])
    return np.median(means, axis=0) if rule == "median" else median_of_points(means, stop)


def attacked(G, g, e, x, spread):
    """Overwrite the rows of the hostile clients."""
    bad, hostile = e.federation.lies, e.federation.participation.hostile
    offsets = G[~bad] - g
    if hostile.attack == "sign_flip":
        for i in np.flatnonzero(bad):
            G[i] -= top(gradient(e, i, x) - G[i], e.algorithm.k)
    elif hostile.attack == "ipm":
        G[bad] = g - hostile.scale * offsets.mean(0)
    else:
        width = {"variance": np.var, "deviation": np.std}[spread](offsets, axis=0)
        G[bad] = g + offsets.mean(0) - hostile.scale * width


def theirs(e, start="robust", spread="deviation", short="mean", stop=1e-13):
    """The iterates of the public code; the defaults are what its text or the paper says where the code differs.

    Args:
        e: The experiment, whose data and random permutations are used.
        start: The first g. ``robust``: the robust mean of what clients send. ``honest``: the mean of the gradients,
            before any attack.
        spread: By what ALIE moves the mean. ``deviation``, or ``variance`` as in the code.
        short: How the sum of the last bucket is divided. ``mean``: by its size. ``halved``: by the size of the others.
        stop: The last step of the geometric median.
    """
    algo, bad, x = e.algorithm, e.federation.lies, e.problem.start()[0].numpy()

    def mean_of_buckets(r):
        order = e.federation.at(r).rng("buckets").permutation(len(G))
        return robust(G, order, algo.rule, algo.bucket, short, stop)

    G = np.array([gradient(e, i, x) for i in range(e.problem.clients)])
    g = G.mean(0)
    if start == "robust":
        if e.federation.participation.hostile.attack == "sign_flip":
            G[bad] *= -1
        else:
            attacked(G, 0 * g, e, x, spread)
        g = mean_of_buckets(0)
    points = [x]
    for r in range(1, ROUNDS):
        x = x - algo.gamma(r) * g
        for i in np.flatnonzero(~bad):
            G[i] += top(gradient(e, i, x) - G[i], algo.k)
        attacked(G, g, e, x, spread)
        g = mean_of_buckets(r)
        points.append(x)
    return np.array(points)


def hostile(attack, scale, who="[13, 14, 15]"):
    return [f"participation.hostile={{who: {who}, attack: {attack}, scale: {scale}}}", "algo.sent=estimates"]


IPM, ALIE = hostile("ipm", 0.1), hostile("alie", 1.06)


@pytest.mark.parametrize("rule", ["median", "geometric"])
@pytest.mark.parametrize("words", [[], IPM, ALIE], ids=["sign_flip", "ipm", "alie"])
def test_same_iterates(words, rule, monkeypatch):
    e = assembled(monkeypatch, *words, f"algo.rule={rule}")
    assert difference(ours(e), theirs(e)) < {"median": 1e-14, "geometric": 1e-8}[rule]


def test_their_honest_start(monkeypatch):
    """A first round without hostile clients, and with a single bucket, is the start of their code."""
    honest = assembled(monkeypatch, "participation.hostile=null", "algo.bucket=16")
    e = assembled(monkeypatch)
    assert difference(ours(e, first=honest), theirs(e, start="honest")) < 1e-14
    assert difference(ours(e), theirs(e, start="honest")) > 0.1


DIFFERENCES = {
    "ALIE with the variance": (ALIE, {"spread": "variance"}, 0.05, 0.5),
    "a last bucket of one client": (
        ["partitioner.clients=15", *hostile("ipm", 0.1, who="[12, 13, 14]")],
        {"short": "halved"},
        0.05,
        0.5,
    ),
    "the stopping rule": ([*ALIE, "algo.rule=geometric"], {"stop": 1e-5}, 1e-7, 1e-3),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(name, monkeypatch):
    words, changes, least, most = DIFFERENCES[name]
    e = assembled(monkeypatch, *words)
    assert least < difference(ours(e), theirs(e, **changes)) < most
