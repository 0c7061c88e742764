"""Warnings about what makes a comparison unequal. Each generator yields one line per warning."""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from fedopt.analysis.groups import departures, differing, repeats
from fedopt.analysis.runs import DATA, Groups, Recorded, by_problem
from fedopt.analysis.tables import in_bytes, plus_minus
from fedopt.metrics import COSTS
from fedopt.results import OVER

UNEQUAL = 1.1  # amounts whose ratio is larger are named


def unequal(by: Sequence[str], groups: Groups, metric: str, at: float | None) -> Iterator[str]:
    """Yield a line for each thing that makes a comparison of groups unequal, such as different costs.

    Args:
        by: The keys that define the groups.
        groups: label -> runs.
        metric: The metric that is compared.
        at: The cost at which the groups are compared. None: the last values are compared.
    """
    runs = [run for members in groups.values() for run in members]
    pooled = list(dict.fromkeys(key for members in groups.values() for key in differing(members)))
    if mixed := [key for key in pooled if not repeats(key)]:
        yield f"runs that differ in {', '.join(mixed)} are in one group; separate them with --group-by {','.join([*by, *mixed])}"
    if others := [key for key in _besides(by, groups) if key not in pooled]:
        yield f"the groups differ in {', '.join(others)} as well"
    unfinished = {k: its for k, its in groups.items() if any(run.status not in (*OVER, "failed") for run in its)}
    if labels := [with_status(label, members) for label, members in unfinished.items()]:
        yield f"not finished: {'; '.join(labels)}: the table has their latest values; leave these runs out with --exclude"
    yield from _spends(by, groups, runs[0].x, at)
    for label, members in groups.items():
        if worse := sum(_ends_worse(run, metric) for run in members):
            yield f"{label}: {worse} of {len(members)} runs end with a worse {metric} than at round 0; use smaller step sizes"
    yield from _versions(runs)
    yield from _weights(groups)
    yield from _tuning(groups)
    yield from _asked(groups)


def _besides(by: Sequence[str], groups: Groups) -> list[str]:
    """Return the config keys in which groups on the same problem differ, other than the keys in `by`.

    Left out are keys that differ only because another option of a config group is chosen, and the budget and the evaluation
    times, about which there are separate warnings. Departures (keys that change which clients take part, what is communicated
    or for how long) are always included, unless `by` consists of this one key.

    Args:
        by: The keys that define the groups.
        groups: label -> runs.
    """
    brings = {"seed", "eval", "budget", "from", *by, *({"algo"} if {"algo", "problem"} & {*by} else ())}
    keys: dict[str, None] = {}
    for problem in {members[0].keys.get("problem") for members in groups.values()}:
        runs = [run for members in groups.values() for run in members if run.keys.get("problem") == problem]
        for key in dict.fromkeys(key for run in runs for key in run.apart):
            if not {key, key.partition(".")[0]} & brings and len({run.group([key]) for run in runs}) > 1:
                keys[key] = None
        keys |= dict.fromkeys(key for key in departures(runs) if [*by] != [key])
        here = [its for its in groups.values() if its[0].keys.get("problem") == problem]
        data = {frozenset(run.keys.get(DATA) for run in its) - {None} for its in here}
        if not {DATA, "dataset"} & brings and len(data - {frozenset()}) > 1:
            keys[DATA] = None
    return list(keys)


def _spends(by: Sequence[str], groups: Groups, x: str, at: float | None) -> Iterator[str]:
    """Yield a warning for each group whose runs end at different costs, and for each problem on which the groups do.

    Diverged runs are ignored.

    Args:
        by: The keys that define the groups.
        groups: label -> runs.
        x: The cost axis, a key of `COSTS`.
        at: The cost at which the groups are compared. None: the last values are compared.
    """
    ends = {
        label: [run.until(at).cost()[-1] for run in members if run.status in OVER and run.status != "diverged"]
        for label, members in groups.items()
    }
    if at is None:
        for label in [label for label, costs in ends.items() if len(set(costs)) > 1 and x != "seconds"]:
            least, most = amount(x, min(ends[label])), amount(x, max(ends[label]))
            yield f"runs of {label} end between {least} and {most}; its line ends where the first run ends"
        if "algo" not in by and any(key.partition(".")[0] == "budget" for key in by):
            return
    elif early := [label for label, members in groups.items() if min(run.cost()[-1] for run in members) * UNEQUAL < at]:
        yield f"--at={at:g}: runs of {', '.join(early)} end earlier; the table has their last values"
        ends = {label: costs for label, costs in ends.items() if label not in early}
    for problem, labels in by_problem({label: groups[label] for label in ends if ends[label]}).items():
        spent = {label: float(np.mean(ends[label])) for label in labels}
        if pair := _apart(spent):
            least, most = (f"{label} ends at {amount(x, spent[label])}" for label in pair)
            at_equal = f"compare at equal costs with --x {x} --at {spent[pair[0]]:.6g}"
            hint = at_equal if at is None else "use a smaller eval.every"
            yield f"unequal costs on {problem[0]}: {least}, {most}; {hint}"


