"""Several configurations of one algorithm in one computation: they share the data, cohorts, samples and counts."""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedopt.algorithms import Algorithm
from fedopt.blame import blamed
from fedopt.config import Composed, Work
from fedopt.errors import first_line, of_machine
from fedopt.federation import (
    Alone,
    Federation,
    Ledger,
    Place,
    Separate,
    Varied,
    Vectorised,
    largest_stack,
    size_in_bytes,
)
from fedopt.running.assemble import Experiment, assemble, participation_of
from fedopt.running.failure import reason
from fedopt.running.loop import (
    Moment,
    Progress,
    Row,
    begin,
    due,
    evaluate,
    loop,
    measured_at,
    noted,
    point_of,
    share_spent,
)

TRIED = 1  # the round of a stack that one configuration also does alone, to compare the times; round 0 is slower
EVALUATED = 4 * 2**20  # bytes of the variables of the configurations that are evaluated together


@dataclass
class Outcome:
    """The outcome of one configuration.

    Args:
        rows: The rows of metrics.csv. Their train_seconds are the configuration's share of the time of its stack.
        status: How the run ended: finished, diverged or failed. It is empty until then.
        error: What failed, in one line.
        alone: Why it was run alone; empty if it was computed together with others to the end.
        done: The fraction of its work that is done.
        at_end: The state, progress and ledger at the end, if it was computed together with others to the end.
        others: How many others it was computed with.
    """

    rows: list[Row] = field(default_factory=list)
    status: str = ""
    error: str = ""
    alone: str = ""
    done: float = 0.0
    at_end: tuple[Any, Progress, Ledger] | None = None
    others: int = 0

    def fail(self, error: Exception) -> None:
        """Note that the run failed. Raises the error if it is one of the machine, which says nothing about the configuration."""
        if of_machine(error):
            raise error
        self.status, self.error, self.done = "failed", reason(blamed(error) or error), 1.0

    def moments(self, e: Experiment, progress: Progress) -> Iterator[Moment]:
        """Yield the evaluations of a configuration that was computed together with others, as `loop` does.

        The state is known at the last one only; then ``progress`` and the ledger of ``e.federation`` are set too.
        """
        assert self.at_end is not None
        for row in self.rows[:-1]:
            yield Moment(row["round"], None, 0.0, row, False, None)
        state, there, e.federation.ledger = self.at_end
        vars(progress).update(vars(there))
        status: Any = self.status
        yield Moment(progress.round, state, 1.0, self.rows[-1], False, status)


def at_once(
    configs: Sequence[Composed],
    watch: Callable[[float], object] = lambda share: None,
    outcomes: list[Outcome] | None = None,
    processes: int = 1,
    fallback: bool = True,
) -> list[Outcome]:
    """Run several configurations that differ only in keys of the algorithm, and return their outcomes in the same order.

    The problem is set up once. Configurations that differ only in real numbers are computed together where that is possible
    and faster; the others run alone, and their outcome says why. One that raises an exception fails, and the others continue.

    Args:
        configs: The configurations, all with the same seed.
        watch: A function that is called with the fraction of the work that is done.
        outcomes: An empty list to which the outcomes are added at the start, so that the caller can watch them change.
        processes: The number of processes that share the machine.
        fallback: Whether to run alone what cannot be computed together. If not, its outcome has no status.

    Raises:
        Exception: An error of the machine, such as running out of memory.
    """
    outcomes, algorithms = [] if outcomes is None else outcomes, dict[int, Algorithm]()
    outcomes += [Outcome() for _ in configs]
    e: Experiment | None = None
    for number, config in enumerate(configs):
        try:
            e = e or assemble(config, processes)
            participation_of(config, e.original.clients)
            algorithms[number] = config.parts["algo"]
        except Exception as error:
            outcomes[number].fail(error)
    if e is not None:
        some = [outcomes[number] for number in algorithms]
        run(e, [*algorithms.values()], some, lambda: watch(sum(one.done for one in outcomes) / len(outcomes)), fallback)
    return outcomes


