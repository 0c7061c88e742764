"""`fedopt.tune`: what `fedopt-tune` does, for scripts and notebooks."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedopt.bench.outcome import table, winners, with_values, write_searches
from fedopt.bench.space import words_of
from fedopt.bench.trials import How
from fedopt.bench.tune import planned_searches, search_all
from fedopt.config import TURN, with_project
from fedopt.jobs import Local


@dataclass(frozen=True)
class Tuning:
    """What `tune` returns.

    Args:
        best: The overrides of the best trial, by algorithm.
        trials: One row per trial.
        winners: One row per algorithm.
        folder: The folder with all runs and ``tuned/<algorithm>.yaml``. Used as a config folder, it makes the values apply.
    """

    best: dict[str, list[str]]
    trials: pd.DataFrame
    winners: pd.DataFrame
    folder: Path


def tune(
    words: str | Sequence[str],
    *,
    output_dir: str | Path,
    metric: str | None = None,
    budget: str | None = None,
    jobs: int = 1,
    folders: str | Path | Sequence[str | Path] = (),
    trials: int = 30,
    seeds: int = 2,
    sampler: str = "tpe",
    seed: int = 0,
    prune: bool = True,
    again: bool = True,
) -> Tuning:
    """Search for good values of each method, as ``fedopt-tune`` does. The same call resumes a stopped search.

    All methods have the same trials, seeds and budget.

    Args:
        words: The command's arguments, a list or one text with a shell's quotes: ``algo=NAME,... problem=NAME``, other
            settings, and ranges such as ``algo.eta=log(0.001,1)``.
        output_dir: The folder of the search.
        metric: The metric to optimise. None: the problem's first on validation data, else its first.
        budget: The budget of each run, such as ``comm_rounds=300``; needed for several methods.
        jobs: How many runs go at once.
        folders: Your config folders.
        trials: How many points are tried for each method, besides its defaults.
        seeds: How many runs a trial has; their median counts.
        sampler: How points are chosen: tpe, sobol, random or grid.
        seed: The seed of the points.
        prune: Whether runs stop early that are worse than half of those before.
        again: Whether a search goes on around a best value at the edge of its range, with half as many trials.

    Returns:
        The best values and all trials. A method none of whose trials has a value is in ``trials`` only.

    Raises:
        UserError: There is a mistake in the arguments, or the folder holds another search.
        Unfinished: Runs did not come to an end.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    given = shlex.split(words) if isinstance(words, str) else [*words]
    folder, how = Path(output_dir).absolute(), How(trials, seeds, sampler, seed, prune, again)
    with TURN:
        from fedopt.running import restored  # which imports torch

        with restored():
            searches = planned_searches(given, with_project(folders), metric, budget, how, folder)
            search_all(searches, folder, Local(jobs))
    good = with_values(searches)
    if good:
        write_searches(good, folder)
    best = {search.algo: words_of(search.best.point) for search in good}
    return Tuning(best, table(searches), winners(good), folder)
