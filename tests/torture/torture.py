"""What a trial may find."""

from typing import NamedTuple


class Failure(NamedTuple):
    """kind: as in the table; command: what was tried; said: what it ended with."""

    kind: str
    command: list[str]
    said: str
