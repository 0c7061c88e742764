"""Warnings about what makes a comparison unequal. Each generator yields one line per finding."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from matplotlib.scale import LinearScale

from fedopt.analysis.groups import departures, differing, repeats
from fedopt.analysis.lines import y_scale
from fedopt.analysis.runs import DATA, Groups, Recorded, by_problem
from fedopt.analysis.stats import not_positive
from fedopt.analysis.tables import in_bytes, plus_minus
from fedopt.console import order
from fedopt.metrics import COSTS
from fedopt.results import OVER

UNEQUAL = 1.1  # spends whose ratio is larger are named
SPARSE = 2  # and intervals of evaluations whose ratio is larger
ABOVE = 2  # times its best value: a loss that ends above is named
BATCH = "algo.B"  # the key that every method of fedopt's has for its examples of a step, null for all
MANY = 10  # times its first value: a loss that has grown to more is named


def unequal(by: Sequence[str], groups: Groups, metric: str, at: float | None) -> Iterator[str]:
    """Yield a line for each thing that makes a comparison of groups unequal, such as different costs or batch sizes.

    Args:
        by: The keys that define the groups.
        groups: label -> runs.
        metric: The metric that is compared.
        at: The cost at which the groups are compared. None: last values are compared.
    """
    runs = [run for members in groups.values() for run in members]
    pooled = list(dict.fromkeys(key for members in groups.values() for key in differing(members)))
    if mixed := [key for key in pooled if not repeats(key)]:
        again = ",".join([*by, *mixed])
        yield f"runs that differ in {', '.join(mixed)} are in one group; use --group-by {again} to separate them"
    if others := [key for key in _besides(by, groups) if key not in pooled]:
        yield f"the groups differ in {', '.join(others)} as well"
    unfinished = {k: its for k, its in groups.items() if any(run.status not in (*OVER, "failed") for run in its)}
    if labels := [with_status(label, members) for label, members in unfinished.items()]:
        yield f"not finished: {'; '.join(labels)}: the table has their values so far; leave them out with --exclude"
    for problem, its in by_problem(groups).items():
        if found := not_positive(its, metric, lambda run: run.values(metric)):
            axis = "linear" if isinstance(y_scale(its, metric), LinearScale) else "linear around 0"
            yield f"{problem[0]}: {metric} {found}, so the y axis is {axis}, with arithmetic means; the others span decades"
    yield from _spends(by, groups, runs[0].x, at)
    if runs[0].x != "seconds":  # which are never the same
        yield from _intervals(groups, runs[0].x)
    for label, members in groups.items():
        counts = Counter(_ends_worse(run, metric) for run in members)
        for how, number in counts.items():
            if how:
                yield f"{label}: {number} of {len(members)} runs end with {how}; try smaller steps{step_keys(members[0].keys)}"
        if not any(counts):
            yield from _above_best(label, members, metric)
    yield from _versions(runs)
    yield from _weights(groups)
    yield from _tuning(runs)
    if "algo" in by and BATCH not in by:
        yield from _batches(groups)
    yield from _asked(groups)


def _besides(by: Sequence[str], groups: Groups) -> list[str]:
    """Return the keys, other than those in `by`, in which groups on the same problem differ, and all departures but a single
    key in `by`.

    Other keys that differ only because the option differs are left out. So are the budget and evaluation times, on which
    other lines report.
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
    """Yield lines on runs that end at different costs, within a group or between groups on a problem. Diverged runs are
    ignored.

    x: the cost axis. at: the cost at which the groups are compared; None: last values are compared.
    """
    ends = {
        label: [run.until(at).cost()[-1] for run in members if run.status in OVER and run.status != "diverged"]
        for label, members in groups.items()
    }
    if at is None:
        for label in [label for label, costs in ends.items() if len(set(costs)) > 1 and x != "seconds"]:
            least, most = amount(x, min(ends[label])), amount(x, max(ends[label]))
            yield (
                f"runs of {label} end between {least} and {most}; its line ends where the first ends, and the table "
                f"has last values"
            )
        if "algo" not in by and any(key.partition(".")[0] == "budget" for key in by):
            return
    elif early := [label for label, members in groups.items() if min(run.cost()[-1] for run in members) * UNEQUAL < at]:
        yield f"--at={at:g}: runs of {', '.join(early)} end earlier, and have their last values in the table"
        ends = {label: costs for label, costs in ends.items() if label not in early}
    for problem, labels in by_problem({label: groups[label] for label in ends if ends[label]}).items():
        spent = {label: float(np.mean(ends[label])) for label in labels}
        if pair := _apart(spent, UNEQUAL):
            least, most = (f"{label} ends at {amount(x, spent[label])}" for label in pair)
            again = f"compare at equal costs with --x {x} --at {spent[pair[0]]:.6g}"
            hint = again if at is None else "use a smaller eval.every"
            yield f"unequal costs on {problem[0]}: {least}, {most}; {hint}"


