"""Tuned values: which apply to a run."""

import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fedopt.config.compose import composed_of
from fedopt.config.files import CONF, GROUPS, NO_PRESET, config_text, options
from fedopt.config.words import flat, parsed

FOUND_WITHOUT = ", which were found without "  # of tuned values, before choices of model or data


MODEL = re.compile(r"\+*(problem\.(model|widths)|dataset)\b[^=]*=")  # what steps that suit one need not suit in another


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
