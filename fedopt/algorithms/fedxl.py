"""FeDXL: risks of pairs of examples from different clients, which exchange their scores of the last round [Guo et al. 2023].

Zhishuai Guo, Rong Jin, Jiebo Luo and Tianbao Yang are the authors; we follow their public code, ICML2023_FedXL. Here, the server
samples scores from the pools for each client; in the paper, each client receives the merged pools and samples from them. Both
samples have the same distribution. The weights for clients with unequal numbers of examples are derived here.

Explained in docs/algorithms/fedxl.md.

Notation
    z, z'        the positive and the negative examples of a step
    a, b         their scores a = h(w; z) and b = h(w; z')
    u_z          the estimate of E_b' l(a_z - b') for each of a client's own positive examples z
    P+, U, P-    the pools: the scores a' of all clients' positive examples in the last round, the estimates u' of these examples,
                 and the scores b' of all clients' negative examples
    G            the gradient of E_z F'(u_z) E_b' l(a_z - b') + E_z' E_(a',u') F'(u') l(a' - b_z') in w, where only a and b depend
                 on w
    v            the direction of the steps, a moving average of G
    p, q         the weights of the scores in P+, multiplied by F'(u'), and of the scores in P-. The weights of all scores of
                 client i sum to its share of all positive, or negative, examples
    b1, b2       the numbers of scores that each client has in the pools per step. Clients with fewer examples add zeros, whose
                 weight is 0
"""

from collections.abc import Callable, Iterator
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

Pullback = Callable[[Tensor], Tensors]
Average = Annotated[float, Field(gt=0, le=1)]


class State(NamedTuple):
    """The state of FeDXL.

    Attributes:
        w: The server's point, ``[d]``.
        v: The direction of the steps, a moving average of gradients, ``[d]``.
        u: For each client and each of its positive examples z, the estimate u_z of the mean loss against all negative examples.
        pools: The scores that each client computed last, ``[M, I (2 b1 + b2)]``: a, u and b of the module's docstring for I steps.
    """

    w: Tensor
    v: Tensor
    u: Memory
    pools: Memory