def _intervals(groups: Groups, x: str) -> Iterator[str]:
    """Yield a line for each problem whose groups are evaluated at very different intervals of cost."""
    for labels in by_problem(groups).values():
        gaps = {label: [gap for run in members for gap in np.diff(run.cost())] for label, members in labels.items()}
        every = {label: float(np.median(costs)) for label, costs in gaps.items() if costs}
        if pair := _apart(every, SPARSE):
            often, rarely = (f"{label} is evaluated every {amount(x, every[label])}" for label in pair)
            yield f"{rarely}, {often}: best values and costs to a target are as coarse; set eval.every to make them alike"


def _apart(amounts: Mapping[str, float], ratio: float) -> tuple[str, str] | None:
    """Return the labels of the smallest and the largest amount if their ratio exceeds `ratio`; else None."""
    ranked = sorted(amounts, key=lambda label: amounts[label])
    return (ranked[0], ranked[-1]) if ranked and amounts[ranked[-1]] > ratio * amounts[ranked[0]] else None


def _ends_worse(run: Recorded, metric: str) -> str:
    """Return a phrase on how a run ends worse than it began; '' if it does not, or if its first row is not round 0.

    A run ends worse if the metric is worse than at first, or if a loss is more than `MANY` times its first value.
    """
    if run.table["round"].iloc[0] != 0:
        return ""
    first, last = run.values(metric)[[0, -1]]
    if {"lower": last > first, "higher": last < first, "neither": False}[run.metric(metric).better]:
        return f"a worse {metric} than they began with"
    for name in [name for name, described in run.metrics.items() if described.bounds and name in run.table]:
        first, last = run.values(name)[[0, -1]]
        if run.metric(name).better == "lower" and last > MANY * first > 0:
            return f"a {name} of more than {MANY} times what they began with"
    return ""


def _above_best(label: str, members: Sequence[Recorded], metric: str) -> Iterator[str]:
    """Yield at most one line: a run of the group ends at more than `ABOVE` times its best value.

    Only metrics for which lower is better are checked, `metric` first, then metrics with bounds, such as losses. The line
    names the worst run of the first metric with such a run.
    """
    names = dict.fromkeys([metric, *(name for name, described in members[0].metrics.items() if described.bounds)])
    for name in (name for name in names if members[0].metric(name).better == "lower"):
        values = [(run.keys.get("seed"), run.values(name)) for run in members if name in run.table]
        ends = [(seed, its[-1], float(np.nanmin(its))) for seed, its in values if np.isfinite(its).any()]
        if far := [(last / best, last, best, seed) for seed, last, best in ends if best > 0 and last > ABOVE * best]:
            _, last, best, seed = max(far)
            where, remedy = f" on seed {seed}" if seed else "", f"try smaller steps{step_keys(members[0].keys)}"
            yield f"{label}: {name} ends{where} at {last:.4g}, more than twice its best, {best:.4g}; {remedy}"
            return


def step_keys(keys: Iterable[str]) -> str:
    """Return those of the keys of a run that are step sizes, in brackets; '' if none has a usual name."""
    algo = [key for key in keys if key.startswith("algo.")]
    steps = [key for key in algo if key.startswith("algo.eta")]
    steps = steps or [key for key in algo if key in ("algo.alpha", "algo.beta", "algo.gamma")]
    return f" ({', '.join(steps)})" if steps else ""


def _versions(runs: Sequence[Recorded]) -> Iterator[str]:
    """Yield a line for each of the user's modules that changed between runs."""
    for module in dict.fromkeys(module for run in runs for module in run.sources):
        several = {run.sources[module] for run in runs if module in run.sources}
        if len(several) > 1:
            yield f"the runs were made by {len(several)} versions of {module}; delete the older ones and run them again"


