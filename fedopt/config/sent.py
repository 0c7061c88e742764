"""What a config file that somebody sent may not do."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedopt.config.files import CONF, config_text
from fedopt.errors import UserError


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
                if path.parent.name != "tuned" and (CONF / path.relative_to(folder)).exists():
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


def check_headers(files: Iterable[tuple[str, Path]]) -> None:
    """Raises UserError for a file of a config group that sets keys of the whole config and lacks the line that says so."""
    for group, path in files:
        with suppress(OSError, yaml.YAMLError):
            content = yaml.safe_load(text := config_text(path))
            inside = isinstance(content, dict) and isinstance(content.get(group), dict)
            if (inside or group == "experiment") and "@package" not in text:
                raise UserError(
                    f"{path}: is the first line missing? The file must begin with the line '# @package _global_', since its "
                    "keys are those of the whole config"
                )
