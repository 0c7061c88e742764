#!/usr/bin/env python3
"""Print a table of docs/fair-clients.md: how well fair methods and exact minimisers serve the worst clients.

    python docs/studies/fair.py adult                    16 clients, by education; needs `scripts/data adult`
    python docs/studies/fair.py hsb82                    160 clients, schools; needs `scripts/data hsb82`
    python docs/studies/fair.py adult --trials 2 --seeds 1 --rounds 5

A fifth of each client's rows is set aside to choose values by: each method gets as many trials, Sobol points in its ranges, and
the one whose worst tenth of the clients has the least loss on these rows; so is the L2 penalty of exact minimisers. Reports
train and test on other divisions, one a seed, whose test rows, a fifth again, are none of those. Alone, clients choose their
penalties by cross-validation on their own training rows.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, logsumexp, softmax
from scipy.stats import qmc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fedopt.config import compose
from fedopt.console import markdown_table
from fedopt.data.datasets import data_folder
from fedopt.problems import alone
from fedopt.running.assemble import Experiment, assemble

SHARE, WORST, TUNING = 0.2, 0.1, 1_000_000  # of a client's rows; of the clients; the seed of the search
RUN = ["partitioner=by_column", "participation.cohort=null", "hardware.threads=1", "preset=none", "dataset=npz"]
PROBLEMS = {
    "adult": ["problem=classification", "problem.model=linear", "algo.B=32"],
    "hsb82": ["problem=linear_regression", "dataset.pixels=raw", "algo.B=null"],
}
GLOBAL = ["problem=robust_federated_global", "problem.model=linear", "problem.examples=null"]
FAIR, STEP = ["problem.weighting=uniform"], {"algo.eta": (0.001, 0.1)}
LOCAL = ["algo.tau=5"]

# title -> words, and the ranges of the keys that are searched, on a logarithmic scale
METHODS: dict[str, tuple[list[str], dict[str, tuple[float, float]]]] = {
    "FedAvg": (["algo=fedavg", *FAIR, *LOCAL], STEP),
    "FedAvg, by size": (["algo=fedavg", "problem.weighting=samples", *LOCAL], STEP),
    "AFL": (["algo=afl", *FAIR, *LOCAL], STEP | {"algo.gamma_l": (1e-3, 1.0)}),
    "DRFA": (["algo=drfa", *FAIR, *LOCAL], STEP | {"algo.gamma_l": (2e-4, 0.2)}),  # times tau, so that it is AFL's
    "FGDRO-CVaR": (["algo=fgdro", *FAIR, *LOCAL], STEP | {"algo.alpha": (0.05, 1.0), "algo.eta_s": (1e-3, 1.0)}),
    "FGDRO-KL": (["algo=fgdro_kl", *FAIR, *LOCAL], STEP | {"algo.lam": (0.05, 5.0)}),
    "FedDRO": (["algo=feddro", "algo.I=5", *GLOBAL], STEP | {"problem.lam": (0.05, 5.0)}),
}
EXACT = {"exact mean": "mean", "exact CVaR": "cvar", "exact worst client": "max"}
RIDGE = {"ridge": (1e-5, 1.0)}


@dataclass(eq=False)
class Table:
    """Rows of clients 0 to M - 1. y: 0 and 1, or real numbers."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray
    real: bool

    def part(self, rows: np.ndarray) -> "Table":
        return Table(self.x[rows], self.y[rows], self.client[rows], self.real)

    def of_clients(self, values: np.ndarray) -> np.ndarray:
        """The mean of each client's values, [M]."""
        return np.bincount(self.client, values) / np.bincount(self.client)

    def losses(self, z: np.ndarray) -> np.ndarray:
        """f_i of each client at these predictions, or log odds, of all rows."""
        with np.errstate(all="ignore"):  # where a run has diverged
            return self.of_clients(0.5 * (z - self.y) ** 2 if self.real else np.logaddexp(0, z) - self.y * z)


