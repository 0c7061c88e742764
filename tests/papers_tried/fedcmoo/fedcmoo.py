# FedCMOO [Askin, Sharma, Joshi and Joe-Wong 2025], written from the authors' public code
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedopt import LocalWork, Memory, MultiObjective, Schedule, Steps, marked, simplex


class State(NamedTuple):
    x: Tensor
    w: Tensor  # the weights of the objectives, [K]


@dataclass(frozen=True)
class FedCmoo:
    eta: Schedule
    gamma: Schedule
    tau: LocalWork
    B: int | None
    beta: float
    iterations: int
    epsilon: float
    entries: int | None
    symmetric: bool

    solves: ClassVar = (MultiObjective,)
    uneven: ClassVar = "tau"

    def init(self, problem):
        (x,), K = problem.start(), marked(problem)["h"]
        return State(x, x.new_full((K,), 1 / K))

    def step(self, s, problem, fed):
        S, (K, d), eta = fed.cohort(), (len(s.w), len(s.x)), self.eta(fed.r)
        n = len(S)
        factors = (n * problem.weights / problem.weights[S].sum()).tolist()  # all 1 if clients count equally
        most = K * d if self.entries is None else self.entries

        def scaled(client, J):
            return client.entry(factors) * client.h_weighted(J)[0]

        def jacobians(client, x):
            J = client.h_jacobian(x, client.sample("xi"))
            A = scaled(client, J)
            return (*largest(A, most), A @ A.mT), J

        def total(answers, weights):
            values, places, squares = answers
            return sum(dense(v, at, K, d) for v, at in zip(values, places, strict=True)), squares.sum(0)

        def corrections(client, message):
            J, T = client.memory, dense(*message, K, d)
            A = scaled(client, J)
            C = dense(*largest(A, most), K, d)
            D, others = A - C, T - C
            cross = D @ others.mT
            other_half = cross.mT if self.symmetric else cross
            return (C @ others.mT + cross + other_half, D @ D.mT, (C**2).sum(), (D**2).sum()), J

        def local_steps(client, message):
            x, w = message
            v = client.h_weighted(w)[0]

            def step(x, xi):
                return x - eta * client.h_vjp(x, v, xi)

            return client.scan("local", step, x - eta * v @ client.memory, skip=1), client.memory

        memory = Memory(s.x.new_zeros(problem.clients, K, d))  # each client's Jacobian in this round
        (T, G), memory = fed.exchange(jacobians, s.x, S, memory=memory, combine=total, xi=Steps(1, self.B))
        if self.entries is None:
            G = T @ T.mT
        else:
            (cross, rest, c, e), memory = fed.exchange(corrections, largest(T, most), S, memory=memory)
            G = G + n * cross + (n * (n - 1) * rest if c <= 2.25 * e else 0)
        w = self.weights(s.w, G / n**2)
        local = fed.local(self.tau, self.B)
        x, _ = fed.exchange(local_steps, (s.x, w), S, memory=memory, origin=s.x, local=local)
        return State(s.x + self.gamma(fed.r) * (x - s.x), w)

    def weights(self, w, G):
        G = G / (G.diagonal() + self.epsilon).sqrt().mean() ** 2
        for _ in range(self.iterations):
            w = simplex(w - self.beta * G @ w)
        return w

    def output(self, s):
        return (s.x,)


def largest(A, most):
    at = A.flatten().abs().topk(most).indices
    return A.flatten()[at], at.int()


def dense(values, places, K, d):
    return values.new_zeros(K * d).scatter(0, places.long(), values).view(K, d)
