"""Where the configs are, and composing them outside the `fedopt` command."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from fedopt.config.build import build
from fedopt.config.files import CONF, GROUPS, NO_PRESET, options
from fedopt.config.sent import check_folders, check_headers
from fedopt.config.settings import Settings
from fedopt.config.words import flat, parsed, quoted
from fedopt.errors import UserError, first_line, nearest, too_large, unknown

_NAME = re.compile(r"\w+")
_VALUE = re.compile(r"\w+(\.\w+)*")  # the key of an override that neither adds nor removes


def composed(overrides: Iterable[str], folders: Iterable[str | Path] = ()) -> DictConfig:
    """The config that `fedopt OVERRIDES` has; folders: config folders of one's own, searched after fedopt's.

    Choosing files takes Hydra long: configs that differ in values alone share it. Raises UserError for a preset that does not
    exist and for files that set Hydra up, and hydra's and omegaconf's errors.
    """
    return composed_of(overrides, folders)[0]


def composed_of(overrides: Iterable[str], folders: Iterable[str | Path] = ()) -> tuple[DictConfig, dict[str, str]]:
    """The config as `composed` gives it, and the option of each config group that it is made of."""
    words, own = tuple(overrides), tuple(str(folder) for folder in folders)
    check_folders(own)
    check_choices(words, own)
    read = dict(zip(words, parsed(words), strict=True))
    keys = {word: word.partition("=")[0] for word in words}
    groups = {key for key in keys.values() if any((root / key).is_dir() for root in (CONF, *map(Path, own)))}
    values = [word for word in words if _VALUE.fullmatch(keys[word]) and keys[word] not in groups]
    try:
        choose = _compose if own else _compose_once  # one's own files may change meanwhile
        config, options = deepcopy(choose(tuple(word for word in words if word not in values), own))
        metric = OmegaConf.select(config, "eval.metric")
        for override in (read[word] for word in values):
            OmegaConf.update(config, override.key_or_group, override.value())
        if OmegaConf.select(config, "eval.metric") != metric and "eval.target" not in keys.values():
            config.eval.target = None  # a preset's is of its own metric
        return config, options
    except (HydraException, OmegaConfBaseException):
        return _compose(words, own)  # whose message is the one that is wanted


def continued(config: dict[str, Any], words: Mapping[str, Override]) -> DictConfig:
    """The config of a run with other values, by their keys. Raises UserError for a key that it does not have."""
    node, nothing = OmegaConf.create(config), object()
    for key, override in words.items():
        if override.is_add() or override.is_delete() or OmegaConf.select(node, key, default=nothing) is nothing:
            raise UserError(f"{key}: the run that goes on has no such key{nearest(key, list(flat(config)))}")
        OmegaConf.update(node, key, override.value())
    return node


def check_choices(words: Iterable[str], folders: Iterable[str | Path] = ()) -> None:
    """Raises UserError where a word of a command chooses what a config group does not have.

    Hydra itself passes over a preset that is missing, and follows '..' out of the group.
    """
    for word in words:
        group, _, name = word.lstrip("+").partition("=")
        if not _NAME.fullmatch(group) or not name or "," in name or not (known := options(group, folders)):
            continue
        known = ["none", *known] if group in ("preset", "experiment") else known
        if name.strip("'\"") not in known:
            raise UserError(unknown(group, name, known))


def _compose(overrides: tuple[str, ...], folders: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    try:
        config = _with_hydra(*search_path(folders), *overrides)
    except (HydraException, OmegaConfBaseException) as error:
        if NO_PRESET in overrides and "Could not override 'preset'" in str(error):  # there are none to leave out
            return _compose(tuple(word for word in overrides if word != NO_PRESET), folders)
        blamed = [group for group in ("experiment", "preset") if group in str(error)]
        chosen = {word.partition("=")[2] for word in overrides if word.startswith("experiment=")}
        for group, folder in product(blamed, folders):  # a preset may be chosen by a problem's name
            of_group = chosen if group == "experiment" else options(group, [folder])
            check_headers((group, Path(folder, group, f"{option}.yaml")) for option in of_group)
        raise
    except MemoryError:
        raise
    except RecursionError:
        raise UserError(f"{', '.join(folders)}: files there name each other in their defaults without end") from None
    except Exception as error:  # a file that is no YAML, a defaults list of numbers, a word like =1
        mark = getattr(error, "problem_mark", None)
        where = f"{Path(mark.name).name}, line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"the config cannot be read: {where}{problem}") from None
    if folders and _set_up(config) != _set_up_by_us():
        raise UserError(f"{', '.join(folders)}: a file there sets up Hydra, which could run code")
    with open_dict(config):
        choices = dict(config.pop("hydra").runtime.choices)
    check_headers((group, Path(folder, group, f"{choices.get(group)}.yaml")) for folder in folders for group in GROUPS)
    # Hydra passes over a preset that is not there: right for an algorithm's own, <family>/<problem>, and wrong for another
    preset, known = str(choices.get("preset")), options("preset", folders)
    if preset not in ("None", "none", *known) and preset.rpartition("/")[2] != choices["problem"]:
        raise UserError(unknown("preset", preset, known))
    return config, chosen_of(choices, folders)


def chosen_of(choices: Mapping[str, Any], folders: Iterable[str | Path]) -> dict[str, str]:
    """What `Asked.chosen` holds, of Hydra's own choices."""
    chosen = {group: str(name) for group, name in choices.items() if group in GROUPS}
    return chosen | {"preset": chosen["preset"] if chosen.get("preset") in options("preset", folders) else "none"}


