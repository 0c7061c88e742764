"""A config is composed once: the words of a command become a `Composed`, typed, checked and immutable."""

import json
import os
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from fedopt.config.build import build, build_target, builder
from fedopt.config.explain import explain
from fedopt.config.files import CONF, GROUPS, Folders, class_path, flat, options
from fedopt.config.sent import check_folders, refuse_expanding, refuse_hydra, refuse_outside
from fedopt.config.settings import Settings
from fedopt.config.tuned import Tuned, keeps_defaults, other_model, overlap, tuned_values
from fedopt.config.words import key_of, literal, parsed, quoted
from fedopt.errors import UserError, first_line, nearest, unknown

TURN = RLock()  # Hydra's state and torch's modes belong to the process: runs in its threads take turns

# What scripts/docs says of fedopt's classes, so that help and mistakes import nothing: the types of their fields, in words, and the
# classes of problems that they fit
CLASSES: dict[str, Any] = json.loads(Path(__file__).with_name("classes.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, eq=False)
class Composed:
    """The config of a run.

    Args:
        nodes: All values as dicts, lists, texts and numbers, as ``config.yaml`` has them.
        chosen: The option of each config group.
        words: The overrides of the command.
        folders: Config folders besides fedopt's.
        tuned: The tuned values that apply.
        experiment: The node of a published experiment, empty without one.
    """

    nodes: Mapping[str, Any]
    chosen: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    tuned: Tuned = field(default_factory=Tuned)
    experiment: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Settings:
        """The parts that every run has, typed. `compose` has seen that they are right; after `merge` this raises UserError."""
        return checked_settings(self.nodes)

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The objects that need no data, by group: algo, partitioner, dataset where the problem has one, and problem, a function
        of its world. Raises UserError."""
        groups = ["algo", "partitioner", *["dataset"] * bool(self.nodes["dataset"].get("_target_"))]
        problem = builder(self.nodes["problem"], "problem", "world")
        return {group: build_target(self.nodes[group], group) for group in groups} | {"problem": problem}

    def changed(self, **values: Any) -> "Composed":
        """Return this config with other values of top-level keys that need no check: seed, resume, output_dir."""
        words = [word for word in self.words if key_of(word) not in values]
        words += [f"{key}={quoted(value) if isinstance(value, str) else value}" for key, value in values.items()]
        changed = replace(self, nodes={**self.nodes, **values}, words=tuple(words))
        settings = copy(self.settings)  # not replace, which knows no aliases
        for key, value in values.items():
            object.__setattr__(settings, key, value)
        vars(changed).update(settings=settings)
        if "parts" in vars(self):  # none of which has these keys
            vars(changed).update(parts=self.parts)
        return changed


def compose(words: Sequence[str] = (), folders: Folders = ()) -> Composed:
    """Return the config that ``fedopt WORDS`` has.

    Args:
        words: Overrides as on the command line.
        folders: Your config folders.

    Raises:
        UserError: Something in it is wrong that shows before data are read.
    """
    composed = merge(words, folders)
    _ = composed.settings  # which are checked now
    return composed


def merge(words: Sequence[str] = (), folders: Folders = ()) -> Composed:
    """As `compose`, without a check of values: for what explains them."""
    given, others = tuple(words), tuple(map(str, folders))
    try:
        config, chosen, tuned, experiment = _merged(given, others)
        nodes = plain(config)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error if os.environ.get("HYDRA_FULL_ERROR") == "1" else None
        raise UserError(explain(error, given, keys_of(given, others))) from cause
    return Composed(nodes, chosen, given, others, tuned, experiment)


def recorded(
    nodes: Mapping[str, Any],
    words: Sequence[str] = (),
    chosen: Mapping[str, str] | None = None,
    tuned: Tuned | None = None,
) -> Composed:
    """Return the config of a run as its ``config.yaml`` has it, with other values where words set them.

    Args:
        nodes: The content of ``config.yaml``.
        words: Overrides as on the command line.
        chosen: The option of each config group, as the run's card has it.
        tuned: The tuned values that applied.

    Raises:
        UserError: A value does not fit.
    """
    config = OmegaConf.create(_literal(nodes))
    for word in parsed(words):
        key = word.key_or_group
        if word.is_add() or word.is_delete() or OmegaConf.select(config, key, default=config) is config:
            raise UserError(f"{key}: the run that goes on has no such key{nearest(key, [*flat(nodes)])}")
        _set(config, key, word.value())
    composed = Composed(plain(config), chosen or {}, tuple(words), tuned=tuned or Tuned())
    _ = composed.settings  # which are checked now
    return composed


def _literal(node: Any) -> Any:
    """With texts that OmegaConf takes as they are: a config.yaml that somebody sent refers to nothing."""
    if isinstance(node, Mapping):
        return {key: _literal(value) for key, value in node.items()}
    if isinstance(node, list):
        return [*map(_literal, node)]
    return literal(node) if isinstance(node, str) else node


def _merged(
    words: tuple[str, ...], folders: tuple[str, ...]
) -> tuple[DictConfig, dict[str, str], Tuned, dict[str, Any]]:
    """Files of the groups by Hydra, then tuned values, then the values of the command.

    Words that add or remove keys go to Hydra with those that choose files. This takes long: configs that differ in values only
    share it. Raises UserError, hydra's and omegaconf's errors.
    """
    refuse_hydra(words)
    state = check_folders(folders)
    check_choices(words, folders)
    overrides = dict(zip(words, parsed(words), strict=True))
    for word, override in overrides.items():
        if override.is_sweep_override():
            raise UserError(f"{word}: several values are a sweep, with -m, or a list, in square brackets")
    roots = [CONF, *map(Path, folders)]
    groups = {key for key in map(key_of, words) if key != "preset" and any((root / key).is_dir() for root in roots)}
    sets_value = re.compile(r"\w+(\.\w+)*=")  # of a word that neither adds nor removes
    setting = {word: o for word, o in overrides.items() if sets_value.match(word) and key_of(word) not in groups}
    files, chosen, experiment = _chosen_files(tuple(word for word in words if word not in setting), folders, state)
    config = deepcopy(files)
    if lacking := [group for group in ("algo", "problem") if chosen.get(group, "null") in ("null", "None")]:
        refuse_mistyped(words)
        raise UserError(f"{lacking[0]}: is missing; {lacking[0]}=NAME chooses one{_choice(lacking, chosen, folders)}")
    if config.output_dir is not None and "output_dir" not in map(key_of, words):
        refuse_outside(str(config.output_dir), folders)
    tuned = _add_tuned(config, chosen, [*overrides.values()], folders)
    metric = OmegaConf.select(config, "eval.metric")
    for word, override in setting.items():
        key, value = override.key_or_group, override.value()
        if "." not in key and isinstance(config.get(key), DictConfig) and not isinstance(value, dict):
            raise UserError(f"{word}: is set by its keys, {key}.KEY=VALUE")
        try:
            _set(config, key, value)
        except (ConfigAttributeError, ConfigKeyError):
            raise
        except (OmegaConfBaseException, TypeError, ValueError):
            raise UserError(f"{word}: this key holds no such value") from None
    limits = {
        o.key_or_group
        for o in setting.values()
        if o.key_or_group.startswith("budget.") and o.key_or_group != "budget.until" and o.value() is not None
    }
    if limits and "budget.rounds" not in map(key_of, words):
        config.budget.rounds = None  # what the command does not ask for ends no run
    if OmegaConf.select(config, "eval.metric") != metric and "eval.target" not in map(key_of, words):
        config.eval.target = None  # the tuned one is of another metric
    return config, chosen, tuned, experiment


def refuse_mistyped(words: Iterable[str]) -> None:
    """Raises UserError for a word that may have meant a config group: a command that lacks one says this first."""
    known = [*dict.fromkeys([*GROUPS, *(key.partition(".")[0] for key in CLASSES["Settings"]["fields"])])]
    for word in words:
        name = key_of(word).partition(".")[0]
        if name not in known and (near := nearest(name, known)):
            raise UserError(f"{word}: there is no {name}{near}")


def _choice(lacking: Sequence[str], chosen: Mapping[str, str], folders: Folders) -> str:
    """What may be chosen from the first group that a command lacks: what fits the option of the other one, if that is fedopt's."""
    group, *others = lacking
    other = "problem" if group == "algo" else "algo"
    kinds = [] if others else CLASSES.get(class_path(other, chosen[other], folders), {}).get("fits")
    if kinds:
        return f" of those that fit {chosen[other]}: {', '.join(_that_fit(group, kinds))}"
    return f"; fedopt list {group} shows them"


def _set(config: DictConfig, key: str, value: Any, force_add: bool = False) -> None:
    """A schedule, which has a `kind`, takes the place of another as a whole."""
    is_schedule = isinstance(value, dict) and "kind" in value
    OmegaConf.update(config, key, value, merge=not is_schedule, force_add=force_add)


def _add_tuned(config: DictConfig, chosen: Mapping[str, str], overrides: list[Override], folders: Folders) -> Tuned:
    """Put the tuned values of the chosen pair into the config, except for keys that the command adds or removes."""
    by_command = {override.key_or_group: override for override in overrides}
    wanted = str(by_command["preset"].value() if "preset" in by_command else config.get("preset"))
    name, values = tuned_values(wanted, chosen, folders)
    done = [key for key, override in by_command.items() if override.is_add() or override.is_delete()]
    others = {*GROUPS} - {"algo"}  # an option that was chosen may lack the key
    there = (
        k
        for k in values
        if k.partition(".")[0] not in others or OmegaConf.select(config, k, default=MISSING) != MISSING
    )
    values = {key: values[key] for key in there}
    for key, value in values.items():
        if not any(overlap(key, other) for other in done):
            _set(config, key, value, force_add=True)
    pair = f"{chosen['algo']} on {chosen['problem']}"
    keys = tuple(key for key in values if not any(overlap(key, other) for other in by_command.keys() - {*GROUPS}))
    if not name:
        return Tuned(pair=pair, left_out=wanted == "none")
    beside = other_model({key: o.value() for key, o in by_command.items()}, chosen, folders)
    return Tuned(name, pair, keys, beside, defaults=keeps_defaults(name, folders))


def check_choices(words: Iterable[str], folders: Folders = ()) -> None:
    """Raises UserError where a word of a command chooses what a config group does not have: Hydra follows '..' out of the group."""
    for word in words:
        group, _, name = word.lstrip("+").partition("=")
        names = options(group, folders) if re.fullmatch(r"\w+", group) else []
        if names and name and "," not in name and name.strip("'\"") not in names:
            if other := next((kind for kind in GROUPS if group in GROUPS and name in options(kind, folders)), ""):
                raise UserError(f"{group}={name}: {name} is chosen with {other}={name}; there are {', '.join(names)}")
            raise UserError(unknown(group, name, names))


@lru_cache(maxsize=1000)
def _chosen_files(
    words: tuple[str, ...], folders: tuple[str, ...], state: tuple[Hashable, ...]
) -> tuple[DictConfig, dict[str, str], dict[str, Any]]:
    """What Hydra makes of the files that the words choose, the option of each group, and the node of an experiment.

    state: of the folders, by which a file that was changed is read anew.
    """
    try:
        config = _with_hydra(*search_path(folders), *words)
    except (HydraException, OmegaConfBaseException, MemoryError):
        raise
    except RecursionError:
        raise UserError(f"{', '.join(folders)}: files there name each other in their defaults without end") from None
    except Exception as error:  # a file that is no YAML, a defaults list of numbers, a word like =1
        raise UserError(f"the config cannot be read: {' '.join(str(error).split()) or first_line(error)}") from None
    if folders and _set_up(config) != _set_up_by_us():
        raise UserError(f"{', '.join(folders)}: a file there sets up Hydra, which could run code")
    with open_dict(config):
        choices, experiment = config.pop("hydra").runtime.choices, config.pop("experiment", None)
    published = plain(experiment, resolve=False) if isinstance(experiment, DictConfig) else {}
    return config, {group: str(choices[group]) for group in GROUPS if group in choices}, published


def search_path(folders: Folders) -> list[str]:
    """The override that has Hydra search config folders besides fedopt's; none where there are none."""
    paths = [quoted(f"file://{os.path.abspath(folder)}") for folder in folders]
    return [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []


def _with_hydra(*words: str) -> DictConfig:
    """The config that these words compose to, with Hydra's own node."""
    with _set_aside(GlobalHydra.instance()), hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(words), return_hydra_config=True)


@contextmanager
def _set_aside(running: GlobalHydra) -> Iterator[None]:
    """In a job of a sweep, which Hydra itself is running."""
    before, running.hydra = running.hydra, None
    try:
        yield
    finally:
        running.hydra = before


@cache
def _set_up_by_us() -> Any:
    return _set_up(_with_hydra())


def _set_up(config: DictConfig) -> Any:
    """What Hydra is told to do, except for what says how it was called."""
    node = plain(config.hydra, resolve=False)
    node["job"].pop("override_dirname")
    return {key: value for key, value in node.items() if key not in ("runtime", "overrides", "searchpath")}


def keys_of(words: Iterable[str], folders: Folders = ()) -> list[str]:
    """The config groups, and the dotted keys of the config that the words' choices from them compose to."""
    choices = tuple(word for word in words if key_of(word) in GROUPS and not set(word) & set(", ()[]{}"))
    try:
        config = plain(_merged(choices, tuple(map(str, folders)))[0], resolve=False)
    except (UserError, HydraException, OmegaConfBaseException):
        return list(GROUPS)
    return [*GROUPS, *(key for key in flat(config) if not key.rpartition(".")[2].startswith("_"))]


def plain(config: DictConfig, resolve: bool = True) -> dict[str, Any]:
    """The config as dicts, lists, texts and numbers. Raises UserError where a value refers to nothing, or to far too much."""
    try:
        nodes = OmegaConf.to_container(config, resolve=False)
        if resolve and "${" in str(nodes):
            refuse_expanding(nodes)
            nodes = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {first_line(error)}") from None
    assert isinstance(nodes, dict)
    return {str(key): value for key, value in nodes.items()}


def checked_settings(nodes: Mapping[str, Any]) -> Settings:
    """The typed parts of a config. Raises UserError for an unknown key, a wrong value, and a pair that does not fit."""
    if missing := next((key for key, value in flat(nodes).items() if value == MISSING), ""):
        raise UserError(f"{missing}: a value must be given")
    settings = build(Settings, nodes)
    solves, kind = (CLASSES.get(str(nodes[group].get("_target_")), {}).get("fits") for group in ("algo", "problem"))
    if solves and kind and not {*kind} & {*solves}:  # a user's own class says it when it is built
        problems, methods = ("|".join(_that_fit(*wanted)) for wanted in (("problem", solves), ("algo", kind)))
        raise UserError(
            f"algo and problem do not fit: this algorithm solves {', '.join(solves)} problems (problem={problems}), and this "
            f"problem is {kind[0]} (algo={methods}){other_solution(solves, kind)}"
        )
    return settings


def other_solution(solves: Collection[str], kind: Collection[str]) -> str:
    """Why an algorithm for `solves` is refused on a problem of a class in `kind`, if they differ in what is local, or known."""
    if "known_outer" in solves and {"two_level", "compositional"} & {*kind}:
        return "; it needs two levels, the last of which is one function that everyone knows"
    solved, given = (
        {re.sub("two_level|known_outer", "compositional", name).removeprefix("local_") for name in n}
        for n in (solves, kind)
    )
    if not solved & given:
        return ""
    return "; a lower level or a composition that is local to each client has another solution than one of all clients"


def _that_fit(group: str, classes: Collection[str]) -> list[str]:
    """fedopt's options of a group that are of some of these classes of problems."""
    return [name for name in options(group) if {*CLASSES[class_path(group, name)]["fits"]} & {*classes}]
