"""Names in the texts of an experiment file: each line is written once; panels, table and claims refer to it.

The node `where` of the file gives values to names:

    where:
      method: [FedAvg, ZO-HFL]                 # an axis: its values
      alpha: [1000, 1]
      cohort(alpha): [9, 5]                    # a function of an axis: a value for each of the axis's
      step(method, alpha): {FedAvg: [0.1, 0.01], ZO-HFL: [1, 1]}
    lines:
      "{method}, alpha = {alpha}": algo.eta={step} participation.cohort={cohort}
    panels:
      alpha = {alpha}: ["{method}, alpha = {alpha}"]

A key that names axes stands for one key for each combination of their values: four lines here, and two panels. Everything under
the key has these values. A text in a list that names further axes stands for as many texts: each panel has both methods.
Combinations are in the order of `where`; the first axis varies slowest.

A claim whose `says` names axes stands for one claim for each combination. Its `for` maps axes to the values that it is about.
A node with `for` and `claims` is a group: all its claims for the first combination of the axes in `for`, a mapping or a list of
axes, then all for the next.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedopt.errors import UserError, nearest

_IN_TEXT = re.compile(r"\{(\w+)\}")
_KEY = re.compile(r"(\w+)(?:\(([^()]+)\))?")  # name, or name(axis, axis)


@dataclass(frozen=True)
class Where:
    """The values of names at one place of an experiment file (see the module).

    axes: axis -> its possible values at this place. functions: name -> (the axes it depends on, nested mappings from their
        values to the text). An axis is a function of itself.
    """

    axes: Mapping[str, list[str]]
    functions: Mapping[str, tuple[list[str], Any]]

    @classmethod
    def read(cls, node: Any) -> "Where":
        """Parse the node `where`: a mapping from names, or ``name(axis, axis)``, to values.

        Raises UserError for a malformed or repeated name, an unknown axis, or a wrong value.
        """
        if not isinstance(node, dict):
            raise UserError("where: must be a mapping from names to values")
        axes: dict[str, list[str]] = {}
        functions: dict[str, tuple[list[str], Any]] = {}
        for key in sorted(node, key=lambda key: "(" in str(key)):  # axes, then what depends on them
            match = _KEY.fullmatch(str(key))
            if not match:
                raise UserError(f"where.{key}: must be a name, or a name with its axes, name(axis, axis)")
            name, depends = match[1], match[2].split(",") if match[2] else []
            if name in functions:
                raise UserError(f"where.{name}: is given twice, with different axes; remove one")
            if depends:
                depends = [_axis(axis.strip(), axes, f"where.{name}") for axis in depends]
                functions[name] = depends, _by_value(node[key], depends, axes, f"where.{name}")
            else:
                axes[name] = _texts(node[key], f"where.{name}")
                functions[name] = [name], {value: value for value in axes[name]}
        return cls(axes, functions)

    def only(self, chosen: Any) -> "Where":
        """Return a copy in which some axes have fewer values: the node `for` of a claim.

        chosen: axis -> one value or a list; or a list of axes, which keep all values.

        Raises UserError for an unknown axis or value.
        """
        if isinstance(chosen, list):
            chosen = {axis: self.axes[_axis(axis, self.axes, "for")] for axis in chosen}
        if not isinstance(chosen, dict):
            some = next(iter(self.axes), "name")
            raise UserError(
                f"for={chosen}: must be a list of names from where, such as [{some}], or a mapping from these names to "
                f"some of their values"
            )
        narrowed = dict(self.axes)
        for axis, values in chosen.items():
            every = self.axes[_axis(axis, self.axes, "for")]
            narrowed[axis] = _texts(values if isinstance(values, list) else [values], f"for.{axis}")
            if unknown := [value for value in narrowed[axis] if value not in every]:
                raise UserError(f"for.{axis}={unknown[0]}: there is no such value; there are {', '.join(every)}")
        return replace(self, axes=narrowed)

    def each(self, names: Sequence[str]) -> Iterator["Where"]:
        """Yield one copy for each combination of values of the axes on which the names depend. In it these axes have one value."""
        depends = {axis for name in names for axis in self._function(name)[0]}
        varied = [axis for axis in self.axes if axis in depends]
        for values in product(*([[value] for value in self.axes[axis]] for axis in varied)):
            yield replace(self, axes={**self.axes, **dict(zip(varied, values, strict=True))})

    def keyed(self, node: Mapping[Any, Any]) -> Iterator[tuple[str, Any, "Where"]]:
        """Replace names in the keys of a node by values. Yield each resulting key, its value as written, and the `Where` for
        the value.

        Raises UserError if two resulting keys are equal.
        """
        seen = set()
        for key, value in node.items():
            for here in self.each(_names_in(key)):
                text = here.text(str(key))
                if text in seen:
                    raise UserError(
                        f"{key}: gives the key {text} twice, once its names have values; remove one, or add a name to the "
                        f"key that tells them apart"
                    )
                seen.add(text)
                yield text, value, here

    def filled(self, node: Any) -> Any:
        """Return the node with names replaced by values in all keys and texts. Raises UserError for a name without a single
        value here.
        """
        if isinstance(node, dict):
            return {key: here.filled(value) for key, value, here in self.keyed(node)}
        if isinstance(node, list):
            return [here.filled(item) for item in node for here in self.each(_names_in(item))]
        return self.text(node) if isinstance(node, str) else node

    def text(self, template: str) -> str:
        """Return the template with names replaced by values. Raises UserError for a name without a single value here."""
        try:
            return _IN_TEXT.sub(lambda match: self._value(match[1]), template)
        except UserError as error:
            raise UserError(f"'{template}': {error}") from None

    def _value(self, name: str) -> str:
        depends, values = self._function(name)
        for axis in depends:
            value, *others = self.axes[axis]
            if others:
                raise UserError(
                    f"{{{name}}}: {axis} has several values here ({', '.join(self.axes[axis])}); use it "
                    f"where it has one"
                )
            if value not in values:
                raise UserError(f"{{{name}}}: has no value for {axis} = {value}")
            values = values[value]
        return str(values)

    def _function(self, name: str) -> tuple[list[str], Any]:
        if name not in self.functions:
            raise UserError(f"{{{name}}}: where has no such name{nearest(name, list(self.functions))}")
        return self.functions[name]


def filled(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node `experiment` of a file with names replaced by values, and without `where`.

    Raises UserError if `where` is broken, or a name has no value where it is used.
    """
    where = Where.read(node.get("where", {}))
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "lines" and isinstance(value, dict):
            result[key] = {
                label: [here.text(str(word)) for word in words] if isinstance(words, list) else here.filled(words)
                for label, words, here in where.keyed(value)
            }
        elif key == "claims":
            result[key] = list(_claims(value, where))
        elif key != "where":
            result[key] = where.filled(value)
    return result


