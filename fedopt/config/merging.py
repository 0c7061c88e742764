"""Files, tuned values and the values of a command become one config."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedopt.config.classes import SETTINGS, about
from fedopt.config.explain import explain
from fedopt.config.files import CONF, GROUPS, Folders, flat, meanings, options, setting_of
from fedopt.config.fits import choice
from fedopt.config.hydra import chosen_files
from fedopt.config.overrides import key_of, parsed
from fedopt.config.sent import check_folders, refuse_hydra
from fedopt.config.tuned import Tuned, keeps_defaults, other_model, overlap, tuned_values
from fedopt.errors import UserError, first_line, nearest, unknown
from fedopt.metrics import LIMITS


@contextmanager
def explained(words: tuple[str, ...], folders: tuple[str, ...]) -> Iterator[None]:
    """Turn exceptions of Hydra and OmegaConf into a UserError in terms of the command.

    words: the overrides of the command. folders: its config folders.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        cause = error if os.environ.get("HYDRA_FULL_ERROR") == "1" else None
        raise UserError(explain(error, words, keys_of(words, folders))) from cause


def merged(
    words: tuple[str, ...], folders: tuple[str, ...]
) -> tuple[DictConfig, dict[str, str], Tuned, dict[str, Any]]:
    """Merge the files that a command chooses (by Hydra), the tuned values, and the values that the command sets.

    Overrides that add or remove keys are given to Hydra, with the choices of files. This takes long, so its result is cached
    for commands that differ in values only.

    words: the overrides of the command. folders: config folders besides fedopt's. Returns the config, the option of each
        group, the tuned values, and the node of the experiment. Raises UserError, and exceptions of Hydra and OmegaConf.
    """
    refuse_hydra(words)
    state = check_folders(folders)
    check_choices(words, folders)
    overrides = dict(zip(words, parsed(words), strict=True))
    for word, override in overrides.items():
        if override.is_sweep_override():
            raise UserError(
                f"{word}: several values are a sweep, which needs -m; add -m, or write a list in square brackets"
            )
    roots = [CONF, *map(Path, folders)]
    groups = {key for key in map(key_of, words) if key != "preset" and any((root / key).is_dir() for root in roots)}
    sets_value = re.compile(r"\w+(\.\w+)*=")  # of a word that neither adds nor removes
    setting = {word: o for word, o in overrides.items() if sets_value.match(word) and key_of(word) not in groups}
    files, chosen, experiment = chosen_files(tuple(word for word in words if word not in setting), folders, state)
    config = deepcopy(files)
    if lacking := [group for group in ("algo", "problem") if chosen.get(group, "null") in ("null", "None")]:
        refuse_mistyped(words)
        raise UserError(f"{lacking[0]}: is missing; {lacking[0]}=NAME chooses one{choice(lacking, chosen, folders)}")
    if config.output_dir is not None and "output_dir" not in map(
        key_of, words
    ):  # a file that was sent would say where to write
        raise UserError(f"output_dir={config.output_dir}: a config file cannot set it; set it in the command")
    tuned = _add_tuned(config, chosen, [*overrides.values()], folders)
    if equal := experiment.get("equal"):
        _set_equal(config, chosen["algo"], equal, folders)
    metric = OmegaConf.select(config, "eval.metric")
    for word, override in setting.items():
        key, value = override.key_or_group, override.value()
        if "." not in key and isinstance(config.get(key), DictConfig) and not isinstance(value, dict):
            raise UserError(f"{word}: cannot be set as a whole; set its keys, {key}.KEY=VALUE")
        try:
            put(config, key, value)
        except (TypeError, ValueError):
            raise UserError(f"{word}: this key cannot hold such a value; fedopt --help shows its type") from None
    by_key = {override.key_or_group: override.value() for override in setting.values()}
    limited = any(by_key.get(f"budget.{name}") is not None for name in LIMITS)
    if limited and "budget.rounds" not in map(key_of, words):
        config.budget.rounds = None  # what the command does not ask for ends no run
    if OmegaConf.select(config, "eval.metric") != metric and "eval.target" not in map(key_of, words):
        config.eval.target = None  # the tuned one is of another metric
    return config, chosen, tuned, experiment


def refuse_mistyped(words: Iterable[str]) -> None:
    """Raise UserError for an override whose key looks like a misspelt config group. Used before saying that a group is missing."""
    known = [*dict.fromkeys([*GROUPS, *(key.partition(".")[0] for key in about(SETTINGS)["fields"])])]
    for word in words:
        name = key_of(word).partition(".")[0]
        if name not in known and (near := nearest(name, known)):
            raise UserError(f"{word}: there is no {name}{near}")


def put(config: DictConfig, key: str, value: Any, force_add: bool = False) -> None:
    """Set a key of the config in place. A schedule, a dict with `kind`, replaces another schedule and is not merged with it.

    key: dotted. value: its new value. force_add: whether to add a key that the config lacks, if it is in struct mode.
    """
    is_schedule = isinstance(value, dict) and "kind" in value
    OmegaConf.update(config, key, value, merge=not is_schedule, force_add=force_add)


