"""`fedopt.tune`: what `fedopt-tune` does, for scripts and notebooks."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.bench.outcome import table, winners, with_values, write
from fedopt.bench.space import words_of
from fedopt.bench.trials import How
from fedopt.bench.tune import planned_searches, search_all
from fedopt.jobs.local import Local


@dataclass(frozen=True)
class Tuning:
    """What a search left. best: by algorithm, the words of its best trial; trials: a row each; winners: a row an algorithm.

    folder: has all runs, and tuned/<algorithm>.yaml: as a config folder it makes the values apply.
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
    **how: Any,
) -> Tuning:
    """Search for values of each method: the same trials, seeds and budget for all. The same call goes on where it was stopped.

    words: as of `fedopt-tune`, in one text with the quotes of a shell or a list: algo=NAME,... problem=NAME, other settings, and
        ranges such as algo.eta=log(0.001,1).
    output_dir: the folder of the search. metric: a name; by default the problem's first on validation data, else its first.
    budget: of each run, such as comm_rounds=300. jobs: runs at a time. folders: your config folders.
    how: trials=30, seeds=2, sampler="tpe" (or sobol, random, grid), seed=0, prune=True, again=True, as the options of the command.

    Raises UserError for mistakes; a method without any trial that has a value is in `trials` only. KeyboardInterrupt after Ctrl-C.
    """
    given = shlex.split(words) if isinstance(words, str) else [*words]
    places = [str(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    folder = Path(output_dir).absolute()
    searches = planned_searches(given, places, metric, budget, How(**how), folder)
    search_all(searches, folder, Local(jobs))
    good = with_values(searches)
    if good:
        write(good, folder)
    best = {search.algo: words_of(search.best.point) for search in good}
    return Tuning(best, table(searches), winners(good), folder)