CLIENTS = {"adult": 16, "hsb82": 160}


def read(name: str) -> Table:
    with np.load(data_folder(None) / f"{name}.npz") as file:
        x, y, client = (np.concatenate([file[f"{key}_train"], file[f"{key}_test"]]) for key in ("x", "y", "client"))
    if (found := len(np.unique(client))) != CLIENTS[name]:
        sys.exit(f"{name}.npz has {found} clients, not {CLIENTS[name]}; make it by scripts/data {name}")
    real = y.dtype.kind == "f"
    return Table(
        x, y if real else np.unique(y, return_inverse=True)[1], np.unique(client, return_inverse=True)[1], real
    )


def cut(client: np.ndarray, rows: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into others and this share of each client's, at least one, drawn at random."""
    rows = np.random.default_rng(seed).permutation(rows)
    rows = rows[np.argsort(client[rows], kind="stable")]
    sizes = np.bincount(client[rows])
    place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = place < np.repeat(np.maximum(np.round(share * sizes), 1), sizes)
    return np.sort(rows[~drawn]), np.sort(rows[drawn])


def worst(losses: np.ndarray) -> float:
    """The mean over the worst tenth of the clients."""
    return float(np.sort(losses)[::-1][: int(np.ceil(WORST * len(losses)))].mean())


# What methods find, and what there is to find


@lru_cache(maxsize=1)
def experiment(*words: str) -> Experiment:
    return assemble(compose(words))


def scores(e: Experiment, point: tuple[torch.Tensor, ...], table: Table) -> np.ndarray:
    """The predictions, or log odds, of all rows."""
    z = torch.from_numpy(table.x)
    if table.real:
        return (z.to(point[0]) @ point[0][:-1] + point[0][-1]).double().numpy()
    with torch.no_grad():
        logits = cast(Any, e.problem).network(*point)(z).double()
    return (logits[:, 1] - logits[:, 0]).numpy()


def run(name: str, title: str, values: Sequence[str], d: "Divided", seed: int, rounds: int) -> list[np.ndarray]:
    """Run a method with these values. Return its predictions for the training rows and the evaluation rows."""
    words = [*PROBLEMS[name], *RUN, *METHODS[title][0], *values, f"dataset.path={d.file}", f"seed={seed}"]
    e, algorithm = experiment(*(word for word in words if not word.startswith("algo."))), compose(words).parts["algo"]
    state = algorithm.init(e.problem)
    for r in range(rounds):
        state = algorithm.step(state, e.problem, e.federation.at(r))
    return [scores(e, algorithm.output(state), part) for part in (d.training, d.judged)]


def least(table: Table, of: str, ridge: float = 0.0) -> np.ndarray:
    """The linear model, [d + 1], with the least mean of the clients' losses, mean of the worst tenth, or worst loss.

    ridge/2 |w|^2, without the intercept, is added to it. The last two are smoothed, less and less: t log sum exp(f_i / t), and
    s + mean t log(1 + exp((f_i - s) / t)) / share. share: of the clients whom `worst` counts.
    """
    x, sizes = np.c_[table.x, np.ones(len(table.x))], np.bincount(table.client)
    M, v, start = len(sizes), np.zeros(x.shape[1] + (of == "cvar")), of == "cvar"
    share = np.ceil(WORST * M) / M
    for t in (0.1,) if of == "mean" else (0.1, 0.01, 0.001):

        def value_and_gradient(v: np.ndarray, t: float = t) -> tuple[float, np.ndarray]:
            w, s = v[: x.shape[1]], v[x.shape[1] :]
            z = x @ w
            f = table.losses(z)
            if of == "mean":
                value, q = f.mean(), np.full(M, 1 / M)
            elif of == "max":
                value, q = t * logsumexp(f / t), softmax(f / t)
            else:
                value = s[0] + t * np.logaddexp(0, (f - s) / t).mean() / share
                q = expit((f - s) / t) / (M * share)
            residual = (z if table.real else expit(z)) - table.y
            slope, penalty = (1 - q.sum(),) * len(s), ridge * np.append(w[:-1], 0)
            gradient = x.T @ (residual * (q / sizes)[table.client]) + penalty
            return float(value + 0.5 * penalty @ w), np.r_[gradient, slope]

        if start:
            v[-1], start = np.quantile(table.losses(np.zeros(len(x))), 1 - share), False
        v = minimize(value_and_gradient, v, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "maxfun": 2000}).x
    return v[: x.shape[1]]