def _weights(groups: Groups) -> Iterator[str]:
    """Yield a line for each problem whose groups solve it with different weights of the clients, by the runs of one seed."""
    for problem, labels in by_problem(groups).items():
        seed, solved = next(iter(labels.values()))[0].keys.get("seed"), dict[Hashable, dict[str, None]]()
        for label, run in ((label, run) for label, runs in labels.items() for run in runs):
            if run.solves is not None and run.keys.get("seed") == seed:
                solved.setdefault(run.solves, {})[label] = None
        if len(solved) > 1:
            which = "; ".join(", ".join(names) for names in solved.values())
            why = "their cohorts count clients by effective_weights in run.json"
            remedy = "participation.sampling=by_weight samples cohorts by the objective's weights"
            yield f"these solve differently weighted problems on {problem[0]}: {which}; {why}; {remedy}"


def _tuning(runs: Sequence[Recorded]) -> Iterator[str]:
    """Yield a line for each problem on which only some algorithms ran with tuned values, and for values tuned on another model
    or data.
    """
    tuned: dict[tuple[str, ...], bool] = {}  # problem and algorithm -> whether a run has tuned values
    elsewhere: dict[str, dict[str, None]] = {}  # algorithm -> words
    for run in runs:
        pair = run.group(["problem", "algo"])
        tuned[pair] = tuned.get(pair, False) or run.tuned
        if run.tuned:
            elsewhere.setdefault(pair[1], {}).update(dict.fromkeys(run.elsewhere.split()))
    for problem in dict.fromkeys(problem for problem, _ in tuned):
        algos = {algo: yes for (where, algo), yes in tuned.items() if where == problem}
        some, none = (", ".join(algo for algo in algos if algos[algo] is yes) for yes in (True, False))
        if some and none:
            yield (
                f"{problem}: {some} ran with tuned values, {none} without, so that budgets and step sizes may be "
                f"unequal; preset=none runs all without"
            )
    texts = {algo: " ".join(words) for algo, words in elsewhere.items()}
    for text in filter(None, dict.fromkeys(texts.values())):
        names = ", ".join(algo for algo in texts if texts[algo] == text)
        yield f"the tuned values of {names} were found without {text}, and may be far from the best here; tune again"


def _batches(groups: Groups) -> Iterator[str]:
    """Yield a line for each problem whose methods use different batch sizes, hence different noise and cost."""
    for problem, labels in by_problem(groups).items():
        sizes: dict[str, list[str]] = {}
        for label, runs in labels.items():
            for size in sorted({run.keys[BATCH] for run in runs if BATCH in run.keys}, key=order):
                sizes.setdefault("all" if size == "null" else size, []).append(label)
        if len(sizes) > 1:
            each = "; ".join(f"{size} ({', '.join(sizes[size])})" for size in sorted(sizes, key=order))
            yield f"different batch sizes on {problem[0]}: {each}; set {BATCH}=N for all"


def _asked(groups: Groups) -> Iterator[str]:
    """Yield a line for each problem whose groups ask unequal numbers of clients in a communication round."""
    for problem, labels in by_problem(groups).items():
        asked: dict[str, float] = {}
        for label, runs in labels.items():
            ends = [run for run in runs if run.knows("client_visits")]
            visits, rounds = (sum(run.cost(x)[-1] for run in ends) for x in ("client_visits", "comm_rounds"))
            asked |= {label: visits / rounds} if rounds else {}
        if pair := _apart(asked, UNEQUAL):
            few, many = (f"{label} asks {asked[label]:.3g}" for label in pair)
            yield f"on {problem[0]} {few} clients in a communication round, {many}; compare with --x client_visits too"


def with_status(label: str, runs: Sequence[Recorded]) -> str:
    """Return the label, followed by the number of its runs in each status other than finished, if there are any."""
    others = Counter(run.status for run in runs if run.status != "finished")
    counts = ", ".join(f"{n} of {len(runs)} {status}" for status, n in sorted(others.items()))
    return f"{label} ({counts})" if counts else label


def amount(x: str, mean: float, std: float = math.nan) -> str:
    """Format a cost with its unit, such as '300 communication rounds'. x: a key of `COSTS`. std: nan leaves it out."""
    what = COSTS[x].label.removesuffix("s") if mean == 1 and math.isnan(std) else COSTS[x].label
    return in_bytes(mean, std) if x == "bytes" else f"{plus_minus(mean, std)} {what}"
