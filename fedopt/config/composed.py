"""`Composed`, the typed and checked config of a run."""

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

# Matches 'NAME TYPE COMMENT' of a key that is a batch size, a step size or local work
STEPS = re.compile(rf"B|\w+ (step size|local work|number.* step|.*{ROLE.pattern})")


@dataclass(frozen=True, eq=False)
class Composed:
    """The config of a run. It is created by `compose` and immutable.

    Args:
        nodes: All values as nested dicts, lists, strings and numbers, as in ``config.yaml``.
        chosen: The chosen option of each config group, such as ``{"algo": "fedavg"}``.
        overrides: The overrides of the command, such as ``seed=1``.
        folders: The user's config folders.
        tuned: The tuned values that apply, and their source.
        experiment: The config of the published experiment that the command chooses; {} if there is none.
    """

    nodes: Mapping[str, Any]
    chosen: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    tuned: Tuned = field(default_factory=Tuned)
    experiment: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Settings:
        """The typed settings that every run has.

        Raises:
            UserError: A key is unknown, a value is not allowed, or the algorithm does not fit the problem. This happens only
                for the result of `merge`, since `compose` has checked the settings.
        """
        if missing := next((key for key, value in flat(self.nodes).items() if value == MISSING), ""):
            raise UserError(f"{missing}: is missing; set it to a value")
        settings = build(Settings, self.nodes)
        refuse_misfit(*(str(self.nodes[group].get("_target_")) for group in ("algo", "problem")))
        return settings

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The objects that a run builds from its config, by config group: algo, partitioner, dataset (if any) and problem.

        The problem needs the data. Its entry is therefore a function that takes the argument ``world`` and builds the problem.

        Raises:
            UserError: A class does not have the methods that its group needs.
        """
        groups = ["algo", "partitioner", *["dataset"] * bool(self.nodes["dataset"].get("_target_"))]
        problem = builder(self.nodes["problem"], "problem", "world")
        return {group: build_target(self.nodes[group], group) for group in groups} | {"problem": problem}

    @cached_property
    def departures(self) -> list[str]:
        """The keys whose values differ from their defaults and make comparisons with other runs unequal.

        Only keys of `participation`, `budget` and `algo` are considered, except step sizes, local work and batch sizes.
        """
        usual = flat(content(CONF / "config.yaml"))
        for group in ("problem", "algo"):
            for option in chain(group, self.chosen[group], self.folders):
                usual |= values_of(group, option, self.folders)
        types, comments = about(str(self.nodes["algo"].get("_target_")))["fields"], meanings(self.chosen, self.folders)
        texts = {name: f"{name} {types.get(name)} {comments.get(f'algo.{name}')}" for name in self.nodes["algo"]}
        nodes = {group: self.nodes[group] for group in ("participation", "algo", "budget")}
        nodes["algo"] = {name: value for name, value in nodes["algo"].items() if not STEPS.match(texts[name])}
        return [key for key, value in flat(nodes).items() if value != usual.get(key)]

    def changed(self, **values: object) -> "Composed":
        """Return a copy with other values of top-level keys, such as seed, resume and output_dir.

        The `overrides` of the copy set these values too.

        Args:
            values: The new values by key.
        """
        if {**self.nodes, **values} == self.nodes:
            return self
        overrides = [override for override in self.overrides if key_of(override) not in values]
        overrides += [f"{key}={quoted(value) if isinstance(value, str) else value}" for key, value in values.items()]
        return replace(self, nodes={**self.nodes, **values}, overrides=tuple(overrides))


def compose(overrides: Sequence[str] = (), folders: Folders = ()) -> Composed:
    """Return the config of the command ``fedopt OVERRIDES``, after all checks that need no data.

    Args:
        overrides: Overrides as on the command line, such as ``algo=fedavg``.
        folders: Your config folders.

    Returns:
        The config.

    Raises:
        UserError: For example, a key is unknown, a value has the wrong type, or the algorithm does not fit the problem.

    Example:
        >>> composed = fedopt.compose(["algo=fedmsa", "problem=mco", "seed=1"])
        >>> composed.nodes["seed"], composed.chosen["problem"]
        (1, 'mco')
    """
    composed = merge(overrides, folders)
    _ = composed.settings  # checks them
    client, partitioner = composed.nodes["dataset"].get("client"), composed.chosen.get("partitioner")
    if client is not None and partitioner != "by_column" and "partitioner" not in map(key_of, overrides):
        both = f"add partitioner=by_column, or set partitioner={partitioner} explicitly to use another partition"
        raise UserError(f"dataset.client={client}: the run would not use the clients of this column; {both}")
    return composed


def merge(overrides: Sequence[str] = (), folders: Folders = ()) -> Composed:
    """Return the config of the command ``fedopt OVERRIDES`` without checking its values, for help on incomplete configs.

    Args:
        overrides: Overrides as on the command line.
        folders: Your config folders.

    Raises:
        UserError: An option or a key is unknown, or no algorithm or problem is chosen.
    """
    texts, paths = tuple(overrides), tuple(map(str, folders))
    with explained(texts, paths):
        config, chosen, tuned, experiment = merged(texts, paths)
        nodes = plain(config)
    return Composed(nodes, chosen, texts, paths, tuned, experiment)


def recorded(
    nodes: Mapping[str, Any],
    overrides: Sequence[str] = (),
    chosen: Mapping[str, str] | None = None,
    tuned: Tuned | None = None,
) -> Composed:
    """Return the config of a recorded run with some values changed. Overrides can set keys, but not add or remove them.

    Args:
        nodes: The content of the run's ``config.yaml``.
        overrides: Overrides as on the command line.
        chosen: The option of each config group, from the run's ``run.json``. None: unknown.
        tuned: The tuned values that applied, from ``run.json``. None: unknown.

    Returns:
        The config.

    Raises:
        UserError: A key is unknown, or a value is not allowed.

    Example:
        >>> run = fedopt.load("first")
        >>> fedopt.recorded(run.config, ["seed=7"]).nodes["seed"]
        7
    """
    config = OmegaConf.create(_literal(nodes))
    for parent, _, name in (key.rpartition(".") for key in REMOVED):
        node = OmegaConf.select(config, parent)
        if not isinstance(node, DictConfig) or name not in node:
            continue
        if name not in about(str(node.get("_target_")))["fields"]:  # not a key of a user's class
            node.pop(name)  # a key of an earlier version
    for override in parsed(overrides):
        key = override.key_or_group
        if override.is_add() or override.is_delete() or OmegaConf.select(config, key, default=config) is config:
            raise UserError(f"{key}: the config of the recorded run has no such key{nearest(key, [*flat(nodes)])}")
        put(config, key, override.value())
    composed = Composed(plain(config), chosen or {}, tuple(overrides), tuned=tuned or Tuned())
    _ = composed.settings  # checks them
    return composed


def _literal(node: Any) -> Any:
    """Return a config node whose strings are escaped, so that a config.yaml from somebody else cannot refer to other values."""
    if isinstance(node, Mapping):
        return {key: _literal(value) for key, value in node.items()}
    if isinstance(node, list):
        return [*map(_literal, node)]
    return literal(node) if isinstance(node, str) else node