_compose_once = cache(_compose)


def search_path(folders: Iterable[str | Path]) -> list[str]:
    """The override that has Hydra search config folders of one's own after fedopt's; none where there are none."""
    found = [quoted(f"file://{os.path.abspath(folder)}") for folder in folders]
    return [f"hydra.searchpath=[{','.join(found)}]"] if found else []


@contextmanager
def _set_aside(hydra: GlobalHydra) -> Iterator[None]:
    """In a job of a sweep, which Hydra itself is running."""
    running, hydra.hydra = hydra.hydra, None
    try:
        yield
    finally:
        hydra.hydra = running


def _with_hydra(*words: str) -> DictConfig:
    """The config that these words compose to, with Hydra's own node."""
    hydra = GlobalHydra.instance()
    with _set_aside(hydra), initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(words), return_hydra_config=True)


@cache
def _set_up_by_us() -> Any:
    return _set_up(_with_hydra())


def _set_up(config: DictConfig) -> Any:
    """What Hydra is told to do, but for what says how it was called."""
    node = OmegaConf.to_container(config.hydra)
    assert isinstance(node, dict)
    node["job"].pop("override_dirname")
    return {key: value for key, value in node.items() if key not in ("runtime", "overrides", "searchpath")}


def plain(config: DictConfig) -> dict[str, Any]:
    """The config as dicts, lists, texts and numbers, without the published experiment that it may belong to.

    Raises UserError where a value is missing or refers to nothing.
    """
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}: a value must be given") from None
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {first_line(error)}") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items() if key != "experiment"}


