"""The simulated federation: who takes part, how much each client works, and what was communicated."""

from fedopt.federation.engines import Engine
from fedopt.federation.ledger import Ledger
from fedopt.federation.round import Round
from fedopt.problems.classes import Problem
from fedopt.settings import Participation

FULL = Participation()


class Federation:
    """M clients and a server.

    participation: which clients take part in a round, and how uneven their local work is; by default all, evenly.

    Where torch.distributed runs, the clients of an exchange are shared out over the ranks; every rank holds the same server.
    """

    def __init__(self, problem: Problem, engine: Engine, seed: int, participation: Participation = FULL):
        self.problem = problem
        self.engine = engine
        self.seed = seed
        self.participation = participation
        self.ledger = Ledger(problem.clients)

    def at(self, r: int) -> Round:
        """Round r = 0, 1, ...: the r-th step of the server. Its draws depend on the seed and on r alone."""
        return Round(self, r)