def _add_tuned(config: DictConfig, chosen: Mapping[str, str], overrides: list[Override], folders: Folders) -> Tuned:
    """Put the tuned values of the chosen algorithm and problem into the config, and return which apply.

    Keys that the command adds or removes stay as they are. Keys that it sets are overwritten; the caller sets them again.
    Tuned keys of the problem, the data set and so on are left out if the chosen option lacks them; those of `algo`, `budget`,
    `eval` and `participation` never are.
    config: changed in place. chosen: the option of each group. overrides: of the command. folders: config folders besides
        fedopt's.
    """
    by_command = {override.key_or_group: override for override in overrides}
    wanted = str(by_command["preset"].value() if "preset" in by_command else config.get("preset"))
    name, values = tuned_values(wanted, chosen, folders)
    done = [key for key, override in by_command.items() if override.is_add() or override.is_delete()]
    others = {*GROUPS} - {"algo"}  # an option that was chosen may lack the key
    lacking = {key for key in values if OmegaConf.select(config, key, default=MISSING) == MISSING}
    values = {key: value for key, value in values.items() if key.partition(".")[0] not in others or key not in lacking}
    beside = other_model({key: o.value() for key, o in by_command.items()}, chosen, folders)
    pair = f"{chosen['algo']} on {chosen['problem']}"
    if f"dataset={chosen['dataset']}" in beside and OmegaConf.is_missing(config.dataset, "path"):  # the user's own data
        values.pop("eval.target", None)
        if wanted == "auto":  # steps that suit one data set need not suit another
            name, values, pair = "", {}, f"{pair} with dataset={chosen['dataset']}"
        if general := setting_of(chosen["problem"], folders):
            raise UserError(
                f"problem={chosen['problem']} dataset={chosen['dataset']}: this problem is {general} with values for its own "
                f"data set; use problem={general}"
            )
    for key, value in values.items():
        if not any(overlap(key, other) for other in done):
            put(config, key, value, force_add=True)
    keys = tuple(key for key in values if not any(overlap(key, other) for other in by_command.keys() - {*GROUPS}))
    if not name:
        return Tuned(pair=pair, left_out=wanted == "none")
    return Tuned(name, pair, keys, beside, defaults=keeps_defaults(name, folders))


def _set_equal(config: DictConfig, algo: str, equal: Mapping[str, Any], folders: tuple[str, ...]) -> None:
    """Set the values that an experiment has for all methods and problems, where the config has the key.

    config: changed in place. equal: key -> value; `local_work` stands for all numbers of local steps or epochs of the algorithm but
        a single step, which is part of the method. folders: config folders besides fedopt's.
    """
    said = meanings({"algo": algo}, folders)
    of_work = [
        key for key in said if said[key].endswith("number of local steps") and OmegaConf.select(config, key) != 1
    ]
    for key, value in {**equal, **dict.fromkeys(of_work, equal.get("local_work"))}.items():
        if OmegaConf.select(config, key, default=MISSING) != MISSING:
            put(config, key, value)


def check_choices(words: Iterable[str], folders: Folders = ()) -> None:
    """Raise UserError if an override chooses an option that its config group does not have.

    Hydra would follow '..' out of the group. words: the overrides. folders: config folders besides fedopt's.
    """
    for word in words:
        group, _, name = word.lstrip("+").partition("=")
        names = options(group, folders) if re.fullmatch(r"\w+", group) else []
        if names and name and "," not in name and name.strip("'\"") not in names:
            raise UserError(unknown(group, name, names))


def keys_of(words: Iterable[str], folders: Folders = ()) -> dict[str, str]:
    """Return the config groups and the dotted keys of the config that the chosen options make, with the comments beside them.

    If the options cannot be composed, return the groups alone, without comments.
    words: the overrides of a command; only those that choose an option count. folders: config folders besides fedopt's.
    """
    choices = tuple(word for word in words if key_of(word) in GROUPS and not set(word) & set(", ()[]{}"))
    try:
        composed, chosen, *_ = merged(choices, tuple(map(str, folders)))
        config = plain(composed, resolve=False)
    except (UserError, HydraException, OmegaConfBaseException):
        return dict.fromkeys(GROUPS, "")
    said = meanings(chosen, folders)
    keys = [key for key in flat(config) if not key.rpartition(".")[2].startswith("_")]
    return dict.fromkeys(GROUPS, "") | {key: said.get(key, "") for key in keys}


def plain(config: DictConfig, resolve: bool = True) -> dict[str, Any]:
    """Return the config as dicts, lists, texts and numbers.

    config: OmegaConf's. resolve: whether to replace references such as ${seed}. Raises UserError if a reference has no value,
        or references expand to far too much.
    """
    try:
        nodes = OmegaConf.to_container(config, resolve=resolve)
    except OmegaConfBaseException as error:
        raise UserError(
            f"{error.full_key}: its reference cannot be resolved ({first_line(error)}); give a value, or name another key"
        ) from None
    assert isinstance(nodes, dict)
    return {str(key): value for key, value in nodes.items()}
