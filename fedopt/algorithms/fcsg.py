"""FCSG, FCSG-M and Acc-FCSG-M: local steps along plug-in gradients of conditional problems [Wu et al. 2023]; ComFedL [Huang, Li &
Huang 2021].

The FCSG methods follow public code (Federated-Minimax-and-Conditional-Stochastic-Optimization). ComFedL is unverified: FCSG with
I = 1, reconstructed without the paper's text.

Explained in docs/algorithms/fcsg.md.

Notation
    G                the gradient of the problem's f, J r(x)' grad f(u), where u is the mean of r over the inner samples of an outer
                     sample
    m                the momentum, along which a step moves; m = G if alpha = 1
    x_prev, G_old    the previous point of client i, and the gradient at this point on the samples of G
    xi               the samples of one step: outer samples, each with its own inner samples
    t, I             the index of the step, and the number of steps between exchanges
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Round, Sample, Steps
from fedopt.problems import Minimisation
from fedopt.toolbox import Averages, Storm, Tensors, Vectors, at_start, together


class State(NamedTuple):
    """The state of FCSG and FCSG-M. With momentum=storm, the state is `Averages`.

    Attributes:
        x: The server's point, ``[d]``.
        m: (m,) with the momentum, ``[d]``; () if alpha = 1.
    """

    x: Tensor
    m: Tensors


@dataclass(frozen=True)
class Fcsg:
    """FCSG, FCSG-M and Acc-FCSG-M: local steps on a conditional problem.

    G is the gradient on the current sample, G_old the gradient at the previous point on the same sample, and m the momentum, which
    is the direction of the step.

    Args:
        eta: The step size of x.
        alpha: The weight of the newest G in m. With 1, there is no momentum.
        momentum: ``average``: m <- (1 - alpha) m + alpha G. ``storm``: m <- G + (1 - alpha) (m - G_old).
        I: The number of local steps.
        B: The number of outer samples per step. None: all outer samples of the client.
    """

    eta: Schedule
    alpha: Annotated[float, Field(gt=0, le=1)]
    momentum: Literal["average", "storm"]
    I: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Minimisation,)

    def init(self, problem: Minimisation) -> State | Averages:
        (x,) = problem.start()
        if self.momentum == "storm":
            return at_start(Vectors((x,)), problem.clients)
        return State(x, (0 * x,) if self.alpha < 1 else ())

    def step(self, s: State | Averages, problem: Minimisation, fed: Round) -> State | Averages:
        eta, alpha, first, xi = self.eta(fed.r), self.alpha, fed.r == 0, Steps(self.I, self.B)
        if isinstance(s, Averages):
            storm = Storm(gradient, lambda client, x, m, t: x.moved(m, (eta,)), lambda t: (alpha,))
            return together(storm, s, fed, self.I, xi)

        def local_steps(client: Client, message: tuple[Tensor, Tensors]) -> State:
            x, m = message
            for t, xi in enumerate(client.steps("xi")):
                a = 1.0 if first and t == 0 else alpha
                G = client.gradient(x, xi)
                m = tuple(torch.lerp(m_old, G, a) for m_old in m)  # (1 - a) m + a G
                x = client.moved_(x, m[0] if m else G, eta)
            return State(x, m)

        return State(*fed.exchange(local_steps, s, fed.cohort(), origin=(s.x, None), xi=xi))

    def output(self, s: State | Averages) -> Tensors:
        return (s[0],) if isinstance(s, State) else s.z


def gradient(client: Client, z: Vectors, xi: Sample) -> Vectors:
    """Return the gradient of the problem's f at z = (x,) on one sample, as `Vectors` with one entry.

    Args:
        client: The client.
        z: The point (x,).
        xi: The sample.
    """
    return Vectors((client.gradient(z[0], xi),))
