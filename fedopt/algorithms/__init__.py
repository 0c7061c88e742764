"""One paper, one file: the method as its pseudocode, on flat vectors, ignorant of engine and device."""

from typing import Any, ClassVar, Protocol

from torch import Tensor

from fedopt.federation import Round
from fedopt.problems import Problem


class Algorithm(Protocol):
    """A frozen dataclass of hyperparameters, whose fields are the keys of ``conf/algo/<name>.yaml``.

    Attributes:
        solves: The classes of problems that it is written for. It can also solve problems that a reduction brings to one of
            these classes.
        uneven: Optional. The name of the field that ``participation.least``, ``work`` and ``stragglers`` make uneven. The
            field is a `LocalWork`, or a whole number. Several fields are a tuple of names; ``participation.work`` cannot be a
            list then.
        on_time: Optional. True for a method whose fixed points would move if answers came late: ``participation.late`` is
            refused.
        each_once: Optional. True for a method in which a client of a cohort counts once, such as by its control variate:
            ``participation.sampling=by_weight`` is refused.
        everyone: Optional. True for a method that needs all clients in every round: settings of ``participation`` that leave
            some away are refused.
        least_clients: Optional. The least number of clients that must be in a cohort.
        cohort_weights: Optional. The weights of a cohort's clients, from which run.json has the clients' `effective_weights`.
            ``mean``, as where it is missing: those of the mean that `Round.exchange` takes. ``unbiased``: those that
            `Round.weights` gives with ``unbiased=True``. ``corrected``: the method ends at the same point whoever takes part.
        first_order: Optional. True for a method without second derivatives. On problems with an inner objective, taking one
            then raises UserError.
    """

    solves: ClassVar[tuple[type[Problem], ...]]

    def init(self, problem: Any) -> Any:
        """Return the state before the first round: a NamedTuple of tensors, memories and numbers, or tuples of them.

        Raises:
            UserError: The hyperparameters do not fit the problem.
        """

    def step(self, s: Any, problem: Any, fed: Round) -> Any:
        """Return the state after a round, of the same structure and shapes. The state ``s`` itself must not be changed.

        Args:
            s: The state before the round.
            problem: The problem, of one of the classes in ``solves``.
            fed: The round ``fed.r``: its clients, its draws and its exchanges.
        """

    def output(self, s: Any) -> tuple[Tensor, ...]:
        """Return the point at which the problem's metrics are taken: a tuple of vectors, the variables in the problem's order."""


class Personal(Algorithm, Protocol):
    """An algorithm that has a model of each client.

    Attributes:
        common: Optional. False for a method without a model that all clients have in common: nothing is measured of one then.
    """

    def personal(self, s: Any, problem: Any, fed: Round) -> Tensor:
        """Return the clients' own models, ``[M, d]``.

        Args:
            s: The state.
            problem: The problem.
            fed: A round in which nothing is counted, for models that clients make of the state.
        """
