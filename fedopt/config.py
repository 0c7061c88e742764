"""Where the configs are, and composing them outside the `fedopt` command."""

import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from fedopt.errors import UserError, first_line, nearest, unknown
from fedopt.settings import Settings, build

_inside, _beside = Path(__file__).parent / "conf", Path(__file__).parents[1] / "conf"
CONF = _inside if _inside.is_dir() else _beside  # in a wheel, in a checkout
MOST_ALIASES = 20  # of a YAML file: each may double what it stands for
FOUND_WITHOUT = ", which were found without "  # of tuned values, before choices of model or data
NO_PRESET = "preset=none"
GROUPS = ("algo", "problem", "dataset", "partitioner", "hardware", "logger", "preset", "experiment")
MODEL = re.compile(r"\+*(problem\.(model|widths)|dataset)\b[^=]*=")  # what steps that suit one need not suit in another
_NAME = re.compile(r"\w+")
_VALUE = re.compile(r"\w+(\.\w+)*")  # the key of an override that neither adds nor removes


@dataclass(frozen=True)
class Asked:
    """How a run was asked for. overrides: as on the command line; chosen: the option of each of fedopt's config groups, and the
    preset whose tuned values apply, none where there are none; folders: config folders besides fedopt's."""

    overrides: list[str] = field(default_factory=list)
    chosen: Mapping[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    @property
    def tuned(self) -> str:
        """Which tuned values apply, in words; empty where nothing was chosen."""
        preset = self.chosen.get("preset")
        if preset != "none":
            others = self._unlike_the_usual() if preset else []
            beside = f"{FOUND_WITHOUT}{' '.join(others)}" if others else ""
            return f"tuned values: preset/{preset}{beside}" if preset else ""
        pair = f"{self.chosen.get('algo')} on {self.chosen.get('problem')}"
        if NO_PRESET in self.overrides:
            return f"{NO_PRESET}: tuned values are left out: what the command does not say is a default"
        return f"no tuned values for {pair}: what the command does not say is a default"

    def _unlike_the_usual(self) -> list[str]:
        """The overrides that choose another model or other data than the problem has by itself."""
        others = [word for word in self.overrides if MODEL.match(word)]
        if not others:
            return []
        usual, chosen = composed_of([word for word in self.overrides if word not in others], self.folders)
        return [
            word
            for word, read in zip(others, parsed(others), strict=True)
            if chosen.get(read.key_or_group, OmegaConf.select(usual, read.key_or_group)) != read.value()
        ]


def options(group: str, folders: Iterable[str | Path] = ()) -> list[str]:
    """What can be chosen from a config group. folders: config folders besides fedopt's."""
    roots = [Path(folder) / group for folder in (CONF, *folders)]
    found = {path.relative_to(root).with_suffix("") for root in roots for path in root.rglob("*.yaml")}
    return sorted(path.as_posix() for path in found)


def file_of(group: str, option: str, folders: Iterable[str | Path] = ()) -> Path:
    """The file of an option of a config group, as `options`."""
    paths = (Path(folder) / group / f"{option}.yaml" for folder in (CONF, *folders))
    return next(path for path in paths if path.exists())


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


def tuned(preset: str, words: Iterable[str], folders: Iterable[str | Path] = ()) -> bool:
    """Whether a run has values of a preset: of the keys in its file, but for those of evaluations, one that no word of its command
    sets itself."""
    if preset not in options("preset", folders):
        return preset != "none"
    files = [path for root in (CONF, *folders) if (path := Path(root) / "preset" / f"{preset}.yaml").is_file()]
    given = {word.partition("=")[0].lstrip("+~") for word in words}
    keys = {
        key for path in files for key in flat(yaml.safe_load(config_text(path)) or {}) if not key.startswith("eval.")
    }
    return not keys <= given


def differences(runs: Iterable[tuple[dict[str, Any], Mapping[str, str]]], swept: Container[str]) -> str:
    """A line on what the runs of a sweep on the same problem differ in though nobody swept it: whether there are tuned values for
    them, the budget, and when to evaluate. Empty where they do not.

    runs: config and choices of each; swept: the keys and groups that the sweep gives several values.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for config, chosen in runs:
        who = " ".join(chosen[group] for group in GROUPS if group in swept and group != "problem")
        told = {"tuned values": "none" if chosen["preset"] == "none" else "preset"}
        for node, keys in (("budget", config["budget"]), ("eval", ("every", "at"))):
            told |= {f"{node}.{key}": json.dumps(config[node][key]) for key in keys}
        for key, value in told.items():
            if key not in swept:
                names = found.setdefault((chosen["problem"], key), {}).setdefault(value, [])
                names += [who] if who not in names else []
    lines = [
        f"{key} on {problem}: " + ", ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
        for (problem, key), values in found.items()
        if len(values) > 1
    ]
    equal = f". {NO_PRESET} leaves tuned values out for all" * any(
        key == "tuned values" and len(values) > 1 for (_, key), values in found.items()
    )
    return f"the runs differ in what is not swept: {'. '.join(lines)}{equal}" if lines else ""


def parsed(words: Iterable[str]) -> list[Override]:
    """The overrides of a command. Raises hydra's errors, and UserError for thousands of digits or brackets."""
    try:
        return OverridesParser.create().parse_overrides(list(words))
    except (ValueError, RecursionError) as error:
        raise UserError(f"a value cannot be read: {first_line(error)}") from None


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


def refuse_hydra(words: Iterable[str], allowed: tuple[str, ...] = ()) -> None:
    """Raises UserError for an override that sets up Hydra itself, which can be told to call anything.

    allowed: how a key may begin all the same.
    """
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        ours = key.partition("@")[0].split("/")[0].split(".")[0] != "hydra"
        calls = "._" in key or "_target_" in word or "custom_search_space" in word
        if not ours and (not key.startswith(allowed) or calls):
            raise UserError(
                f"{key}: is not for users; with -m, hydra/launcher and hydra.launcher.KEY choose how jobs run, hydra/sweeper and "
                "hydra.sweeper.KEY which ones"
            )


def check_folders(folders: Iterable[str | Path]) -> None:
    """Raises UserError for a folder that is not there, and where a file in one sets up Hydra itself, which can be told to call
    anything: a file that was sent must not run code."""
    for missing in (folder for folder in folders if not Path(folder).is_dir()):
        raise UserError(f"--config-dir={missing}: there is no such folder")
    for folder in map(Path, folders):
        for path in folder.rglob("*"):
            if path.is_dir() and path.is_symlink():
                raise UserError(f"{path}: is a link; put the folder itself there")
            if path.suffix == ".yaml" and not path.is_dir():
                if (CONF / path.relative_to(folder)).exists():
                    raise UserError(
                        f"{path}: fedopt has a file of this name, which counts instead; choose another name"
                    )
                _check_file(folder, path)


def _check_file(folder: Path, path: Path) -> None:
    text, node = "", None
    # As Hydra reads it; what it cannot read it does not obey either, and says so where it is chosen
    with suppress(OSError, ValueError, AssertionError, RecursionError, yaml.YAMLError, OmegaConfBaseException):
        text = config_text(path)
        node = OmegaConf.to_container(OmegaConf.create(text))
    content = node if isinstance(node, dict) else {}
    defaults = str(content.get("defaults"))
    header = "".join(line for line in text.splitlines() if "@package" in line)
    named = "hydra" in path.relative_to(folder).parts[:-1]
    if named or any("hydra" in str(said) for said in (*content, defaults, header)):
        raise UserError(f"{path}: sets up Hydra, which could run code; remove all that names hydra from it")
    if ".." in defaults:
        raise UserError(f"{path}: its defaults leave the folder; put the file that they name into it")


def _check_headers(files: Iterable[tuple[str, Path]]) -> None:
    """Raises UserError for a file of a config group that sets keys of the whole config and lacks the line that says so."""
    for group, path in files:
        with suppress(OSError, yaml.YAMLError):
            content = yaml.safe_load(text := config_text(path))
            inside = isinstance(content, dict) and isinstance(content.get(group), dict)
            if (inside or group in ("preset", "experiment")) and "@package" not in text:
                raise UserError(
                    f"{path}: is the first line missing? The file must begin with the line '# @package _global_', since its "
                    "keys are those of the whole config"
                )


def config_text(path: Path) -> str:
    """Of a YAML file that somebody else may have written. Raises OSError, and UserError for what no config is: other than a file,
    more than a megabyte, or so many aliases that few lines stand for gigabytes."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is no file")
    if path.stat().st_size > 2**20:
        raise UserError(f"{path}: is too large for a config")
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise UserError(f"{path}: is no text in UTF-8") from None
    with suppress(yaml.YAMLError):
        if sum(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)) > MOST_ALIASES:
            raise UserError(f"{path}: has more than {MOST_ALIASES} aliases")
    return text


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
            _check_headers((group, Path(folder, group, f"{option}.yaml")) for option in of_group)
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
    _check_headers((group, Path(folder, group, f"{choices.get(group)}.yaml")) for folder in folders for group in GROUPS)
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


def quoted(text: str) -> str:
    """A text as the value of an override that means just it, but for interpolations; with quotes where it needs them."""
    if re.fullmatch(r"[\w./-]+", text, re.ASCII) and not _means_more(text):
        return text
    escaped = re.sub(r"(\\*)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def _means_more(text: str) -> bool:
    """Whether a word without quotes is a number, a truth value or null."""
    with suppress(ValueError):
        float(text)
        return True
    return text.lower() in ("null", "true", "false")


def of_folder(word: str) -> str:
    """The name of a folder that is there needs no quotes, whatever commas and equals signs it has."""
    key, _, name = word.partition("=")
    return f"{key}={quoted(name)}" if key in ("output_dir", "from") and Path(name).is_dir() else word


def last_of_each(words: Iterable[str]) -> list[str]:
    """The words without those whose key a later one sets again."""
    return list({word.partition("=")[0].lstrip("+"): word for word in words}.values())


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


def flat(node: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of a nested dict by their dotted keys. Lists and empty dicts are values."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        inner = flat(value) if isinstance(value, dict) else {}
        found |= {f"{key}.{name}": leaf for name, leaf in inner.items()} or {str(key): value}
    return found


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
