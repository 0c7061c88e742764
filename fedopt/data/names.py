"""Names of clients and of classes: each name gets one spelling, and names that look alike are refused."""

import re
import unicodedata
from contextlib import suppress

import numpy as np

from fedopt.errors import UserError

LONGEST = 1000  # letters of a name
_WHOLE = re.compile(r"[-+]?(0|[1-9]\d{0,17})(\.0*)?", re.ASCII)  # 7, +7, 7.0; but 007 is a code
_NUMBER = re.compile(r"\+?0*(\d+)(\.0*)?", re.ASCII)


def spelt(name: str) -> str:
    """Return a name without blanks at its ends, and with accents in Unicode's composed form (NFC)."""
    return unicodedata.normalize("NFC", name).strip()


def identifiers(values: np.ndarray, where: str) -> np.ndarray:
    """Return the names, equal ones in one spelling: as int64 if all are whole numbers (such as 7, +7, 7.0), else as texts.

    Args:
        values: ``[n]`` texts or whole numbers.
        where: Where the names are, for messages.

    Raises:
        UserError: A name is empty or too long, or two differ only in capitals, blanks, the width of letters, or zeros of a
            number (7 and 007).
    """
    if values.dtype.kind in "iu":
        return values
    given = [spelt(str(name)) for name in values.tolist()]
    names = dict.fromkeys(given)
    if all(map(_WHOLE.fullmatch, names)):
        return np.array([int(name.partition(".")[0]) for name in given], dtype=np.int64)
    alike = dict[str, str]()
    for name in names:
        if not 0 < len(name) <= LONGEST:
            raise UserError(f"{where}, row {given.index(name) + 1}: a name must have 1 to {LONGEST} letters")
        seen = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        number = _NUMBER.fullmatch(seen)
        if (other := alike.setdefault(number[1] if number else seen, name)) != name:
            raise UserError(f"{where} has {other!r} and {name!r}, which look alike; write them the same, or rename one")
    return np.array(given)


def numbered(labels: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class index of each label, [n], and the names of the classes, sorted as `identifiers` sorts.

    Args:
        labels: ``[n]`` texts or numbers.
        where: Where the labels are, for messages.

    Raises:
        UserError: Labels are fractions, or `identifiers` refuses them.
    """
    classes, numbers = np.unique(identifiers(labels, where), return_inverse=True)
    names = tuple(map(str, classes.tolist()))
    with suppress(ValueError):  # texts
        if fractions := [name for name in names if not float(name).is_integer()]:
            raise UserError(
                f"{where} has fractions such as {fractions[0]}; it must hold classes: whole numbers or texts"
            )
    return numbers, names
