"""The loop of a run: step, evaluate, stop. It does not use folders, files or displays."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from fedopt.algorithms.checks import first_state, first_step
from fedopt.errors import UserError
from fedopt.federation import ranks
from fedopt.metrics import COSTS
from fedopt.problems import Nested, measured
from fedopt.running.assemble import Experiment

MOVED_BY, STILL = 20, 1e-2  # after 20 rounds, x should have moved by 1% of its start (or of 1)
IDLE = 100  # number of rounds after which a run that uses none of its budget fails
Row = dict[str, Any]  # a row of metrics.csv: column -> value
Status = Literal["finished", "diverged"] | None


@dataclass
class Progress:
    """The progress of a run. The algorithm's state and the ledger are stored separately.

    Args:
        round: The number of completed rounds.
        evaluated: Whether the metrics after this round have been computed.
        seconds: The training time in seconds.
        points: The number of parts of the budget (of ``eval.points`` equal ones) that were used up by the last round.
        start: The first value of each metric, by name.
        final: The last value of each metric, by name.
        best: The best value of each metric, by name. Metrics for which neither direction is better are not included.
        to_target: The cost of reaching ``eval.target``, by name of the cost. None: the target is not reached yet.
        diverged: The reason why the run counts as diverged; empty if it has not diverged.
    """

    round: int = 0
    evaluated: bool = False
    seconds: float = 0.0
    points: int = 0
    start: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    to_target: dict[str, Any] | None = None
    diverged: str = ""


class Moment(NamedTuple):
    """The state of a run before the first round, or after a round.

    Args:
        round: The number of completed rounds.
        state: The algorithm's state.
        spent: Fraction of the budget used; 1 or more at the end.
        row: The new row of metrics.csv. None: no metrics were computed.
        improved: Whether metrics were computed, and ``eval.metric`` is better than at all earlier evaluations.
        status: The status with which the run ends. None: the run continues or is interrupted.
        point: The variables that were evaluated; () if no metrics were computed.
    """

    round: int
    state: Any
    spent: float
    row: Row | None
    improved: bool
    status: Status
    point: tuple[Any, ...] = ()


def begin(e: Experiment) -> tuple[Any, Progress]:
    """Return the algorithm's initial state, and the progress before the first round. e: the objects of the run."""
    started = time.perf_counter()
    state = first_state(e.algorithm, e.federation.problem)
    return state, Progress(seconds=time.perf_counter() - started)


def loop(
    e: Experiment, state: Any, progress: Progress, interrupted: Callable[[], bool] = lambda: False
) -> Iterator[Moment]:
    """Run rounds until the budget is used up, the run diverges, or any rank is interrupted.

    A `Moment` is yielded at the start and after each round. If the run is interrupted, the last moment has no status.

    All rows of a run are `[moment.row for moment in loop(e, *begin(e)) if moment.row]`.

    Args:
        e: The objects of the run. The ledger of ``e.federation`` changes in place with each round.
        state: The algorithm's state at the start.
        progress: The progress at the start. It changes in place with each round.
        interrupted: A function without arguments that returns whether to stop after the current round.

    Raises:
        UserError: The rounds do not use the budget, so the run would never end.
    """
    step: Callable[..., Any] = partial(first_step, e.algorithm)
    while True:
        spent = share_spent(e, progress)
        ended = ranks.agree(spent >= 1, e.device)  # the clocks of ranks differ
        row, improved, point = None, False, ()
        status: Status = "finished" if ended else None
        if due(e, progress, ended):
            row, improved, point = evaluate(e, state, progress)
            if progress.diverged:
                status = "diverged"
        yield Moment(progress.round, state, spent, row, improved, status, point)
        if status or ranks.agree(interrupted(), e.device):
            return

        started = time.perf_counter()
        state = step(state, e.federation.problem, e.federation.at(progress.round))
        progress.seconds += time.perf_counter() - started
        progress.round += 1
        progress.evaluated = False
        step = e.algorithm.step


def due(e: Experiment, progress: Progress, ended: bool) -> bool:
    """Return whether metrics are computed after this round. ``progress.points`` is updated in place.

    Args:
        e: The objects of the run.
        progress: The progress of the run.
        ended: Whether this round is the last.
    """
    evaluation, before = e.evaluation, progress.points
    if evaluation.points is None:
        now = progress.round % evaluation.every == 0
    else:
        progress.points = e.budget.segments(evaluation.points, _counts(e, progress))
        now = progress.points > before
    now = now or progress.round in evaluation.at or ended or not progress.final
    return now and not progress.evaluated


def point_of(e: Experiment, state: Any, round: int) -> tuple[Any, ...]:
    """Return the variables of a state, followed by the clients' own models if the algorithm trains any.

    Args:
        e: The objects of the run.
        state: The algorithm's state.
        round: The number of rounds after which the algorithm has this state.
    """
    point = e.algorithm.output(state)
    if not e.own:
        return point
    honest = replace(e.federation.participation, hostile=None, rule=None)
    uncounted = replace(e.federation, participation=honest).at(round)
    algorithm: Any = e.algorithm
    return (*point, algorithm.personal(state, uncounted.problem, uncounted))


