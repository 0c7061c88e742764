"""BR-FedBi: SimFBO with one local step, whose server takes a robust mean of the clients' directions [BR-FedBi 2026].

The equations come from notes that others wrote about the paper; we have not read its text. Rules: coordinate-wise median and
trimmed mean [Yin et al. 2018], the geometric median RFA [Pillutla et al. 2022]. `participation.hostile` sets attacks.

Explained in docs/algorithms/br_fedbi.md.

Notation
    z = (x, y, v)    the variables; the notes about the paper write v for our -v
    D_i, P_r         the directions of client i, and the projection of v onto |v| <= r; both are defined in toolbox/directions.py
    g_i              the vector that client i sends: its directions D_i, their momentum, or PAGE's estimate of D_i
    S                the clients that take part
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import Rule, Schedule
from fedopt.federation import Client, Memory, Round, Steps, combined
from fedopt.problems import Bilevel
from fedopt.toolbox import Tensors, Vectors, bilevel_maps, bilevel_start, descend


class State(NamedTuple):
    """The state of BR-FedBi.

    Attributes:
        z: The variables.
        memory: The g_i that each client sent last. With PAGE, it is followed by the z for which g_i was computed, and by a number
            that is 1 if the client has sent before. The rows are empty if clients store nothing.
    """

    z: Vectors
    memory: Memory


@dataclass(frozen=True)
class BRFedBi:
    """BR-FedBi: bilevel steps in which the server combines the clients' directions by a robust mean.

    Args:
        gamma_x: The server's step size of x.
        gamma_y: The server's step size of y.
        gamma_v: The server's step size of v.
        radius: The radius of the ball onto which v is projected. None: v is not projected.
        B: The batch size. None: all examples of the client.
        rule: How the server combines the answers, for x, y and v separately. ``mean``: their mean. ``median``: the coordinate-wise
            median. ``trimmed``: the mean without the ``trim`` smallest and the ``trim`` largest values of each coordinate.
            ``geometric``: the geometric median, computed by ``iterations`` steps of Weiszfeld's method.
        trim: The number of values to remove at each end, for rule=trimmed.
        iterations: The number of steps of Weiszfeld's method, for rule=geometric.
        variance: How client i computes its answer g_i from its directions D_i. ``none``: g_i = D_i. ``momentum``:
            g_i <- momentum g_i + (1 - momentum) D_i. ``page``: with probability p, g_i = D_i on B_page examples; otherwise
            g_i <- g_i + D_i(z) - D_i(z_prev), with the same sample at both points. All clients of a round make the same choice.
        momentum: The weight of the old g_i, for variance=momentum.
        p: The probability of a new estimate, for variance=page.
        B_page: The batch size of a new estimate, for variance=page. None: all examples of the client.
    """

    gamma_x: Schedule
    gamma_y: Schedule
    gamma_v: Schedule
    radius: PositiveFloat | None
    B: PositiveInt | None
    rule: Literal["mean", "median", "trimmed", "geometric"]
    trim: NonNegativeInt
    iterations: PositiveInt
    variance: Literal["none", "momentum", "page"]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    p: Annotated[float, Field(gt=0, le=1)]
    B_page: PositiveInt | None

    solves: ClassVar = (Bilevel,)
    cohort_weights: ClassVar = "unbiased"
    each_once = property(lambda self: self.rule not in ("mean", "geometric"))
    server = property(
        lambda self: Rule(self.rule, self.trim if self.rule == "trimmed" else None, passes=self.iterations)
    )
    least_clients = property(lambda self: self.server.least)

    def init(self, problem: Bilevel) -> State:
        z = bilevel_start(problem)
        row = torch.zeros_like(torch.cat([*z, *(z if self.variance == "page" else ()), z[0].new_zeros(1)]))
        return State(z, Memory([row[:0] if self.variance == "none" else row] * problem.clients))

    def step(self, s: State, problem: Bilevel, fed: Round) -> State:
        sizes, S = [len(variable) for variable in s.z], fed.cohort()
        fresh = self.variance != "page" or fed.r == 0 or bool(fed.rng("coin").random() < self.p)

        def directions(client: Client, z: Vectors) -> tuple[Vectors, Tensor]:
            xi = client.sample("xi")
            D = bilevel_maps(client, z, xi)
            if self.variance == "none":
                return D, client.memory
            kept = z if self.variance == "page" else ()
            *row, has_sent = client.memory.split([*sizes, *map(len, kept), 1])
            g, z_prev = Vectors(row[: len(z)]), Vectors(row[len(z) :])
            if self.variance == "momentum":
                g = self.momentum * g + (1 - self.momentum) * D
            else:
                g = D if fresh else g + (D - bilevel_maps(client, z_prev, xi))
            g = Vectors(torch.where(has_sent > 0, *pair) for pair in zip(g, D, strict=True))
            return g, torch.cat([*g, *kept, torch.ones_like(has_sent)])

        def aggregate(answers: Vectors, weights: Tensor) -> Vectors:
            return Vectors(combined(g, weights, self.server) for g in answers)

        pt = fed.weights(S, unbiased=True)
        xi = Steps(1, self.B_page if fresh and self.variance == "page" else self.B)
        Q, memory = fed.exchange(directions, s.z, S, weights=pt, combine=aggregate, memory=s.memory, xi=xi)
        gammas = [gamma(fed.r) for gamma in (self.gamma_x, self.gamma_y, self.gamma_v)]
        return State(descend(problem, s.z, Q, gammas, self.radius), memory)

    def output(self, s: State) -> Tensors:
        return s.z
