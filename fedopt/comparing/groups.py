"""Runs in groups: what tells them apart, what they are called, and what makes their comparison unequal."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fedopt.comparing.recorded import ABSENT, CHOSEN, DATA, Recorded, by_problem, say_skipped
from fedopt.comparing.tables import in_bytes, plus_minus
from fedopt.console.say import say
from fedopt.errors import UserError, nearest
from fedopt.results.figures import COSTS, OKABE_ITO
from fedopt.results.folder import OVER

UNEQUAL = 1.1  # spends whose ratio is larger are named
MANY = 10  # times its first value: a loss that has grown to more is named


def default_metric(runs: Sequence[Recorded]) -> str:
    """The first that the first run's problem names."""
    return next(iter(runs[0].metrics))


def with_metric(runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Those that have the metric; the others are named on stderr."""
    kept = [run for run in runs if metric in run.table]
    if not kept:
        names = sorted({str(name) for run in runs for name in run.table})
        raise UserError(f"--metric={metric}: no run has it{nearest(metric, names)}")
    skipped: dict[str, list[str]] = {}
    for run in runs:
        if metric not in run.table:
            skipped.setdefault(f"has no metric {metric}, but {', '.join(run.metrics)}", []).append(str(run.folder))
    say_skipped(skipped)
    return kept


def default_keys(runs: Sequence[Recorded]) -> list[str]:
    """What differs between the runs, `algo` where nothing does."""
    return differing(runs) or ["algo"]


def differing(runs: Sequence[Recorded]) -> list[str]:
    """The groups in which other options were chosen, then every key that differs between runs of the same options.

    A key that only some option has, or that goes with it, is not named besides the option.
    """
    chosen = [key for key in CHOSEN if len({run.group([key]) for run in runs}) > 1]
    apart = len({run.group(chosen) for run in runs})
    others = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.apart)
        if key not in CHOSEN and len({run.group([*chosen, key]) for run in runs}) > apart
    ]
    noted = [run for run in runs if DATA in run.keys]
    named, and_data = ({run.group([*chosen, *others, *more]) for run in noted} for more in ([], [DATA]))
    if len(and_data) > len(named):
        others.append(DATA)
    rest = [key for key in others if key != "from"]  # another start alone is no name for a line where more differs
    return [*chosen, *(rest if chosen or rest else others)]


def known_keys(chosen: str, runs: Sequence[Recorded]) -> list[str]:
    """The keys of `--group-by`. Raises UserError for one that no run has."""
    keys = list(dict.fromkeys(key.strip() for key in chosen.split(",")))
    known = list(dict.fromkeys(key for run in runs for key in run.keys))
    for key in keys:
        if key not in known:
            raise UserError(f"--group-by={key}: no run's config has this key{nearest(key, known)}")
    return keys


def order(value: str) -> tuple[float, str]:
    """Numbers by size, before words."""
    return (float(value), "") if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value) else (np.inf, value)


def _shortened(groups: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """With four digits of each number, where that tells the values of a key apart as well."""
    columns = []
    for values in zip(*groups, strict=True):
        short = [f"{float(v):.4g}" if re.fullmatch(r"-?\d+\.\d{4,}(e[-+]?\d+)?", v) else v for v in values]
        columns.append(short if len(set(short)) == len(set(values)) else values)
    return list(zip(*columns, strict=True))


def _parts(by: Sequence[str], groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """What the label of each group is made of: the options chosen, and key=value of the other keys that it has."""
    pairs = ([(key, value) for key, value in zip(by, of, strict=True) if value != ABSENT] for of in groups)
    return [[value if key in CHOSEN else f"{key}={value}" for key, value in of] for of in pairs]


def labels_of(by: Sequence[str], groups: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, int]:
    """One for each group: the options chosen, and key=value of the other keys that it has; and its place in the order of colours.

    That is the place of its name in `names`, whether or not the others have lines, so that figures of fewer lines have the same
    colours. Raises UserError for what is no name.
    """
    whole, parts = _parts(by, groups), _parts(by, _shortened(groups))
    labels = [", ".join(of) or (f"no {' or '.join(by)}" if by else ABSENT) for of in parts]
    known = list(dict.fromkeys([*labels, *(part for of in parts for part in of)]))
    long = [*(", ".join(of) for of in whole), *(part for of in whole for part in of)]
    short = dict(zip(long, [*labels, *(part for of in parts for part in of)], strict=True))
    short |= {f"{key}={value}": value for of in groups for key, value in zip(by, of, strict=True) if key in CHOSEN}
    new: dict[str, str] = {}
    places: dict[str, int] = {}
    for place, text in enumerate(names):
        if "=" not in text:
            raise UserError(f"--names={text}: must be OLD=NEW with OLD one of {', '.join(known)}")
        given = max((name for name in [*known, *short] if text.startswith(f"{name}=")), key=len, default="")
        if given:
            old = short.get(given, given)
            new[old] = text[len(given) + 1 :]
            places.setdefault(old, place)
        elif (turned := text.rpartition("="))[2] in known:
            raise UserError(
                f"--names={text}: must be OLD=NEW, and the line is called {turned[2]}: {turned[2]}={turned[0]}"
            )
        else:
            say(f"--names={text}: no line is called so; there are {'; '.join(known)}")
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    slots: dict[str, int] = {}
    free = len(names)
    for label, of in zip(labels, parts, strict=True):
        named = [places[name] for name in (label, *of) if name in places and name not in shared]
        slot, free = (min(named), free) if named else (free, free + 1)
        while slot in slots.values():
            slot += len(OKABE_ITO)  # the same colour, other dashes
        renamed = new.get(label) or ", ".join(new.get(part, part) for part in of) or ABSENT
        if renamed in slots:
            raise UserError("--names: two lines have the same name then")
        slots[renamed] = slot
    return slots


def warn(
    by: Sequence[str],
    groups: Mapping[str, Sequence[Recorded]],
    runs: Sequence[Recorded],
    metric: str,
    at: float | None,
) -> None:
    """Say on stderr what makes the comparison unequal."""
    pooled = list(dict.fromkeys(key for members in groups.values() for key in differing(members)))
    if pooled:
        say(
            f"runs that differ in {', '.join(pooled)} count as one group; --group-by {','.join([*by, *pooled])} tells them apart"
        )
    if others := [key for key in _besides(by, groups) if key not in pooled]:
        say(f"the groups differ in {', '.join(others)} as well")
    if unfinished := [with_status(label, of) for label, of in groups.items() if any(r.status not in OVER for r in of)]:
        say(f"not finished: {'; '.join(unfinished)}: the table has their values so far; --exclude leaves runs out")
    if at is None:
        _warn_of_ends(by, groups, runs[0].x)
    else:
        _warn_of_spends_at(groups, runs[0].x, at)
    _warn_of_evaluations(by, groups, runs[0].x)
    _warn_of_worse_ends(groups, metric)
    _warn_of_versions(runs)
    _warn_of_tuned(runs)


def _warn_of_worse_ends(groups: Mapping[str, Sequence[Recorded]], metric: str) -> None:
    """Say which groups have runs that have not learnt, by the metric, or else by one that has grown many times over."""
    for label, members in groups.items():
        told = f"{label}: {{}} of {len(members)} runs end with a"
        if worse := sum(_worse(run, metric) for run in members):
            say(f"{told.format(worse)} worse {metric} than they began with: are the steps too long?")
            continue
        grown = {name: sum(_grown(run, name) for run in members) for name in members[0].metrics}
        if name := next((name for name in grown if grown[name]), None):
            say(
                f"{told.format(grown[name])} {name} of more than {MANY} times what they began with: are the steps too long?"
            )


def _warn_of_versions(runs: Sequence[Recorded]) -> None:
    """Say which modules of one's own were changed between runs."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        for module, of_file in run.sources.items():
            versions.setdefault(module, set()).add(of_file)
    for module, several in versions.items():
        if len(several) > 1:
            say(f"the runs are of {len(several)} versions of {module}: delete the older ones to run them anew")


def _warn_of_tuned(runs: Sequence[Recorded]) -> None:
    """Say, for each problem, which algorithms ran with tuned values and which without, and whose are of another model or data."""
    tuned: dict[str, dict[str, bool]] = {}
    elsewhere: dict[str, dict[str, None]] = {}
    for run in runs:
        if {"algo", "problem"} <= run.keys.keys():  # a config that somebody sent may lack them
            of = tuned.setdefault(run.keys["problem"], {})
            of[run.keys["algo"]] = of.get(run.keys["algo"], False) or run.tuned
            if run.tuned and run.elsewhere:
                elsewhere.setdefault(run.elsewhere, {})[run.keys["algo"]] = None
    for problem, of in tuned.items():
        if len(set(of.values())) > 1:
            with_, without = (", ".join(algo for algo in of if of[algo] is yes) for yes in (True, False))
            say(f"{problem}: {with_} ran with tuned values, {without} without: budgets and step sizes may be unequal")
    for words, algos in elsewhere.items():
        say(f"the tuned values of {', '.join(algos)} are for runs without {words}: they may be far from the best here")


def _worse(run: Recorded, metric: str) -> bool:
    """Whether its last value is worse than its first, before any round."""
    first, last = run.values(metric)[[0, -1]]
    worse = {"lower": last > first, "higher": last < first, "neither": False}[run.metric(metric).better]
    return run.table["round"].iloc[0] == 0 and bool(worse)


def _grown(run: Recorded, name: str) -> bool:
    """Whether a metric that would stop the run at eval.diverged has ended many times above its first value, before any round."""
    first, last = run.values(name)[[0, -1]]
    loss = run.metric(name).bounds and run.metric(name).better == "lower"
    return loss and run.table["round"].iloc[0] == 0 and bool(last > MANY * first)


def _besides(by: Sequence[str], groups: Mapping[str, Sequence[Recorded]]) -> list[str]:
    """The keys in which groups of one problem differ besides those that they are told apart by.

    Not those that an option brings with it: its own, and those that an algorithm's or a problem's tuned values set, the budget and
    when to evaluate, of which `_warn_of_ends` speaks.
    """
    brings = {"seed", "eval", "budget", "from", *by, *({"algo"} if {"algo", "problem"} & {*by} else ())}
    found: dict[str, None] = {}
    for problem in {of[0].keys.get("problem") for of in groups.values()}:
        runs = [run for of in groups.values() for run in of if run.keys.get("problem") == problem]
        keys = dict.fromkeys(key for run in runs for key in run.apart)
        for key in keys:
            if not {key, key.partition(".")[0]} & brings and len({run.group([key]) for run in runs}) > 1:
                found[key] = None
        if not {DATA, "dataset"} & brings and len({run.keys[DATA] for run in runs if DATA in run.keys}) > 1:
            found[DATA] = None
    return list(found)


def _warn_of_ends(by: Sequence[str], groups: Mapping[str, Sequence[Recorded]], x: str) -> None:
    """Say where the last values are not those of one x: within a group, and between groups of a problem."""
    whole = [status for status in OVER if status != "diverged"]
    ends = {label: [run.cost()[-1] for run in of if run.status in whole] for label, of in groups.items()}
    cut = [label for label, costs in ends.items() if len(set(costs)) > 1]
    if cut and x != "seconds":  # which are never the same
        between = [f"{label} between {amount(x, min(ends[label]))} and {amount(x, max(ends[label]))}" for label in cut]
        say(
            f"runs of one group end apart: {'; '.join(between)}; a line ends where the first of its runs does, and the table has "
            "their own last values"
        )
    if any(key.partition(".")[0] == "budget" for key in by):
        return
    problems = by_problem({label: of for label, of in groups.items() if ends[label]})
    for problem, of in problems.items():
        spent = {label: float(np.mean(ends[label])) for label in of}
        least, most = (choose(spent, key=lambda label: spent[label]) for choose in (min, max))
        if spent[most] > UNEQUAL * spent[least]:
            where = f" on {problem[0]}" * (len(problems) > 1)
            say(
                f"unequal spends{where}: {least} ends at {amount(x, spent[least])}, {most} at {amount(x, spent[most])}; the "
                f"table has last values, --x {x} --at {_least(spent[least])} those of equal spends"
            )


def _warn_of_spends_at(groups: Mapping[str, Sequence[Recorded]], x: str, at: float) -> None:
    """Say which groups end before this x, and where the last evaluations up to it are far apart."""
    early = [label for label, of in groups.items() if any(run.cost()[-1] * UNEQUAL < at for run in of)]
    if early:
        say(f"--at={at:g}: runs of {', '.join(early)} end earlier, and have their last values in the table")
    for of in by_problem({label: runs for label, runs in groups.items() if label not in early}).values():
        spent = {label: float(np.mean([run.until(at).cost()[-1] for run in runs])) for label, runs in of.items()}
        least, most = (choose(spent, key=lambda label: spent[label]) for choose in (min, max))
        if spent[most] > UNEQUAL * spent[least]:
            say(
                f"--at={at:g}: the last evaluation by then is at {amount(x, spent[least])} for {least}, at "
                f"{amount(x, spent[most])} for {most}: their values are not of equal spends; eval.every, in rounds, makes "
                "evaluations closer"
            )


def _warn_of_evaluations(by: Sequence[str], groups: Mapping[str, Sequence[Recorded]], x: str) -> None:
    """Say where groups of a problem are evaluated at other intervals, of rounds or of more than twice as much of what is spent."""
    for of in by_problem(groups).values():
        intervals: dict[str, list[str]] = {}
        spaced: dict[str, float] = {}
        for label, members in of.items():
            for every in dict.fromkeys(run.keys.get("eval.every", ABSENT) for run in members):
                intervals.setdefault(every, []).append(label)
            if gaps := [gap for run in members for gap in np.diff(run.cost())]:
                spaced[label] = float(np.median(gaps))
        if len(intervals) > 1 and "eval.every" not in by:
            said = "; ".join(f"{every} rounds ({', '.join(labels)})" for every, labels in intervals.items())
            say(f"evaluated every {said}: best values, and what a target took, are of these rounds alone")
        elif spaced and max(spaced.values()) > 2 * min(spaced.values()) and x != "seconds":
            rarely, often = (choose(spaced, key=lambda label: spaced[label]) for choose in (max, min))
            say(
                f"{rarely} is evaluated every {amount(x, spaced[rarely])}, {often} every {amount(x, spaced[often])}: best "
                "values, and what a target took, are as coarse; eval.every, in rounds, makes them alike"
            )


def _least(number: float) -> str:
    """With six digits, rounded down."""
    digits = 5 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{math.floor(number * 10.0**digits) / 10.0**digits:.6g}"


def with_status(label: str, runs: Sequence[Recorded]) -> str:
    """The label, and how many of the runs are on their way, stopped or diverged."""
    others = Counter(run.status for run in runs if run.status != "finished")
    said = ", ".join(f"{n} of {len(runs)} {status}" for status, n in sorted(others.items()))
    return f"{label} ({said})" if said else label


def amount(x: str, mean: float, std: float = math.nan) -> str:
    """What is spent, with its unit."""
    return in_bytes(mean, std) if x == "bytes" else f"{plus_minus(mean, std)} {COSTS[x][1]}"
