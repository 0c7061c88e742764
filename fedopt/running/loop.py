"""One run as a loop: step, evaluate, stop. It knows no folder, no file and nobody who watches."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from pydantic import NonNegativeFloat, NonNegativeInt

from fedopt.algorithms.checks import first_state, first_step
from fedopt.federation import ranks
from fedopt.problems.checks import measured
from fedopt.running.assemble import Experiment
from fedopt.running.clock import clock

Row = dict[str, Any]  # of metrics.csv: a value for each column
Status = Literal["finished", "diverged"] | None


@dataclass
class Progress:
    """How far a run is, besides the algorithm's state and the ledger.

    round: rounds done; evaluated: whether the metrics of this round were taken; seconds: of training.
    final, best: the last and the best value of each metric by name. best leaves out metrics that are only watched.
    points: parts of the budget, by eval.points, that were spent at the last round.
    to_target: what it cost to reach eval.target, as `costs` gives it; None while it is not reached.
    """

    round: NonNegativeInt = 0
    evaluated: bool = False
    seconds: NonNegativeFloat = 0.0
    points: NonNegativeInt = 0
    final: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    to_target: dict[str, Any] | None = None


class Moment(NamedTuple):
    """The end of a round, or the start.

    round: rounds done; state: the algorithm's; spent: the share of the budget that is spent, 1 or more at the end.
    row: an evaluation, None where there is none; improved: whether its value of eval.metric is the best so far.
    status: how the run ends here; None where it does not.
    """

    round: int
    state: Any
    spent: float
    row: Row | None
    improved: bool
    status: Status


def begin(e: Experiment) -> tuple[Any, Progress]:
    """The algorithm's first state, and the progress of a run that begins with it."""
    now = clock()
    started = now()
    state = first_state(e.algorithm, e.problem)
    return state, Progress(seconds=now() - started)


def loop(
    e: Experiment, state: Any, progress: Progress, interrupted: Callable[[], bool] = lambda: False
) -> Iterator[Moment]:
    """Go on from a state until the budget is spent, the run diverges, or it is interrupted on any rank. Yields each moment.

    The rows of a run: `[moment.row for moment in loop(e, *begin(e)) if moment.row]`.
    progress, and the ledger of e.federation, are those of the moment that was yielded last.
    """
    now = clock()
    step: Callable[..., Any] = partial(first_step, e.algorithm)
    while True:
        spent, first = share_spent(e, progress), not progress.final
        ended = ranks.agree(spent >= 1, e.device)  # clocks differ
        due = _due(e, progress)
        row, improved = None, False
        status: Status = "finished" if ended else None
        if not progress.evaluated and (first or due or ended):
            row, improved = evaluate(e, state, progress)
            if not first and diverged(e, progress):
                status = "diverged"
        yield Moment(progress.round, state, spent, row, improved, status)
        if status or ranks.agree(interrupted(), e.device):
            return

        started = now()
        state = step(state, e.problem, e.federation.at(progress.round))
        progress.seconds += now() - started
        progress.round += 1
        progress.evaluated = False
        step = e.algorithm.step


def _due(e: Experiment, progress: Progress) -> bool:
    """Whether metrics are taken in this round."""
    evaluation = e.evaluation
    if evaluation.points is None:
        return progress.round % evaluation.every == 0 or progress.round in evaluation.at
    before, progress.points = progress.points, e.budget.parts(evaluation.points, **_used(e, progress))
    return progress.points > before or progress.round in evaluation.at


def evaluate(e: Experiment, state: Any, progress: Progress) -> tuple[Row, bool]:
    """Take the metrics and write them down in the progress. Returns the row, and whether eval.metric improved."""
    values = measured(e.problem, e.original, e.algorithm.output(state))
    progress.evaluated = True
    progress.final = {name: float(f"{value:.10g}") for name, value in values.items()}  # as in metrics.csv
    before = progress.best
    goals = [metric for metric in e.problem.metrics if metric.better != "neither"]
    progress.best = {m.name: m.best([progress.final[m.name], before.get(m.name, math.nan)]) for m in goals}

    improved, wanted, target = False, e.evaluation.metric, e.evaluation.target
    if wanted is not None:
        improved = progress.final[wanted] == progress.best.get(wanted) != before.get(wanted)
        metric = next(metric for metric in e.problem.metrics if metric.name == wanted)
        if progress.to_target is None and target is not None and metric.reached(progress.final[wanted], target):
            progress.to_target = costs(e, progress)
    columns = e.federation.ledger.columns()
    return {"round": progress.round, **columns, "train_seconds": progress.seconds, **progress.final}, improved


def diverged(e: Experiment, progress: Progress) -> bool:
    """Whether the last evaluation has a value that is not finite, or one beyond eval.diverged of a metric that bounds it."""
    bounded = {metric.name for metric in e.problem.metrics if metric.bounds}
    limit = e.evaluation.diverged
    return any(not math.isfinite(v) or (name in bounded and abs(v) > limit) for name, v in progress.final.items())


def share_spent(e: Experiment, progress: Progress) -> float:
    """The share of the budget that is spent, by the limit that ends the run."""
    return e.budget.spent(**_used(e, progress))


def _used(e: Experiment, progress: Progress) -> dict[str, float]:
    """What was spent of each limit that a budget can have."""
    ledger = e.federation.ledger
    return {
        "rounds": progress.round,
        "comm_rounds": ledger.comm_rounds,
        "bytes": ledger.total_bytes,
        "seconds": progress.seconds,
        "oracle_calls": ledger.calls.total,
    }


def costs(e: Experiment, progress: Progress) -> dict[str, Any]:
    """Rounds, communication rounds, bytes to and from all clients, and seconds of training so far."""
    ledger = e.federation.ledger
    spent = {"round": progress.round, "comm_rounds": ledger.comm_rounds, "bytes": ledger.total_bytes}
    return spent | {"seconds": round(progress.seconds, 3)}