def resolve(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, as `plain` gives them, after all checks that need neither data nor torch.

    Raises UserError for an unknown key, for a value of a wrong type or out of range among those that every run has, and when the
    algorithm is not for this class of problems.
    """
    resolved = plain(config)
    build(Settings, resolved)
    algo, problem = resolved["algo"], resolved["problem"]
    solves, kind = algo.get("_solves_"), problem.get("_class_")  # where the files say so; else the classes do, later
    if isinstance(solves, list) and isinstance(kind, str) and kind not in solves:
        fitting = [name for name in options("problem") if _declared("problem", name, "_class_") in solves]
        methods = [name for name in options("algo") if kind in _declared("algo", name, "_solves_")]
        raise UserError(
            f"algo and problem do not fit: this algorithm solves {', '.join(map(str, solves))} problems (problem="
            f"{'|'.join(fitting)}), and this problem is {kind} (algo={'|'.join(methods)})"
        )
    return resolved


def _declared(group: str, name: str, key: str) -> Any:
    """What one of fedopt's files, or else the file that it builds on, gives as this key of its group's node.

    Composing every file of a group takes Hydra two seconds, which is too long for a message.
    """
    content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    if key in (node := content.get(group, {})):
        return node[key]
    base = next(entry for entry in content["defaults"] if isinstance(entry, str) and entry != "_self_")
    return _declared(group, base, key)


def is_mistake(error: BaseException) -> bool:
    """Whether a user can mend it."""
    return isinstance(error, UserError | HydraException | OmegaConfBaseException | OSError) or too_large(error)


def explain(error: BaseException, arguments: Sequence[str]) -> str:
    """One line for a mistake in the command or the config: what, where, and the nearest valid name."""
    if isinstance(error, UserError):
        return str(error)
    if too_large(error):
        numbers = [word for word in arguments if re.fullmatch(r"[\w.]+=-?(\d{4,}|\d[\d.]*e\+?\d+)", word)]
        largest = max(
            numbers, key=lambda word: abs(float(word.partition("=")[2])), default="a dimension or another number"
        )
        return f"{largest}: is too large for the memory or the precision here ({first_line(error)})"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = error.missing_cfg_file
        nested = missing.startswith(("experiment/", "preset/"))  # Hydra's options are those of one folder then
        group, _, option = missing.partition("/") if nested else missing.rpartition("/")
        known = options(group) if nested else sorted(error.options or []) or options(group)
        return unknown(group, option, known)
    text = " ".join(str(error).split())
    if key := re.search(r"Could not override '([^']+)'", text):
        if key[1] in GROUPS:
            return f"{key[1]}: neither the algorithm's nor the problem's file names one; +{key[1]}=NAME adds one"
        known = known_keys(arguments)
        nodes = (word for word in arguments if word.partition("=")[0] not in GROUPS)
        if whole := next((word for word in nodes if key[1].startswith(f"{word.partition('=')[0]}.")), ""):
            return f"{whole}: is set by its keys, such as {key[1]}=VALUE"
        if key[1] in known:
            return f"{key[1]}: not every choice of the sweep has this key"
        chosen = [word for word in arguments if word.partition("=")[0] in ("algo", "problem") and "," not in word]
        group, _, name = key[1].partition(".")
        own = next((word for word in arguments if _chooses_own(word, group)), None)
        if own and not get_close_matches(name, [of.removeprefix(f"{group}.") for of in known]):
            given = next((word for word in arguments if word.startswith(f"{key[1]}=")), f"{key[1]}=VALUE")
            return f"{key[1]}: the file of {own} has no such key; +{given} sets a field of its class that the file leaves out"
        explained = f"fedopt --help {' '.join(chosen or ['algo=NAME', 'problem=NAME'])} explains them"
        return f"{key[1]}: there is no such key{_meant(key[1].lstrip('+~'), known)}; {explained}"
    if several := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{several[1]}: several values are a sweep, with -m (in Python a loop), or a list, in square brackets"
    if merging := re.search(r"Error merging override (.*)", text):
        return f"{merging[1]}: this key holds no such value"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override; write key=value, with quotes around values that hold blanks, commas or braces"
    if isinstance(error, OSError):
        elsewhere = "choose another place: output_dir=DIR, or --output DIR or --out DIR of the sister commands"
        return f"{error.filename or 'output'}: {error.strerror or error}; mend that, or {elsewhere}"
    said = first_line(error)
    return text.partition(" full_key:")[0][:300] if said.endswith(":") else said  # what is wrong comes after it


def _chooses_own(word: str, group: str) -> bool:
    """Whether a word chooses, in this group, a file of the user's own."""
    key, _, option = word.partition("=")
    return key == group in GROUPS and "," not in option and option not in options(group)


def _meant(word: str, known: list[str]) -> str:
    """As `nearest`, or the keys beside a key that resembles none of them.

    A word without dots is a group or the last part of a key, and algorithm rather a group."""
    parent, _, leaf = word.rpartition(".")
    beside = [name.removeprefix(f"{parent}.") for name in known if parent and name.rpartition(".")[0] == parent]
    if beside:
        near = get_close_matches(leaf, beside, 1, 0.7)  # 0.6 would take eta_x for beta
        return f", did you mean {parent}.{near[0]}?" if near else f"; {parent} has {', '.join(beside)}"
    if parent:
        return nearest(word, known)
    leaves = {name.rpartition(".")[2]: name for name in known}
    found = get_close_matches(word, leaves, 1) or get_close_matches(word, [g for g in GROUPS if len(word) > 4], 1, 0.5)
    return f", did you mean {leaves[found[0]]}?" if found else ""


def known_keys(arguments: Sequence[str]) -> list[str]:
    """The config groups, and the dotted keys of the config that the command's choices from them compose to."""
    choices = [a for a in arguments if a.split("=")[0] in GROUPS and not set(a) & set(", ()[]{}")]
    try:
        config = OmegaConf.to_container(composed(choices, extra_folders(arguments)))
    except (UserError, HydraException, OmegaConfBaseException):
        return list(GROUPS)
    assert isinstance(config, dict)
    return [*GROUPS, *(key for key in flat(config) if not key.rpartition(".")[2].startswith("_"))]


def extra_folders(arguments: Sequence[str]) -> list[str]:
    """The config folders that a command names with --config-dir."""
    joined = [a.removeprefix("--config-dir=") for a in arguments if a.startswith("--config-dir=")]
    return joined + [value for flag, value in pairwise(arguments) if flag in ("--config-dir", "-cd")]