def _claims(nodes: Any, where: Where) -> Iterator[dict[str, Any]]:
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise UserError("claims: must be a list of claims, or of groups of claims")
    for node in nodes:
        axes = node.get("for", [])
        here = where.only(axes)
        if "claims" in node:
            if unknown := node.keys() - {"for", "claims"}:
                raise UserError(f"claims: {min(unknown)}: a group has no such key; it has for and claims")
            for each in here.each(list(axes)):
                yield from _claims(node["claims"], each)
        else:
            claim = {key: value for key, value in node.items() if key != "for"}
            yield from (each.filled(claim) for each in here.each(_names_in(claim.get("says"))))


def _names_in(text: Any) -> list[str]:
    """Return the names in curly brackets in a text; [] for a value that is not a text."""
    return _IN_TEXT.findall(text) if isinstance(text, str) else []


def _axis(axis: Any, axes: Mapping[str, Any], where: str) -> str:
    if axis not in axes:
        raise UserError(f"{where}: {axis}: there is no such axis{nearest(str(axis), list(axes))}")
    return str(axis)


def _texts(values: Any, where: str) -> list[str]:
    if not isinstance(values, list) or not values:
        raise UserError(f"{where}: must be a list of values")
    return [str(value) for value in values]


def _by_value(node: Any, depends: Sequence[str], axes: Mapping[str, list[str]], where: str) -> Any:
    """Return the text of a name as nested mappings, from the values of its first axis inward; without axes, the text itself.

    node: as in the file. A list has one item per value of the axis, in order. None gives ''.
    depends: the axes, outermost first. where: the name, for messages. Raises UserError if the node does not fit the axes.
    """
    if depends:
        axis, *rest = depends
        if isinstance(node, list) and len(node) == len(axes[axis]):
            node = dict(zip(axes[axis], node, strict=True))
        if isinstance(node, dict):
            return {str(value): _by_value(inner, rest, axes, where) for value, inner in node.items()}
    elif not isinstance(node, dict | list):
        return "" if node is None else str(node)
    raise UserError(f"{where}={node}: must be {f'a value for each {depends[0]}' if depends else 'one value'}")
