"""E-AiPOD: ProxSkip on the lower level, then FedNest's outer step [Xiao, Shen, Yin & Chen 2022].

Read in the authors' code (AiPOD), whose departures docs/algorithms/e_aipod.md lists; the limits of the tests are derived here.

Notation
    y_i, c_i    client i's copy of y and its correction; sum_i p_i c_i = 0, and both survive the rounds
    S, p        inner steps of a round, and the probability of a mean after each: one coin for all clients
    ybar        the last mean of the y_i, which the outer step takes for y
    zeta        a sample of g
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.algorithms.fednest import FedOut
from fedopt.algorithms.vectors import Tensors
from fedopt.config.schedules import LocalWork, Schedule, values
from fedopt.federation.client import Client
from fedopt.federation.draws import Steps
from fedopt.federation.engines import ClientFn
from fedopt.federation.memory import Memory
from fedopt.federation.round import Round
from fedopt.problems.classes import Bilevel


class State(NamedTuple):
    """y: ybar. memory: (y_i, c_i) of each client, [2 dy]."""

    x: Tensor
    y: Tensor
    memory: Memory


@dataclass(frozen=True)
class EAiPOD(FedOut):
    """alpha, beta: steps of x and y. S: inner steps of a round; p: the probability of a mean after each.

    B: examples of an inner step; B_out: for all that the outer part evaluates; None for all that a client has.
    tau_out, N, l, inverse: of the outer part, as in FedNest; where tau_out is one step, the server takes it.
    own_head: True lets the outer part take each client's own y_i, as the authors' code does, in place of ybar.
    """

    alpha: Schedule
    beta: Schedule
    S: PositiveInt
    p: Annotated[float, Field(gt=0, le=1)]
    B: PositiveInt | None
    tau_out: LocalWork
    B_out: PositiveInt | None
    N: PositiveInt
    l: PositiveFloat
    inverse: Literal["randomised", "truncated", "cg"]
    own_head: bool

    solves: ClassVar = (Bilevel,)
    outer, cohorts, divided = "server", "one", False  # of FedOut

    def __post_init__(self) -> None:
        if 0 in values(self.beta):
            raise ValueError("beta must be greater than 0: the corrections are changes of y over beta")

    def init(self, problem: Bilevel) -> State:
        x, y = problem.start()
        return State(x, y, Memory([torch.cat([y, torch.zeros_like(y)])] * problem.clients))

    def step(self, s: State, problem: Bilevel, fed: Round) -> State:
        heads = Heads(self, s, problem, fed)
        for coin in fed.rng("coins").random(self.S if problem.nested else 0) < self.p:
            heads.due += 1
            if coin:
                heads.average(s.x)
        x = self.fed_out(s.x, heads.y, problem, heads)
        return State(x, heads.y, heads.memory)

    def output(self, s: State) -> Tensors:
        return s.x, s.y


class Heads(Round):
    """A round of one cohort, whose clients have y_i and c_i in memory and catch up with the inner loop in the exchange after it.

    y: ybar. due: inner steps since the last mean, not taken yet. told: whether clients have that mean in place of y_i.
    """

    def __init__(self, method: EAiPOD, s: State, problem: Bilevel, fed: Round):
        vars(self).update(vars(fed))  # it is the same round: its draws go on
        self.y, self.memory, self.due, self.told = s.y, s.memory, 0, True
        self._S, self._own_head, self._draws = fed.cohort(), method.own_head, (method.B, problem.g_split)
        self._beta, self._share = method.beta(fed.r), method.p / method.beta(fed.r)

    def cohort(self) -> np.ndarray:
        return self._S

    def average(self, x: Tensor) -> None:
        """ybar = mean y_i, which clients are told in the next exchange."""
        self.y = self._exchange(lambda client, message: message[1], (x, self.y), own_head=True)
        self.told = False

    def exchange(self, client_fn: ClientFn, message: Any, cohort: np.ndarray, **draws: Any) -> Any:
        """As of a round, for messages (x, y, ...); with own_head y is the client's y_i, and is not sent."""
        return self._exchange(client_fn, message, self._own_head, **draws)

    def _exchange(self, client_fn: ClientFn, message: Tensors, own_head: bool, **draws: Any) -> Any:
        (x, y, *others), dy, beta, share, told = message, len(self.y), self._beta, self._share, self.told
        behind = not told or self.due > 0

        def answer(client: Client, message: tuple[Tensor, Tensors, Tensors]) -> tuple[Any, Tensor]:
            x, ybar, others = message
            y_i, c_i = client.memory[:dy], client.memory[dy:]
            if not told:
                c_i, y_i = c_i + share * (ybar[0] - y_i), ybar[0]
            if behind:
                held = client.hold(x)

                def step(y_i: Tensor, zeta: Any) -> Tensor:
                    return held.inner_step_(x, y_i, zeta, beta, -c_i)  # y_i - beta (grad_y g_i(x, y_i; zeta) - c_i)

                y_i = client.scan("inner", step, y_i)
            return client_fn(client, (x, y_i if own_head else ybar[0], *others)), torch.cat([y_i, c_i])

        if behind:
            B, split = self._draws
            draws["inner"] = Steps(self.due, B, split=split)
        sent = (x, (y,) if behind or not own_head else (), tuple(others))
        mean, self.memory = super().exchange(answer, sent, self._S, memory=self.memory, **draws)
        self.due, self.told = 0, True
        return mean
