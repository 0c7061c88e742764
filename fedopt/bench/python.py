"""`fedopt.tune`: what `fedopt tune` does, for scripts and notebooks."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedopt.bench.outcome import remarks, table, winners, with_values, write_searches
from fedopt.bench.space import overrides_of
from fedopt.bench.trials import How
from fedopt.bench.tune import planned_searches, search_all
from fedopt.config import TURN, with_project
from fedopt.errors import need
from fedopt.jobs import Local


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Args:
        best: algorithm -> the overrides of its best trial, to be added to the overrides of the search; [] if the defaults are best.
            Algorithms without a value are absent.
        trials: One row per trial.
        winners: One row per algorithm that has a value.
        folder: The folder of the search. As a config folder it provides the tuned values in ``tuned/<algorithm>.yaml``.
        remarks: The reasons to trust the best values less, such as a value at an edge of its range.
    """

    best: dict[str, list[str]]
    trials: pd.DataFrame
    winners: pd.DataFrame
    folder: Path
    remarks: list[str]


def tune(
    overrides: str | Sequence[str],
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
) -> Tuning:
    """Search for good hyperparameters of algorithms, as ``fedopt tune`` does. Repeat the call to resume a stopped search.

    All algorithms get the same number of trials, the same seeds and the same budget per run. Trials that differ only in real
    numbers are computed together, which is faster. The defaults and the best trial are also run alone, and the results contain
    the values of these runs.

    Args:
        overrides: The command's arguments, as a list or as one string with shell quoting: ``algo=NAME,... problem=NAME``, other
            settings, and ranges such as ``algo.eta=log(0.001,1)``. Without a range, the keys with a 'tuned as' comment in the
            algorithm's file are searched.
        output_dir: The folder of the search.
        metric: The metric to optimise. None: the problem's first metric on validation data, else its first metric.
        budget: The budget of each run, such as ``comm_rounds=300``. Required for several algorithms, unless ``overrides`` set it.
        jobs: The number of parallel processes.
        folders: Your config folders.
        trials: The number of points to try for each algorithm, in addition to its defaults.
        seeds: The number of seeds of each trial. The trial's value is the median.
        sampler: How points are chosen: tpe, sobol, random or grid.
        seed: The seed of the sampler.

    Returns:
        The best values and all trials. An algorithm without a value is only in ``trials``.

    Raises:
        UserError: An argument is invalid, or the folder holds another search.
        Unfinished: Some runs did not finish.
        KeyboardInterrupt: Ctrl-C was pressed.

    Example:
        >>> command = "algo=fedmsa problem=mco algo.alpha=log(0.0001,0.001) budget.rounds=2"
        >>> tuning = fedopt.tune(command, output_dir="search", trials=1, seeds=1)
        [1/3] finished  fedmsa trial 0...
        >>> list(tuning.best)
        ['fedmsa']
    """
    need("fedopt.tune", "optuna", "tune")
    given = shlex.split(overrides) if isinstance(overrides, str) else [*overrides]
    folder, how = Path(output_dir).absolute(), How(trials, seeds, sampler, seed)
    with TURN:
        from fedopt.running import restored  # which imports torch

        with restored():
            searches = planned_searches(given, with_project(folders), metric, budget, how, folder)
            search_all(searches, folder, Local(jobs))
    good = with_values(searches)
    if good:
        write_searches(good, folder)
    best = {search.algo: overrides_of(search.best.point) for search in good}
    return Tuning(best, table(searches), winners(good), folder, [*remarks(good)])
