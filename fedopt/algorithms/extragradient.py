"""Local extragradient, and FeDualEx: its dual form for composite objectives [Bai & Bullins 2024].

Local extragradient follows two public codes, `ProxSkipVIP` and `federated-minimax`; FeDualEx follows the paper's text.

Explained in docs/algorithms/extragradient.md.

Notation
    w, u       the point (x, y) on the server, and the point of a client during its local steps
    F_i        the gradient field (grad_x f_i, -grad_y f_i) of client i
    h          the half point: u after the first of the two gradient steps that make one local step
    b1, b2     the two samples of a local step, at u and at h

FeDualEx also uses
    o          the dual variable: the initial point minus the sum of all eta F_i so far
    T_t(o)     the point o with its entries shrunk towards 0 by t eta lam, and clipped to [-D, D], where t counts the local steps
    z, z_h     the primal points T_t(o) before and after the half step
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch.nn.functional import softshrink

from fedopt.config import Schedule
from fedopt.federation import Client, Round, Steps
from fedopt.problems import Minimax
from fedopt.toolbox import Vectors, descend, descend_, minimax_field


class State(NamedTuple):
    w: Vectors


@dataclass(frozen=True)
class LocalExtragradient:
    """Local extragradient steps on a saddle point problem.

    Args:
        eta_x: The clients' step size of x.
        eta_y: The clients' step size of y.
        eta_s: The server's step size along the mean change of the clients.
        K: The number of local steps.
        B: The batch size of each of the two samples of a step. None: all examples of the client.
    """

    eta_x: Schedule
    eta_y: Schedule
    eta_s: Schedule
    K: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Minimax,)

    def init(self, problem: Minimax) -> State:
        return State(Vectors(problem.start()))

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        eta = (self.eta_x(fed.r), self.eta_y(fed.r))

        def local_steps(client: Client, u: Vectors) -> Vectors:
            for b1, b2 in client.steps("local"):
                h = u.moved(minimax_field(client, u, b1), eta)  # not projected, as in the public code
                u = descend_(client, u, minimax_field(client, h, b2), eta)
            return u

        mean = fed.exchange(local_steps, s.w, fed.cohort(), origin=s.w, local=Steps(self.K, self.B, samples=2))
        return State(descend(problem, s.w, s.w - mean, (self.eta_s(fed.r),) * 2))  # w + eta_s (mean u - w)

    def output(self, s: State) -> Vectors:
        return s.w


class DualState(NamedTuple):
    """The state of FeDualEx.

    Attributes:
        o: The dual variable: the initial point minus the sum of all gradient steps so far.
        z: The primal point T_t(o): o with its entries shrunk towards 0 and clipped, after t local steps.
        mean: The mean of all half points z_h so far. Before the first step, it is the initial z.
    """

    o: Vectors
    z: Vectors
    mean: Vectors


@dataclass(frozen=True)
class FeDualEx:
    """FeDualEx: dual extrapolation for composite saddle point problems. z is a primal point, and z_h a half point.

    Args:
        eta_x: The clients' step size of x.
        eta_y: The clients' step size of y.
        eta_s: The server's step size along the mean change of the clients.
        K: The number of local steps.
        B: The batch size of each of the two samples of a step. None: all examples of the client.
        lam: The weight of the composite term: the objective is f + lam |x|_1 - lam |y|_1.
        D: The entries of x and y are restricted to [-D, D]. None: no bounds.
        iterate: The output: the ``last`` z, or the ``mean`` of all z_h as in the theorem. In the second case clients send it too.
    """

    eta_x: PositiveFloat
    eta_y: PositiveFloat
    eta_s: PositiveFloat
    K: PositiveInt
    B: PositiveInt | None
    lam: NonNegativeFloat
    D: PositiveFloat | None
    iterate: Literal["last", "mean"]

    solves: ClassVar = (Minimax,)
    on_time: ClassVar = True  # the threshold of T grows with the rounds, as o does

    def init(self, problem: Minimax) -> DualState:
        w = Vectors(problem.start())
        return DualState(w, self._T(problem, w, 0), w)

    def step(self, s: DualState, problem: Minimax, fed: Round) -> DualState:
        eta, K, first, theory = (self.eta_x, self.eta_y), self.K, self.eta_s * fed.r * self.K, self.iterate == "mean"

        def local_steps(client: Client, o: Vectors) -> tuple[Vectors, ...]:
            total = 0 * o
            for k, (b1, b2) in enumerate(client.steps("local")):
                z = self._T(client, o, first + k)
                z_h = self._T(client, o.moved(minimax_field(client, z, b1), eta), first + k + 1)
                o = o.moved(minimax_field(client, z_h, b2), eta)
                total = total + z_h if theory else total
            return (o, 1 / K * total) if theory else (o,)

        local, origin = Steps(K, self.B, samples=2), (s.o, s.z)[: 1 + theory]
        mean, *z_h = fed.exchange(local_steps, s.o, fed.cohort(), origin=origin, local=local)
        o = s.o + self.eta_s * (mean - s.o)
        z_mean = s.mean + 1 / (fed.r + 1) * (z_h[0] - s.mean) if theory else s.mean
        return DualState(o, self._T(problem, o, first + self.eta_s * K), z_mean)

    def output(self, s: DualState) -> Vectors:
        return s.z if self.iterate == "last" else s.mean

    def _T(self, at: Client | Minimax, o: Vectors, t: float) -> Vectors:
        """Return the primal point T_t(o) of a dual point o.

        The entries are soft-thresholded by t eta lam and clipped to [-D, D], and y is projected onto the problem's constraint set.
        If the problem has a constraint set, this gives the exact point only for lam = 0 and D = None.

        Args:
            at: The client, or the problem on the server. Its ``project`` is used.
            o: The dual point.
            t: The number of local steps in this round, plus eta_s times the number of local steps in earlier rounds.
        """
        if self.lam:
            o = Vectors(softshrink(v, t * eta * self.lam) for v, eta in zip(o, (self.eta_x, self.eta_y), strict=True))
        x, y = o if self.D is None else (v.clamp(-self.D, self.D) for v in o)
        return Vectors((x, at.project(y)))
