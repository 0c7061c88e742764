"""Hostile clients, and the rules by which a server combines answers that it does not trust.

`participation.hostile` and `participation.rule` take such a mapping, or null.

    'participation.hostile={who: 2, attack: alie}' 'participation.rule={kind: trimmed, f: 2}'
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from fedopt.config.build import STRICT
from fedopt.decimals import exact


@dataclass(frozen=True, config=STRICT)
class Hostile:
    """Clients whose answers are replaced by an attack. They compute and store the same as honest clients.

    An attack replaces the change b_i of a client: its answer minus the origin of the exchange. The mean and the standard
    deviation of the honest clients' changes in the same exchange are mu and s, for each entry.

    Args:
        attack: ``sign_flip``: -scale b_i. ``noise``: b_i plus normal noise of deviation ``scale``. ``ipm``: -scale mu. ``alie``:
            mu - scale s. ``large``: ``scale`` in every entry. ``labels``: honest answers, but class c of the client's training
            examples is replaced by C - 1 - c, for C classes.
        who: The number or fraction of hostile clients (the first clients are taken), or a list of clients.
        scale: The size of the attack. None: 1 for sign_flip and noise, 0.5 for ipm, 10^6 for large, and for alie the largest
            number at which the hostile clients and the honest clients that are farther from mu form a majority.
    """

    attack: Literal["sign_flip", "noise", "ipm", "alie", "large", "labels"]
    who: PositiveInt | Annotated[float, Field(gt=0, lt=1)] | Annotated[list[NonNegativeInt], Field(min_length=1)]
    scale: PositiveFloat | None = None

    def clients(self, clients: int) -> np.ndarray:
        """Return the indices of the hostile clients among this number of clients."""
        if isinstance(self.who, list):
            return np.unique(self.who)
        return np.arange(self.who if isinstance(self.who, int) else round(exact(self.who * clients)))


@dataclass(frozen=True, config=STRICT)
class Rule:
    """The rule by which the server combines the clients' changes b_i, vectors with all entries of an answer.

    Args:
        kind: ``mean``: the weighted mean. ``median``: of each entry. ``trimmed``: the mean of each entry without the f smallest
            and the f largest values. ``krum``: the change with the smallest sum of squared distances to its n - f - 2 nearest
            changes, where n is the number of changes. ``multikrum``: the mean of the n - f changes with the smallest such sums.
            ``geometric``: the weighted geometric median. ``clipping``: v plus the mean of the differences b_i - v, shortened to
            at most ``tau``, where v is the result in the last round (at first 0).
        f: The number of hostile clients that the rule tolerates, for trimmed, krum and multikrum.
        tau: The largest norm of a difference, for clipping.
        passes: The number of steps of Weiszfeld's method, for geometric.
    """

    kind: Literal["mean", "median", "trimmed", "krum", "multikrum", "geometric", "clipping"]
    f: NonNegativeInt | None = None
    tau: Annotated[float, Field(gt=0, allow_inf_nan=True)] | None = None
    passes: PositiveInt = 32

    @model_validator(mode="after")
    def _complete(self) -> "Rule":
        """Return self.

        Raises:
            ValueError: The rule lacks the number that its kind requires: f for trimmed, krum and multikrum, tau for clipping.
        """
        needed = {"trimmed": "f", "krum": "f", "multikrum": "f", "clipping": "tau"}.get(self.kind)
        if needed and getattr(self, needed) is None:
            raise ValueError(f"kind={self.kind} needs {needed}; add it to participation.rule")
        return self

    @property
    def least(self) -> int:
        """The smallest number of answers that the rule can combine."""
        return max(2 * (self.f or 0) + 1, (self.f or 0) + 3 if "krum" in self.kind else 1)
