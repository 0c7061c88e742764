"""E-AiPOD: ProxSkip on the lower level, then FedNest's outer step [Xiao, Shen, Yin & Chen 2022].

Follows the authors' code (AiPOD); docs/algorithms/e_aipod.md lists where it departs from the paper. The limits that the tests
check are derived here.

Notation
    y_i, c_i    the copy of y on client i, and the correction of its inner steps, with sum_i p_i c_i = 0. Clients keep both
    S, p        the number of inner steps per round, and the probability that the y_i are averaged after an inner step. One coin
                decides for all clients
    ybar        the last mean of the y_i, which the outer step uses as y
    zeta        a sample on which g is evaluated
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.algorithms.fednest import estimate, h_i, svrg_steps
from fedopt.config import Fixed, LocalWork, Schedule, values
from fedopt.federation import Client, ClientFn, Memory, Round, Sample, Steps
from fedopt.problems import Bilevel
from fedopt.toolbox import Tensors, hessian_product, moved, outer_gradient_y


class State(NamedTuple):
    """The state of E-AiPOD.

    Attributes:
        x: The outer variable, ``[dx]``.
        y: The last mean ybar of the clients' y_i, ``[dy]``.
        memory: (y_i, c_i) of each client as one vector, ``[2 dy]``.
    """

    x: Tensor
    y: Tensor
    memory: Memory


@dataclass(frozen=True)
class EAiPOD:
    """E-AiPOD: corrected inner steps, after each of which the y_i are averaged with probability p, followed by an outer step.

    y_i is the copy of the inner variable y on client i.

    Args:
        alpha: The step size of x.
        beta: The step size of y.
        S: The number of inner steps per round.
        p: The probability that the y_i are averaged after an inner step.
        B: The batch size of an inner step. None: all examples of the client.
        B_out: The batch size of each sample in the outer part. None: all examples of the client.
        tau_out: The number of local steps (or epochs) of x in the outer part. With one step, the server takes it instead.
        N: The number of terms of the Neumann series, or of steps of conjugate gradients, for the inverse Hessian; see `FedNest`.
        l: The inverse of the step size of the Neumann series.
        inverse: The estimate of the inverse Hessian: ``randomised``, ``truncated`` or ``cg``; see `FedNest`.
        own_head: Whether derivatives in the outer part are taken at each client's y_i, as in the authors' code, instead of the last
            mean of the y_i.
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
    each_once: ClassVar = True  # else the c_i do not sum to zero
    on_time: ClassVar = True  # ybar must be the mean of the clients' present y_i, or the c_i do not sum to zero

    def __post_init__(self) -> None:
        if 0 in values(self.beta):
            raise ValueError("beta must be greater than 0, since the corrections are changes of y divided by beta")

    def init(self, problem: Bilevel) -> State:
        x, y = problem.start()
        return State(x, y, Memory([torch.cat([y, torch.zeros_like(y)])] * problem.clients))

    def step(self, s: State, problem: Bilevel, fed: Round) -> State:
        (x, ybar, memory), S, dy, own_head = s, fed.cohort(), len(s.y), self.own_head
        alpha, beta, share = self.alpha(fed.r), self.beta(fed.r), self.p / self.beta(fed.r)
        # Nothing is sent for inner steps: clients take them in the next exchange, after they have received the last mean
        due, untold = 0, False  # the number of steps since that mean, and whether clients still have to receive it

        def caught_up(client: Client, message: tuple[Tensor, Tensors]) -> Tensors:
            """Take the pending inner steps on a client, and return its y_i and its new per-client state (y_i, c_i), ``[2 dy]``.

            Args:
                client: The client.
                message: (x, (ybar,)), or (x, ()) if no step needs ybar.
            """
            (x, ybar), y_i, c_i = message, client.memory[:dy], client.memory[dy:]
            if untold:
                c_i, y_i = c_i + share * (ybar[0] - y_i), ybar[0]
            if due:
                held = client.hold(x)

                def step(y_i: Tensor, zeta: Sample) -> Tensor:
                    return held.inner_step_(x, y_i, zeta, beta, -c_i)  # y_i - beta (grad_y g_i(x, y_i; zeta) - c_i)

                y_i = client.scan("inner", step, y_i)
            return y_i, torch.cat([y_i, c_i])

        def head() -> Tensors:
            """Return what a message contains of ybar: (ybar,), or () if clients use their y_i and have no pending steps."""
            return (ybar,) if due or untold or not own_head else ()

        def answered(client_fn: ClientFn, *message: Tensor, **samples: Any) -> Tensor:
            """Run one exchange in which clients take any pending inner steps and then call client_fn, and return the mean answer.

            Args:
                client_fn: The function. Its message is (x, y, *message), where y is ybar, or the client's y_i if own_head is True.
                message: Further tensors for client_fn.
                samples: The samples of the exchange, by name.
            """
            nonlocal memory, due, untold

            def answer(client: Client, message: Any) -> tuple[Tensor, Tensor]:
                x, ybar, *others = message
                y_i, row = caught_up(client, (x, ybar))
                return client_fn(client, (x, y_i if own_head else ybar[0], *others)), row

            inner, sent = Steps(due, self.B, split=problem.g_split), (x, head(), *message)
            mean, memory = fed.exchange(answer, sent, S, memory=memory, **samples, inner=inner)
            due, untold = 0, False
            return mean  # type: ignore[no-any-return]

        def mean_product(p: Tensor, n: int) -> Tensor:
            return answered(hessian_product, p, xi=Steps(1, self.B_out, split=problem.g_split))

        for coin in fed.rng("coins").random(self.S if problem.nested else 0) < self.p:
            due += 1
            if coin:
                inner = Steps(due, self.B, split=problem.g_split)
                ybar, memory = fed.exchange(caught_up, (x, head()), S, memory=memory, origin=ybar, inner=inner)
                due, untold = 0, True
        p: Tensors = ()
        if problem.indirect:
            b = answered(outer_gradient_y, xi=Steps(1, self.B_out, split=problem.f_split))
            _, inverse = estimate(self.inverse, self.N, self.l, problem, fed)
            p = (b if problem.identity else inverse(mean_product, b),)
        h = answered(h_i, *p, anchor=Steps(1, self.B_out))
        if self.tau_out == Fixed(1):
            return State(moved(x, h, alpha), ybar, memory)
        outer = fed.local(self.tau_out, self.B_out, split=problem.f_split)
        x = answered(svrg_steps(lambda _: alpha), h, origin=x, outer=outer)
        return State(x, ybar, memory)

    def output(self, s: State) -> Tensors:
        return s.x, s.y
