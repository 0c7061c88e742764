"""One run as a loop: step, evaluate, stop. It knows no folders, files or displays."""

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

MOVED_BY, STILL = 20, 1e-2  # after so many rounds x, in units of its start or 1, should have moved by more
IDLE = 100  # rounds, after which a run that spends nothing of its budget ends
Row = dict[str, Any]  # of metrics.csv: a value for each column
Status = Literal["finished", "diverged"] | None


@dataclass
class Progress:
    """How far a run is, besides the algorithm's state and the ledger.

    Args:
        round: Rounds done.
        evaluated: Whether the metrics of this round were taken.
        seconds: Seconds of training.
        points: How many of the eval.points parts of the budget were spent at the last round.
        start: The first value of each metric, by name.
        final: The last value of each metric, by name.
        best: The best value of each metric, by name, without metrics for which neither direction is better.
        to_target: What it cost to reach eval.target, as `costs` returns it. None: it is not reached yet.
        diverged: How the last evaluation shows that the run diverges; empty if it does not.
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
        round: Rounds done.
        state: The algorithm's state.
        spent: The fraction of the budget that is spent; 1 or more at the end.
        row: The row of metrics.csv if metrics were taken, else None.
        improved: Whether metrics were taken, and eval.metric is better than at all earlier evaluations.
        status: How the run ends here; None if it continues or is interrupted.
        point: The variables that were evaluated; () if metrics were not taken.
    """

    round: int
    state: Any
    spent: float
    row: Row | None
    improved: bool
    status: Status
    point: tuple[Any, ...] = ()


def begin(e: Experiment) -> tuple[Any, Progress]:
    """Return the algorithm's first state, and the progress of a run that begins."""
    started = time.perf_counter()
    state = first_state(e.algorithm, e.problem)
    return state, Progress(seconds=time.perf_counter() - started)


def loop(
    e: Experiment, state: Any, progress: Progress, interrupted: Callable[[], bool] = lambda: False
) -> Iterator[Moment]:
    """Run from a state until the budget is spent, the run diverges, or any rank is interrupted.

    Yield a `Moment` at the start and after each round. The last one of an interrupted run has no status.

    The rows of a run are `[moment.row for moment in loop(e, *begin(e)) if moment.row]`. ``progress`` and the ledger of
    e.federation change in place; they belong to the moment that was yielded last.

    Args:
        e: The objects of the run.
        state: The algorithm's state.
        progress: How far the run is.
        interrupted: Tells whether to stop after this round.
    """
    step: Callable[..., Any] = partial(first_step, e.algorithm)
    while True:
        spent = share_spent(e, progress)
        if progress.round >= IDLE and not spent:
            raise UserError(f"budget: rounds spend nothing of {' or '.join(e.budget.limits)}; set budget.rounds")
        ended = ranks.agree(spent >= 1, e.device)  # clocks differ
        due = _due(e, progress)
        row, improved, point = None, False, ()
        status: Status = "finished" if ended else None
        if not progress.evaluated and (not progress.final or due or ended):
            row, improved, point = evaluate(e, state, progress)
            if progress.diverged:
                status = "diverged"
        yield Moment(progress.round, state, spent, row, improved, status, point)
        if status or ranks.agree(interrupted(), e.device):
            return

        started = time.perf_counter()
        state = step(state, e.problem, e.federation.at(progress.round))
        progress.seconds += time.perf_counter() - started
        progress.round += 1
        progress.evaluated = False
        step = e.algorithm.step


def _due(e: Experiment, progress: Progress) -> bool:
    """Tell whether metrics are taken after this round. Note in ``progress`` how many parts of the budget are spent."""
    evaluation = e.evaluation
    if evaluation.points is None:
        return progress.round % evaluation.every == 0 or progress.round in evaluation.at
    before, progress.points = progress.points, e.budget.parts(evaluation.points, _counts(e, progress))
    return progress.points > before or progress.round in evaluation.at


def point_of(e: Experiment, state: Any, round: int) -> tuple[Any, ...]:
    """Return the algorithm's variables after so many rounds, and last the clients' own models if it trains some."""
    point = e.algorithm.output(state)
    if not e.own:
        return point
    uncounted = replace(e.federation).at(round)
    algorithm: Any = e.algorithm
    return (*point, algorithm.personal(state, e.problem, uncounted))


def unmoved(e: Experiment, point: tuple[Any, ...], round: int) -> str:
    """Return a note on a bilevel run whose outer variable has hardly moved, so that its metrics stay where they started; else ''.

    point: the variables at the end; () for none. round: the rounds of the run; there is no note after only a few rounds.
    """
    if not point or not isinstance(e.problem, Nested) or round < MOVED_BY:
        return ""
    start = e.problem.start()[0]
    moved = float((point[0] - start).abs().max())
    if moved > STILL * max(1.0, float(start.abs().max())):
        return ""
    return (
        f"in {round} rounds x has moved by at most {moved:.2g} from its start; a larger step size of x moves it, and a smaller "
        "algo.l or larger algo.N where the method has them"
    )


def evaluate(e: Experiment, state: Any, progress: Progress) -> tuple[Row, bool, tuple[Any, ...]]:
    """Take the metrics and note them in ``progress``, which changes in place.

    An evaluation that shows divergence is no best one, and reaches no target. The first one only says where the run starts.

    Return the row of metrics.csv, whether eval.metric is better than at all earlier evaluations (False without
    eval.metric), and the variables.
    """
    point = point_of(e, state, progress.round)
    values = measured(e.problem, e.original, point if e.problem.own_models or not e.own else point[:-1])
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
    return {**_counts(e, progress), **progress.final}, improved, point


def _divergence(e: Experiment, progress: Progress) -> str:
    """Return how the last evaluation shows that the run diverges; '' if it does not.

    A metric is not finite, or a bounded one (`Metric.bounds`) exceeds its limit in magnitude. The limit is eval.diverged times
    the metric's magnitude at the start, or times 1 if that is larger.
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
    """Return the fraction of the budget that is spent, as `Budget.spent` computes it. The run ends at 1."""
    return e.budget.spent(_counts(e, progress))


def costs(e: Experiment, progress: Progress) -> dict[str, float]:
    """Return what the run has spent so far of each of `COSTS`, by name."""
    counts = _counts(e, progress)
    return {name: round(cost.of(counts), 3) for name, cost in COSTS.items()}


def _counts(e: Experiment, progress: Progress) -> Row:
    """Return what the run has spent so far, by the columns of metrics.csv."""
    return {"round": progress.round, **e.federation.ledger.columns(), "train_seconds": progress.seconds}
