"""Several configurations of one algorithm in one computation: they share the data, cohorts, samples and counts."""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedopt.algorithms import Algorithm
from fedopt.blame import blamed
from fedopt.config import Composed, Work
from fedopt.errors import first_line, of_machine
from fedopt.federation import Federation, Ledger, ranks
from fedopt.federation.engines import Vectorised, largest_stack
from fedopt.federation.ledger import size_in_bytes
from fedopt.federation.varied import Alone, Place, Separate, Varied
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

TRIED = (
    1,
    2,
)  # the rounds of a stack that one configuration also does alone, to compare the times; round 0 is a slow one


@dataclass
class Outcome:
    """What became of one configuration.

    Args:
        rows: The rows of metrics.csv. Their train_seconds are the configuration's share of the time of its stack.
        status: How the run ended: finished, diverged or failed. It is empty until then.
        error: What failed, in one line.
        alone: Why it was run alone; empty if it was computed together with others to the end.
        share: The fraction of its work that is done.
        at_end: The state, progress and ledger at the end, if it was computed together with others to the end.
        others: How many others it was computed with.
    """

    rows: list[Row] = field(default_factory=list)
    status: str = ""
    error: str = ""
    alone: str = ""
    share: float = 0.0
    at_end: tuple[Any, Progress, Ledger] | None = None
    others: int = 0

    def moments(self, e: Experiment, progress: Progress) -> Iterator[Moment]:
        """Yield the evaluations of a configuration that was computed together with others, as `loop` does.

        The state is known at the last one only; then ``progress`` and the ledger of ``e.federation`` are set too.
        """
        assert self.at_end is not None
        for row in self.rows[:-1]:
            yield Moment(row["round"], None, 0.0, row, False, None)
        state, there, e.federation.ledger = self.at_end
        vars(progress).update(vars(there))
        yield Moment(
            progress.round, state, 1.0, self.rows[-1], False, "finished" if self.status == "finished" else "diverged"
        )

    def end(self, status: str, error: str = "") -> None:
        """Note how the run ended."""
        self.status, self.error, self.share = status, error, 1.0

    def fail(self, error: Exception) -> None:
        """Note that the run failed. An error of the machine is raised again, because it says nothing about the configuration."""
        if of_machine(error):
            raise error
        self.end("failed", reason(blamed(error) or error))


def at_once(
    configs: Sequence[Composed],
    heard: Callable[[Sequence[Outcome]], object] = lambda outcomes: None,
    processes: int = 1,
    fallback: bool = True,
) -> list[Outcome]:
    """Run several configurations that differ only in keys of the algorithm, and return their outcomes in the same order.

    The problem is set up once. Configurations that differ only in real numbers are computed together where that is possible
    and faster; the others run alone, and their outcome says why. One that raises an exception fails, and the others continue.

    Args:
        configs: The configurations, all with the same seed.
        heard: A function that is called with all outcomes so far, at each round.
        processes: The number of processes that share the machine.
        fallback: Whether to run alone what cannot be computed together. If not, its outcome has no status.

    Raises:
        Exception: An error of the machine, such as a full memory.
    """
    outcomes, algorithms = [Outcome() for _ in configs], dict[int, Algorithm]()
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
        run(e, [*algorithms.values()], some, lambda: heard(outcomes), fallback)
    return outcomes


