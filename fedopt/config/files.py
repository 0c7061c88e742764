"""Where the configs are: folders, groups, and the text of a file."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import yaml

from fedopt.errors import UserError

_inside, _beside = Path(__file__).parents[1] / "conf", Path(__file__).parents[2] / "conf"


CONF = _inside if _inside.is_dir() else _beside  # in a wheel, in a checkout


NO_PRESET = "preset=none"
MOST_ALIASES = 20  # of a YAML file: each may double what it stands for


GROUPS = ("algo", "problem", "dataset", "partitioner", "hardware", "logger", "preset", "experiment")


def options(group: str, folders: Iterable[str | Path] = ()) -> list[str]:
    """What can be chosen from a config group. folders: config folders besides fedopt's."""
    roots = [Path(folder) / group for folder in (CONF, *folders)]
    found = {path.relative_to(root).with_suffix("") for root in roots for path in root.rglob("*.yaml")}
    return sorted(path.as_posix() for path in found)


def file_of(group: str, option: str, folders: Iterable[str | Path] = ()) -> Path:
    """The file of an option of a config group, as `options`."""
    paths = (Path(folder) / group / f"{option}.yaml" for folder in (CONF, *folders))
    return next(path for path in paths if path.exists())


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
