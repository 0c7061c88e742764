"""Grouping of runs: the config keys in which they differ, and the labels of groups."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import pandas as pd

from fedopt.analysis.runs import ABSENT, CHOSEN, DATA, Recorded, say_skipped
from fedopt.config import display_name, with_project
from fedopt.console import note
from fedopt.errors import UserError, among, nearest
from fedopt.metrics import validates

Values = Sequence[Sequence[str]]  # for each group, one value per key
LONG = 60  # labels with more characters are shortened in a legend


def first_metric(runs: Sequence[Recorded]) -> str:
    """Return the name of the metric to compare by default; '' if no run has a metric.

    It is the first metric that the problem of a run declares and the run's metrics.csv contains. Runs are tried in order. If
    the first metric of some run is a validation metric, this metric takes precedence.
    """
    firsts = [next((name for name in run.metrics if name in run.table), "") for run in runs]
    return min(filter(None, firsts), key=lambda name: not validates(name), default="")


def repeats(key: str) -> bool:
    """Return whether a dotted config key is a seed, such as dataset.split_seed. Runs that differ only in seeds are in one
    group.
    """
    return re.fullmatch(r"(.+[._])?seed", key) is not None


def with_metric(runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Return the runs that have a metric. A note names the runs that are left out.

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
    say_skipped({f"no metric {metric}": [str(run.folder) for run in runs if metric not in run.table]})
    return kept


def default_keys(runs: Sequence[Recorded]) -> list[str]:
    """Return the config keys in which the runs differ, without seeds; ['algo'] if they differ in no key."""
    return [key for key in differing(runs) if not repeats(key)] or ["algo"]


def pairing(one: Sequence[Recorded], other: Sequence[Recorded]) -> list[str]:
    """Return the config keys by which the runs of two groups are paired; ['seed'] if there are none.

    A key is returned if it varies within a group, as the seed does, and if at least one of its values occurs in both groups.

    Args:
        one: The runs of one group.
        other: The runs of the other group.
    """
    keys = dict.fromkeys(["seed", *differing(one), *differing(other)])
    values = {key: [{run.keys.get(key, ABSENT) for run in runs} for runs in (one, other)] for key in keys}
    return [k for k, (its, others) in values.items() if len(its | others) > 1 and its & others - {ABSENT}] or ["seed"]


def differing(runs: Sequence[Recorded]) -> list[str]:
    """Return all config keys in which the runs differ.

    The order is: config groups (such as algo) of which different options are chosen; other keys that differ between runs with
    the same options; keys that change participation or communication (`departures`); and `data`, if the contents of the data
    sets differ. Keys that differ only because different options were chosen are left out, and so is `from`, unless it is the
    only key.
    """
    chosen = [key for key in CHOSEN if len({run.group([key]) for run in runs}) > 1]
    apart = len({run.group(chosen) for run in runs})
    keys = dict.fromkeys(key for run in runs for key in run.apart if key not in CHOSEN)
    others = [key for key in keys if len({run.group([*chosen, key]) for run in runs}) > apart]
    others += [key for key in departures(runs) if key not in others]
    noted = [run for run in runs if DATA in run.keys]
    without, with_data = ({run.group([*chosen, *others, *more]) for run in noted} for more in ([], [DATA]))
    if len(with_data) > len(without):
        others.append(DATA)
    rest = [key for key in others if key != "from"]  # `from` names a line only if no other key differs
    return [*chosen, *(rest if chosen or rest else others)]


def departures(runs: Sequence[Recorded]) -> list[str]:
    """Return the config keys that are departures and differ between runs on the same problem.

    A departure is a config key that determines which clients take part, what they communicate or how long a run is, and whose
    value is not the default in at least one run.
    """
    keys = dict.fromkeys(key for run in runs for key in run.departures)
    problems = len({run.problem for run in runs})
    return [key for key in keys if len({(run.problem, run.group([key])) for run in runs}) > problems]


def known_keys(chosen: str, runs: Sequence[Recorded]) -> list[str]:
    """Return the config keys that the option --group-by names, each once.

    Args:
        chosen: The value of the option: keys separated by commas.
        runs: The runs to group.

    Raises:
        UserError: One of the keys is in no run's config.
    """
    keys = list(dict.fromkeys(key.strip() for key in chosen.split(",")))
    present = list(dict.fromkeys(key for run in runs for key in run.keys))
    for key in keys:
        if key not in present:
            raise UserError(f"--group-by={key}: no run's config has this key{nearest(key, present)}")
    return keys


def _items(by: Sequence[str], groups: Values, stay: Collection[str] | None) -> list[list[str]]:
    """Return, for each group, the parts of its label: the chosen option of a config group, such as fedavg, or KEY=VALUE otherwise.

    Long decimals are rounded to four significant digits, unless two values of a key would become equal. A key that a group
    lacks is left out, and so is a limit of the budget that is null.

    Args:
        by: The keys that define the groups.
        groups: For each group, the values of the keys `by`, in the same order.
        stay: The keys that every label names; any other key is named only if it differs between groups with the same chosen
            options. None: every label names all keys.
    """
    table = pd.DataFrame(groups, columns=[*by])
    if stay is not None:
        options = [tuple(v for key, v in zip(by, group, strict=True) if key in CHOSEN) for group in groups]
        differs = table.groupby(pd.Series(options)).transform("nunique") > 1
        table = table.where(differs.to_numpy() | [key in (*CHOSEN, *stay) for key in by], ABSENT)
    for key in by:
        short = table[key].str.replace(r"^-?\d+\.\d{4,}(e[-+]?\d+)?$", lambda v: f"{float(v[0]):.4g}", regex=True)
        table[key] = short if short.nunique() == table[key].nunique() else table[key]
    table = table.mask((table == "null") & table.columns.str.startswith("budget."), ABSENT)
    rows = [[(key, value) for key, value in row.items() if value != ABSENT] for row in table.to_dict("records")]
    return [[str(value) if key in CHOSEN else f"{key}={value}" for key, value in row] for row in rows]


def legend_labels(groups: Mapping[str, Sequence[Recorded]]) -> dict[str, str]:
    """Return a mapping from each label to the label in figures, which is shorter and has the methods' display names.

    With several problems, the labels do not repeat the problem, which is the title of the picture. If a label is longer than
    `LONG`, keys are dropped from all labels, the last key first, as long as no two labels become equal. Departures (keys that
    change which clients take part, what is communicated or for how long) are never dropped. If two labels would still be
    equal in the end, no label is changed.

    Args:
        groups: label -> runs of the group.
    """
    labels, folders = list[list[str]](), with_project()
    stay = departures([run for runs in groups.values() for run in runs])
    problems = [runs[0].problem for runs in groups.values()]
    for (label, runs), problem in zip(groups.items(), problems, strict=True):
        algo, titled = runs[0].keys.get("algo", ABSENT), problem if len({*problems}) > 1 else ()
        kept = [item for item in label.split(", ") if item not in titled] or [algo]
        text = ", ".join(display_name(item, folders) if item == algo else item for item in kept)
        labels.append(re.split(r", (?=[\w.]+=)", text))
    if any(len(", ".join(items)) > LONG for items in labels):
        keys = dict.fromkeys(item.partition("=")[0] for items in labels for item in items if "=" in item)
        for key in [key for key in reversed(keys) if key not in stay]:
            fewer = [[item for item in items if not item.startswith(f"{key}=")] for items in labels]
            labels = fewer if all(fewer) and _differ(fewer, problems) else labels
        labels = [[item.removeprefix("algo.") for item in items] for items in labels]
    shown = list(map(", ".join, labels))
    return dict(zip(groups, shown if _differ(shown, problems) else groups, strict=True))


def _differ(labels: Sequence[Sequence[str]], problems: Sequence[tuple[str, ...]]) -> bool:
    """Return whether all groups on the same problem have different labels.

    Args:
        labels: The label of each group, as a text or as a list of items.
        problems: The problem of each group.
    """
    return len({(*label, problem) for label, problem in zip(labels, problems, strict=True)}) == len(labels)


def labels_of(by: Sequence[str], groups: Values, names: Sequence[str], stay: Collection[str] | None) -> dict[str, int]:
    """Return a mapping from the label of each group to the index of its colour.

    A group that ``names`` renames gets the index of its new name in ``names``. If a name matches no group, its index stays
    unused, so that the other lines keep their colours, and a note names it.

    Args:
        by: The keys that define the groups.
        groups: For each group, the values of these keys.
        names: New names, each as OLD=NEW. OLD is a label or an item of a label, such as algo.K=5.
        stay: The keys that every label names; any other key is named only if it differs between groups with the same chosen
            options. None: every label names all keys.

    Raises:
        UserError: A name has no =, or two groups would have the same name.
    """
    every = _items(by, groups, stay)
    labels = [", ".join(items) or f"no {' or '.join(by)}" for items in every]
    shown = list(dict.fromkeys([*labels, *chain(*every)]))
    new_names: dict[str, str] = {}
    places: dict[str, int] = {}
    for place, text in enumerate(names):
        if "=" not in text:
            raise UserError(f"--names={text}: must be OLD=NEW, where OLD is one of {', '.join(shown)}")
        if old := max((name for name in shown if text.startswith(f"{name}=")), key=len, default=""):
            new_names[old], places[old] = text[len(old) + 1 :], place
        else:
            note(f"--names={text}: no line has this name; choose from {'; '.join(shown)}")
    shared = set.intersection(*map(set, every)) if len(every) > 1 else set()
    slots: dict[str, int] = {}
    free = len(names)
    for label, items in zip(labels, every, strict=True):
        renamed_at = [places[name] for name in (label, *items) if name in places and name not in shared]
        slot, free = (min(renamed_at), free) if renamed_at else (free, free + 1)
        while slot in slots.values():
            slot += 1
        renamed = new_names.get(label) or ", ".join(new_names.get(item, item) for item in items) or ABSENT
        if renamed in slots:
            raise UserError(f"--names: two lines would have the name {renamed}; give them different names")
        slots[renamed] = slot
    return slots
