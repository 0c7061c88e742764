"""Byz-EF21: error feedback with compressed gradients and a robust mean [Rammal et al., AISTATS 2024]."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt import Memory, Minimisation, Schedule, Steps


class State(NamedTuple):
    x: Tensor
    g: Tensor  # the robust mean of the estimates
    G: Memory  # the server's estimate of each client's gradient


@dataclass(frozen=True)
class ByzEF21:
    gamma: Schedule
    k: PositiveInt
    bucket: PositiveInt
    rule: Literal["median", "geometric"]
    sent: Literal["differences", "estimates"]

    solves: ClassVar = (Minimisation,)
    everyone: ClassVar = True

    def init(self, problem):
        (x,) = problem.start()
        return State(x, torch.zeros_like(x), Memory(x.new_zeros(problem.clients, len(x))))

    def step(self, s, problem, fed):
        k = len(s.x) if fed.r == 0 else self.k  # at the starting point, clients send their gradients uncompressed
        estimates = self.sent == "estimates"

        def answer(client, x):
            difference = client.gradient(x, client.sample("all")) - client.own
            size = difference.abs()
            compressed = torch.where(size >= size.topk(k).values[-1], difference, 0.0)
            return client.own + compressed if estimates else compressed

        x = s.x - self.gamma(fed.r) * s.g
        answers = fed.exchange(
            answer,
            x,
            fed.everyone(),
            own=s.G.tensor(),
            origin=s.g if estimates else None,
            combine=lambda answers, weights: answers,
            all=Steps(1, None),
        )
        G = answers if estimates else s.G.tensor() + answers
        order = torch.from_numpy(fed.rng("buckets").permutation(len(G)))
        means = torch.stack([bucket.mean(0) for bucket in G[order].split(self.bucket)])
        return State(x, means.quantile(0.5, dim=0) if self.rule == "median" else geometric_median(means), Memory(G))

    def output(self, s):
        return (s.x,)


def geometric_median(points):
    """Return the result of Weiszfeld's method."""
    centre = points.mean(0)
    for _ in range(200):
        closeness = 1 / torch.linalg.vector_norm(points - centre, dim=1).clamp(min=1e-12)
        centre = closeness @ points / closeness.sum()
    return centre
