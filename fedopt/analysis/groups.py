"""Grouping of runs: the config keys in which they differ, and the labels of groups."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from fedopt.analysis.runs import ABSENT, CHOSEN, DATA, Recorded, say_skipped
from fedopt.config import display_name, with_project
from fedopt.console import note
from fedopt.errors import UserError, among, nearest
from fedopt.metrics import validates

LONG = 60  # a label with more characters is shortened in a legend


def first_metric(runs: Sequence[Recorded]) -> str:
    """Return the first metric that a run's problem declares and its metrics.csv has; '' if there is none.

    Runs are tried in order. Validation metrics are tried before all others.
    """
    firsts = [next((name for name in run.metrics if name in run.table), "") for run in runs]
    return min(filter(None, firsts), key=lambda name: not validates(name), default="")


def repeats(key: str) -> bool:
    """Return whether a key is a seed, such as dataset.split_seed. Runs that differ only in seeds are in one group.

    Args:
        key: The dotted config key.
    """
    return re.fullmatch(r"(.+[._])?seed", key) is not None


def with_metric(runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Return the runs that have the metric. A note names the runs that are left out.

    Args:
        runs: The runs.
        metric: A column of metrics.csv.

    Raises:
        UserError: No run has the metric.
    """
    kept = [run for run in runs if metric in run.table]
    if not kept:
        known = [*dict.fromkeys(name for run in runs for name in run.metrics)]
        raise UserError(f"--metric={metric}: no run has this metric{among(metric, known)}")
    skipped: dict[str, list[str]] = {}
    for run in runs:
        if metric not in run.table:
            skipped.setdefault(f"has no metric {metric}, only {', '.join(run.metrics)}", []).append(str(run.folder))
    say_skipped(skipped)
    return kept


def default_keys(runs: Sequence[Recorded]) -> list[str]:
    """Return the config keys in which the runs differ, without seeds; ['algo'] if they differ in none."""
    return [key for key in differing(runs) if not repeats(key)] or ["algo"]


def pairing(one: Sequence[Recorded], other: Sequence[Recorded]) -> list[str]:
    """Return the keys by which the runs of two groups are paired; ['seed'] if there are none.

    These are the keys that vary within a group, such as the seed, and of which at least one value occurs in both groups.

    Args:
        one: The runs of one group.
        other: The runs of the other group.
    """
    keys = dict.fromkeys(["seed", *differing(one), *differing(other)])
    values = {key: [{run.keys.get(key, ABSENT) for run in runs} for runs in (one, other)] for key in keys}
    return [k for k, (its, others) in values.items() if len(its | others) > 1 and its & others - {ABSENT}] or ["seed"]


def differing(runs: Sequence[Recorded]) -> list[str]:
    """Return all keys in which the runs differ.

    They are, in this order: the config groups with different options; the other keys that differ between runs with the same
    options; and the departures that differ between runs on the same problem (see `departures`). Keys that differ only
    because the options differ are left out. The key `from` is returned only if there is no other key.
    """
    chosen = [key for key in CHOSEN if len({run.group([key]) for run in runs}) > 1]
    apart = len({run.group(chosen) for run in runs})
    others = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.apart)
        if key not in CHOSEN and len({run.group([*chosen, key]) for run in runs}) > apart
    ]
    others += [key for key in departures(runs) if key not in others]
    noted = [run for run in runs if DATA in run.keys]
    without, with_data = ({run.group([*chosen, *others, *more]) for run in noted} for more in ([], [DATA]))
    if len(with_data) > len(without):
        others.append(DATA)
    rest = [key for key in others if key != "from"]  # `from` names a line only if no other key differs
    return [*chosen, *(rest if chosen or rest else others)]


def departures(runs: Sequence[Recorded]) -> list[str]:
    """Return the departures of the runs whose values differ between runs on one problem.

    Departures are keys with other than their default values that determine which clients take part, what is communicated and
    for how long.
    """
    keys = dict.fromkeys(key for run in runs for key in run.departures)
    problems = len({run.problem for run in runs})
    return [key for key in keys if len({(run.problem, run.group([key])) for run in runs}) > problems]


def known_keys(chosen: str, runs: Sequence[Recorded]) -> list[str]:
    """Return the keys that the option --group-by names.

    Args:
        chosen: The keys, separated by commas.
        runs: The runs to group.

    Raises:
        UserError: No run's config has a key.
    """
    keys = list(dict.fromkeys(key.strip() for key in chosen.split(",")))
    present = list(dict.fromkeys(key for run in runs for key in run.keys))
    for key in keys:
        if key not in present:
            raise UserError(f"--group-by={key}: no run's config has this key{nearest(key, present)}")
    return keys


