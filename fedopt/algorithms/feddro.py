"""FedDRO: compositional descent in which clients exchange the low-dimensional inner value at every step, and x once per round.

The method is from Khanduri et al. 2026. Unverified: reconstructed from a review, without the paper's text. The point at which
the estimate y is computed is derived here.

Explained in docs/algorithms/feddro.md.

Notation
    min_x f(mean_i g_i(x))    the problem, a composition with a mean over all clients inside. The server and all clients know f. If
                              the objective has an additional term h(x), as in the paper, h is one more entry of g
    ybar, y_i                 the estimate of mean_i g_i(x), and the value of client i in the mean that is ybar
    x_old                     the point of client i before its last step
    xi, xi'                   the samples of one step: xi for the Jacobian of g_i, and xi' for the values of g_i
    I                         the number of steps between exchanges of x
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import KnownOuter
from fedopt.toolbox import Tensors, chain


class State(NamedTuple):
    """The state of FedDRO.

    Attributes:
        x: The server's point, ``[d]``.
        ybar: The estimate of the inner value mean_i g_i(x), ``[d1]``.
        memory: The last local x of each client, at which it last estimated its g_i, ``[M, d]``.
    """

    x: Tensor
    ybar: Tensor
    memory: Memory


@dataclass(frozen=True)
class FedDro:
    """FedDRO: local steps on a composition, with a shared estimate of its inner value.

    Args:
        eta: The step size.
        beta: The weight of the newest values in the estimate of the inner value, the mean of the clients' g_i. The change of g_i
            since the previous step is always added.
        I: The number of local steps per round.
        B: The batch size of each sample. None: all examples of the client.
    """

    eta: Schedule
    beta: Annotated[float, Field(gt=0, le=1)]
    I: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (KnownOuter,)

    def init(self, problem: KnownOuter) -> State:
        (x,) = problem.start()
        return State(x, x.new_zeros(problem.dims[1]), Memory([x] * problem.clients))

    def step(self, s: State, problem: KnownOuter, fed: Round) -> State:
        eta, beta = self.eta(fed.r), self.beta if fed.r else 1.0

        def moved(client: Client, x: Tensor, ybar: Tensor, xi: Sample) -> Tensor:
            _, G = chain(client, x, (xi, xi), lambda k, g: ybar)  # J g_i(x; xi)' grad f(ybar)
            return x.sub(G, alpha=eta)

        def y_i(client: Client, x: Tensor, ybar: Tensor, xi: Sample) -> Tensor:
            return client.level(0, x, xi) + (1 - beta) * (ybar - client.level(0, client.memory, xi))

        def first(client: Client, message: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            x, ybar = message
            return y_i(client, x, ybar, client.sample("xi")), x

        def later(client: Client, ybar: Tensor) -> tuple[Tensor, Tensor]:
            xi, xi_y = client.sample("xi")
            x = moved(client, client.memory, ybar, xi)
            return y_i(client, x, ybar, xi_y), x

        def last(client: Client, ybar: Tensor) -> tuple[Tensor, Tensor]:
            return moved(client, client.memory, ybar, client.sample("xi")), client.memory

        # The first y of a round is computed at the mean x, so x needs an exchange of its own, after I exchanges of y
        S = fed.cohort()
        ybar, memory = fed.exchange(first, (s.x, s.ybar), S, memory=s.memory, origin=s.ybar, xi=Steps(1, self.B))
        for _ in range(self.I - 1):
            ybar, memory = fed.exchange(later, ybar, S, memory=memory, origin=ybar, xi=Steps(1, self.B, samples=2))
        x, memory = fed.exchange(last, ybar, S, memory=memory, origin=s.x, xi=Steps(1, self.B))
        return State(x, ybar, memory)

    def output(self, s: State) -> Tensors:
        return (s.x,)