def unmoved(e: Experiment, point: tuple[Any, ...], round: int) -> str:
    """Return a note if the outer variable x of a bilevel run has hardly moved, so that its metrics hardly change; otherwise ''.

    Args:
        e: The objects of the run.
        point: The final variables; () if the run has not reached its end.
        round: The number of completed rounds. There is no note after fewer than `MOVED_BY` rounds.
    """
    if not point or not isinstance(e.problem, Nested) or round < MOVED_BY:
        return ""
    start = e.problem.start()[0]
    distance = float((point[0] - start).abs().max())
    if distance > STILL * max(1.0, float(start.abs().max())):
        return ""
    instead = "try a larger step size of x, or, where the method has them, a smaller algo.l or a larger algo.N"
    return f"x has hardly moved in {round} rounds (at most {distance:.2g}); {instead}"


def evaluate(e: Experiment, state: Any, progress: Progress) -> tuple[Row, bool, tuple[Any, ...]]:
    """Compute the metrics, update ``progress`` in place, and return what `noted` returns, followed by the variables.

    Args:
        e: The objects of the run.
        state: The algorithm's state.
        progress: The progress of the run.
    """
    point = point_of(e, state, progress.round)
    return *noted(e, progress, measured(e.problem, e.original, measured_at(e, point))), point


def measured_at(e: Experiment, point: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the variables at which the metrics of the problem are computed, for all variables from `point_of`.

    Args:
        e: The objects of the run.
        point: All variables, with the clients' own models at the end if the algorithm trains any.
    """
    return point if e.problem.own_models or not e.own else point[:-1]


def noted(e: Experiment, progress: Progress, values: dict[str, float]) -> tuple[Row, bool]:
    """Record metrics in ``progress``, which is updated in place.

    An evaluation at which the run diverges is never the best one, and does not reach the target. The first evaluation cannot
    show divergence.

    Args:
        e: The objects of the run.
        progress: The progress of the run.
        values: The metrics.

    Returns:
        The row of metrics.csv, and whether ``eval.metric`` is better than at all earlier evaluations (False if it is not set).
    """
    progress.evaluated = True
    first = not progress.final
    progress.final = {name: float(f"{value:.10g}") for name, value in values.items()}  # as in metrics.csv
    progress.start = progress.start or progress.final
    progress.diverged = "" if first else _divergence(e, progress)
    before = progress.best
    goals = [metric for metric in e.problem.metrics if metric.better != "neither" and not progress.diverged]
    progress.best = before | {m.name: m.best([progress.final[m.name], before.get(m.name, math.nan)]) for m in goals}

    improved, wanted, target = False, e.evaluation.metric, e.evaluation.target
    if wanted is not None and not progress.diverged:
        improved = progress.final[wanted] == progress.best.get(wanted) != before.get(wanted)
        metric = next(metric for metric in e.problem.metrics if metric.name == wanted)
        if progress.to_target is None and target is not None and metric.reached(progress.final[wanted], target):
            progress.to_target = costs(e, progress)
    return {**_counts(e, progress), **progress.final}, improved


def _divergence(e: Experiment, progress: Progress) -> str:
    """Return the reason why the run counts as diverged; '' if it has not diverged.

    A run diverges if a metric is not finite, or if the magnitude of a metric with ``Metric.bounds`` exceeds this limit::

        eval.diverged * max(1, magnitude of the metric at the start)

    Args:
        e: The objects of the run.
        progress: The progress of the run, with the first and the last metrics.
    """
    for metric in e.problem.metrics:
        name, value, most = metric.name, progress.final[metric.name], e.evaluation.diverged
        limit = most * max(1.0, abs(progress.start.get(name, 0.0)))
        if not math.isfinite(value):
            return f"{name} is not finite"
        if metric.bounds and abs(value) > limit:
            return f"{name} {value:.5g} is beyond {limit:.5g}, eval.diverged={most:g} times its start (at least 1)"
    return ""


def share_spent(e: Experiment, progress: Progress) -> float:
    """Return the fraction of the budget used. The run ends at 1.

    Args:
        e: The objects of the run.
        progress: The progress of the run.

    Raises:
        UserError: If many rounds use nothing of the budget, so that the run would never end.
    """
    spent = e.budget.spent(_counts(e, progress))
    if progress.round >= IDLE and not spent:
        raise UserError(f"budget: the rounds do not use any {' or '.join(e.budget.limits)}; set budget.rounds")
    return spent


def costs(e: Experiment, progress: Progress) -> dict[str, float]:
    """Return the costs of the run so far, keyed by the names in `COSTS`.

    Args:
        e: The objects of the run.
        progress: The progress of the run.
    """
    counts = _counts(e, progress)
    return {name: round(cost.of(counts), 3) for name, cost in COSTS.items()}


def _counts(e: Experiment, progress: Progress) -> Row:
    """Return the costs of the run so far, keyed by column of metrics.csv.

    Args:
        e: The objects of the run.
        progress: The progress of the run.
    """
    return {"round": progress.round, **e.federation.ledger.columns(), "train_seconds": progress.seconds}
