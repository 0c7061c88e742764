"""FeDXL: risks of pairs of examples that different clients hold, by exchanged scores of the last round [Guo, Jin, Luo & Yang 2023].

Read in the authors' public code, ICML2023_FedXL. The server draws from the pools for a client, which in the paper gets their merge
and draws itself: the draws have the same distribution. Derived here: weights where clients have unequal numbers of examples.

Notation
    z, z'        positive and negative examples of a step; a, b their scores h(w; z), h(w; z')
    P+, U, P-    pools of all clients' last scores of positive examples with their u, and of negative ones; (a', u') and b' in them
    u_z          the estimate of E_b' l(a_z - b') for each of a client's own positive examples
    G            the gradient of E_z F'(u_z) E_b' l(a_z - b') + E_z' E_(a',u') F'(u') l(a' - b_z'), in w through a and b alone
    v            the direction, an average of G
    p, q         weights of the entries of P+, each times F'(u'), and of P-: client i's count by its share of all such examples
    b1, b2       the entries that a client has in its pools for each step; those with fewer examples fill up
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.func import grad

from fedopt.config import Schedule
from fedopt.federation import Client, Memory, Round, Steps
from fedopt.problems import Side, XRisk
from fedopt.randomness import Purpose
from fedopt.toolbox import Tensors

Average = Annotated[float, Field(gt=0, le=1)]


class State(NamedTuple):
    """u: of each client, u_z by z's place among its positive examples. pools: each client's last scores, [M, I (2 b1 + b2)]."""

    w: Tensor
    v: Tensor
    u: Memory
    pools: Memory


@dataclass(frozen=True)
class FeDXL:
    """FeDXL: local steps on a risk of pairs, one example of which is another client's, by its last score.

    eta: the step size. beta, gamma: the weights of the newest values in v and in u_z.
    I: the local steps of a round. B1, B2: the positive and the negative examples of a step; None for all of a client's.
    B_pool: the entries that are drawn from each pool for a step; None for all.
    """

    eta: Schedule
    beta: Average
    gamma: Average
    I: PositiveInt
    B1: PositiveInt | None
    B2: PositiveInt | None
    B_pool: PositiveInt | None

    solves: ClassVar = (XRisk,)

    def init(self, problem: XRisk) -> State:
        (w,) = problem.start()
        most, M = int(problem.splits["positive"].sizes.max()), problem.clients
        b1, b2 = self._widths(problem)
        pools = Memory([w.new_zeros(self.I * (2 * b1 + b2))] * M)
        return State(w, torch.zeros_like(w), Memory([w.new_ones(most)] * M), pools)

    def step(self, s: State, problem: XRisk, fed: Round) -> State:
        eta, beta, gamma, (b1, b2) = self.eta(fed.r), self.beta, self.gamma, self._widths(problem)

        def steps(client: Client) -> Iterator[tuple[Side, Side]]:
            both = zip(client.steps("positive"), client.steps("negative"), strict=True)
            return ((z["positive"], z_["negative"]) for z, z_ in both)

        def scores(client: Client, w: Tensor, side: Side) -> Tensor:
            """Return 0 for an example that only others of a stack of clients have."""
            return client.h(w, side) * (side.weight > 0)

        def row(a: list[Tensor], u: list[Tensor], b: list[Tensor]) -> Tensor:
            widths = [b1] * (len(a) + len(u)) + [b2] * len(b)
            return torch.cat([F.pad(v, (0, width - len(v))) for v, width in zip([*a, *u, *b], widths, strict=True)])

        def first_scores(client: Client, w: Tensor) -> Tensor:
            a, b = zip(*((scores(client, w, z), scores(client, w, z_)) for z, z_ in steps(client)), strict=True)
            return row([*a], [(z.weight > 0).to(w) for z, _ in steps(client)], [*b])

        def local_steps(client: Client, message: Tensors) -> tuple[Tensors, Tensor]:
            def surrogate(a: Tensor, b: Tensor, pool: Tensors, at_z: Tensor, at_z_: Tensor) -> Tensor:
                a_, p, b_, q = pool
                active = at_z @ client.pair_loss(a[:, None] - b_) @ q
                return active + p @ client.pair_loss(a_[:, None] - b) @ at_z_

            (w, v, *pools), u = message, client.memory
            kept: tuple[list[Tensor], ...] = ([], [], [])
            for k, (z, z_) in enumerate(steps(client)):
                pool = tuple(pools) or (*client.own[:, k], torch.full_like(client.own[0, k], 1 / client.own.shape[2]))
                a, of_a = client.vjp(lambda w, z=z: scores(client, w, z), w, grad=1, sample=z)
                b, of_b = client.vjp(lambda w, z_=z_: scores(client, w, z_), w, grad=1, sample=z_)
                a, b, old = a.detach(), b.detach(), u.gather(0, z.place)
                change = gamma * (client.pair_loss(a[:, None] - pool[2]) @ pool[3] - old)
                u = u.scatter_add(0, z.place, torch.where(z.weight > 0, change, 0.0))
                at_z = z.weight * client.slope(old + change)
                slope_a, slope_b = grad(surrogate, (0, 1))(a, b, pool, at_z, z_.weight)
                v = torch.lerp(v, of_a(slope_a)[0] + of_b(slope_b)[0], beta)
                w = w.sub(v, alpha=eta)
                for values, value in zip(kept, (a, torch.where(z.weight > 0, old + change, 0.0), b), strict=True):
                    values.append(value)
            return (w, v, row(*kept)), u

        def means(answers: Tensors, weights: Tensor) -> Tensors:
            w, v, rows = answers
            return weights @ w, weights @ v, rows

        S, pools, own = fed.cohort(), s.pools, None
        message: Tensors = (s.w, s.v)
        positive, negative = Steps(self.I, self.B1, split="positive"), Steps(self.I, self.B2, split="negative")
        if not fed.r:
            of_all = lambda rows, weights: rows  # noqa: E731
            everyone = fed.everyone()
            rows = fed.exchange(first_scores, s.w, everyone, combine=of_all, positive=positive, negative=negative)
            pools = pools.replaced(everyone, rows)
        places, weights = zip(*self._entries(problem), strict=True)
        (a_, slopes), b_ = self._scores(problem, pools, places)
        if self.B_pool is None:
            p, q = (torch.from_numpy(v).to(a_) for v in weights)
            message = (*message, a_, p * slopes, b_, q)
        else:
            rngs = (fed.rng(Purpose.POOL, client=int(i)) for i in S)
            shape, shares = (self.I, self.B_pool), [v / v.sum() for v in weights]
            drawn = ([torch.from_numpy(rng.choice(len(v), shape, p=v)).to(a_.device) for v in shares] for rng in rngs)
            own = torch.stack([torch.stack([a_[at], slopes[at] / self.B_pool, b_[at_]]) for at, at_ in drawn])
        (w, v, rows), u = fed.exchange(
            local_steps, message, S, memory=s.u, own=own, combine=means, positive=positive, negative=negative
        )
        return State(w, v, u, pools.replaced(S, rows))

    def output(self, s: State) -> Tensors:
        return (s.w,)

    def _widths(self, problem: XRisk) -> tuple[int, int]:
        """Return b1 and b2."""
        most = (int(problem.splits[split].sizes.max()) for split in ("positive", "negative"))
        b1, b2 = (n if B is None else min(B, n) for n, B in zip(most, (self.B1, self.B2), strict=True))
        return b1, b2

    def _entries(self, problem: XRisk) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the places of the entries in the pools of positive and of negative examples, each with their weights."""
        for split, width in zip(("positive", "negative"), self._widths(problem), strict=True):
            n = problem.splits[split].sizes[:, None]
            count = np.minimum(n, width)
            of_step = np.where(np.arange(width) < count, n / (self.I * n.sum() * count), 0)
            weights = np.tile(of_step, self.I).ravel()
            yield np.flatnonzero(weights), weights[weights > 0]

    def _scores(self, problem: XRisk, pools: Memory, places: Sequence[np.ndarray]) -> tuple[Tensors, Tensor]:
        """Return (a', F'(u')), each [E+], of the pools of positive examples, and b', [E-]. places: of their entries."""
        (b1, b2), rows = self._widths(problem), pools.tensor()
        a, u, b = (part.flatten() for part in rows.split([self.I * width for width in (b1, b1, b2)], 1))
        at, at_ = (torch.from_numpy(v).to(a.device) for v in places)
        return (a[at], problem.slope(u[at])), b[at_]