# The table

HEADS = ["training: worst tenth", "test: mean", "worst tenth", "minus FedAvg's"]


class Divided:
    """A division of the table: the rows to train on and to judge on, and an .npz of both for runs."""

    def __init__(self, table: Table, training: np.ndarray, judged: np.ndarray, file: Path) -> None:
        self.training, self.judged, self.file = table.part(training), table.part(judged), file
        parts = {"train": self.training, "test": self.judged}
        arrays: dict[str, Any] = {
            f"{key}_{of}": getattr(part, key) for of, part in parts.items() for key in ("x", "y", "client")
        }
        np.savez(file, **arrays)


def measured(d: Divided, predicted: Sequence[np.ndarray]) -> list[float]:
    """The numbers of a row, from predictions of the rows to train on and to judge on."""
    training, judged = d.training.losses(predicted[0]), d.judged.losses(predicted[1])
    if d.judged.real:
        training, judged = np.sqrt(2 * training), np.sqrt(2 * judged)
    found = [worst(training), judged.mean(), worst(judged)]
    if d.judged.real:
        return found
    right = 100 * d.judged.of_clients((predicted[1] > 0) == d.judged.y)
    return [*found, right.mean(), -worst(-right)]


def chosen(name: str, title: str, d: Divided, trials: int, rounds: int) -> list[str]:
    """The words of the best of a method's trials."""
    tried = trial_values(METHODS[title][1], trials)
    return best(d, tried, [run(name, title, values, d, TUNING, rounds)[1] for values in tried])


def trial_values(ranges: dict[str, tuple[float, float]], trials: int) -> list[list[str]]:
    """KEY=VALUE of each key in each trial."""
    ends = np.log10([*ranges.values()])
    points = qmc.scale(qmc.Sobol(len(ranges), seed=TUNING).random(trials), ends[:, 0], ends[:, 1])
    return [[f"{key}={10**at:.3g}" for key, at in zip(ranges, point, strict=True)] for point in points]


def best(d: "Divided", tried: Sequence[Any], predicted: Sequence[np.ndarray]) -> Any:
    """That of the trials whose predictions of the rows to judge on have the least loss of the worst tenth."""
    losses = [worst(d.judged.losses(z)) for z in predicted]
    return tried[int(np.argmin(np.nan_to_num(losses, nan=np.inf)))]


def rows(name: str, trials: int, seeds: int, rounds: int, folder: Path) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield each row's title, numbers [seeds, columns] and chosen values."""
    table = read(name)
    rest, aside = cut(table.client, np.arange(len(table.y)), SHARE, TUNING)
    tuning, divisions = Divided(table, rest, aside, folder / "tuning.npz"), []
    for seed in range(seeds):
        others, judged = cut(table.client, rest, SHARE / (1 - SHARE), seed)
        divisions.append(Divided(table, np.sort(np.r_[others, aside]), judged, folder / f"{seed}.npz"))
    for title in METHODS:
        if title == "FedDRO" and table.real:
            continue  # its problem is about classes
        values = chosen(name, title, tuning, trials, rounds)
        runs = [run(name, title, values, d, seed, rounds) for seed, d in enumerate(divisions)]
        found = [measured(d, predicted) for d, predicted in zip(divisions, runs, strict=True)]
        yield title, np.array(found), " ".join(value.split(".", 1)[1] for value in values)
    for title, of in EXACT.items():
        yield title, np.array([measured(d, exact(d, of)) for d in divisions]), ""
    penalties = [float(words[0].split("=")[1]) for words in trial_values(RIDGE, trials)]
    for title, of in EXACT.items():
        ridge = best(tuning, penalties, [exact(tuning, of, penalty)[1] for penalty in penalties])
        found = [measured(d, exact(d, of, ridge)) for d in divisions]
        yield f"{title} + L2", np.array(found), f"ridge={ridge:g}"
    yield "each client alone", np.array([measured(d, by_client(d)) for d in divisions]), ""


