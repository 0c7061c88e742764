"""Normalised names of clients and classes. Different names that look the same are rejected."""

import re
import unicodedata
from contextlib import suppress

import numpy as np

from fedopt.errors import UserError

LONGEST = 1000  # largest length of a name
_WHOLE = re.compile(r"[-+]?(0|[1-9]\d{0,17})(\.0*)?", re.ASCII)  # matches 7, +7 and 7.0, but not 007, which is a code
_NUMBER = re.compile(r"\+?0*(\d+)(\.0*)?", re.ASCII)


def clean_name(name: str) -> str:
    """Normalise a name: strip blanks at both ends and compose accents (Unicode NFC)."""
    return unicodedata.normalize("NFC", name).strip()


def identifiers(values: np.ndarray, where: str) -> np.ndarray:
    """Normalise names, such that equal names are written in the same way.

    Args:
        values: Names or integers, ``[n]``.
        where: The file or column that the names come from, for messages.

    Returns:
        The names, ``[n]``: int64 if all are integers (such as 7, +7 or 7.0), otherwise texts.

    Raises:
        UserError: A name is empty or too long, or two names differ only in case, blanks, character width or leading zeros
            (7 and 007).
    """
    if values.dtype.kind in "iu":
        return values
    given = [clean_name(str(name)) for name in values.tolist()]
    names = dict.fromkeys(given)
    if all(map(_WHOLE.fullmatch, names)):
        return np.array([int(name.partition(".")[0]) for name in given], dtype=np.int64)
    alike = dict[str, str]()
    for name in names:
        if not 0 < len(name) <= LONGEST:
            raise UserError(f"{where}, row {given.index(name) + 1}: a name must have 1 to {LONGEST} characters")
        seen = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        number = _NUMBER.fullmatch(seen)
        if (other := alike.setdefault(number[1] if number else seen, name)) != name:
            raise UserError(f"{where} has {other!r} and {name!r}, which look alike; use one spelling, or rename one")
    return np.array(given)


def numbered(labels: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the classes.

    Args:
        labels: Class names or numbers, ``[n]``.
        where: The file or column that the labels come from, for messages.

    Returns:
        The class index of each label, ``[n]``, and the names of the classes in sorted order.

    Raises:
        UserError: A label is a fraction, or `identifiers` rejects it.
    """
    classes, numbers = np.unique(identifiers(labels, where), return_inverse=True)
    names = tuple(map(str, classes.tolist()))
    with suppress(ValueError):  # the names are texts
        if fractions := [name for name in names if not float(name).is_integer()]:
            raise UserError(f"{where} has fractions such as {fractions[0]}; classes must be whole numbers or texts")
    return numbers, names
