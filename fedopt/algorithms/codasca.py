"""CODA+ and CODASCA: local descent-ascent in stages, each with a proximal term at the stage's point [Yuan et al. 2021].

Both follow the authors' public code, `ICML2021_FedDeepAUC_CODASCA`. A second public code, `federated-minimax`, differs from it.

Explained in docs/algorithms/codasca.md.

Notation
    w, u       the point (x, y) on the server, and the point of a client during its local steps
    x_s        the point of the stage, towards which local steps pull x
    G_k        the gradients F_i(u; b) = (grad_x f_i, -grad_y f_i) on the sample b of local step k
    c, c_i     the control variates of the server and of client i in CODASCA: estimates of F and of F_i, with c = sum_i p_i c_i
    p_i        the weight of client i in the objective
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Memory, Round, Steps
from fedopt.problems import Minimax
from fedopt.toolbox import Tensors, Vectors, descend, minimax_field

Answer = tuple[Vectors, Vectors]  # a client's u after its local steps, and the change of its c_i


class State(NamedTuple):
    """The state of CODA+ and CODASCA.

    Attributes:
        w: (x, y) of the server.
        x_s: The point of the stage, towards which x is pulled.
        w_mean: The mean of w over the rounds of the stage so far.
        c: The server's control variate; empty in CODA+.
        memory: The control variate c_i of each client as one vector; empty in CODA+.
    """

    w: Vectors
    x_s: Tensor
    w_mean: Vectors
    c: Vectors
    memory: Memory


@dataclass(frozen=True)
class Codasca:
    """CODA+ and CODASCA: local descent-ascent in stages.

    Args:
        eta_x: The clients' step size of x in the first stage.
        eta_y: The clients' step size of y in the first stage.
        gamma: The server's step size along the mean change of the clients.
        K: The number of local steps.
        B: The batch size of a step. None: all examples of the client.
        stage: The number of rounds per stage.
        decay: The factor by which eta_x and eta_y are divided after each stage.
        stage_point: The point x_s of a stage: the ``last`` x, or the ``mean`` of x over the previous stage.
        restart: Whether x and y start each stage from this point, as in the paper (unverified). If false, x and y continue from
            their last values, and only the term with lam pulls x to x_s, as in the authors' code.
        lam: The weight of the term lam (x - x_s) in the direction of a local step, which pulls x to x_s.
        control: ``none``: no control variates, which is CODA+. ``gradients``: the control variate of a client is the mean of the
            gradients of its local steps, which is CODASCA.
    """

    eta_x: Schedule
    eta_y: Schedule
    gamma: Schedule
    K: PositiveInt
    B: PositiveInt | None
    stage: PositiveInt
    decay: Annotated[float, Field(ge=1)]
    stage_point: Literal["last", "mean"]
    restart: bool = field(metadata={"before": False})
    lam: NonNegativeFloat
    control: Literal["none", "gradients"]

    solves: ClassVar = (Minimax,)
    each_once = property(lambda self: self.control != "none")  # c changes by the clients' changes of c_i
    cohort_weights = property(lambda self: "mean" if self.control == "none" else "corrected")

    def init(self, problem: Minimax) -> State:
        w = Vectors(problem.start())
        c = Vectors() if self.control == "none" else 0 * w
        return State(w, w[0], w, c, Memory([torch.cat(c) if c else w[0].new_zeros(0)] * problem.clients))

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        number, place = divmod(fed.r, self.stage)
        eta = (self.eta_x(fed.r) / self.decay**number, self.eta_y(fed.r) / self.decay**number)

        def local_steps(client: Client, message: tuple[Vectors, Vectors, Tensors]) -> tuple[Answer, Tensor]:
            w, c, x_s = message
            u, total = w, 0 * w
            c_i = w.unflatten(client.memory) if c else c
            correction = c - c_i if c else None
            for b in client.steps("local"):
                G = minimax_field(client, u, b)
                if c:
                    total = Vectors(client.moved_(v, g, -1.0) for v, g in zip(total, G, strict=True))  # total + G
                # u - eta (G + lam (u - x_s) + c - c_i), where only x is pulled to x_s
                pulled = Vectors((torch.lerp(u[0], x_s[0], self.lam * eta[0]), u[1])) if x_s else u
                u = descend(client, pulled, G + correction if correction else G, eta)
            if not c:
                return (u, c), client.memory
            new = 1 / self.K * total
            return (u, new - c_i), torch.cat(new)

        S, local = fed.cohort(), Steps(self.K, self.B)
        message = (s.w, s.c, (s.x_s,) if self.lam else ())
        (mean, dc), memory = fed.exchange(local_steps, message, S, memory=s.memory, origin=(s.w, None), local=local)
        c = s.c + float(problem.weights[S].sum()) * dc
        w = descend(problem, s.w, s.w - mean, (self.gamma(fed.r),) * 2)  # w + gamma (mean u - w)
        w_mean = s.w_mean + 1 / (place + 1) * (w - s.w_mean)
        if place + 1 < self.stage:
            return State(w, s.x_s, w_mean, c, memory)
        point = w if self.stage_point == "last" else w_mean
        return State(point if self.restart else w, point[0], w_mean, c, memory)

    def output(self, s: State) -> Vectors:
        return s.w
