"""The simulated federation: who takes part, how much each client works, and what was communicated."""

from dataclasses import dataclass, field

from fedopt.federation.engines import Engine
from fedopt.federation.ledger import Ledger
from fedopt.federation.round import Round
from fedopt.problems.classes import Problem
from fedopt.settings import Participation


@dataclass(eq=False)
class Federation:
    """M clients and a server.

    participation: which clients take part in a round, and how uneven their local work is; by default all, evenly.

    Where torch.distributed runs, the clients of an exchange are shared out over the ranks; every rank holds the same server.
    """

    problem: Problem
    engine: Engine
    seed: int
    participation: Participation = field(default_factory=Participation)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.problem.clients)

    def at(self, r: int) -> Round:
        """Round r = 0, 1, ...: the r-th step of the server. Its draws depend on the seed and on r alone."""
        return Round(r, self.problem, self.engine, self.seed, self.participation, self.ledger)