def _shortened(groups: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the values of each group, with long decimals rounded to four significant digits.

    The values of a key are left unrounded if rounding would make two of them equal.

    Args:
        groups: For each group, one value per key.
    """
    columns = []
    for values in zip(*groups, strict=True):
        short = [f"{float(v):.4g}" if re.fullmatch(r"-?\d+\.\d{4,}(e[-+]?\d+)?", v) else v for v in values]
        columns.append(short if len(set(short)) == len(set(values)) else values)
    return list(zip(*columns, strict=True))


def _parts(by: Sequence[str], groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the parts of each group's label: the names of chosen options, and other keys as key=value.

    A key that a group lacks is left out, and so is a limit of the budget that is null.

    Args:
        by: The keys that define the groups.
        groups: For each group, one value per key.
    """
    pairs = ([(k, v) for k, v in zip(by, g, strict=True) if v != ABSENT and k[:7] + v != "budget.null"] for g in groups)
    return [[value if key in CHOSEN else f"{key}={value}" for key, value in present] for present in pairs]


def _telling(by: Sequence[str], groups: Sequence[Sequence[str]], stay: Collection[str]) -> list[Sequence[str]]:
    """Return the values of each group, with `ABSENT` for keys that do not differ between groups with the same chosen options.

    Args:
        by: The keys that define the groups.
        groups: For each group, one value per key.
        stay: Keys whose values are always kept.
    """
    chosen = [tuple(v for k, v in zip(by, group, strict=True) if k in CHOSEN) for group in groups]
    same = [[other for other, its in zip(groups, chosen, strict=True) if its == options] for options in chosen]
    return [
        [v if k in (*CHOSEN, *stay) or len({of[i] for of in others}) > 1 else ABSENT for i, (k, v) in enumerate(pairs)]
        for pairs, others in zip((zip(by, group, strict=True) for group in groups), same, strict=True)
    ]


def legend_labels(groups: Mapping[str, Sequence[Recorded]]) -> dict[str, str]:
    """Return label -> label in figures: methods get their display names, and long labels are shortened.

    With several problems, the labels do not repeat the problem, which is the title of the picture. If a label is long, keys
    are dropped, the last key first, as long as no two labels become equal. Departures (keys that change which clients take
    part, what is communicated or for how long) are never dropped. If two labels would be equal in the end, all labels stay
    unchanged.

    Args:
        groups: label -> runs of the group.
    """
    parts, stay, folders = [], departures([run for runs in groups.values() for run in runs]), with_project()
    problems = [runs[0].problem for runs in groups.values()]
    for (label, runs), problem in zip(groups.items(), problems, strict=True):
        algo, titled = runs[0].keys.get("algo", ABSENT), problem if len({*problems}) > 1 else ()
        kept = [part for part in label.split(", ") if part not in titled] or [algo]
        text = ", ".join(display_name(part, folders) if part == algo else part for part in kept)
        parts.append(re.split(r", (?=[\w.]+=)", text))
    if any(len(", ".join(words)) > LONG for words in parts):
        keys = dict.fromkeys(word.partition("=")[0] for words in parts for word in words if "=" in word)
        for key in [key for key in reversed(keys) if key not in stay]:
            fewer = [[word for word in words if not word.startswith(f"{key}=")] for words in parts]
            parts = fewer if all(fewer) and _differ(fewer, problems) else parts
        parts = [[word.removeprefix("algo.") for word in words] for words in parts]
    shown = list(map(", ".join, parts))
    return dict(zip(groups, shown if _differ(shown, problems) else groups, strict=True))  # of one name


def _differ(parts: Sequence[Sequence[str]], problems: Sequence[tuple[str, ...]]) -> bool:
    """Return whether no two groups on one problem have the same label.

    Args:
        parts: The parts of each group's label.
        problems: The problem of each group.
    """
    return len({(*part, problem) for part, problem in zip(parts, problems, strict=True)}) == len(parts)


def labels_of(
    by: Sequence[str], groups: Sequence[Sequence[str]], names: Sequence[str], stay: Collection[str] | None = None
) -> dict[str, int]:
    """Return label -> index in the order of colours, for each group.

    A group that ``names`` renames gets the index of its new name in that list. A name that matches no group leaves its index
    unused, and a note says so. Figures with fewer lines therefore keep their colours.

    Args:
        by: The keys that define the groups.
        groups: For each group, the values of these keys.
        names: New names, each as OLD=NEW. OLD is a label or a part of a label.
        stay: The keys that every label names; any other key is named only where it differs between groups with the same
            chosen options. None: all keys are named.

    Raises:
        UserError: A name has no =, or two groups would have the same name.
    """
    parts = _parts(by, _shortened(groups if stay is None else _telling(by, groups, stay)))
    labels = [", ".join(words) or (f"no {' or '.join(by)}" if by else ABSENT) for words in parts]
    shown = list(dict.fromkeys([*labels, *chain(*parts)]))
    new_names: dict[str, str] = {}
    places: dict[str, int] = {}
    for place, text in enumerate(names):
        if "=" not in text:
            raise UserError(f"--names={text}: must be OLD=NEW, where OLD is one of {', '.join(shown)}")
        if old := max((name for name in shown if text.startswith(f"{name}=")), key=len, default=""):
            new_names[old], places[old] = text[len(old) + 1 :], place
        else:
            note(f"--names={text}: no line has this name; there are {'; '.join(shown)}")
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    slots: dict[str, int] = {}
    free = len(names)
    for label, words in zip(labels, parts, strict=True):
        given = [places[name] for name in (label, *words) if name in places and name not in shared]
        slot, free = (min(given), free) if given else (free, free + 1)
        while slot in slots.values():
            slot += 1
        renamed = new_names.get(label) or ", ".join(new_names.get(word, word) for word in words) or ABSENT
        if renamed in slots:
            raise UserError(f"--names: two lines would have the name {renamed}; give them different ones")
        slots[renamed] = slot
    return slots
