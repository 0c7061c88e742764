"""Names of clients and of classes: texts, of which those that look alike are one name or refused."""

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
    """A name without blanks at its ends, seen or not, and with accents as Unicode composes them."""
    return _ENDS.sub("", unicodedata.normalize("NFC", name))


def identifiers(values: np.ndarray, where: str) -> np.ndarray:
    """Names in one spelling each: whole numbers where all are such, in any form that programs write, else texts.

    Args:
        values: ``[n]`` of texts or whole numbers.
        where: What has them, for messages.

    Raises:
        UserError: A name is empty, or two differ in capitals, blanks or the width of letters alone.
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
            why = f"has more than {LONGEST} letters" if written else "has blanks in place of a name"
            raise UserError(f"{where}, row {given.index(name) + 1} {why}")
        seen = re.sub(f"[{_UNSEEN}]+", "", unicodedata.normalize("NFKC", written).casefold())
        folded = _WITHIN.sub("", " ".join(seen.split()))
        folded = re.sub(r"^\+?(-?\d+)([.,]0*)?$", r"\1", folded)
        if (other := alike.setdefault(folded, written)) != written:
            raise UserError(f"{where} says {other!r} and {written!r}; write them alike")
    return np.array([names[name] for name in given])


def numbered(labels: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each label among the classes, [n], and the names of the classes, in the order of `identifiers`.

    Raises:
        UserError: Labels are fractions, or as of `identifiers`.
    """
    classes, numbers = np.unique(identifiers(labels, where), return_inverse=True)
    names = tuple(map(str, classes.tolist()))
    fractions = [n for n in names if _NUMBER.fullmatch(n) and not float(n.replace(",", ".")).is_integer()]
    if fractions and all(map(_NUMBER.fullmatch, names)):
        raise UserError(f"{where} has fractions such as {fractions[0]}, and must be classes")
    return numbers, names


def one_number(names: Iterable[str], kind: str) -> list[str]:
    """A note on names that are one number in several spellings, such as 7 and 007: they are several names."""
    of_number = dict[Decimal, str]()
    for name in filter(_NUMBER.fullmatch, names):
        if (other := of_number.setdefault(Decimal(name.replace(",", ".")), name)) != name:
            return [f"{other} and {name} are two {kind}, since names are texts"]
    return []
