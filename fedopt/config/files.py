"""Where configs are stored: folders, groups, and the text of a file."""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any

import yaml

from fedopt.files import Loader, config_text

_inside, _beside = Path(__file__).parents[1] / "conf", Path(__file__).parents[2] / "conf"
CONF = _inside if _inside.is_dir() else _beside  # in a wheel, in a checkout
ROLE = re.compile(r"; tuned (?:as a|in) (.+?)(?: size)?$")  # the end of a key's comment: its role in `fedopt tune`
# How certain a method's equations are: the start of the second comment in its file. A method is either checked or experimental
CHECKED = ("compared with code", "compared with text", "fedopt's own")
EXPERIMENTAL = tuple(f"unverified (reconstructed {how})" for how in ("without the paper's text", "from others' notes"))
GROUPS = ("algo", "problem", "dataset", "partitioner", "hardware", "logger", "experiment")

Folders = Iterable[str | Path]  # config folders besides fedopt's


def options(group: str, folders: Folders = ()) -> list[str]:
    """Return the names of the options of a config group, sorted. An option in a subfolder is FOLDER/NAME.

    Args:
        group: Such as ``algo``.
        folders: Config folders besides fedopt's.
    """
    roots = (Path(folder) / group for folder in (CONF, *folders))
    return sorted(
        {name.removesuffix(".yaml") for root in roots for name in glob("**/*.yaml", root_dir=root, recursive=True)}
    )


def file_of(group: str, option: str, folders: Folders = ()) -> Path:
    """Return the file of an existing option. folders: config folders besides fedopt's; fedopt's file comes first."""
    paths = (Path(folder) / group / f"{option}.yaml" for folder in (CONF, *folders))
    return next(path for path in paths if path.exists())


def chain(group: str, option: str, folders: Folders = ()) -> list[str]:
    """Return the names of the options that `option` builds on within its group, base first, and then its own name."""
    listed = content(file_of(group, option, folders)).get("defaults") or []
    names = [name.removeprefix(f"/{group}/") for name in listed if isinstance(name, str)]
    known = options(group, folders) if names else []
    bases = [name for name in names if name in known]
    return [*(name for base in bases for name in chain(group, base, folders)), option]


def title(group: str, option: str, folders: Folders = ()) -> str:
    """Return the first comment at the head of an option's file; empty if there is none."""
    return (_head(group, option, folders) or [""])[0]


def certainty(algo: str, folders: Folders = ()) -> str:
    """Return how certain a method's equations are, one of `CHECKED` or `EXPERIMENTAL`; empty if its file does not say."""
    head = _head("algo", algo, folders) if algo in options("algo", folders) else []
    return next((label for line in head for label in (*CHECKED, *EXPERIMENTAL) if line.startswith(label)), "")


def experimental(algo: str, folders: Folders = ()) -> str:
    """Return a warning that a method is experimental; empty for checked and for custom methods."""
    label = certainty(algo, folders)
    return f"{display_name(algo, folders)} is experimental: its equations are {label}" if label in EXPERIMENTAL else ""


def setting_of(problem: str, folders: Folders = ()) -> str:
    """Return the problem that `problem` is a setting of, for its own data set, from the comment below its title; empty if none."""
    said = _head("problem", problem, folders)
    return next((line.removeprefix("a setting of ") for line in said if line.startswith("a setting of ")), "")


def _head(group: str, option: str, folders: Folders) -> list[str]:
    """Return the texts of the comments at the head of an option's file, without those for programs, such as @package."""
    said = (line[2:] for line in text_of(file_of(group, option, folders)).split("\n")[:4] if line.startswith("# "))
    return [text for text in said if not re.match(r"@package|yaml-language-server|\S+\.yaml$", text)]


def display_name(algo: str, folders: Folders = ()) -> str:
    """Return a method's name for figures, the beginning of its title; ``algo`` itself if no file has a title."""
    known = algo in options("algo", folders)
    return (re.split(r": | \[", title("algo", algo, folders))[0] if known else "") or algo


def class_path(group: str, option: str, folders: Folders = ()) -> str:
    """Return the `_target_` of an option, from its file or the nearest one that it builds on; empty if none has one."""
    for name in reversed(chain(group, option, folders)):
        node = content(file_of(group, name, folders))
        if path := node.get(group, node.get(name, node)).get("_target_"):
            return str(path)
    return ""


def values_of(group: str, option: str, folders: Folders = ()) -> dict[str, Any]:
    """Return the values that an option's file sets, without those of files that it builds on, by dotted key of the config."""
    path = file_of(group, option, folders)
    inside = "" if "@package _global_" in text_of(path) else f"{group}."
    return {f"{inside}{key}": value for key, value in flat(content(path)).items()}


def content(path: Path) -> dict[str, Any]:
    """Return a YAML file's content, {} if it does not hold a dict. The result is a copy, which the caller may change.

    Raises:
        OSError, UserError, yaml.YAMLError: The file cannot be read.
    """
    state = path.stat()
    return deepcopy(_content(path, state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=1000)
def _content(path: Path, *version: int) -> dict[str, Any]:
    read = yaml.load(text_of(path), Loader)
    return read if isinstance(read, dict) else {}


def text_of(path: Path) -> str:
    """Return the text of a YAML file.

    fedopt's own files may be links, which installers make; links in other folders are refused.
    """
    return config_text(path, links=path.is_relative_to(CONF))


def flat(node: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a nested dict by their dotted keys. Lists and empty dicts count as values."""
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        inner = flat(value) if isinstance(value, dict) else {}
        leaves |= {f"{key}.{name}": leaf for name, leaf in inner.items()} or {str(key): value}
    return leaves


def meanings(chosen: Mapping[str, str], folders: Folders = ()) -> dict[str, str]:
    """Return the comments beside the keys of a config, by dotted key, from the options that are chosen from its groups.

    chosen: the option of each group; that of experiment is passed over. folders: config folders besides fedopt's.
    """
    said = comments(CONF / "config.yaml")
    for group in (group for group in GROUPS if group in chosen and group != "experiment"):
        for option in chain(group, chosen[group], folders):
            path = file_of(group, option, folders)
            inside = "" if "@package _global_" in text_of(path) else f"{group}."
            said |= {f"{inside}{key}": comment for key, comment in comments(path).items()}
    return said


def comments(path: Path) -> dict[str, str]:
    """Return the comments beside the keys of a YAML file, by dotted key."""
    text = text_of(path)
    lines = text.splitlines()
    beside: dict[str, str] = {}

    def walk(node: yaml.Node | None, inside: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            block = isinstance(value, yaml.CollectionNode) and not value.flow_style
            end = key.end_mark if block else value.end_mark
            comment = lines[end.line][end.column :].partition("# ")[2].strip() if end.line < len(lines) else ""
            if comment:
                beside[f"{inside}{key.value}"] = comment
            if block:
                walk(value, f"{inside}{key.value}.")

    walk(yaml.compose(text, yaml.SafeLoader), "")
    return beside
