"""Federated methods. Each file implements one paper as its pseudocode, on flat vectors, independently of engine and device."""

from typing import Any, ClassVar, Protocol

from torch import Tensor

from fedopt.federation import Round
from fedopt.problems import Problem


class Algorithm(Protocol):
    """A federated method: a frozen dataclass of hyperparameters, whose fields are the keys of ``conf/algo/<name>.yaml``.

    Attributes:
        solves: The problem classes for which the method is written. It can also solve problems that can be reduced to one of
            these classes.
        uneven: Optional. The name of the field with the amount of local work, which ``participation.least``, ``work`` and
            ``stragglers`` make different between clients. The field is a `LocalWork` or a whole number. It can also be a tuple
            of names; ``participation.work`` cannot be a list then.
        on_time: Optional. True for a method that would converge to other points if answers were late. ``participation.late`` is
            then refused.
        each_once: Optional. True for a method in which a client must count only once in a cohort, for example because it updates
            its control variate. ``participation.sampling=by_weight`` is then refused.
        everyone: Optional. True for a method that needs all clients in every round. Participation settings under which clients
            are missing are then refused.
        least_clients: Optional. The smallest number of clients that a cohort must have.
        cohort_weights: Optional. The weights with which the method averages a cohort. `effective_weights` uses them to compute the
            weights in run.json. ``mean`` (the default): the weights that `Round.exchange` uses for its mean. ``unbiased``: the
            weights that `Round.weights` returns with ``unbiased=True``. ``corrected``: the method converges to the same point
            regardless of which clients take part.
        projects_x: Optional. True for a method that projects x in every step, by `Client.project_x` and ``problem.project_x``.
            Other methods refuse problems that define ``project_x``.
        first_order: Optional. True for a method without second derivatives. Taking a second derivative of a bilevel problem then
            raises UserError.
    """

    solves: ClassVar[tuple[type[Problem], ...]]

    def init(self, problem: Any) -> Any:
        """Return the state before the first round.

        Args:
            problem: The problem, which belongs to one of the classes in ``solves``.

        Returns:
            A NamedTuple of tensors, memories and numbers, or of tuples of these.

        Raises:
            UserError: The hyperparameters do not fit the problem.
        """

    def step(self, s: Any, problem: Any, fed: Round) -> Any:
        """Run one round, and return the new state, which has the same structure and shapes. ``s`` itself must not be changed.

        Args:
            s: The state before the round.
            problem: The problem, which belongs to one of the classes in ``solves``.
            fed: The round, which samples cohorts, draws random numbers and exchanges messages with clients.
        """

    def output(self, s: Any) -> tuple[Tensor, ...]:
        """Return the point at which the problem's metrics are computed, a tuple of vectors in the order of the problem's variables.

        Args:
            s: The state.
        """


class Personal(Algorithm, Protocol):
    """An algorithm that trains a model for each client.

    Attributes:
        common: Optional. False for a method without a model that all clients share; metrics of a common model are not computed.
    """

    def personal(self, s: Any, problem: Any, fed: Round) -> Tensor:
        """Return the clients' personal models, ``[M, d]``.

        Args:
            s: The state.
            problem: The problem.
            fed: A round whose exchanges are not counted. Methods whose clients compute their models from the state use it.
        """
