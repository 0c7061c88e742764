"""Merge config files, tuned values and the values of a command into one config."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

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
from fedopt.config.tuned import Tuned, nodes, other_model, overlap, tuned_values
from fedopt.errors import UserError, first_line, nearest, unknown
from fedopt.files import Node
from fedopt.metrics import LIMITS


@contextmanager
def explained(overrides: tuple[str, ...], folders: tuple[str, ...]) -> Iterator[None]:
    """Turn the exceptions that Hydra and OmegaConf raise in this context into a UserError about the command.

    Args:
        overrides: The overrides of the command.
        folders: The user's config folders.

    Raises:
        UserError: Hydra or OmegaConf has raised an exception.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        cause = error if os.environ.get("HYDRA_FULL_ERROR") == "1" else None
        raise UserError(explain(error, overrides, keys_of(overrides, folders))) from cause


def merged(overrides: tuple[str, ...], folders: tuple[str, ...]) -> tuple[DictConfig, dict[str, str], Tuned, Node]:
    """Merge the files that a command chooses, the tuned values, and the values that the command sets, in this order.

    Hydra merges the files and applies the overrides that add or remove keys. Since this is slow, its result is cached for
    commands that differ only in values.

    Args:
        overrides: The overrides of the command.
        folders: The user's config folders.

    Returns:
        The config, the chosen option of each config group, the tuned values that apply, and the config of the experiment.

    Raises:
        UserError: The command or a config file is invalid.
        HydraException, OmegaConfBaseException: The command or a config file is invalid; see `explained`.
    """
    refuse_hydra(overrides)
    state = check_folders(folders)
    check_choices(overrides, folders)
    by_text = dict(zip(overrides, parsed(overrides), strict=True))
    for text, override in by_text.items():
        if override.is_sweep_override():
            raise UserError(f"{text}: several values need a sweep; add -m, or put a list into square brackets")
    roots = [CONF, *map(Path, folders)]
    groups = {key for key in map(key_of, overrides) if key != "preset" and any((root / key).is_dir() for root in roots)}
    sets_value = re.compile(r"\w+(\.\w+)*=")  # neither adds nor removes a key
    setting = {text: o for text, o in by_text.items() if sets_value.match(text) and key_of(text) not in groups}
    files, chosen, experiment = chosen_files(tuple(text for text in overrides if text not in setting), folders, state)
    config = deepcopy(files)
    if lacking := [group for group in ("algo", "problem") if chosen.get(group, "null") in ("null", "None")]:
        refuse_mistyped(overrides)
        raise UserError(f"{lacking[0]}: is missing; set {lacking[0]}=NAME{choice(lacking, chosen, folders)}")
    # A config file from somebody else must not decide where a run writes
    if config.output_dir is not None and "output_dir" not in map(key_of, overrides):
        raise UserError(f"output_dir={config.output_dir}: a config file cannot set output_dir; set it in the command")
    tuned = _add_tuned(config, chosen, [*by_text.values()], folders)
    if equal := experiment.get("equal"):
        _set_equal(config, chosen["algo"], equal, folders)
    metric = OmegaConf.select(config, "eval.metric")
    for text, override in setting.items():
        key, value = override.key_or_group, override.value()
        if "." not in key and isinstance(config.get(key), DictConfig) and not isinstance(value, dict):
            raise UserError(f"{text}: cannot be set as a whole; set individual keys with {key}.KEY=VALUE")
        try:
            put(config, key, value)
        except (TypeError, ValueError):
            raise UserError(f"{text}: this value has the wrong type; fedopt help {key} shows the right one") from None
    by_key = {override.key_or_group: override.value() for override in setting.values()}
    limited = any(by_key.get(f"budget.{name}") is not None for name in LIMITS)
    if limited and "budget.rounds" not in map(key_of, overrides):
        config.budget.rounds = None  # the default number of rounds must not end a run with another limit
    if OmegaConf.select(config, "eval.metric") != metric and "eval.target" not in map(key_of, overrides):
        config.eval.target = None  # the tuned target belongs to another metric
    return config, chosen, tuned, experiment


def refuse_mistyped(overrides: Iterable[str]) -> None:
    """Raise UserError for an override whose key looks like a misspelt config group.

    It is called if no algorithm or problem is chosen, since a misspelt key such as ``alog=fedavg`` is the likely reason.

    Args:
        overrides: The overrides of the command.
    """
    known = [*dict.fromkeys([*GROUPS, *(key.partition(".")[0] for key in about(SETTINGS)["fields"])])]
    for override in overrides:
        name = key_of(override).partition(".")[0]
        if name not in known and (near := nearest(name, known)):
            raise UserError(f"{override}: there is no {name}{near}")


def put(config: DictConfig, key: str, value: object, force_add: bool = False) -> None:
    """Set a key of the config in place. A schedule (a dict with `kind`) replaces another schedule instead of being merged.

    Args:
        config: The config.
        key: The dotted key.
        value: The new value.
        force_add: Whether to add the key if the config lacks it. Otherwise a missing key is an error.
    """
    is_schedule = isinstance(value, dict) and "kind" in value
    OmegaConf.update(config, key, value, merge=not is_schedule, force_add=force_add)


