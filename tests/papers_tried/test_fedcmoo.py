"""A user's FedCMOO compared with an independent NumPy version of the authors' public code, askinb/FedCMOO."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedopt import assemble, compose

FOLDER = Path(__file__).parent / "fedcmoo"
CLIENTS, ROUNDS, ETA, GAMMA, TAU, BETA, ITERATIONS = 6, 25, 0.3, 1.2, 10, 0.02, 50
NUMBERS = f"algo.eta={ETA} algo.gamma={GAMMA} algo.tau={TAU} algo.beta={BETA} algo.iterations={ITERATIONS}"


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs the user's method, and returns its problem and all iterates x and w."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])

    def start(entries=None, symmetric=False, epsilon=1e-4 / CLIENTS):
        own = f"algo.entries={entries or 'null'} algo.symmetric={symmetric} algo.epsilon={epsilon}"
        overrides = (
            f"algo=fedcmoo problem=three_labels {own} {NUMBERS} hardware.dtype=float64 participation.cohort=null"
        )
        e = assemble(compose(overrides.split(), [FOLDER / "myconf"]))
        states = [e.algorithm.init(e.problem)]
        for r in range(ROUNDS):
            states.append(e.algorithm.step(states[-1], e.problem, e.federation.at(r)))
        return e.problem, *(np.stack([np.asarray(state[k]) for state in states]) for k in (0, 1))

    return start


def clients_of(problem):
    """Return the features and signs of each client, as NumPy arrays."""
    a, signs = np.asarray(problem.a), np.asarray(problem.signs)
    return [(a[rows], signs[rows]) for rows in problem.splits["train"]]


def public_code(clients, entries=None, *, symmetric=False, of_mean=False):
    """Return the iterates x and w of the public code (full batches, plain SGD, all clients), in double precision.

    Args:
        clients: The features ``[n, d]`` and signs ``[n, m]`` of each client.
        entries: The number of entries that top-K compression keeps. None: no compression.
        symmetric: Replace 2 X in the estimate of the Gram matrix by X + X'.
        of_mean: Divide the estimate by the squared number of clients, not by their number.
    """
    d, m = clients[0][0].shape[1], clients[0][1].shape[1]
    x, w = np.zeros(d), np.full(m, 1 / m)
    points, weights = [x], [w]
    for _ in range(ROUNDS):
        gram = gram_estimate([gradients(x, *client) for client in clients], entries, symmetric) / len(clients)
        w = find_weights(w, gram / len(clients) if of_mean else gram)
        ends = []
        for client in clients:
            u = x.copy()
            for _ in range(TAU):
                u -= ETA * gradients(u, *client) @ w
            ends.append(u)
        x = x + GAMMA * sum(end - x for end in ends) / len(clients)
        points.append(x)
        weights.append(w)
    return np.stack(points), np.stack(weights)


def gradients(x, a, signs):
    """Return the gradient of each label's mean logistic loss in a column, ``[d, m]``."""
    margins = signs * (a @ x)[:, None]
    return -a.T @ (signs / (1 + np.exp(margins))) / len(a)


def gram_estimate(jacobians, entries, symmetric):
    """Return the two-way top-K estimate of the Gram matrix of the sum of the Jacobians, ``[m, m]``."""
    if entries is None:
        return sum(jacobians).T @ sum(jacobians)
    sent = [top(A, entries) for A in jacobians]
    lost = [A - C for A, C in zip(jacobians, sent, strict=True)]
    answered = top(sum(sent), entries)  # the server compresses its message, too
    cross = sum(D.T @ (answered - C) for C, D in zip(sent, lost, strict=True))
    gram = sum(A.T @ A for A in jacobians) + sum(C.T @ (answered - C) for C in sent)
    gram = gram + cross + (cross.T if symmetric else cross)
    if np.sqrt(sum(np.sum(C**2) for C in sent) / sum(np.sum(D**2) for D in lost)) <= 1.5:
        gram = gram + (len(sent) - 1) * sum(D.T @ D for D in lost)
    return gram


def top(A, entries):
    """Return A with all but its largest entries set to zero."""
    flat = A.ravel()
    kept = np.argsort(-np.abs(flat), kind="stable")[:entries]
    result = np.zeros_like(flat)
    result[kept] = flat[kept]
    return result.reshape(A.shape)


def find_weights(w, gram):
    gram = gram / np.mean(np.sqrt(np.diag(gram) + 1e-4)) ** 2
    for _ in range(ITERATIONS):
        w = onto_simplex(w - BETA * gram @ w)
    return w


def onto_simplex(v):
    falling = np.sort(v)[::-1]
    shifts = (np.cumsum(falling) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - shifts[falling > shifts][-1], 0)


def difference(a, b):
    """Return the largest difference of two sequences of points, relative to the largest entry of the second."""
    return np.abs(a - b).max() / np.abs(b).max()


@pytest.mark.parametrize(("entries", "symmetric"), [(None, False), (8, False), (20, False), (20, True)])
def test_iterates(run, entries, symmetric):
    problem, x, w = run(entries, symmetric)
    points, weights = public_code(clients_of(problem), entries, symmetric=symmetric)
    assert difference(x, points) < 1e-12
    assert difference(w, weights) < 1e-12
    assert np.ptp(w, axis=0).min() > 0.01  # the weights matter


def test_all_entries_are_no_compression(run):
    problem, x, _ = run(entries=24)
    assert difference(x, public_code(clients_of(problem))[0]) < 1e-12


def test_what_the_differences_change(run):
    """The numbers of docs/papers-tried.md: what each difference between the public code and the method's defaults changes."""
    problem, x, _ = run(20, symmetric=True, epsilon=1e-4)
    clients = clients_of(problem)
    assert difference(x, public_code(clients, 20, symmetric=True, of_mean=True)[0]) < 1e-12
    changes = [(20, {"symmetric": True}, 0.018), (8, {"symmetric": True}, 1.28), (None, {"of_mean": True}, 1e-4)]
    for entries, change, expected in changes:
        changed = difference(public_code(clients, entries, **change)[0], public_code(clients, entries)[0])
        assert changed == pytest.approx(expected, rel=0.1)