def standardised(d: Divided) -> list[Table]:
    """The rows to train on and to judge on, whose columns have mean 0 and deviation 1 over the former."""
    shift, scale = d.training.x.mean(0), d.training.x.std(0)
    return [replace(part, x=(part.x - shift) / np.where(scale > 0, scale, 1)) for part in (d.training, d.judged)]


def exact(d: Divided, of: str, ridge: float = 0.0) -> list[np.ndarray]:
    """The predictions of the model that `least` finds on standardised columns, as `run` returns them."""
    parts = standardised(d)
    w = least(parts[0], of, ridge)
    return [part.x @ w[:-1] + w[-1] for part in parts]


def by_client(d: Divided) -> list[np.ndarray]:
    """The predictions of each client's own model, with the penalty that `alone` chooses, as `run` returns them."""
    parts = standardised(d)
    predicted = [np.zeros(len(part.y)) for part in parts]
    for i in range(parts[0].client.max() + 1):
        rows = [part.client == i for part in parts]
        x, y = parts[0].x[rows[0]].astype(float), parts[0].y[rows[0]]
        for z, part, mine in zip(predicted, parts, rows, strict=True):
            if part.real:
                w = alone.ridge(x, y)
                z[mine] = part.x[mine] @ w[:-1] + w[-1]
            else:
                z[mine] = np.diff(alone.logistic(x, y, part.x[mine], np.ones(2))[0])[:, 0]
    return predicted


def cells(row: tuple[str, np.ndarray, str], first: np.ndarray) -> list[str]:
    """Return a row of the table, and print its tuned values, accuracies (mean, worst tenth) and diverged runs to stderr.

    Args:
        row: What `rows` yields.
        first: Numbers of the first row, FedAvg's, for the differences of the worst tenth on test rows.
    """
    title, found, values = row
    ended = np.isfinite(found).all(axis=1)
    means, accuracies = np.split(found[ended], [len(HEADS) - 1], axis=1)
    off = means[:, -1] - first[ended, len(HEADS) - 2]
    notes = [values] * bool(values)
    notes += [f"accuracy {spread(column)}" for column in accuracies.T]
    notes += [f"{(~ended).sum()} of {len(found)} runs diverged and are left out"] * (not ended.all())
    print(f"{title}: {'; '.join(notes)}", file=sys.stderr)
    return [title, *(spread(column).split(" ±")[0] for column in means.T), spread(off, "+") if off.any() else ""]


def spread(numbers: np.ndarray, sign: str = "") -> str:
    """The mean and the standard deviation; of one number, itself."""
    if not len(numbers):
        return "–"
    form = f"{sign}.{1 if abs(numbers.mean()) > 10 else 3}f"
    return (
        f"{numbers.mean():{form}} ± {numbers.std(ddof=1):{form[-3:]}}" if len(numbers) > 1 else f"{numbers[0]:{form}}"
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PROBLEMS)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        every = rows(given.name, given.trials, given.seeds, given.rounds, Path(folder))
        first = next(every)
        for line in markdown_table(
            [given.name.capitalize(), *HEADS], (cells(row, first[1]) for row in itertools.chain([first], every))
        ):
            print(line, flush=True)


if __name__ == "__main__":
    main()