def _add_tuned(config: DictConfig, chosen: Mapping[str, str], overrides: list[Override], folders: Folders) -> Tuned:
    """Put the tuned values of the chosen algorithm and problem into the config, and return a description of these values.

    Keys that the command adds or removes are not touched. Keys that the command sets are overwritten here; the caller sets
    them again. Tuned keys of the problem, the data set and other groups are skipped if the chosen option lacks them.

    Args:
        config: The config, which is changed in place.
        chosen: The chosen option of each config group.
        overrides: The parsed overrides of the command.
        folders: The user's config folders.
    """
    by_command = {override.key_or_group: override for override in overrides}
    wanted = str(by_command["preset"].value() if "preset" in by_command else config.get("preset"))
    name, values = tuned_values(wanted, chosen, folders)
    fixed = [key for key, override in by_command.items() if override.is_add() or override.is_delete()]
    others = {*GROUPS} - {"algo"}  # groups whose chosen option may lack a tuned key
    lacking = {key for key in values if OmegaConf.select(config, key, default=MISSING) == MISSING}
    values = {key: value for key, value in values.items() if key.partition(".")[0] not in others or key not in lacking}
    different = other_model({key: o.value() for key, o in by_command.items()}, chosen, folders)
    pair = f"{chosen['algo']} on {chosen['problem']}"
    if f"dataset={chosen['dataset']}" in different and OmegaConf.is_missing(config.dataset, "path"):  # the user's data
        values.pop("eval.target", None)
        if wanted == "auto":  # step sizes tuned on one data set need not suit another
            name, values, pair = "", {}, f"{pair} with dataset={chosen['dataset']}"
        if general := setting_of(chosen["problem"], folders):
            different_data = f"problem={chosen['problem']} has the settings for another data set"
            raise UserError(f"dataset={chosen['dataset']}: {different_data}; choose problem={general} for your data")
    for key, value in values.items():
        if not any(overlap(key, other) for other in fixed):
            put(config, key, value, force_add=True)
    keys = tuple(key for key in values if not any(overlap(key, other) for other in by_command.keys() - {*GROUPS}))
    if not name:
        return Tuned(pair=pair, left_out=wanted == "none")
    file, _, problem = name.partition("/")
    defaults = nodes(file, folders)[problem].get("algo") == {}  # the search found nothing better than the defaults
    return Tuned(name, pair, keys, different, defaults=defaults)


def _set_equal(config: DictConfig, algo: str, equal: Mapping[str, object], folders: tuple[str, ...]) -> None:
    """Set the values that an experiment prescribes for all methods and problems. Keys that the config lacks are skipped.

    Args:
        config: The config, which is changed in place.
        algo: The name of the algorithm.
        equal: The values by key. The key ``local_work`` stands for all numbers of local steps or epochs of the algorithm,
            except numbers that are 1, since a single step is part of the method.
        folders: The user's config folders.
    """
    comments = meanings({"algo": algo}, folders)
    work = [key for key, comment in comments.items() if comment.endswith("number of local steps")]
    several = [key for key in work if OmegaConf.select(config, key) != 1]
    for key, value in {**equal, **dict.fromkeys(several, equal.get("local_work"))}.items():
        if OmegaConf.select(config, key, default=MISSING) != MISSING:
            put(config, key, value)


def check_choices(overrides: Iterable[str], folders: Folders = ()) -> None:
    """Check that the options that the overrides choose exist. Hydra itself would follow '..' out of the group's folder.

    Args:
        overrides: The overrides.
        folders: The user's config folders.

    Raises:
        UserError: A config group does not have the chosen option.
    """
    for override in overrides:
        group, _, name = override.lstrip("+").partition("=")
        names = options(group, folders) if re.fullmatch(r"\w+", group) else []
        if names and name and "," not in name and name.strip("'\"") not in names:
            raise UserError(unknown(group, name, names))


def keys_of(overrides: Iterable[str], folders: Folders = ()) -> dict[str, str]:
    """Return the config groups and dotted keys of a command's config, each with its comment ('' for groups).

    Keys that begin with an underscore are left out. If the chosen options cannot be composed, only the groups are returned.

    Args:
        overrides: The overrides of the command. Only the overrides that choose an option matter.
        folders: The user's config folders.
    """
    choices = tuple(text for text in overrides if key_of(text) in GROUPS and not set(text) & set(", ()[]{}"))
    try:
        composed, chosen, *_ = merged(choices, tuple(map(str, folders)))
        config = plain(composed, resolve=False)
    except (UserError, HydraException, OmegaConfBaseException):
        return dict.fromkeys(GROUPS, "")
    comments = meanings(chosen, folders)
    keys = [key for key in flat(config) if not key.rpartition(".")[2].startswith("_")]
    return dict.fromkeys(GROUPS, "") | {key: comments.get(key, "") for key in keys}


def plain(config: DictConfig, resolve: bool = True) -> Node:
    """Convert a config of OmegaConf to nested dicts, lists, strings and numbers.

    Args:
        config: The config.
        resolve: Whether to replace references such as ${seed} with their values.

    Raises:
        UserError: A reference cannot be resolved.
    """
    try:
        nodes = OmegaConf.to_container(config, resolve=resolve)
    except OmegaConfBaseException as error:
        raise UserError(
            f"{error.full_key}: the reference cannot be resolved ({first_line(error)}); set a value instead"
        ) from None
    assert isinstance(nodes, dict)
    return {str(key): value for key, value in nodes.items()}