@dataclass(frozen=True)
class FeDXL:
    """FeDXL: local steps on a risk of pairs of examples. The second example of a pair may belong to another client.

    v is the direction of the steps, and u_z estimates the mean loss of the pairs with the positive example z.

    Args:
        eta: The step size.
        beta: The weight of the newest gradient in v.
        gamma: The weight of the newest value in u_z.
        I: The number of local steps per round.
        B1: The number of positive examples per step. None: all positive examples of the client.
        B2: The number of negative examples per step. None: all negative examples of the client.
        B_pool: The number of scores that are sampled from each pool for a step. None: all scores.
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
            return ((z["positive"], z_other["negative"]) for z, z_other in both)

        def scores(client: Client, w: Tensor, side: Side) -> Tensor:
            """Return the score h(w; z) of each example, ``[B]``. The score of padding is 0.

            Args:
                client: The client.
                w: The point, ``[d]``.
                side: The positive or the negative examples.
            """
            return client.h(w, side) * (side.weight > 0)

        def with_gradient(client: Client, w: Tensor, side: Side) -> tuple[Tensor, Pullback]:
            """Return the scores, and a function that maps weights of the scores to the gradient of their weighted sum, ``[d]``.

            Args:
                client: The client.
                w: The point, ``[d]``.
                side: The positive or the negative examples.
            """
            values, product = client.vjp(lambda w: scores(client, w, side), w, grad=1, sample=side)
            return values.detach(), product

        def row(of_steps: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
            """Return the scores that a client adds to the pools as one vector, ``[I (2 b1 + b2)]``.

            Args:
                of_steps: For each step, the scores a, the estimates u of the same examples, and the scores b.
            """
            pools = zip(zip(*of_steps, strict=True), (b1, b1, b2), strict=True)
            return torch.cat([F.pad(v, (0, width - len(v))) for pool, width in pools for v in pool])

        def first_scores(client: Client, w: Tensor) -> Tensor:
            pairs = steps(client)
            return row([(scores(client, w, z), (z.weight > 0).to(w), scores(client, w, other)) for z, other in pairs])

        def local_steps(client: Client, message: Tensors) -> tuple[Tensors, Tensor]:
            def surrogate(a: Tensor, b: Tensor, pool: Tensors, at_z: Tensor, at_z_other: Tensor) -> Tensor:
                a_other, p, b_other, q = pool
                active = at_z @ client.pair_loss(a[:, None] - b_other) @ q
                return active + p @ client.pair_loss(a_other[:, None] - b) @ at_z_other

            (w, v, *pools), u, kept = message, client.memory, list[tuple[Tensor, Tensor, Tensor]]()
            for k, (z, z_other) in enumerate(steps(client)):
                pool = tuple(pools) or (*client.own[:, k], torch.full_like(client.own[0, k], 1 / client.own.shape[2]))
                (a, of_a), (b, of_b) = with_gradient(client, w, z), with_gradient(client, w, z_other)
                old = u.gather(0, z.place)
                change = gamma * (client.pair_loss(a[:, None] - pool[2]) @ pool[3] - old)
                u = u.scatter_add(0, z.place, torch.where(z.weight > 0, change, 0.0))
                at_z = z.weight * client.slope(old + change)
                slope_a, slope_b = grad(surrogate, (0, 1))(a, b, pool, at_z, z_other.weight)
                v = torch.lerp(v, of_a(slope_a)[0] + of_b(slope_b)[0], beta)
                w = w.sub(v, alpha=eta)
                kept.append((a, torch.where(z.weight > 0, old + change, 0.0), b))
            return (w, v, row(kept)), u

        def means(answers: Tensors, weights: Tensor) -> Tensors:
            w, v, rows = answers
            return weights @ w, weights @ v, rows

        S, pools, own = fed.cohort(), s.pools, None
        samples = {split: Steps(self.I, B, split=split) for split, B in (("positive", self.B1), ("negative", self.B2))}
        if not fed.r:
            rows = fed.exchange(first_scores, s.w, fed.everyone(), combine=lambda rows, _: rows, **samples)
            pools = pools.replaced(fed.everyone(), rows)
        (places, weights), (places_other, weights_other) = self._entries(problem)
        a, u, b = (pool.flatten() for pool in torch.split(pools.tensor(), [self.I * n for n in (b1, b1, b2)], 1))
        a_other, slopes, b_other = a[places], problem.slope(u[places]), b[places_other]
        message: Tensors = (s.w, s.v)
        if self.B_pool is None:
            message = (*message, a_other, weights.to(a) * slopes, b_other, weights_other.to(a))
        else:
            shape, shares = (self.I, self.B_pool), [v.numpy() / v.numpy().sum() for v in (weights, weights_other)]
            rngs = (fed.rng(Purpose.POOL, client=int(i)) for i in S)
            chosen = ([torch.from_numpy(rng.choice(len(v), shape, p=v)) for v in shares] for rng in rngs)
            entries = ((a_other[at], slopes[at] / self.B_pool, b_other[at_other]) for at, at_other in chosen)
            own = torch.stack([torch.stack(of_client) for of_client in entries])
        (w, v, rows), u = fed.exchange(
            local_steps, message, S, memory=s.u, own=own, combine=means, origin=(s.w, None, None), **samples
        )
        return State(w, v, u, pools.replaced(S, rows))

    def output(self, s: State) -> Tensors:
        return (s.w,)

    def _widths(self, problem: XRisk) -> tuple[int, int]:
        """Return b1 and b2, the numbers of positive and of negative scores that each client adds to the pools for each step.

        Args:
            problem: The problem.
        """
        sizes = (problem.splits[split].sizes for split in ("positive", "negative"))
        b1, b2 = (int(min(B or n.max(), n.max())) for n, B in zip(sizes, (self.B1, self.B2), strict=True))
        return b1, b2

    def _entries(self, problem: XRisk) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the positions of the scores in a pool, and their weights: first for positive, and then for negative examples.

        Args:
            problem: The problem.
        """
        for split, width in zip(("positive", "negative"), self._widths(problem), strict=True):
            n = problem.splits[split].sizes[:, None]
            count = np.minimum(n, width)
            of_step = np.where(np.arange(width) < count, n / (self.I * n.sum() * count), 0)
            weights = np.tile(of_step, self.I).ravel()
            yield torch.from_numpy(np.flatnonzero(weights)), torch.from_numpy(weights[weights > 0])
