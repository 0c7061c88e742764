"""SimFBO and ShroFBO [Yang, Xiao & Ji 2023], FedBiO and FedBiO-Local [Li, Huang & Huang 2023]: x, y and v move together.

All are unverified: reconstructed without the papers' text; the abstract of SimFBO confirms its outline. The limits that the tests
check are derived here.

Explained in docs/algorithms/simfbo.md.

Notation
    z = (x, y, v)    the variables; FedBiO writes u for v
    D, P_r           the directions, and the projection of v onto |v| <= r; both are defined in toolbox/directions.py
    tau_i            the number of local steps of client i, |a_i|_1 in the paper
    q_i              the sum of the directions of client i over its local steps
    pt_i             p_i M / |S|, the weight of client i in the cohort S of M clients
    t, I             the iteration, and the number of iterations between averages in FedBiO, which make a round
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import Bilevel, LocalBilevel, Nested
from fedopt.toolbox import Tensors, Vectors, bilevel_maps, bilevel_start, descend, descend_, independent_maps


class State(NamedTuple):
    z: Vectors


class LocalState(NamedTuple):
    """The state of FedBiO and FedBiO-Local.

    Attributes:
        z: The clients' means of the variables that are averaged: (x, y, u) in FedBiO, and (x,) in FedBiO-Local.
        memory: The other variables of each client as one vector.
    """

    z: Vectors
    memory: Memory


@dataclass(frozen=True)
class SimFBO:
    """SimFBO and, with normalised=true, ShroFBO: x, y and v move together, where v estimates [grad^2_yy g]^-1 grad_y f.

    Args:
        eta_x: The clients' step size of x.
        eta_y: The clients' step size of y.
        eta_v: The clients' step size of v.
        gamma_x: The server's step size of x.
        gamma_y: The server's step size of y.
        gamma_v: The server's step size of v.
        tau: The amount of local work: epochs or steps. If it differs between clients, this is the largest amount.
        B: The batch size of a local step, whose sample all three directions share. None: all examples of the client.
        radius: The radius of the ball onto which the server projects v. None: v is not projected.
        normalised: Whether clients send the mean of their directions instead of the sum, so that clients with more local work do
            not get a larger weight.
    """

    eta_x: Schedule
    eta_y: Schedule
    eta_v: Schedule
    gamma_x: Schedule
    gamma_y: Schedule
    gamma_v: Schedule
    tau: LocalWork
    B: PositiveInt | None
    radius: PositiveFloat | None
    normalised: bool

    solves: ClassVar = (Bilevel,)
    uneven: ClassVar = "tau"
    cohort_weights: ClassVar = "unbiased"

    def init(self, problem: Bilevel) -> State:
        return State(bilevel_start(problem))

    def step(self, s: State, problem: Bilevel, fed: Round) -> State:
        r = fed.r
        etas = [eta(r) for eta in (self.eta_x, self.eta_y, self.eta_v)]
        gammas = [gamma(r) for gamma in (self.gamma_x, self.gamma_y, self.gamma_v)]

        def local_steps(client: Client, z: Vectors) -> Any:
            def step(carry: tuple[Vectors, Vectors], xi: Sample) -> tuple[Vectors, Vectors]:
                z_i, q_i = carry
                D = self.directions(client, z_i, xi, r)
                # z_i - etas D, and q_i + D
                return descend_(client, z_i, D, etas), Vectors(map(client.moved_, q_i, D, [-1.0] * len(D)))

            _, q_i = client.scan("local", step, (z, 0.0 * z))
            if not self.normalised:
                return q_i, ()
            a_i = client.own_steps("local").to(z[0].dtype)
            return Vectors(q / a_i.clamp(min=1) for q in q_i), a_i  # both are 0 for a straggler

        S, local = fed.cohort(), fed.local(self.tau, self.B)
        pt = fed.weights(S, unbiased=True)
        Q, a = fed.exchange(local_steps, s.z, S, weights=pt, local=local)
        Q = Vectors(a * q for q in Q) if self.normalised else Q
        return State(descend(problem, s.z, Q, gammas, self.radius))

    def directions(self, client: Client, z: Vectors, xi: Sample, r: int) -> Vectors:
        """Return the directions D at z on one sample, with the shapes of z.

        Args:
            client: The client.
            z: The variables (x, y, v).
            xi: The sample.
            r: The index of the round.
        """
        return bilevel_maps(client, z, xi)

    def output(self, s: State) -> Tensors:
        return s.z


@dataclass(frozen=True)
class FedBiO:
    """FedBiO: x, y and u move together, and are averaged every I iterations. u estimates [grad^2_yy g]^-1 grad_y f.

    Args:
        eta: The step size of x.
        gamma: The step size of y.
        tau: The step size of u.
        I: The number of iterations per round.
        B: The batch size. Each direction has its own sample. None: all examples of the client.
        radius: The radius of the ball onto which a client projects u after each iteration. None: u is not projected.
    """

    eta: Schedule
    gamma: Schedule
    tau: Schedule
    I: PositiveInt
    B: PositiveInt | None
    radius: PositiveFloat | None

    solves: ClassVar[Any] = (Bilevel,)
    averaged: ClassVar = 3  # the number of variables that the server averages, in the order x, y, u

    def init(self, problem: Nested) -> LocalState:
        z = bilevel_start(problem)
        own = Memory([torch.cat([z[0][:0], *z[self.averaged :]])] * problem.clients)
        return LocalState(Vectors(z[: self.averaged]), own)

    def step(self, s: LocalState, problem: Nested, fed: Round) -> LocalState:
        steps, averaged, dy = (self.eta(fed.r), self.gamma(fed.r), self.tau(fed.r)), len(s.z), len(problem.start()[1])

        def iterations(client: Client, z: Vectors) -> tuple[Vectors, Tensor]:
            z = Vectors((*z, *(torch.split(client.memory, dy) if len(client.memory) else ())))
            for xi in client.steps("xi"):
                z = descend_(client, z, independent_maps(client, z, xi), steps, self.radius)
            return Vectors(z[:averaged]), torch.cat([client.memory[:0], *z[averaged:]])

        xi = Steps(self.I, self.B, samples=3)
        return LocalState(*fed.exchange(iterations, s.z, fed.cohort(), memory=s.memory, origin=s.z, xi=xi))

    def output(self, s: LocalState) -> Tensors:
        return s.z


@dataclass(frozen=True)
class FedBiOLocal(FedBiO):
    """FedBiO for local lower-level problems: y_i and u_i stay on the client, and only x is averaged."""

    solves: ClassVar[Any] = (LocalBilevel,)
    averaged: ClassVar = 1
