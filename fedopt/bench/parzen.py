"""Points proposed by Optuna's model-based sampler."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import optuna
from optuna.trial import create_trial

from fedopt.bench.space import Point, Range

optuna.logging.set_verbosity(optuna.logging.WARNING)


def _distribution(values: Range) -> optuna.distributions.BaseDistribution:
    if values.kind == "choice":
        return optuna.distributions.CategoricalDistribution(values.ends)
    if values.kind == "int":
        return optuna.distributions.IntDistribution(*values.ends)
    return optuna.distributions.FloatDistribution(values.ends[0], values.ends[1], log=values.kind == "log")


def proposed(
    ranges: Mapping[str, Range], before: Iterable[tuple[Point, float]], count: int, seed: int, trials: int
) -> Iterator[Point]:
    """Yield points that Optuna's tree-structured Parzen estimator (TPE) proposes from earlier trials.

    Points are random until a third of the planned trials are known (at least 2, at most 10). A point that has been proposed
    counts as a bad one for the following proposals ("constant liar"), so that a batch does not crowd one place.

    Args:
        ranges: key -> range.
        before: The point and the loss of each trial so far. Trials with other keys or values outside the ranges are ignored.
        count: The largest number of points.
        seed: The seed of the proposals.
        trials: The planned number of trials.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        startup = max(2, min(10, trials // 3))
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=startup, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    distributions = {key: _distribution(values) for key, values in ranges.items()}
    types: dict[str, Any] = {"choice": str, "int": int}
    for point, loss in before:
        if {*point} == {*ranges} and all(ranges[key].holds(text) for key, text in point.items()):
            params = {key: types.get(ranges[key].kind, float)(text) for key, text in point.items()}
            study.add_trial(create_trial(params=params, distributions=distributions, value=loss))
    for _ in range(count):
        params = study.ask(distributions).params
        yield {key: f"{v:.4g}" if isinstance(v, float) else str(v) for key, v in params.items()}
