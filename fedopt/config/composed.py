"""The config of a run as a value: `Composed`, typed and checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from fedopt.config.build import build, build_target, builder
from fedopt.config.classes import about
from fedopt.config.files import CONF, ROLE, Folders, chain, content, flat, meanings, values_of
from fedopt.config.fits import refuse_misfit
from fedopt.config.merging import explained, merged, plain, put
from fedopt.config.overrides import key_of, literal, parsed, quoted
from fedopt.config.settings import Settings
from fedopt.config.tuned import Tuned
from fedopt.deprecated import REMOVED
from fedopt.errors import UserError, nearest

# Keys that are a batch size, a step size or local work, by name, type and the comment beside them
STEPS = re.compile(rf"B|\w+ (step size|local work|number.* step|.*{ROLE.pattern})")


@dataclass(frozen=True, eq=False)
class Composed:
    """The config of a run. `compose` makes it; it does not change.

    Args:
        nodes: All values as dicts, lists, texts and numbers, as in ``config.yaml``.
        chosen: The option of each config group, such as ``{"algo": "fedavg"}``.
        overrides: The overrides of the command, such as ``seed=1``.
        folders: Config folders besides fedopt's.
        tuned: Which tuned values apply, and where they come from.
        experiment: The node of the published experiment that the command chooses; {} without one.
    """

    nodes: Mapping[str, Any]
    chosen: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    tuned: Tuned = field(default_factory=Tuned)
    experiment: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Settings:
        """The typed parts that every run has. `compose` has checked them.

        On the result of `merge` this may raise UserError: for an unknown key, a wrong value, and an algorithm that does not fit
        the problem.
        """
        if missing := next((key for key, value in flat(self.nodes).items() if value == MISSING), ""):
            raise UserError(f"{missing}: is missing; give a value")
        settings = build(Settings, self.nodes)
        refuse_misfit(*(str(self.nodes[group].get("_target_")) for group in ("algo", "problem")))
        return settings

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The objects that need no data, by group: algo, partitioner, dataset (if the problem has one) and problem.

        problem is a function that takes the world and builds the problem. Raises UserError if a class does not fit its group.
        """
        groups = ["algo", "partitioner", *["dataset"] * bool(self.nodes["dataset"].get("_target_"))]
        problem = builder(self.nodes["problem"], "problem", "world")
        return {group: build_target(self.nodes[group], group) for group in groups} | {"problem": problem}

    @cached_property
    def departures(self) -> list[str]:
        """The keys that say who takes part, what is exchanged and for how long, and do not have their default.

        They are those of `participation` and `budget`, and those of `algo` that are no step size, local work or batch size.
        """
        usual = flat(content(CONF / "config.yaml"))
        for group in ("problem", "algo"):
            for option in chain(group, self.chosen[group], self.folders):
                usual |= values_of(group, option, self.folders)
        types, said = about(str(self.nodes["algo"].get("_target_")))["fields"], meanings(self.chosen, self.folders)
        texts = {name: f"{name} {types.get(name)} {said.get(f'algo.{name}')}" for name in self.nodes["algo"]}
        parts = {part: self.nodes[part] for part in ("participation", "algo", "budget")}
        parts["algo"] = {name: value for name, value in parts["algo"].items() if not STEPS.match(texts[name])}
        return [key for key, value in flat(parts).items() if value != usual.get(key)]

    def changed(self, **values: Any) -> "Composed":
        """Return this config with other values of top-level keys, such as seed, resume and output_dir.

        The new config's `overrides` set these values too.
        """
        if {**self.nodes, **values} == self.nodes:
            return self
        overrides = [override for override in self.words if key_of(override) not in values]
        overrides += [f"{key}={quoted(value) if isinstance(value, str) else value}" for key, value in values.items()]
        return replace(self, nodes={**self.nodes, **values}, overrides=tuple(overrides))


def compose(overrides: Sequence[str] = (), folders: Folders = ()) -> Composed:
    """Return the config of the command ``fedopt WORDS``.

    Args:
        overrides: Overrides as on the command line, such as ``algo=fedavg``.
        folders: Your config folders.

    Raises:
        UserError: A mistake that can be found before data are read. Examples are an unknown key, a wrong type, or an
            algorithm that does not fit the problem.
    """
    composed = merge(overrides, folders)
    _ = composed.settings  # which are checked now
    client, partitioner = composed.nodes["dataset"].get("client"), composed.chosen.get("partitioner")
    if client is not None and partitioner != "by_column" and "partitioner" not in map(key_of, overrides):
        both = f"add partitioner=by_column, or name partitioner={partitioner} to divide the rows otherwise"
        raise UserError(f"dataset.client={client}: this column's clients are not those of the run; {both}")
    return composed


def merge(overrides: Sequence[str] = (), folders: Folders = ()) -> Composed:
    """Return the config as `compose` does, without checking its values: help explains a config before it is complete.

    overrides, folders: as in `compose`. Raises UserError for unknown options and keys, and if no algorithm or problem is chosen.
    """
    given, others = tuple(overrides), tuple(map(str, folders))
    with explained(given, others):
        config, chosen, tuned, experiment = merged(given, others)
        nodes = plain(config)
    return Composed(nodes, chosen, given, others, tuned, experiment)


def recorded(
    nodes: Mapping[str, Any],
    overrides: Sequence[str] = (),
    chosen: Mapping[str, str] | None = None,
    tuned: Tuned | None = None,
) -> Composed:
    """Return the config of a recorded run, changed by overrides. They can set its keys, but not add or remove keys.

    Args:
        nodes: The content of its ``config.yaml``.
        overrides: Overrides as on the command line.
        chosen: The option of each config group, from the run's ``run.json``. None: not known.
        tuned: The tuned values that applied, from the same file. None: not known.

    Raises:
        UserError: A key is unknown, or a value is not allowed.
    """
    config = OmegaConf.create(_literal(nodes))
    for parent, _, name in (key.rpartition(".") for key in REMOVED):
        if isinstance(node := OmegaConf.select(config, parent), DictConfig):
            node.pop(name, None)  # recorded by an earlier version
    for override in parsed(overrides):
        key = override.key_or_group
        if override.is_add() or override.is_delete() or OmegaConf.select(config, key, default=config) is config:
            raise UserError(f"{key}: the run to be resumed has no such key{nearest(key, [*flat(nodes)])}")
        put(config, key, override.value())
    composed = Composed(plain(config), chosen or {}, tuple(overrides), tuned=tuned or Tuned())
    _ = composed.settings  # which are checked now
    return composed


def _literal(node: Any) -> Any:
    """Return the node with all texts escaped for OmegaConf: a config.yaml that somebody sent must not refer to other values."""
    if isinstance(node, Mapping):
        return {key: _literal(value) for key, value in node.items()}
    if isinstance(node, list):
        return [*map(_literal, node)]
    return literal(node) if isinstance(node, str) else node
