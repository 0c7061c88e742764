"""Anchored local descent-ascent: local steps whose drift a common anchor corrects.

CD-MAGE-MB, CD-MAGE-VR and Catalyst-SCAFFOLD-S follow their authors' public code, `federated-minimax`. FedGDA-GT [Sun & Wei 2022]
follows the public code of other authors, `ProxSkipVIP`. SAGDA [Yang et al. 2022] and both of its corrections are unverified:
reconstructed without the paper's text.

Explained in docs/algorithms/anchored_gda.md.

Notation
    w, u      the point (x, y) on the server, and the point of a client during its local steps
    F_i       the gradient field (grad_x f_i, -grad_y f_i) of client i
    q         the anchor, an estimate of the mean F(w) of the F_i(w). It uses the gradients of this round, or of all rounds (STORM)
    v_i       the gradient F_i(w) that client i contributes to the anchor
    w_s       the point (x, y) at the start of the stage, in Catalyst
    S, S'     the clients that compute the anchor, and the clients that take the local steps
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Memory, Round, Steps
from fedopt.problems import Minimax
from fedopt.randomness import Purpose
from fedopt.toolbox import Vectors, descend, descend_, minimax_field


class State(NamedTuple):
    """The state of the anchored methods.

    Attributes:
        w: (x, y) after this round.
        w_prev: (x, y) after the previous round.
        q: The last anchor, an estimate of the mean of (grad_x f_i, -grad_y f_i) over clients.
        w_s: (x, y) at the start of the stage.
    """

    w: Vectors
    w_prev: Vectors
    q: Vectors
    w_s: Vectors


@dataclass(frozen=True)
class AnchoredGda:
    """Local descent-ascent in which an anchor q corrects the client drift.

    Args:
        eta_x: The clients' step size of x.
        eta_y: The clients' step size of y.
        gamma_x: The server's step size of x along the mean change of the clients.
        gamma_y: The server's step size of y along the mean change of the clients.
        K: The number of local steps. If ``steps`` is ``geometric``, this is the mean of a random number.
        steps: ``fixed``: K local steps. ``geometric``: a random number of local steps with mean K, which is the same for all
            clients in a round.
        a: The weight of the newest gradients in the anchor. If it is 1 or more, gradients of earlier rounds are not used.
        anchor: The clients that compute the anchor: ``all`` clients, or the ``cohort`` that takes the local steps.
        correction: The direction of a local step at u on the sample b, where F_i = (grad_x f_i, -grad_y f_i) and w is the server's
            point. ``sample``: F_i(u; b) - F_i(w; b) + q. ``kept``: F_i(u; b) - v_i + q, where v_i is the F_i(w) that the client
            contributed to q. This averages the noise of q over the K steps and saves one gradient per step.
        B: The batch size of a local step. None: all examples of the client.
        B_anchor: The batch size for the anchor. None: all examples of the client.
        lam: The weight of the proximal term lam (u - w_s) in the local steps, where w_s is (x, y) at the start of the stage.
        stage: The number of rounds after which w_s is set to w.
    """

    eta_x: Schedule
    eta_y: Schedule
    gamma_x: Schedule
    gamma_y: Schedule
    K: PositiveInt
    steps: Literal["fixed", "geometric"]
    a: Schedule
    anchor: Literal["all", "cohort"]
    correction: Literal["sample", "kept"] = field(metadata={"before": "sample"})
    B: PositiveInt | None
    B_anchor: PositiveInt | None
    lam: NonNegativeFloat
    stage: PositiveInt

    solves: ClassVar = (Minimax,)
    cohort_weights = property(lambda self: "corrected" if self.anchor == "all" else "mean")

    def init(self, problem: Minimax) -> State:
        w = Vectors(problem.start())
        return State(w, w, 0 * w, w)

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        eta, lam = (self.eta_x(fed.r), self.eta_y(fed.r)), self.lam
        a = min(self.a(fed.r), 1.0) if fed.r else 1.0  # there is no earlier round
        exact = self.B is None and not problem.random  # then F_i(w; b) is the same in all local steps
        kept = self.correction == "kept"
        w_s = s.w if fed.r % self.stage == 0 else s.w_s

        def gradients(client: Client, message: tuple[Vectors, ...]) -> tuple[tuple[Vectors, ...], Tensor]:
            b = client.sample("anchor")
            F = tuple(minimax_field(client, w, b) for w in message)
            return F, torch.cat(F[0])

        def local_steps(client: Client, message: tuple[Vectors, ...]) -> tuple[Vectors, Tensor]:
            w, q, *stage = message
            u, anchor = w, None if exact or kept else w
            if exact or kept:
                q = q - (w.unflatten(client.memory) if kept else minimax_field(client, w, client.sample("local")))
            for b in client.steps("local"):
                plus = q.moved(u - stage[0], (-lam, -lam)) if stage else q
                # u - eta (F_i(u; b) - F_i(w; b) + q)
                u = descend_(client, u, minimax_field(client, u, b, plus, anchor), eta)
            return u, client.memory

        S_local = fed.cohort()
        S = fed.everyone() if self.anchor == "all" else S_local
        points = (s.w,) if a == 1 else (s.w, s.w_prev)
        v = Memory([torch.cat(0 * s.w)] * problem.clients)
        (q, *F_prev), v = fed.exchange(gradients, points, S, memory=v, anchor=Steps(1, self.B_anchor))
        if F_prev:
            q = q + (1 - a) * (s.q - F_prev[0])  # STORM

        K = self.K if self.steps == "fixed" else int(fed.rng(Purpose.COIN).geometric(1 / self.K))
        message = (s.w, q, w_s) if lam else (s.w, q)
        mean, _ = fed.exchange(local_steps, message, S_local, memory=v, origin=s.w, local=Steps(K, self.B))
        return State(descend(problem, s.w, s.w - mean, (self.gamma_x(fed.r), self.gamma_y(fed.r))), s.w, q, w_s)

    def output(self, s: State) -> Vectors:
        return s.w
