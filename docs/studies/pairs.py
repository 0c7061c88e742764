#!/usr/bin/env python3
"""Print the table of docs/algorithms/fedxl.md: FeDXL beside methods of the minimax AUC, by the bytes that they exchange.

    scripts/data adult --client race      first: five clients, by race
    python docs/studies/pairs.py                         a linear model
    python docs/studies/pairs.py --width 64 --budgets 3000 10000 30000    a hidden layer of 64

Each method gets as many trials, Sobol points in its ranges, on four fifths of the training rows. For each budget of bytes the
trial counts whose AUC on the other fifth is largest when the budget is spent. Reports train on all training rows, once a seed,
and are judged on the table's own test rows.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.stats import qmc
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fedopt.config import compose
from fedopt.console import markdown_table
from fedopt.data.datasets import data_folder
from fedopt.metrics import COSTS
from fedopt.problems.x_risk import partial_area
from fedopt.running.assemble import Experiment, assemble

ASIDE, TUNING, MAX_FPR = 0.2, 1_000_000, 0.3  # share of the training rows; the seed of the search; of the partial AUC
RUN = ["dataset=npz", "partitioner=by_column", "participation.cohort=null", "hardware.threads=1", "preset=none"]
AUC, PAIRS = ([f"problem={problem}", "problem.positive=1", "problem.examples=null"] for problem in ("auc", "x_risk"))
EXAMPLES = ["algo.B=32"]  # of a step, by everyone
FEDXL = ["algo=fedxl", *PAIRS, "algo.B1=8", "algo.B2=24"]
Ranges = dict[str, tuple[float, float]]
STEP, STEPS = (0.01, 10.0), (1.0, 100.0)
OF_FEDXL: Ranges = {"algo.eta": STEP, "algo.I": STEPS, "algo.beta": (0.1, 1.0), "algo.gamma": (0.1, 1.0)}
OF_FEDXL |= {"algo.B_pool": (8.0, 64.0)}
OF_MINIMAX: Ranges = {"algo.eta_x": STEP, "algo.eta_y": STEP}

# title -> words, and the ranges of the keys that are searched, on a logarithmic scale
METHODS: dict[str, tuple[list[str], Ranges]] = {
    "FeDXL, all pairs": ([*FEDXL, "problem.form=pairwise"], OF_FEDXL),
    "FeDXL, partial AUC": ([*FEDXL, "problem.form=partial"], OF_FEDXL | {"problem.lam": (0.3, 3.0)}),
    "CODASCA": (["algo=codasca", *AUC, *EXAMPLES], OF_MINIMAX | {"algo.K": STEPS}),
    "Local SGDA": (["algo=local_sgda", *AUC, *EXAMPLES], OF_MINIMAX | {"algo.tau": STEPS}),
    "FedAvg, cross-entropy": (
        ["algo=fedavg", "problem=classification", *EXAMPLES],
        {"algo.eta": STEP, "algo.tau": STEPS},
    ),
}
WHOLE = ("algo.I", "algo.K", "algo.tau", "algo.B_pool")
Found = list[tuple[float, float, int]]  # the AUC, the partial AUC and the number of rounds, for each budget


@lru_cache(maxsize=1)
def experiment(*words: str) -> Experiment:
    return assemble(compose(words))


def run(title: str, values: Sequence[str], file: Path, seed: int, budgets: Sequence[int]) -> Found:
    """Run a method with these values, and judge the last round that each budget of bytes pays for on the test rows."""
    words = [*RUN, *METHODS[title][0], *values, f"dataset.path={file}", f"seed={seed}"]
    e, algorithm = experiment(*(word for word in words if not word.startswith("algo."))), compose(words).parts["algo"]
    with np.load(file) as table:
        x, y = torch.from_numpy(table["x_test"]), table["y_test"] == np.unique(table["y_train"])[1]
    before, r, found = COSTS["bytes"].of(e.federation.ledger.columns()), 0, Found()
    state = algorithm.init(e.problem)
    point = algorithm.output(state)
    while len(found) < len(budgets):
        state = algorithm.step(state, e.problem, e.federation.at(r))
        while (
            len(found) < len(budgets)
            and COSTS["bytes"].of(e.federation.ledger.columns()) - before > budgets[len(found)]
        ):
            with torch.no_grad():
                logits = cast(Any, e.problem).network(*point)(x).double()
            s = (logits[:, 1] - logits[:, 0]).numpy()
            ended = np.isfinite(s).all()
            found.append(
                (roc_auc_score(y, s) if ended else np.nan, partial_area(s, y, MAX_FPR) if ended else np.nan, r)
            )
        point, r = algorithm.output(state), r + 1
    return found


def trials(title: str, number: int) -> list[list[str]]:
    """The values of a method's trials."""
    ranges = METHODS[title][1]
    ends = np.log10([*ranges.values()])
    points = 10 ** qmc.scale(qmc.Sobol(len(ranges), seed=TUNING).random(number), ends[:, 0], ends[:, 1])
    return [
        [f"{key}={round(at) if key in WHOLE else f'{at:.3g}'}" for key, at in zip(ranges, point, strict=True)]
        for point in points
    ]