def _apart(amounts: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the labels of the smallest and the largest of some amounts if they are too unequal, else None.

    They are too unequal if the largest is more than `UNEQUAL` times the smallest.

    Args:
        amounts: label -> amount.
    """
    ranked = sorted(amounts, key=lambda label: amounts[label])
    return (ranked[0], ranked[-1]) if ranked and amounts[ranked[-1]] > UNEQUAL * amounts[ranked[0]] else None


def _ends_worse(run: Recorded, metric: str) -> bool:
    """Return whether the last value of a run is worse than its value at round 0; False if it was not evaluated at round 0."""
    first, last = run.values(metric)[[0, -1]]
    described = run.metric(metric)
    return run.table["round"].iloc[0] == 0 and described.better != "neither" and described.sign * (last - first) > 0


def _versions(runs: Sequence[Recorded]) -> Iterator[str]:
    """Yield a warning, as one line, for each of the user's Python modules whose content differs between the runs."""
    for module in dict.fromkeys(module for run in runs for module in run.sources):
        several = {run.sources[module] for run in runs if module in run.sources}
        if len(several) > 1:
            yield f"the runs were made by {len(several)} versions of {module}; delete the older ones and run them again"


def _weights(groups: Groups) -> Iterator[str]:
    """Yield a warning, as one line, for each problem on which the groups weight the clients in the objective differently.

    Only the runs with the first run's seed are compared.

    Args:
        groups: label -> runs of the group.
    """
    for problem, labels in by_problem(groups).items():
        seed, solved = next(iter(labels.values()))[0].keys.get("seed"), dict[Hashable, dict[str, None]]()
        for label, run in ((label, run) for label, runs in labels.items() for run in runs):
            if run.solves is not None and run.keys.get("seed") == seed:
                solved.setdefault(run.solves, {})[label] = None
        if len(solved) > 1:
            which = "; ".join(", ".join(names) for names in solved.values()) + "; see effective_weights in run.json"
            yield f"these solve differently weighted problems on {problem[0]}: {which}; use participation.sampling=by_weight"


def _tuning(groups: Groups) -> Iterator[str]:
    """Yield a warning, as one line, for each problem on which some algorithms ran with tuned values and others did not.

    Args:
        groups: label -> runs of the group.
    """
    for problem, labels in by_problem(groups).items():
        runs = [run for members in labels.values() for run in members]
        tuned = dict.fromkeys(run.keys.get("algo", "") for run in runs if run.tuned)
        others = dict.fromkeys(run.keys.get("algo", "") for run in runs if run.keys.get("algo", "") not in tuned)
        if tuned and others:
            yield f"{problem[0]}: {', '.join(tuned)} ran with tuned values, {', '.join(others)} without; preset=none disables them"


def _asked(groups: Groups) -> Iterator[str]:
    """Yield a warning, as one line, for each problem on which the groups contact unequal numbers of clients per round.

    Args:
        groups: label -> runs of the group.
    """
    for problem, labels in by_problem(groups).items():
        asked: dict[str, float] = {}
        for label, runs in labels.items():
            ends = [run for run in runs if run.knows("client_visits")]
            visits, rounds = (sum(run.cost(x)[-1] for run in ends) for x in ("client_visits", "comm_rounds"))
            asked |= {label: visits / rounds} if rounds else {}
        if pair := _apart(asked):
            few, many = (f"{label} asks {asked[label]:.3g}" for label in pair)
            yield f"on {problem[0]} {few} clients in a communication round, {many}; compare with --x client_visits too"


def with_status(label: str, runs: Sequence[Recorded]) -> str:
    """Return the label of a group, followed by the number of its runs in each status other than finished, if there are any.

    Args:
        label: The label.
        runs: The runs of the group.
    """
    others = Counter(run.status for run in runs if run.status != "finished")
    counts = ", ".join(f"{n} of {len(runs)} {status}" for status, n in sorted(others.items()))
    return f"{label} ({counts})" if counts else label


def amount(x: str, mean: float, std: float = math.nan) -> str:
    """Format a cost with its unit, such as '300 communication rounds'.

    Args:
        x: A key of `COSTS`.
        mean: The cost, or the mean of several costs.
        std: The standard deviation. nan: only the mean is shown.
    """
    what = COSTS[x].label.removesuffix("s") if mean == 1 and math.isnan(std) else COSTS[x].label
    return in_bytes(mean, std) if x == "bytes" else f"{plus_minus(mean, std)} {what}"