def run(
    e: Experiment,
    algorithms: Sequence[Algorithm],
    outcomes: Sequence[Outcome],
    heard: Callable[[], object] = lambda: None,
    fallback: bool = True,
) -> None:
    """Run an experiment with each of several configurations of its algorithm.

    Args:
        e: The experiment. Its own algorithm and ledger are not used.
        algorithms: The configurations.
        outcomes: The outcome of each, which changes in place.
        heard: A function that is called when they have changed.
        fallback: As of `at_once`.
    """
    groups: dict[Any, list[int]] = {}
    for number, algorithm in enumerate(algorithms):
        groups.setdefault(key_of(algorithm), []).append(number)
    most, why = largest_stack(size_in_bytes(e.problem.start()) * e.problem.clients), _cannot(e)
    cut = [part for group in groups.values() for part in np.array_split(group, -(-len(group) // most))]
    stacks = [_Stack(e, Place(), [algorithms[n] for n in part], [outcomes[n] for n in part]) for part in cut]
    while stacks:
        stack = stacks.pop()
        try:
            if why or len(stack.outcomes) == 1:
                raise Alone(why or "no other configuration has the same choices and takes the same branches")
            stacks += stack.advanced()
        except Separate as error:
            branch = np.unique(error.answers, return_inverse=True)[1]
            parts = (stack.only(np.flatnonzero(branch == one)) for one in range(branch.max() + 1))
            stacks += [part for part in parts if part.outcomes]
        except Exception as error:  # such as torch's about an operation that vmap cannot do
            for n in stack.going:
                stack.outcomes[n].alone = first_line(error)
                if fallback:
                    stack.only([n]).alone(heard)
        heard()


def _cannot(e: Experiment) -> str:
    """Return why configurations of an experiment cannot be computed together; empty if they may be."""
    if e.problem.one_by_one:
        return f"torch.vmap cannot run this problem ({e.problem.one_by_one})"
    if not e.federation.participation.punctual:
        return "late clients answer messages of one configuration"
    if ranks.count() > 1:
        return "several ranks compute the clients of one configuration"
    return "budget.seconds limits the time of one configuration" if "seconds" in e.budget.limits else ""


def key_of(value: Any) -> Any:
    """Return a key that is equal for values that differ only in real numbers, other than amounts of local work."""
    if isinstance(value, float):
        return float
    if isinstance(value, Work):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple((name, key_of(part)) for name, part in sorted(vars(value).items()))
    if isinstance(value, list | tuple):
        return type(value), tuple(map(key_of, value))
    if isinstance(value, dict):
        return dict, tuple((name, key_of(part)) for name, part in value.items())
    return value


def merged(values: Sequence[Any], place: Place) -> Any:
    """Return one value with a `Varied` in place of each real number that differs. The values have equal keys."""
    first = values[0]
    if isinstance(first, float):
        return Varied(np.array(values), place) if len({*values}) > 1 else first
    if is_dataclass(first) and not isinstance(first, type):
        new = copy(first)
        for name in vars(first):
            object.__setattr__(new, name, merged([getattr(value, name) for value in values], place))
        return new
    if isinstance(first, list | tuple):
        parts = [merged(parts, place) for parts in zip(*values, strict=True)]
        return first._make(parts) if hasattr(first, "_make") else type(first)(parts)
    if isinstance(first, dict):
        return {name: merged([value[name] for value in values], place) for name in first}
    return first


@dataclass
class _Stack:
    """Configurations that are computed together.

    e: the experiment, with the ledger of this stack. place: the index of the configuration that is computed, under vmap.
    algorithms, outcomes, progress: of each configuration.
    state: the leaves and the structure of all states as one, in which each tensor has a leading dimension; None before it
        begins.
    """

    e: Experiment
    place: Place
    algorithms: Sequence[Algorithm]
    outcomes: Sequence[Outcome]
    progress: Sequence[Progress] = ()
    state: tuple[list[Any], Any] | None = None

    def __post_init__(self) -> None:
        self.e = replace(self.e, federation=self.federation())
        self.progress = self.progress or [Progress() for _ in self.outcomes]
        self.merged = merged(self.algorithms, self.place)
        self.age = self.losses = (
            0  # rounds of this stack, and those in which it was slower than its configurations alone
        )
        self.measures = True  # whether the metrics of all configurations can be computed together

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
        """Return a stack of those of these configurations that have not ended."""
        going = [n for n in self.going if n in numbers]
        of_each = ([of_all[n] for n in going] for of_all in (self.algorithms, self.outcomes, self.progress))
        return _Stack(
            self.e, self.place, *of_each, self.state and ([_at(leaf, going) for leaf in self.state[0]], self.state[1])
        )

    def of(self, n: int) -> Any:
        """Return the state of one configuration."""
        leaves, structure = self.state or tree_flatten(())
        return tree_unflatten([_at(leaf, n) for leaf in leaves], structure)

    def computed(self, call: Callable[[Algorithm, Any], Any]) -> tuple[list[Any], Any]:
        """Return the leaves and the structure of ``call(algorithm, state)`` for all configurations together."""
        leaves, structure = self.state or tree_flatten(())
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        found: Any = None

        def one(place: Tensor, mine: list[Tensor]) -> list[Tensor]:
            nonlocal found
            rest = iter(mine)
            state = tree_unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)
            self.place.index = place
            found = tree_flatten(call(self.merged, state))
            return [leaf for leaf in found[0] if isinstance(leaf, Tensor)]

        places = torch.arange(len(self.outcomes), device=self.e.device)
        rest = iter(torch.func.vmap(one)(places, tensors))
        return [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in found[0]], found[1]

    def advanced(self) -> list["_Stack"]:
        """Take metrics if they are due, and do a round. Return the stack that continues: [] if all configurations have ended.

        Once half of them have ended, it is a new stack of the others.
        """
        clock = self.progress[0]
        if self.state is None:
            self._timed(lambda algorithm, _: algorithm.init(self.e.problem))
        share = share_spent(self.e, clock)
        if due(self.e, clock, share >= 1):
            self._evaluate()
        for n in self.going:
            self.outcomes[n].share = share
            if share >= 1:
                self._end(n, "finished")
        if 2 * len(self.going) <= len(self.outcomes):
            return [self.only(self.going)] if self.going else []
        self._round(clock.round)
        return [self]

    def _round(self, r: int) -> None:
        federation, alone = self.federation(), 0.0
        federation.engine = Vectorised()
        if self.age in TRIED:
            started = time.perf_counter()
            self.algorithms[0].step(self.of(0), self.e.problem, self.federation().at(r))
            alone = time.perf_counter() - started
        seconds = self._timed(lambda algorithm, state: algorithm.step(state, self.e.problem, federation.at(r)))
        self.e.federation.ledger = federation.ledger
        for progress in self.progress:
            progress.round, progress.evaluated = r + 1, False
        self.age += 1
        self.losses += 0 < alone * len(self.outcomes) < seconds
        if self.losses == len(TRIED):
            raise Alone("each configuration is faster alone")

    def _timed(self, call: Callable[[Algorithm, Any], Any]) -> float:
        """Set the state to what ``call(algorithm, state)`` returns, and return the seconds that it took."""
        started = time.perf_counter()
        self.state = self.computed(call)
        seconds = time.perf_counter() - started
        for progress in self.progress:
            progress.seconds += seconds / len(self.outcomes)
        return seconds

    def _evaluate(self) -> None:
        """Take the metrics of each configuration, and note which ones diverge."""
        values = self._metrics() if self.measures else None
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
        outcome = self.outcomes[n]
        outcome.at_end, outcome.others = (
            (self.of(n), copy(self.progress[n]), self.e.federation.ledger),
            len(self.outcomes) - 1,
        )
        outcome.end(status)

    def _metrics(self) -> dict[str, list[float]] | None:
        """Return the metrics of all configurations; None if the problem's cannot be computed together."""

        def of_one(algorithm: Algorithm, state: Any) -> list[Tensor]:
            point = measured_at(self.e, point_of(replace(self.e, algorithm=algorithm), state, self.progress[0].round))
            finite = torch.stack([v.isfinite().all() for v in point]).all()
            values = self.e.problem.evaluate(*point)
            in_double = (torch.as_tensor(values[metric.name], dtype=torch.float64) for metric in self.e.problem.metrics)
            return [torch.where(finite, value, torch.nan) for value in in_double]

        try:
            of_all = self.computed(of_one)[0]
        except Exception:  # float() of a tensor, for instance
            self.measures = False
            return None
        return {m.name: values.tolist() for m, values in zip(self.e.problem.metrics, of_all, strict=True)}

    def alone(self, heard: Callable[[], object]) -> None:
        """Run the one configuration of this stack by itself, from where it is."""
        (outcome,), e = self.outcomes, replace(self.e, algorithm=self.algorithms[0])
        try:
            state, progress = begin(e) if self.state is None else (self.of(0), self.progress[0])
            for moment in loop(e, state, progress):
                outcome.rows += [moment.row] if moment.row else []
                outcome.share = min(moment.spent, 1.0)
                heard()
            outcome.end(moment.status or "finished")
        except Exception as error:
            outcome.fail(error)


def _at(leaf: Any, places: Any) -> Any:
    """Return a leaf of the state of a stack for one configuration, or for several."""
    if isinstance(leaf, Varied):
        values = leaf.values[places]
        return float(values) if np.ndim(values) == 0 else Varied(values, leaf.place)
    return leaf[places] if isinstance(leaf, Tensor) else leaf