def run(
    e: Experiment,
    algorithms: Sequence[Algorithm],
    outcomes: Sequence[Outcome],
    on_change: Callable[[], object],
    fallback: bool = True,
) -> None:
    """Run an experiment with each of several configurations of its algorithm.

    Args:
        e: The experiment. Its own algorithm and ledger are not used.
        algorithms: The configurations.
        outcomes: The outcome of each, which changes in place.
        on_change: A function that is called whenever the outcomes have changed.
        fallback: As in `at_once`.
    """
    groups: dict[str, list[int]] = {}  # those that differ only in real numbers
    for number, algorithm in enumerate(algorithms):
        groups.setdefault(repr(mapped(lambda value: 0.0, algorithm)), []).append(number)
    most = largest_stack(size_in_bytes(e.problem.start()) * e.problem.clients)
    why = _cannot(e) or ("the variables of all clients fill a stack" if most == 1 else "")
    cut = [part for group in groups.values() for part in np.array_split(group, -(-len(group) // most))]
    stacks = [_Stack(e, [algorithms[n] for n in part], [outcomes[n] for n in part]) for part in cut]
    while stacks:
        stack = stacks.pop()
        try:
            if why or len(stack.outcomes) == 1:
                raise Alone(why or "no other configuration has the same choices and takes the same branches")
            stacks += stack.advanced()
        except Separate as error:
            branch = np.unique(error.answers, return_inverse=True)[1]
            parts = (stack.only(np.flatnonzero(branch == one).tolist()) for one in range(branch.max() + 1))
            stacks += [part for part in parts if part.outcomes]
        except Exception as error:  # such as torch's about an operation that vmap cannot do
            for n in stack.going:
                stack.outcomes[n].alone = first_line(error)
                if fallback:
                    stack.only([n]).alone(on_change)
        on_change()


def _cannot(e: Experiment) -> str:
    """Return why configurations of an experiment cannot be computed together; empty if they may be.

    Args:
        e: The experiment.
    """
    if e.problem.one_by_one:
        return f"torch.vmap cannot run this problem ({e.problem.one_by_one})"
    if not e.federation.participation.punctual:
        return "late clients answer messages of one configuration"
    if e.federation.rule and e.federation.rule.kind == "clipping":
        return "the rule clipping stores its last result for one configuration"
    return "budget.seconds limits the time of one configuration" if "seconds" in e.budget.limits else ""


def mapped(function: Callable[[float], Any], value: Any) -> Any:
    """Return a value, such as an algorithm, with ``function(number)`` in place of each real number; local work stays as it is."""
    if isinstance(value, float):
        return function(value)
    if isinstance(value, list | tuple):
        parts = [mapped(function, part) for part in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type | Work):
        value = copy(value)
        for name, part in vars(value).items():
            object.__setattr__(value, name, mapped(function, part))
    return value


def merged(algorithms: Sequence[Algorithm], place: Place) -> Any:
    """Return one algorithm with a `Varied` in place of each real number that differs. Nothing else may differ.

    Args:
        algorithms: The configurations of the algorithm.
        place: The index of the configuration that is computed, under vmap.
    """
    numbers: list[list[float]] = [[] for _ in algorithms]
    for algorithm, found in zip(algorithms, numbers, strict=True):
        mapped(found.append, algorithm)
    columns = iter(np.array(numbers).T)

    def one(number: float) -> Any:
        values = next(columns)
        return Varied(values, place) if np.ptp(values) else number

    return mapped(one, algorithms[0])


@dataclass
class _Stack:
    """Configurations that are computed together.

    e: the experiment, with the ledger of this stack. algorithms, outcomes, progress: of each configuration.
    state: the states of all, as one state in which each tensor has a leading dimension; () before it begins.
    """

    e: Experiment
    algorithms: Sequence[Algorithm]
    outcomes: Sequence[Outcome]
    progress: Sequence[Progress] = ()
    state: Any = ()

    def __post_init__(self) -> None:
        self.e = replace(self.e, federation=self.federation())
        self.progress = self.progress or [Progress() for _ in self.outcomes]
        self.place = Place()
        self.merged = merged(self.algorithms, self.place)
        self.age = 0  # rounds of this stack
        # How many configurations are evaluated together, which bounds memory; 1 if the problem cannot evaluate several
        self.measured = EVALUATED // size_in_bytes(self.e.problem.start())

    def federation(self) -> Federation:
        """Return the federation with a ledger of its own."""
        federation = copy(self.e.federation)
        federation.ledger = deepcopy(federation.ledger)
        return federation

    @property
    def going(self) -> list[int]:
        """The configurations that have not ended."""
        return [n for n, outcome in enumerate(self.outcomes) if not outcome.status]

    def only(self, numbers: Sequence[int]) -> "_Stack":
        """Return a stack of the configurations in ``numbers`` that have not ended.

        Args:
            numbers: The indices of the configurations in this stack.
        """
        going = [n for n in self.going if n in numbers]
        parts: list[Any] = [[part[n] for n in going] for part in (self.algorithms, self.outcomes, self.progress)]
        return _Stack(self.e, parts[0], parts[1], parts[2], tree_map(lambda leaf: leaf[going], self.state))

    def of(self, n: int) -> Any:
        """Return the state of one configuration.

        Args:
            n: The index of the configuration in this stack.
        """
        return tree_map(lambda leaf: leaf[n], self.state)

    def computed(self, call: Callable[[Algorithm, Any], Any], at_once: int | None = None) -> Any:
        """Return ``call(algorithm, state)`` for all configurations.

        Each tensor in the result has a leading dimension, the index of the configuration.

        at_once: the largest number of configurations that are computed together; None for all.
        """

        def one(index: Tensor, state: Any) -> Any:
            self.place.begin(index)
            return call(self.merged, state)

        indices = torch.arange(len(self.outcomes), device=self.e.device)
        return torch.func.vmap(one, chunk_size=at_once)(indices, self.state)

    def advanced(self) -> list["_Stack"]:
        """Take metrics if they are due; then do a round or drop the configurations that have ended.

        Returns:
            [self] after a round. If at least half of the configurations have ended, no round is done: the result is a new
            stack of the others, or [] if none is left.
        """
        clock = self.progress[0]
        if not self.state:
            self._timed(lambda algorithm, _: algorithm.init(self.e.federation.problem))
        share = share_spent(self.e, clock)
        if due(self.e, clock, share >= 1):
            self._evaluate()
        for n in self.going:
            self.outcomes[n].done = min(share, 1.0)
            if share >= 1:
                self._end(n, "finished")
        if 2 * len(self.going) <= len(self.outcomes):
            return [self.only(self.going)] if self.going else []
        self._round(clock.round)
        return [self]

    def _round(self, r: int) -> None:
        """Do round r. Raises Alone if the round that is also done alone shows that the configurations are faster alone."""
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter  # other processes do not count
        federation, alone, n, started = self.federation(), 0.0, self.going[0], clock()
        federation.engine = Vectorised()
        if self.age == TRIED:
            self.algorithms[n].step(self.of(n), federation.problem, self.federation().at(r))
            alone, started = clock() - started, clock()
        self._timed(lambda algorithm, state: algorithm.step(state, federation.problem, federation.at(r)))
        self.e.federation.ledger = federation.ledger
        for progress in self.progress:
            progress.round, progress.evaluated = r + 1, False
        self.age += 1
        if 0 < alone * len(self.outcomes) < clock() - started:
            raise Alone("each configuration is faster alone")

    def _timed(self, call: Callable[[Algorithm, Any], Any]) -> None:
        """Set the state to what ``call(algorithm, state)`` returns, and add the seconds it takes to each progress, in equal shares.

        Args:
            call: A function of the algorithm and the state of one configuration, which returns the new state.
        """
        started = time.perf_counter()
        self.state = self.computed(call)
        seconds = time.perf_counter() - started
        for progress in self.progress:
            progress.seconds += seconds / len(self.outcomes)

    def _evaluate(self) -> None:
        """Take the metrics of each configuration, and note which ones diverge."""
        values = self._metrics() if self.measured > 1 else None
        for n in self.going:
            progress, outcome = self.progress[n], self.outcomes[n]
            progress.points = self.progress[0].points
            if values is None:
                row = evaluate(replace(self.e, algorithm=self.algorithms[n]), self.of(n), progress)[0]
            else:
                row = noted(self.e, progress, {name: of_all[n] for name, of_all in values.items()})[0]
            outcome.rows.append(row)
            if progress.diverged:
                self._end(n, "diverged")

    def _end(self, n: int, status: str) -> None:
        """Note how a configuration ended, and where.

        Args:
            n: The index of the configuration in this stack.
            status: finished or diverged.
        """
        outcome = self.outcomes[n]
        outcome.status, outcome.done, outcome.others = status, 1.0, len(self.outcomes) - 1
        outcome.at_end = self.of(n), copy(self.progress[n]), self.e.federation.ledger

    def _metrics(self) -> dict[str, list[float]] | None:
        """Return the metrics of all configurations; None if the problem's cannot be computed together."""

        def of_one(algorithm: Algorithm, state: Any) -> list[Tensor]:
            point = measured_at(self.e, point_of(replace(self.e, algorithm=algorithm), state, self.progress[0].round))
            finite = torch.stack([v.isfinite().all() for v in point]).all()
            values = self.e.problem.evaluate(*point)
            in_double = (torch.as_tensor(values[metric.name], dtype=torch.float64) for metric in self.e.problem.metrics)
            return [torch.where(finite, value, torch.nan) for value in in_double]

        try:
            of_all = self.computed(of_one, self.measured)
        except Exception:  # such as of float() of a tensor
            self.measured = 1
            return None
        return {m.name: values.tolist() for m, values in zip(self.e.problem.metrics, of_all, strict=True)}

    def alone(self, on_change: Callable[[], object]) -> None:
        """Run the one configuration of this stack by itself, from where it is.

        Args:
            on_change: A function that is called after each round.
        """
        (outcome,), e = self.outcomes, replace(self.e, algorithm=self.algorithms[0])
        try:
            state, progress = (self.of(0), self.progress[0]) if self.state else begin(e)
            for moment in loop(e, state, progress):
                outcome.rows += [moment.row] if moment.row else []
                outcome.done = 1.0 if moment.status else min(moment.spent, 1.0)
                on_change()
            outcome.status = moment.status or ""
        except Exception as error:
            outcome.fail(error)
