"""Names in the texts of an experiment file, so that similar lines, panels and claims are written once.

The node `where` of the file is a table of names. Names without brackets are axes, and the table has one row for each
combination of their values. Any other name has, in each row, the value that belongs to the values of the axes in its
brackets:

    where:
      method: [FedAvg, ZO-HFL]                 # an axis: its values
      alpha: [1000, 1]
      cohort(alpha): [9, 5]                    # depends on an axis: one value for each value of alpha
      step(method, alpha): {FedAvg: [0.1, 0.01], ZO-HFL: [1, 1]}
    lines:
      "{method}, alpha = {alpha}": algo.eta={step} participation.cohort={cohort}
    panels:
      alpha = {alpha}: ["{method}, alpha = {alpha}"]

A key with names in curly brackets is expanded to one key for each combination of their values. In this example there are
four lines and two panels. Everything under the key uses the rows with these values. A text in a list is expanded in the same
way if it has further names; here each panel gets both methods. The order is the order of `where`, and the first axis varies
slowest.

A claim whose `says` has names is expanded to one claim for each combination of their values. The key `for` of a claim maps
axes to the values for which the claim is made. A node with `for` and `claims` is a group of claims: all its claims are made
for the first values of the axes in `for` (a mapping or a list of axes), then for the next values, and so on.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from fedopt.errors import UserError, nearest

Rows = list[dict[str, str]]  # name -> value
_IN_TEXT = re.compile(r"\{(\w+)\}")


def filled(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node `experiment` of a file with names replaced by values, and without `where`.

    Args:
        node: The node as it is written in the file.

    Raises:
        UserError: `where` is broken, or a name has no single value where it is used.
    """
    rows = _table(node.get("where", {}))
    others = {key: value for key, value in node.items() if key not in ("where", "claims")}
    stated = {"claims": [*_claims(node["claims"], rows)]} if "claims" in node else {}
    return _filled(others, rows) | stated


def _table(where: Any) -> Rows:
    """Return the table `where`, with one row (name -> value) for each combination of the values of the axes.

    A name that has no value for a combination is not in the row of this combination.

    Args:
        where: The node `where` as it is written in the file.

    Raises:
        UserError: The node is not a table of names.
    """
    try:
        axes = {name: [str(value) for value in values] for name, values in where.items() if "(" not in name}
        rows = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        for key, row in product([key for key in where if key not in axes], rows):
            name, depends = key.rstrip(")").split("(")
            value = where[key]
            for axis in depends.split(", "):
                pairs = zip(axes[axis], value, strict=True) if isinstance(value, list) else value.items()
                value = {str(key): inner for key, inner in pairs}.get(row[axis], {})
            if value != {}:
                row[name] = "" if value is None else str(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        how = "write an axis as K: [1, 5], and a name that depends on it as eta(K): [0.1, 0.02], with one value for each K"
        raise UserError(f"where: cannot be read ({error}); {how}") from None
    if not rows or not all(isinstance(where[axis], list) for axis in axes):
        raise UserError("where: an axis has no list of values; write it as AXIS: [VALUE, VALUE]")
    return rows


def _groups(names: Iterable[str], rows: Rows) -> Iterator[Rows]:
    """Group rows of the table `where` by the values of some names, and yield the rows of each group.

    Args:
        names: The names.
        rows: The rows, whose order is kept.
    """
    groups: dict[tuple[str | None, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in names), []).append(row)
    yield from groups.values()


def _filled(node: Any, rows: Rows) -> Any:
    """Return a node of an experiment file with names replaced by values in all keys and texts.

    Args:
        node: A mapping, a list, a text or another value, which is returned unchanged.
        rows: The rows of the table `where` that apply to the node.
    """
    if isinstance(node, dict):
        result = {}
        for key, value in node.items():
            for group in _groups(_IN_TEXT.findall(str(key)), rows):
                if (text := _text(str(key), group)) in result:
                    raise UserError(
                        f"{key}: is expanded to {text} twice; remove one of these keys, or add a {{name}} to the key"
                    )
                result[text] = _filled(value, group)
        return result
    if isinstance(node, list):
        return [_filled(item, group) for item in node for group in _groups(_IN_TEXT.findall(str(item)), rows)]
    return _text(node, rows) if isinstance(node, str) else node


def _text(template: str, rows: Rows) -> str:
    """Return a text in which each name in curly brackets is replaced by its value in the rows.

    Args:
        template: The text.
        rows: The rows of the table `where` that apply to the text.

    Raises:
        UserError: A name does not have exactly one value in these rows.
    """

    def value(match: re.Match[str]) -> str:
        values = dict.fromkeys(row[match[1]] for row in rows if match[1] in row)
        if len(values) != 1:
            several = f"has several values here ({', '.join(values)})" if values else "has no value here"
            known = nearest(match[1], list(dict.fromkeys(name for row in rows for name in row)))
            raise UserError(f"'{template}': {match[0]} {several}{known}")
        return next(iter(values))

    return _IN_TEXT.sub(value, template)


def _claims(nodes: Any, rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the claims of a list of claims and groups of claims, each for the rows that its `for` allows.

    Args:
        nodes: The list of claims and groups of claims.
        rows: The rows of the table `where`.
    """
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise UserError("claims: must be a list of claims or of groups of claims; begin each with a dash")
    for node in nodes:
        claim = dict(node)
        axes = claim.pop("for", {})
        if not isinstance(axes, dict):
            axes = dict.fromkeys(axes if isinstance(axes, list) else [axes])
        allowed = _allowed(axes, rows)
        if "claims" not in claim:
            yield from (_filled(claim, group) for group in _groups(_IN_TEXT.findall(str(claim.get("says"))), allowed))
        elif len(claim) == 1:
            for group in _groups(axes, allowed):
                yield from _claims(claim["claims"], group)
        else:
            raise UserError(f"claims: groups have only 'for' and 'claims'; remove {next(iter({*claim} - {'claims'}))}")


def _allowed(axes: Mapping[Any, Any], rows: Rows) -> Rows:
    """Return the rows that have an allowed value of each axis.

    Args:
        axes: Axis -> one allowed value, a list of allowed values, or None for all values.
        rows: The rows of the table `where`.

    Raises:
        UserError: There is no such axis, or an axis has no such value.
    """
    for axis, allowed in axes.items():
        known = list(dict.fromkeys(row[axis] for row in rows if axis in row))
        if not known:
            raise UserError(f"for.{axis}: there is no such axis{nearest(str(axis), [*rows[0]])}")
        values = allowed if isinstance(allowed, list) else [allowed]
        chosen = known if allowed is None else [str(value) for value in values]
        if not chosen or not {*chosen} <= {*known}:
            raise UserError(f"for.{axis}={allowed}: choose from {', '.join(known)}")
        rows = [row for row in rows if row.get(axis) in chosen]
    return rows
