#!/usr/bin/env python3
"""Print the tables of docs/algorithms/fedxl.md: FeDXL compared with methods for the minimax AUC, by bytes sent.

    scripts/data adult --client race                     first: five clients, by race
    python docs/studies/pairs.py                         a linear model
    python docs/studies/pairs.py --width 64 --budgets 3000 10000 30000    a hidden layer of 64

Each method gets the same number of trials (Sobol points in its ranges) on four fifths of the training rows. For each budget of
bytes we choose the trial with the largest AUC on the remaining fifth when the budget is spent. The reported runs train on all
training rows, once per seed, and are evaluated on the test rows of the data set.
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

ASIDE = 0.2  # share of the training rows for tuning
TUNING = 1_000_000  # seed of the search
MAX_FPR = 0.3  # of the partial AUC
RUN = ["dataset=npz", "partitioner=by_column", "participation.cohort=null", "hardware.threads=1", "preset=none"]
AUC, PAIRS = ([f"problem={problem}", "problem.positive=1", "problem.examples=null"] for problem in ("auc", "x_risk"))
EXAMPLES = ["algo.B=32"]  # examples per local step, for all methods
FEDXL = ["algo=fedxl", *PAIRS, "algo.B1=8", "algo.B2=24"]
Ranges = dict[str, tuple[float, float]]
STEP, STEPS = (0.01, 10.0), (1.0, 100.0)
OF_FEDXL: Ranges = {"algo.eta": STEP, "algo.I": STEPS, "algo.beta": (0.1, 1.0), "algo.gamma": (0.1, 1.0)}
OF_FEDXL |= {"algo.B_pool": (8.0, 64.0)}
OF_MINIMAX: Ranges = {"algo.eta_x": STEP, "algo.eta_y": STEP}

# title -> overrides, and the ranges of the tuned keys, on a logarithmic scale
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
Found = list[tuple[float, float, int]]  # AUC, partial AUC and number of rounds, for each budget


@lru_cache(maxsize=1)
def experiment(*overrides: str) -> Experiment:
    return assemble(compose(overrides))


def run(title: str, values: Sequence[str], file: Path, seed: int, budgets: Sequence[int]) -> Found:
    """Run a method, and evaluate the last round within each budget of bytes on the test rows."""
    overrides = [*RUN, *METHODS[title][0], *values, f"dataset.path={file}", f"seed={seed}"]
    e, algorithm = experiment(*(o for o in overrides if not o.startswith("algo."))), compose(overrides).parts["algo"]
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
    """Return the overrides of each trial of a method."""
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
    """Yield each method's title, its results [budgets, seeds, 3], and the values chosen for each budget."""
    file = data_folder(None) / "adult.npz"
    with np.load(file) as read:
        table = {key: read[f"{key}_train"] for key in ("x", "y", "client")}
    if "White" not in table["client"]:
        sys.exit(f"{file}: its clients are not races; create it with scripts/data adult --client race")
    order = np.random.default_rng(TUNING).permutation(len(table["y"]))
    parts = dict(zip(("test", "train"), np.split(order, [round(ASIDE * len(order))]), strict=True))
    np.savez(
        folder / "tuning.npz", **{f"{key}_{part}": v[of] for part, of in parts.items() for key, v in table.items()}
    )
    for title in METHODS:
        tried = trials(title, number)
        overrides = [[*model, *values] for values in tried]
        scores = np.array([run(title, trial, folder / "tuning.npz", TUNING, budgets) for trial in overrides])[..., 0]
        best = np.nan_to_num(scores).argmax(0)
        reported = {k: [run(title, overrides[k], file, seed, budgets) for seed in range(seeds)] for k in {*best}}
        found = [[of_seed[k] for of_seed in reported[trial]] for k, trial in enumerate(best)]
        yield title, np.array(found), [" ".join(v.split(".", 1)[1] for v in tried[trial]) for trial in best]


def spread(numbers: np.ndarray) -> str:
    """Return mean ± standard deviation in percent, or a single number as it is."""
    mean = f"{100 * numbers.mean():.2f}"
    return f"{mean} ± {100 * numbers.std(ddof=1):.2f}" if len(numbers) > 1 else mean


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, help="width of the hidden layer; by default the model is linear")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[100, 300, 1000], help="total traffic in kB, in both directions"
    )
    given = parser.parse_args(arguments)
    budgets = sorted(given.budgets)
    heads = [f"AUC at {kb} kB" for kb in budgets]
    model = [f"problem.widths=[{given.width}]", "problem.model=mlp"] if given.width else ["problem.model=linear"]
    heads = ["", *heads, f"partial AUC at {budgets[-1]} kB", f"rounds in {budgets[-1]} kB", "tuned values"]
    with tempfile.TemporaryDirectory() as folder:
        every = rows(model, given.trials, given.seeds, [1000 * kb for kb in budgets], Path(folder))
        for line in markdown_table(heads, (cells(*row) for row in every)):
            print(line, flush=True)


def cells(title: str, found: np.ndarray, values: list[str]) -> list[str]:
    """Return the cells of a row of the table."""
    aucs, last = [spread(of_budget[:, 0]) for of_budget in found], found[-1]
    return [title, *aucs, spread(last[:, 1]), f"{last[0, 2]:.0f}", f"`{values[-1]}`"]


if __name__ == "__main__":
    main()
