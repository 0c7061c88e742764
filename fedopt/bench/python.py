"""`fedopt.tune` and `fedopt.bench.enter`: what `fedopt-tune` and `fedopt-bench enter` do, for scripts and notebooks."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from fedopt.bench.outcome import remarks, table, winners, with_values, write_searches
from fedopt.bench.space import words_of
from fedopt.bench.trials import How
from fedopt.bench.tune import planned_searches, search_all
from fedopt.config import TURN, with_project
from fedopt.errors import UserError, need
from fedopt.files import write_atomically, yaml_text
from fedopt.jobs import Local


@dataclass(frozen=True)
class Tuning:
    """What `tune` returns.

    Args:
        best: algorithm -> the overrides of its best trial, to be added to those of the search; [] if the defaults are best.
            Algorithms without a value are absent.
        trials: One row per trial.
        winners: One row per algorithm that has a value.
        folder: The folder with all runs and ``tuned/<algorithm>.yaml``. Pass it as a config folder to use the tuned values.
        remarks: The reasons to trust the best values less, such as a value at an edge of its range.
    """

    best: dict[str, list[str]]
    trials: pd.DataFrame
    winners: pd.DataFrame
    folder: Path
    remarks: list[str]


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
) -> Tuning:
    """Search for good hyperparameters of each method, as ``fedopt-tune`` does. Repeat the call to resume a stopped search.

    All methods get the same number of trials, the same seeds and the same budget per run.

    Args:
        words: The command's arguments, as a list or as one string with shell quoting: ``algo=NAME,... problem=NAME``, other
            settings, and ranges such as ``algo.eta=log(0.001,1)``. Without a range, the keys with a 'tuned as' comment in the
            algorithm's file are searched.
        output_dir: The folder of the search.
        metric: The metric to optimise. None: the problem's first metric on validation data, else its first metric.
        budget: The budget of each run, such as ``comm_rounds=300``. Required for several methods, unless ``words`` set it.
        jobs: The number of runs at the same time.
        folders: Your config folders.
        trials: The number of points to try for each method, besides its defaults.
        seeds: The number of runs of each trial; the trial's value is their median.
        sampler: How points are chosen: tpe, sobol, random or grid.
        seed: The seed of the sampler.

    Returns:
        The best values and all trials. A method none of whose trials has a value is in ``trials`` only.

    Raises:
        UserError: There is a mistake in the arguments, or the folder holds another search.
        Unfinished: Some runs did not finish.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    need("fedopt.tune", "optuna", "tune")
    given = shlex.split(words) if isinstance(words, str) else [*words]
    folder, how = Path(output_dir).absolute(), How(trials, seeds, sampler, seed)
    with TURN:
        from fedopt.running import restored  # which imports torch

        with restored():
            searches = planned_searches(given, with_project(folders), metric, budget, how, folder)
            search_all(searches, folder, Local(jobs))
    good = with_values(searches)
    if good:
        write_searches(good, folder)
    best = {search.algo: words_of(search.best.point) for search in good}
    return Tuning(best, table(searches), winners(good), folder, [*remarks(good)])


def enter(
    method: str | type,
    *,
    output_dir: str | Path,
    tasks: Sequence[str] = (),
    ranges: Mapping[str, str] | None = None,
    jobs: int = 1,
    folders: str | Path | Sequence[str | Path] = (),
) -> pd.DataFrame:
    """Run a method on tasks of the benchmark, and rank it with the results that come with fedopt, as ``fedopt-bench enter`` does.

    Only the new method is run. Repeat the call to go on with a stopped one. The contract of algorithms is not tested here.

    Args:
        method: The name of an algorithm, or its class. A class must be in a module that can be imported, and its keys need
            defaults. Its config is written into ``output_dir/conf``.
        output_dir: The folder of the runs and of the pages.
        tasks: Names of tasks. Empty: all on which the method can run.
        ranges: key -> range or role, such as ``{"algo.eta": "x / algo.K"}``. None: by the 'tuned as' comments of its file. A class
            needs them.
        jobs: The number of runs at the same time.
        folders: Your config folders.

    Returns:
        Who is first on each task, with the share of searches in which it is, one column per currency.

    Raises:
        UserError: The method cannot run, or a class has no ranges or no defaults.
        Unfinished: Some runs did not finish.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    from fedopt.bench.pages import write_pages
    from fedopt.bench.pool import Pools
    from fedopt.bench.release import released, with_newer
    from fedopt.bench.suite import Entries
    from fedopt.bench.suite import tasks as tasks_of

    out, own = Path(output_dir).absolute(), Path(output_dir).absolute() / "conf"
    name = method if isinstance(method, str) else method.__name__.lower()
    nodes: dict[str, Any] = {}
    if isinstance(method, type):
        if method.__module__ == "__main__" or not ranges:
            raise UserError(
                f"enter: {method.__name__} must be in a module that can be imported, and ranges must say what is searched"
            )
        if missing := [
            f.name for f in fields(method) if f.init and f.default is MISSING and f.default_factory is MISSING
        ]:
            raise UserError(f"enter: {method.__name__} has no default for {', '.join(missing)}; give it one")
        keys = {f.name: f.default for f in fields(method) if f.init and f.default is not MISSING}
        nodes["algo"] = {"algo": {"_target_": f"{method.__module__}.{method.__qualname__}", **keys}}
    if ranges:
        nodes[f"bench/entries/{name}"] = {"entries": {name: {"ranges": dict(ranges)}}}
    for place, node in nodes.items():
        path = own / (f"algo/{name}.yaml" if place == "algo" else f"{place}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "# @package _global_\n" if place == "algo" else ""
        write_atomically(path, (head + yaml_text(node)).encode())
    every = [*with_project(folders), *([str(own)] if nodes else [])]
    with TURN:
        from fedopt.running import restored  # which imports torch

        with restored():
            entries = Entries(every)
            entries.enter(name, every)
            pools, chosen = Pools(out, entries, every), tasks_of(tasks, every)
            chosen = chosen if tasks else [task for task in chosen if pools.fits(task, name)]
            for task in chosen:
                pools.run(task, [name], Local(jobs))
    table = with_newer(released(out), pools.table(chosen))
    write_pages(table, chosen, entries, out / "pages", every)
    return pd.read_csv(out / "pages" / "firsts.csv")
