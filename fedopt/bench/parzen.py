"""The use of Optuna: it proposes the points of a search, and its dashboard can read the trials."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import create_trial

from fedopt.bench.space import Point, Range

if TYPE_CHECKING:
    from fedopt.bench.trials import Trial

optuna.logging.set_verbosity(optuna.logging.WARNING)


class _Lines(BaseJournalBackend):
    """An Optuna journal in memory."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.logs += logs


def journal(studies: "Mapping[str, tuple[Mapping[str, Range], Sequence[tuple[Point, Trial]]]]") -> str:
    """Return the text of a journal file for Optuna's dashboard. studies: name -> (ranges, (point, trial) pairs)."""
    lines = _Lines()
    storage = optuna.storages.JournalStorage(lines)
    for name, (ranges, trials) in studies.items():
        study = optuna.create_study(storage=storage, study_name=name)
        for point, trial in trials:
            study.add_trial(_frozen(ranges, point, trial))
    return "".join(f"{json.dumps(line)}\n" for line in lines.logs)


def _distributions(ranges: Mapping[str, Range]) -> dict[str, optuna.distributions.BaseDistribution]:
    distributions: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, values in ranges.items():
        low, high = values.ends[0], values.ends[-1]
        if values.kind == "choice":
            distributions[key] = optuna.distributions.CategoricalDistribution(values.ends)
        elif values.kind == "int":
            distributions[key] = optuna.distributions.IntDistribution(*values.ends)
        else:
            distributions[key] = optuna.distributions.FloatDistribution(low, high, log=values.kind == "log")
    return distributions


def _frozen(ranges: Mapping[str, Range], point: Point, trial: "Trial") -> optuna.trial.FrozenTrial:
    """Return a trial as an Optuna trial. Values outside their ranges are left out."""
    types: dict[str, Any] = {"choice": str, "int": int}
    params = {key: types.get(ranges[key].kind, float)(text) for key, text in point.items() if ranges[key].holds(text)}
    within = _distributions({key: ranges[key] for key in params})
    ends = {"ended": trial.status, "values": trial.values}
    return create_trial(params=params, distributions=within, value=trial.loss, user_attrs=ends)


def proposed(
    ranges: Mapping[str, Range], before: "Iterable[Trial]", count: int, seed: int, trials: int
) -> Iterator[Point]:
    """Yield points, proposed by Optuna's tree-structured Parzen estimator (TPE) from earlier trials.

    Earlier trials with other keys, or with a value outside its range, are ignored.

    ranges: key -> range. before: the trials so far. count: the number of points. seed: of the proposals.
    trials: the planned number of trials. Points are random until a third of it (at least 2, at most 10) are known.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        startup = max(2, min(10, trials // 3))
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=startup)
    study = optuna.create_study(sampler=sampler)
    for trial in before:
        if {*trial.point} == {*ranges} and all(ranges[key].holds(text) for key, text in trial.point.items()):
            study.add_trial(_frozen(ranges, trial.point, trial))
    distributions = _distributions(ranges)
    for _ in range(count):
        params = study.ask(distributions).params
        yield {key: f"{v:.4g}" if isinstance(v, float) else str(v) for key, v in params.items()}
