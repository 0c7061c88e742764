"""One paper, one file. What an algorithm is:"""

from typing import Any, ClassVar, Protocol

from torch import Tensor

from fedopt.federation.round import Round
from fedopt.problems.classes import Problem


class Algorithm(Protocol):
    """A frozen dataclass of hyperparameters, whose fields are the keys of `conf/algo/<name>.yaml`.

    solves: the classes of problems that it is written for; reductions bring more.
    uneven: the field of type `LocalWork`, or a whole number, that participation.least, work and stragglers make uneven, where they
        may; several fields as a tuple of names, which participation.work, one list, does not serve.
    first_order: True for one that takes no second derivatives of a problem with an inner objective: they are then refused.
    """

    solves: ClassVar[tuple[type[Problem], ...]]

    def init(self, problem: Any) -> Any:
        """The state before the first round: a NamedTuple of tensors, or of tuples of them. Raises UserError where hyperparameters
        and problem do not fit."""

    def step(self, s: Any, problem: Any, fed: Round) -> Any:
        """The state after round fed.r, of the same shapes; s is left as it is."""

    def output(self, s: Any) -> tuple[Tensor, ...]:
        """The point that the problem's metrics are taken at."""
