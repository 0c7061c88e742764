"""Names of clients and of classes: each name gets one spelling, and names that look alike are refused."""

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

import numpy as np

from fedopt.errors import UserError

LONGEST = 1000  # letters of a name
_UNSEEN = r"\x00-\x08\x0e-\x1b\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
_ENDS = re.compile(rf"^[\s{_UNSEEN}]+|[\s{_UNSEEN}]+$")
_WITHIN = re.compile(r"(?<!\d) | (?!\d)")  # 1 11 and 11 1 are two names
# Whole numbers as programs write them: 7, +7, 7.0, and 7.000000e+00 of NumPy. 007 and 7e0 are codes
_WHOLE = re.compile(r"[-+]?((0|[1-9]\d{0,17})([.,]0*)?|\d\.\d{6,}e[-+]\d\d)", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d{1,3})?", re.ASCII)


def spelt(name: str) -> str:
    """Return a name without visible or invisible blanks at its ends, and with accents in Unicode's composed form (NFC)."""
    return _ENDS.sub("", unicodedata.normalize("NFC", name))


def identifiers(values: np.ndarray, where: str) -> np.ndarray:
    """Return the names, equal ones in one spelling: as int64 if all are whole numbers (such as 7, +7, 7.0), else as texts.

    Args:
        values: ``[n]`` texts or whole numbers.
        where: Where the names stand, for messages.

    Raises:
        UserError: A name is empty or too long, or two differ only in capitals, blanks or the width of letters.
    """
    if values.dtype.kind in "iu":
        return values
    given = [*map(str, values.tolist())]
    names = {name: spelt(name) for name in dict.fromkeys(given)}
    if all(map(_WHOLE.fullmatch, names.values())):
        numbers = {name: Decimal(written.replace(",", ".")) for name, written in names.items()}
        if all(number == int(number) and abs(number) < 2**63 for number in numbers.values()):
            return np.array([int(numbers[name]) for name in given], dtype=np.int64)
    alike = dict[str, str]()
    for name, written in names.items():
        if not 0 < len(written) <= LONGEST:
            why = f"the name has more than {LONGEST} letters; shorten it" if written else "the name is blank; give one"
            raise UserError(f"{where}, row {given.index(name) + 1}: {why}")
        seen = re.sub(f"[{_UNSEEN}]+", "", unicodedata.normalize("NFKC", written).casefold())
        folded = _WITHIN.sub("", " ".join(seen.split()))
        folded = re.sub(r"^\+?(-?\d+)([.,]0*)?$", r"\1", folded)
        if (other := alike.setdefault(folded, written)) != written:
            raise UserError(
                f"{where} has {other!r} and {written!r}, which look alike; write them the same, or rename one"
            )
    return np.array([names[name] for name in given])


def numbered(labels: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class index of each label, [n], and the names of the classes, sorted as `identifiers` sorts.

    Args:
        labels: ``[n]`` texts or numbers.
        where: Where the labels stand, for messages.

    Raises:
        UserError: Labels are fractions, or `identifiers` refuses them.
    """
    classes, numbers = np.unique(identifiers(labels, where), return_inverse=True)
    names = tuple(map(str, classes.tolist()))
    fractions = [n for n in names if _NUMBER.fullmatch(n) and not float(n.replace(",", ".")).is_integer()]
    if fractions and all(map(_NUMBER.fullmatch, names)):
        raise UserError(f"{where} has fractions such as {fractions[0]}; it must hold classes: whole numbers or texts")
    return numbers, names


def one_number(names: Iterable[str], kind: str) -> list[str]:
    """Return a note if two names are one number in two spellings, such as 7 and 007; else []. They stay two names.

    names: the names. kind: what has these names, in the plural, for the note.
    """
    of_number = dict[Decimal, str]()
    for name in filter(_NUMBER.fullmatch, names):
        if (other := of_number.setdefault(Decimal(name.replace(",", ".")), name)) != name:
            return [
                f"{other} and {name} count as two {kind}, since names are texts; write them the same if they are one"
            ]
    return []
