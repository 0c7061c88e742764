"""Config files: their folders and groups, and what their keys and comments say."""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any

import yaml

from fedopt.files import Loader, Node, config_text

_inside, _beside = Path(__file__).parents[1] / "conf", Path(__file__).parents[2] / "conf"
CONF = _inside if _inside.is_dir() else _beside  # in a wheel, in a checkout
ROLE = re.compile(r"; tuned (?:as a|in) (.+?)(?: size)?$")  # the end of a key's comment: its role in `fedopt tune`
# How certain a method's equations are: the start of the second comment in its file. A method is either checked or experimental
CHECKED = ("compared with public code", "compared with the paper's text", "fedopt's own")
EXPERIMENTAL = tuple(f"unverified (reconstructed {how})" for how in ("without the paper's text", "from others' notes"))
GROUPS = ("algo", "problem", "dataset", "partitioner", "hardware", "logger", "experiment")

Folders = Iterable[str | Path]  # the user's config folders; fedopt's own folder always comes first


def options(group: str, folders: Folders = ()) -> list[str]:
    """Return the sorted names of the options of a config group. An option in a subfolder is called FOLDER/NAME.

    Args:
        group: The config group, such as ``algo``.
        folders: The user's config folders.
    """
    roots = (Path(folder) / group for folder in (CONF, *folders))
    files = {file for root in roots for file in glob("**/*.yaml", root_dir=root, recursive=True)}
    return sorted(file.removesuffix(".yaml") for file in files)


def file_of(group: str, option: str, folders: Folders = ()) -> Path:
    """Return the file of an existing option. If several folders have the option, fedopt's file takes precedence.

    Args:
        group: The config group, such as ``algo``.
        option: The name of the option.
        folders: The user's config folders.
    """
    paths = (Path(folder) / group / f"{option}.yaml" for folder in (CONF, *folders))
    return next(path for path in paths if path.exists())


def chain(group: str, option: str, folders: Folders = ()) -> list[str]:
    """Return the options on which an option is based, as its defaults list says, followed by the option itself.

    The most general option comes first.

    Args:
        group: The config group, such as ``algo``.
        option: The name of the option.
        folders: The user's config folders.
    """
    listed = content(file_of(group, option, folders)).get("defaults") or []
    names = [name.removeprefix(f"/{group}/") for name in listed if isinstance(name, str)]
    known = options(group, folders) if names else []
    bases = [name for name in names if name in known]
    return [*(name for base in bases for name in chain(group, base, folders)), option]


def title(group: str, option: str, folders: Folders = ()) -> str:
    """Return the title of an option: the first comment of its file, or an empty string.

    Args:
        group: The config group, such as ``algo``.
        option: The name of the option.
        folders: The user's config folders.
    """
    return (_head(group, option, folders) or [""])[0]


def certainty(algo: str, folders: Folders = ()) -> str:
    """Return a label that says how certain a method's equations are, from `CHECKED` or `EXPERIMENTAL`; empty if it has none.

    Args:
        algo: The name of the algorithm, an option of the config group ``algo``.
        folders: The user's config folders.
    """
    head = _head("algo", algo, folders) if algo in options("algo", folders) else []
    return next((label for line in head for label in (*CHECKED, *EXPERIMENTAL) if line.startswith(label)), "")


def experimental(algo: str, folders: Folders = ()) -> str:
    """Return a warning that a method is experimental; empty for checked and for custom methods.

    Args:
        algo: The name of the algorithm, an option of the config group ``algo``.
        folders: The user's config folders.
    """
    label = certainty(algo, folders)
    return f"{display_name(algo, folders)} is experimental: its equations are {label}" if label in EXPERIMENTAL else ""


def setting_of(problem: str, folders: Folders = ()) -> str:
    """Return the name of the general problem of which a problem is a special case for one data set; empty if there is none.

    A comment such as 'a setting of loss_tuning' below the title in the problem's file names the general problem.

    Args:
        problem: The name of the problem, an option of the config group ``problem``.
        folders: The user's config folders.
    """
    comments = _head("problem", problem, folders)
    return next((line.removeprefix("a setting of ") for line in comments if line.startswith("a setting of ")), "")


def _head(group: str, option: str, folders: Folders) -> list[str]:
    """Return the comments in the first lines of an option's file, one text per line, except those for programs (@package).

    Args:
        group: The config group, such as ``algo``.
        option: The name of the option.
        folders: The user's config folders.
    """
    comments = (line[2:] for line in text_of(file_of(group, option, folders)).split("\n")[:4] if line.startswith("# "))
    return [text for text in comments if not re.match(r"@package|yaml-language-server|\S+\.yaml$", text)]


