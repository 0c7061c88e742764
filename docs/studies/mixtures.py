#!/usr/bin/env python3
"""Print the table of docs/problems/client_weights.md: small authorities of Chem97 that borrow pupils from the others.

Needs `scripts/data chem97`. A division, one a seed, has a fifth of each client's rows for tests, and 30 % of the others for
validation. For each authority with at most 75 pupils the lower level, ridge regression, is solved exactly, and the weights of
the clients are those where L-BFGS ends with the exact hypergradient, in NumPy.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fedopt.console import markdown_table
from fedopt.data.datasets import data_folder

RIDGE, TEST, VALIDATION, SMALL, LAM = 0.1, 0.2, 0.3, 75, 1.0
RHOS = (0.001, 0.01, 0.03, 0.1, 0.3)


class Moments:
    """A_i, the means of zz', and b_i, those of tz, over the training rows of each client."""

    def __init__(self, z: np.ndarray, t: np.ndarray, of_clients: Sequence[np.ndarray], ridge: float = RIDGE) -> None:
        self.sizes = np.array([len(rows) for rows in of_clients])
        self.A = np.stack([z[rows].T @ z[rows] / len(rows) for rows in of_clients])
        self.b = np.stack([t[rows] @ z[rows] / len(rows) for rows in of_clients])
        self.ridge = ridge * np.diag(np.append(np.ones(z.shape[1] - 1), 0))  # of all but the intercept

    def model(self, w: np.ndarray) -> np.ndarray:
        """y*, where clients count w."""
        return np.linalg.solve(np.tensordot(w, self.A, 1) + self.ridge, w @ self.b)

    def learnt(self, z: np.ndarray, t: np.ndarray, rho: float) -> np.ndarray:
        """The weights with the least loss on these validation examples, plus rho KL(w | uniform)."""
        M = len(self.b)

        def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
            log = x - x.max() - np.log(np.exp(x - x.max()).sum())
            w, y = np.exp(log), self.model(np.exp(log))
            residual = z @ y - t
            v = np.linalg.solve(np.tensordot(w, self.A, 1) + self.ridge, residual @ z / len(t))
            slopes = -(self.A @ y - self.b) @ v + rho * log
            value = 0.5 * residual @ residual / len(t) + rho * (w @ log + np.log(M))
            return float(value), w * (slopes - w @ slopes)

        x = minimize(value_and_gradient, np.zeros(M), jac=True, method="L-BFGS-B").x
        return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def read() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with np.load(data_folder(None) / "chem97.npz") as file:
        x, y, client = (np.concatenate([file[f"{key}_train"], file[f"{key}_test"]]) for key in ("x", "y", "client"))
    return np.column_stack([x.astype(float), np.ones(len(x))]), y, np.unique(client, return_inverse=True)[1]


def divided(client: np.ndarray, seed: int) -> tuple[list[np.ndarray], ...]:
    """The rows of each client for training, validation and tests, at least one each."""
    order = np.random.default_rng(seed).permutation(len(client))
    parts = []
    for i in range(client.max() + 1):
        rows = order[client[order] == i]
        tests = max(1, round(TEST * len(rows)))
        validation = max(1, round(VALIDATION * (len(rows) - tests)))
        parts.append(np.split(rows, [len(rows) - tests - validation, len(rows) - tests]))
    return tuple([part[k] for part in parts] for k in range(3))


def found(seed: int) -> Iterator[tuple[str, float]]:
    """Yield the root mean squared error of each way on the test rows of all small clients together."""
    z, t, client = read()
    training, validation, tests = divided(client, seed)
    moments, M = Moments(z, t, training), client.max() + 1
    squares: dict[str, list[np.ndarray]] = {}
    common = moments.model(moments.sizes / moments.sizes.sum())
    for i in np.flatnonzero(np.bincount(client) <= SMALL):
        of = validation[i]
        models = {
            "equal weights": moments.model(np.full(M, 1 / M)),
            "by size": common,
            "target only": moments.model(np.eye(M)[i]),
            "target, drawn to the model by size ($\\lambda = 1$)": np.linalg.solve(
                moments.A[i] + LAM * np.eye(len(common)), moments.b[i] + LAM * common
            ),
        }
        models |= {f"learnt, $\\rho = {rho:g}$": moments.model(moments.learnt(z[of], t[of], rho)) for rho in RHOS}
        for way, y in models.items():
            squares.setdefault(way, []).append((z[tests[i]] @ y - t[tests[i]]) ** 2)
    for way, parts in squares.items():
        yield way, float(np.sqrt(np.concatenate(parts).mean()))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = [dict(found(seed)) for seed in range(parser.parse_args(words).seeds)]
    rows = []
    for way in seeds[0]:
        errors = np.array([[of[way], of[way] - of["equal weights"]] for of in seeds])
        means, deviations = errors.mean(0), errors.std(0, ddof=1) if len(errors) > 1 else np.zeros(2)
        less = f"{means[1]:+.3f} ± {deviations[1]:.3f}" if means[1] else ""
        rows.append([way, f"{means[0]:.3f} ± {deviations[0]:.3f}", less])
    print(
        *markdown_table(["weights", "error on the small clients' tests", "minus that of equal weights"], rows), sep="\n"
    )


if __name__ == "__main__":
    main()
