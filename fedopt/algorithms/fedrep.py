"""FedRep: a common representation with a personal head for each client [Collins, Hassani, Mokhtari & Shakkottai 2021, Alg. 1].

    min_phi sum_i p_i min_{h_i} f_i(phi, h_i)

Explained in docs/algorithms/fedrep.md.

Notation
    phi             the shared coordinates of x, the representation
    h_i             the head of client i: its personal coordinates, which are the last ones of x
    tau_h, tau_phi  the number of a client's steps in h_i, which come first, and the number of its steps in phi
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.errors import UserError
from fedopt.federation import Client, Memory, Round, Sample
from fedopt.problems import Minimisation


class State(NamedTuple):
    """The state of FedRep.

    Attributes:
        phi: The shared coordinates on the server.
        heads: The personal coordinates h_i of each client.
    """

    phi: Tensor
    heads: Memory


@dataclass(frozen=True)
class FedRep:
    """FedRep: a common representation with a personal head for each client.

    If all coordinates are personal, each client trains alone.

    Args:
        own: The personal parameters of each client: the last layer of the network (``last_layer``), ``all`` parameters, or a number
            of parameters at the end of x.
        eta_h: The step size of the heads.
        eta_phi: The step size of the representation.
        gamma: The server's step size along the mean change of the clients.
        tau_h: The amount of local work on the head, which comes first: epochs, or steps on independent batches drawn with
            replacement.
        tau_phi: The amount of local work on the representation, in the same units.
        B: The batch size. None: all examples of the client.
    """

    own: Literal["last_layer", "all"] | PositiveInt
    eta_h: Schedule
    eta_phi: Schedule
    gamma: Schedule
    tau_h: LocalWork
    tau_phi: LocalWork
    B: PositiveInt | None

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = ("tau_h", "tau_phi")
    common: ClassVar = False

    def init(self, problem: Minimisation) -> State:
        (x,) = problem.start()
        own = problem.last_layer() if self.own == "last_layer" else self.own
        if own == "all":
            own = len(x)
        if own > len(x):
            raise UserError(f"algo.own={own}: the model has {len(x)} parameters; choose fewer, or algo.own=all")
        phi, head = torch.split(x, [len(x) - own, own])
        return State(phi, Memory([head] * problem.clients))

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        eta_h, eta_phi, shared = self.eta_h(fed.r), self.eta_phi(fed.r), len(s.phi)

        def local_steps(client: Client, phi: Tensor) -> tuple[Tensor, Tensor]:
            def head_step(h: Tensor, xi: Sample) -> Tensor:
                return h - eta_h * client.gradient(torch.cat([phi, h]), xi)[shared:]

            h = client.scan("head", head_step, client.memory)

            def step(phi_i: Tensor, xi: Sample) -> Tensor:
                return phi_i - eta_phi * client.gradient(torch.cat([phi_i, h]), xi)[:shared]

            return (client.scan("phi", step, phi) if shared else phi), h

        samples: dict[str, Any] = {"head": fed.local(self.tau_h, self.B, replace=True)}
        if shared:
            samples["phi"] = fed.local(self.tau_phi, self.B, replace=True)
        mean, heads = fed.exchange(local_steps, s.phi, fed.cohort(), memory=s.heads, origin=s.phi, **samples)
        return State(s.phi + self.gamma(fed.r) * (mean - s.phi), heads)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (torch.cat([s.phi, s.heads.tensor().mean(0)]),)  # only for metrics, since clients send no heads

    def personal(self, s: State, problem: Minimisation, fed: Round) -> Tensor:
        heads = s.heads.tensor()
        return torch.cat([s.phi.expand(len(heads), -1), heads], 1)