def display_name(algo: str, folders: Folders = ()) -> str:
    """Return a method's name for figures: the beginning of its title, or ``algo`` itself if there is no title.

    Args:
        algo: The name of the algorithm, an option of the config group ``algo``.
        folders: The user's config folders.
    """
    known = algo in options("algo", folders)
    return (re.split(r": | \[", title("algo", algo, folders))[0] if known else "") or algo


def class_path(group: str, option: str, folders: Folders = ()) -> str:
    """Return the dotted path of the class that an option names with `_target_`; empty if there is none.

    If the option's own file does not name a class, the files on which it is based are searched.

    Args:
        group: The config group, such as ``algo``.
        option: The name of the option.
        folders: The user's config folders.
    """
    for name in reversed(chain(group, option, folders)):
        file = content(file_of(group, name, folders))
        node = file.get(group) or file.get(name) or file
        if path := node.get("_target_"):
            return str(path)
    return ""


def values_of(group: str, option: str, folders: Folders = ()) -> Node:
    """Return the values that an option's file itself sets, by dotted key, without values of the files on which it is based.

    Args:
        group: The config group, such as ``algo``.
        option: The name of the option.
        folders: The user's config folders.
    """
    path = file_of(group, option, folders)
    inside = "" if "@package _global_" in text_of(path) else f"{group}."
    return {f"{inside}{key}": value for key, value in flat(content(path)).items()}


def content(path: Path) -> Node:
    """Return the content of a YAML file; {} if it is not a dict. The result is a copy that the caller may change.

    Raises:
        OSError: The file cannot be opened.
        UserError: The file is a link, too large or not text.
        yaml.YAMLError: The file is not valid YAML.
    """
    state = path.stat()
    return deepcopy(_content(path, state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=1000)
def _content(path: Path, *version: int) -> Node:
    """Return the content of a YAML file. The result is cached, so it must not be changed.

    Args:
        path: The file.
        version: The time and size of the file. If they change, the file is read again.
    """
    loaded = yaml.load(text_of(path), Loader)
    return loaded if isinstance(loaded, dict) else {}


def text_of(path: Path) -> str:
    """Return the text of a YAML file.

    Files of fedopt may be symbolic links, since installers create them. Links in other folders are refused.
    """
    return config_text(path, links=path.is_relative_to(CONF))


def flat(node: Mapping[Any, Any], schedules: bool = False) -> Node:
    """Return the values of a nested dict by their dotted keys. Lists and empty dicts count as values.

    Args:
        node: The nested dict.
        schedules: Whether a schedule, which is a dict with the key ``kind``, counts as one value.
    """
    leaves: Node = {}
    for key, value in node.items():
        inner = flat(value, schedules) if isinstance(value, dict) and not (schedules and "kind" in value) else {}
        leaves |= {f"{key}.{name}": leaf for name, leaf in inner.items()} or {str(key): value}
    return leaves


def meanings(chosen: Mapping[str, str], folders: Folders = ()) -> dict[str, str]:
    """Return the comments of the keys of a config, by dotted key.

    Args:
        chosen: The chosen option of each config group. An experiment is ignored.
        folders: The user's config folders.
    """
    by_key = comments(CONF / "config.yaml")
    for group in (group for group in GROUPS if group in chosen and group != "experiment"):
        for option in chain(group, chosen[group], folders):
            path = file_of(group, option, folders)
            inside = "" if "@package _global_" in text_of(path) else f"{group}."
            by_key |= {f"{inside}{key}": comment for key, comment in comments(path).items()}
    return by_key


def comments(path: Path) -> dict[str, str]:
    """Return the comments at the ends of the lines of a YAML file, by dotted key."""
    text = text_of(path)
    lines = text.splitlines()
    by_key: dict[str, str] = {}

    def walk(node: yaml.Node | None, inside: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            block = isinstance(value, yaml.CollectionNode) and not value.flow_style
            end = key.end_mark if block else value.end_mark
            comment = lines[end.line][end.column :].partition("# ")[2].strip() if end.line < len(lines) else ""
            if comment:
                by_key[f"{inside}{key.value}"] = comment
            if block:
                walk(value, f"{inside}{key.value}.")

    walk(yaml.compose(text, yaml.SafeLoader), "")
    return by_key