def rows(
    model: Sequence[str], number: int, seeds: int, budgets: Sequence[int], folder: Path
) -> Iterator[tuple[str, np.ndarray, list[str]]]:
    """Yield each method's title, what it found [budgets, seeds, 3], and the values chosen for each budget."""
    file = data_folder(None) / "adult.npz"
    with np.load(file) as read:
        table = {key: read[f"{key}_train"] for key in ("x", "y", "client")}
    if "White" not in table["client"]:
        sys.exit(f"{file}: its clients are not races; make it by scripts/data adult --client race")
    order = np.random.default_rng(TUNING).permutation(len(table["y"]))
    parts = dict(zip(("test", "train"), np.split(order, [round(ASIDE * len(order))]), strict=True))
    np.savez(
        folder / "tuning.npz", **{f"{key}_{part}": v[of] for part, of in parts.items() for key, v in table.items()}
    )
    for title in METHODS:
        tried = trials(title, number)
        words = [[*model, *values] for values in tried]
        scores = np.array([run(title, trial, folder / "tuning.npz", TUNING, budgets) for trial in words])[..., 0]
        best = np.nan_to_num(scores).argmax(0)
        reported = {k: [run(title, words[k], file, seed, budgets) for seed in range(seeds)] for k in {*best}}
        found = [[of_seed[k] for of_seed in reported[trial]] for k, trial in enumerate(best)]
        yield title, np.array(found), [" ".join(v.split(".", 1)[1] for v in tried[trial]) for trial in best]


def spread(numbers: np.ndarray) -> str:
    """The mean and the standard deviation, in percent; of one number, itself."""
    mean = f"{100 * numbers.mean():.2f}"
    return f"{mean} ± {100 * numbers.std(ddof=1):.2f}" if len(numbers) > 1 else mean


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, help="of a hidden layer; without, the model is linear")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 300, 1000], help="kB, to and from all")
    given = parser.parse_args(words)
    budgets = sorted(given.budgets)
    heads = [f"AUC at {kb} kB" for kb in budgets]
    model = [f"problem.widths=[{given.width}]", "problem.model=mlp"] if given.width else ["problem.model=linear"]
    heads = ["", *heads, f"partial AUC at {budgets[-1]} kB", f"rounds of {budgets[-1]} kB", "values there"]
    with tempfile.TemporaryDirectory() as folder:
        every = rows(model, given.trials, given.seeds, [1000 * kb for kb in budgets], Path(folder))
        for line in markdown_table(heads, (cells(*row) for row in every)):
            print(line, flush=True)


def cells(title: str, found: np.ndarray, values: list[str]) -> list[str]:
    """The cells of a row of the table."""
    aucs, last = [spread(of_budget[:, 0]) for of_budget in found], found[-1]
    return [title, *aucs, spread(last[:, 1]), f"{last[0, 2]:.0f}", f"`{values[-1]}`"]


if __name__ == "__main__":
    main()
