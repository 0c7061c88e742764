"""ProxSkip-GDA (ProxSkip-VIP-FL): local descent-ascent that exchanges at random times [Zhang et al. 2024].

Follows public code, `ProxSkipVIP`.

Explained in docs/algorithms/proxskip_gda.md.

Notation
    w, w_i     the point (x, y) on the server, and the point of client i during its local steps
    F_i        the gradient field (grad_x f_i, -grad_y f_i) of client i
    h_i        the control variate of client i, which converges to F_i(w*). Without a constraint, sum_i p_i h_i = 0
    a_i        w_i - (gamma / p) h_i, the answer of client i. When the client receives w, it sets h_i = (p / gamma) (w - a_i)
    p          the probability that an iteration ends with an exchange. One coin decides for all clients
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.federation import Client, Memory, Round, Steps
from fedopt.problems import Minimax
from fedopt.randomness import Purpose
from fedopt.toolbox import Vectors, minimax_field


class State(NamedTuple):
    """The state of ProxSkip-GDA.

    Attributes:
        w: (x, y) of the server.
        memory: The last answer a_i of each client as one vector; see the module's docstring.
    """

    w: Vectors
    memory: Memory


@dataclass(frozen=True)
class ProxSkipGda:
    """ProxSkip-GDA: after each iteration, a random coin decides whether clients communicate.

    A round consists of the iterations until the coin shows heads, and of the exchange that follows. All clients must take part
    (UserError otherwise).

    Args:
        gamma_x: The step size of x. The paper has one step size gamma, 1 / (the largest cocoercivity constant).
        gamma_y: The step size of y.
        p: The probability of an exchange after an iteration. The paper uses sqrt(gamma mu) if F is mu-strongly monotone.
        B: The batch size of a step. None: all examples of the client.
    """

    gamma_x: PositiveFloat
    gamma_y: PositiveFloat
    p: Annotated[float, Field(gt=0, le=1)]
    B: PositiveInt | None

    solves: ClassVar = (Minimax,)
    everyone: ClassVar = True

    def init(self, problem: Minimax) -> State:
        w = Vectors(problem.start())
        return State(w, Memory([torch.cat(w)] * problem.clients))  # h_i = 0

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        gamma = (self.gamma_x, self.gamma_y)
        skipped = (self.gamma_x / self.p, self.gamma_y / self.p)

        def iterations(client: Client, w: Vectors) -> tuple[Vectors, Tensor]:
            a_i, w_i = w.unflatten(client.memory), w
            minus_h_i = Vectors((a_v - w_v) / g for w_v, a_v, g in zip(w, a_i, skipped, strict=True))
            for b in client.steps("local"):
                w_i = w_i.moved(minimax_field(client, w_i, b, plus=minus_h_i), gamma)
            a_i = w_i.moved(minus_h_i, [-step for step in skipped])
            return a_i, torch.cat(a_i)

        local = Steps(int(fed.rng(Purpose.COIN).geometric(self.p)), self.B)  # until the coin shows heads
        (x, y), memory = fed.exchange(iterations, s.w, fed.everyone(), memory=s.memory, origin=s.w, local=local)
        return State(Vectors((x, problem.project(y))), memory)  # the proximal step: a mean, projected onto Y

    def output(self, s: State) -> Vectors:
        return s.w
