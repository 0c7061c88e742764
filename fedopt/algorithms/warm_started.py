"""Single-machine bilevel methods that keep v, the solution of the Hessian system, from iteration to iteration: MA-SOBA [Chen,
Xiao & Balasubramanian 2024], FSLA [Li, Gu & Huang 2022], AmIGO [Arbel & Mairal 2022], SABA [Dagréou et al. 2022] and SRBA
[Dagréou et al. 2024].

The server has all variables, and clients answer with derivatives at the points that it sends. All directions are linear in f_i and
g_i, so the iterates equal the iterates of one machine with the data of all clients. With one client, they are the papers' methods.

Explained in docs/algorithms/warm_started.md.

Notation
    z = (x, y, v)    all variables; v tends to [grad^2_yy g]^-1 grad_y f. If the hypergradient is grad_x f, z = (x, y)
    Dx, Dy, Dv       the directions grad_x f - grad^2_xy g v, grad_y g, and grad^2_yy g v - grad_y f
    eta_x, ...       the step sizes of the steps x - eta_x Dx, y - eta_y Dy (which is projected) and v - eta_v Dv
    xi               a sample of each client, independent of all other samples
    d                an estimate of directions
"""

from dataclasses import dataclass, field
from math import ceil, prod
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import Bilevel
from fedopt.toolbox import (
    Tensors,
    Vectors,
    bilevel_maps,
    bilevel_start,
    check_weights,
    cross_product,
    descend,
    hessian_product,
    inner_gradient,
)


@dataclass(frozen=True)
class WarmStarted:
    """The common part of the warm-started bilevel methods, whose variable v estimates [grad^2_yy g]^-1 grad_y f.

    Args:
        eta_x: The step size of x.
        eta_y: The step size of y.
        eta_v: The step size of v.
        B: The batch size. None: all examples of the client.
    """

    eta_x: Schedule
    eta_y: Schedule
    eta_v: Schedule
    B: PositiveInt | None

    solves: ClassVar = (Bilevel,)

    def descended(self, z: Vectors, d: Vectors, problem: Bilevel, r: int) -> Vectors:
        """Take one step of all variables along d, and return the new variables.

        Args:
            z: The variables.
            d: The directions, with the shapes of z.
            problem: The problem, which projects y.
            r: The index of the round, which determines the step sizes.
        """
        return descend(problem, z, d, [eta(r) for eta in (self.eta_x, self.eta_y, self.eta_v)])

    def output(self, s: "Averaged | Point | Remembering | Recursive") -> Vectors:
        return s.z


def Dx(client: Client, z: Vectors, xi: Sample) -> Tensor:
    """Return the direction Dx = grad_x f_i - grad^2_xy g_i v of x at z on a sample, ``[dx]``.

    It counts as one gradient call, and as one Jacobian-vector product if z has v.

    Args:
        client: The client.
        z: The variables (x, y, v), or (x, y) if grad_y f is zero at y*(x).
        xi: The sample.
    """
    x, y, *v = z
    direct = client.outer_gradient_x(x, y, xi)
    return direct - client.cross_product(x, y, v[0], xi) if v else direct


def Dv(client: Client, z: Vectors) -> Tensor:
    """Return the direction Dv = grad^2_yy g_i v - grad_y f_i of v at z on the client's sample ``xi``, ``[dy]``.

    It counts as one gradient call and one Hessian-vector product.

    Args:
        client: The client.
        z: The variables (x, y, v).
    """
    (x, y, v), xi = z, client.sample("xi")
    return client.inner_hessian(x, y, xi)(v) - client.outer_gradient_y(x, y, xi)


class Averaged(NamedTuple):
    """The state of MA-SOBA and FSLA.

    Attributes:
        z: The variables.
        d: The momentum of the direction Dx of x, ``[dx]``.
        point: The point at which Dx was last evaluated. With order=code, it is (x_{t-1}, y_t, v_t).
    """

    z: Vectors
    d: Tensor
    point: Vectors


@dataclass(frozen=True)
class AlternatingSOBA(WarmStarted):
    """MA-SOBA and FSLA: a round takes one step of y, one step of v and one step of x.

    Dx, Dy and Dv are the directions of the variables, and d is the momentum of Dx. `WarmStarted` describes the arguments that are
    not listed here.

    Args:
        order: ``code``: the direction of v uses the new y, and the direction of x uses the new y and v. ``paper``: all directions
            are computed at the old point, on one sample and in one exchange instead of three, and x moves along the previous
            momentum, which is initially 0.
        rho: The weight of the newest Dx in the momentum, d <- rho Dx + (1 - rho) d. It is at most 1 (ValueError otherwise). With 1,
            there is no momentum. MA-SOBA's beta is 1 - rho.
        storm: Whether the momentum is d <- Dx + (1 - rho) (d - Dx at the last point), with the same sample in both terms, as in
            FSLA, whose eta is rho. It needs order=code (ValueError otherwise).

    order=code follows public code: MingruiLiu-ML-Lab for MA-SOBA, benchmark_bilevel for FSLA. order=paper is unverified:
    reconstructed without the papers' text.
    """

    rho: Schedule
    storm: bool
    order: Literal["paper", "code"] = field(metadata={"before": "code"})

    def __post_init__(self) -> None:
        check_weights({"rho": self.rho(0)})
        if self.storm and self.order == "paper":
            raise ValueError("storm=true needs order=code; set it, or storm=false")

    def init(self, problem: Bilevel) -> Averaged:
        z = bilevel_start(problem)
        return Averaged(z, 0 * z[0], z)

    def step(self, s: Averaged, problem: Bilevel, fed: Round) -> Averaged:
        r, S, xi = fed.r, fed.cohort(), Steps(1, self.B)
        if self.order == "paper":
            D = fed.exchange(lambda client, z: bilevel_maps(client, z, client.sample("xi")), s.z, S, xi=xi)
            z = self.descended(s.z, Vectors((s.d, *D[1:])), problem, r)
            return Averaged(z, self.rho(r) * D[0] + (1 - self.rho(r)) * s.d, s.z)
        keep = 1 - self.rho(r) if r else 0.0
        x, y, *v = s.z
        y = problem.project(y - self.eta_y(r) * fed.exchange(inner_gradient, (x, y), S, xi=xi))
        v = [v_t - self.eta_v(r) * fed.exchange(Dv, (x, y, v_t), S, xi=xi) for v_t in v]  # at the new y
        z = Vectors((x, y, *v))

        def direction(client: Client, points: tuple[Vectors, ...]) -> Tensor:
            (z, *last), sample = points, client.sample("xi")
            return Dx(client, z, sample) - keep * Dx(client, last[0], sample) if last else Dx(client, z, sample)

        storm = self.storm and keep > 0
        d = fed.exchange(direction, (z, s.point) if storm else (z,), S, xi=xi)
        d = (d if self.storm else (1 - keep) * d) + keep * s.d
        return Averaged(Vectors((x - self.eta_x(r) * d, y, *v)), d, z)


class Point(NamedTuple):
    z: Vectors


@dataclass(frozen=True)
class AmIGO(WarmStarted):
    """AmIGO: n steps of y, then n steps of v with the same grad_y f, then one step of x. `WarmStarted` describes other arguments.

    As n grows, the step of x approaches a step along the hypergradient. grad_x f and grad_y f share a sample.

    Args:
        n: The number of steps of y, and of v, per round.

    It follows the public code benchmark_bilevel, and has not been compared with the paper's text.
    """

    n: PositiveInt

    def init(self, problem: Bilevel) -> Point:
        return Point(bilevel_start(problem))

    def step(self, s: Point, problem: Bilevel, fed: Round) -> Point:
        r, S, xi = fed.r, fed.cohort(), Steps(1, self.B)
        (x, y, *v), indirect = s.z, problem.indirect
        for _ in range(self.n):
            y = problem.project(y - self.eta_y(r) * fed.exchange(inner_gradient, (x, y), S, xi=xi))

        def outer(client: Client, point: tuple[Tensor, Tensor]) -> Tensors:
            sample = client.sample("xi")
            return client.outer_gradients(*point, sample) if indirect else (client.outer_gradient_x(*point, sample),)

        d, *b = fed.exchange(outer, (x, y), S, xi=xi)
        if indirect:
            for _ in range(self.n):
                v = [v[0] - self.eta_v(r) * (fed.exchange(hessian_product, (x, y, v[0]), S, xi=xi) - b[0])]
            d = d - fed.exchange(cross_product, (x, y, v[0]), S, xi=xi)
        return Point(Vectors((x - self.eta_x(r) * d, y, *v)))


class Remembering(NamedTuple):
    """The state of SABA.

    Attributes:
        z: The variables.
        memory: Each client's tables of stored gradients and products, first of g and then of f, as one vector.
    """

    z: Vectors
    memory: Memory


@dataclass(frozen=True)
class SABA(WarmStarted):
    """SABA: all variables move together, along SAGA estimates of grad_y g, grad^2_yy g v, grad^2_xy g v, grad_x f and grad_y f.

    `WarmStarted` describes the arguments that are not listed here.

    Args:
        B: The size of the fixed batches into which each client's examples of g, and of f, are divided in their order. For each
            batch, a client stores the last value of each gradient and product, which is initially 0.

    It follows the public code benchmark_bilevel, except for the choice of the batch: here, the batch that contains a uniformly
    random example is used, so that a smaller last batch causes no bias. It has not been compared with the paper's text.
    """

    def init(self, problem: Bilevel) -> Remembering:
        z = bilevel_start(problem)
        return Remembering(z, Memory([z[0].new_zeros(sum(map(prod, self._tables(problem))))] * problem.clients))

    def step(self, s: Remembering, problem: Bilevel, fed: Round) -> Remembering:
        of_g, of_f = self._tables(problem)
        g_split, f_split, dx = problem.g_split, problem.f_split, len(s.z[0])

        def estimates(client: Client, z: Vectors) -> tuple[Vectors, Tensor]:
            (x, y, *v), xi = z, client.sample("xi")
            tables = client.memory.split([prod(of_g), prod(of_f)])
            if v:
                gradient, hessian, cross = client.inner_second(x, y, v[0], xi)
                new_g, new_f = torch.cat([gradient, cross, hessian]), torch.cat(client.outer_gradients(x, y, xi))
            else:
                new_g, new_f = client.inner_gradient(x, y, xi), client.outer_gradient_x(x, y, xi)
            d_g = saga_(tables[0].view(of_g), new_g, *client.batch("xi", g_split))
            d_f = saga_(tables[1].view(of_f), new_f, *client.batch("xi", f_split))
            Dy, cross, hessian = d_g[: len(y)], d_g[len(y) : len(y) + dx], d_g[len(y) + dx :]
            d = Vectors((d_f[:dx] - cross, Dy, hessian - d_f[dx:]) if v else (d_f, Dy))
            return d, client.memory

        d, memory = fed.exchange(estimates, s.z, fed.cohort(), memory=s.memory, xi=Steps(1, self.B, fixed=True))
        return Remembering(self.descended(s.z, d, problem, fed.r), memory)

    def _tables(self, problem: Bilevel) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the shapes (rows, columns) of a client's tables of stored gradients and products, first of g and then of f.

        A table has one row per batch, and one row for their mean.

        Args:
            problem: The problem.
        """
        dx, dy = (len(v) for v in problem.start())
        columns = (dx + 2 * dy, dx + dy) if problem.indirect else (dy, dx)
        most = [int(problem.splits[split].sizes.max()) for split in (problem.g_split, problem.f_split)]
        rows_g, rows_f = (1 + ceil(n / (self.B or n)) for n in most)
        return (rows_g, columns[0]), (rows_f, columns[1])


def saga_(table: Tensor, new: Tensor, number: Tensor, share: Tensor) -> Tensor:
    """Return the SAGA estimate of a mean over batches, ``[d]``, and store the batch's new value and the new mean in the table.

    Args:
        table: The stored values, which are overwritten: one row for each batch, and their mean in the last row,
            ``[batches + 1, d]``.
        new: The batch's new value, ``[d]``.
        number: The index of the batch.
        share: The batch's fraction of the client's examples, which is its weight in the mean.
    """
    change, mean = new - table.gather(0, number.expand(1, len(new)))[0], table[-1]
    estimate, rows = change + mean, torch.stack([number, torch.full_like(number, len(table) - 1)])
    table[rows] = torch.stack([new, mean + share * change])
    return estimate


class Recursive(NamedTuple):
    """The state of SRBA.

    Attributes:
        z: The variables.
        previous: The variables of the previous iteration.
        d: The estimates of the directions (Dx, Dy, Dv) at the previous variables.
    """

    z: Vectors
    previous: Vectors
    d: Vectors


@dataclass(frozen=True)
class SRBA(WarmStarted):
    """SRBA: all variables move together along recursive estimates d of the directions D = (Dx, Dy, Dv).

    `WarmStarted` describes the arguments that are not listed here.

    Args:
        period: In every period-th round, d is the mean of the directions over all data of all clients. In the other rounds,
            d <- d + D(z) - D(previous z), with the same sample in both terms.

    It follows the public code benchmark_bilevel, and has not been compared with the paper's text.
    """

    period: PositiveInt

    cohort_weights: ClassVar = "corrected"

    def init(self, problem: Bilevel) -> Recursive:
        z = bilevel_start(problem)
        return Recursive(z, z, 0 * z)

    def step(self, s: Recursive, problem: Bilevel, fed: Round) -> Recursive:
        def directions(client: Client, points: tuple[Vectors, ...]) -> Vectors:
            (z, *previous), xi = points, client.sample("xi")
            D = bilevel_maps(client, z, xi)
            return D - bilevel_maps(client, previous[0], xi) if previous else D

        if fed.r % self.period == 0:
            d = fed.exchange(directions, (s.z,), fed.everyone(), xi=Steps(1, None))
        else:
            d = s.d + fed.exchange(directions, (s.z, s.previous), fed.cohort(), name="change", xi=Steps(1, self.B))
        return Recursive(self.descended(s.z, d, problem, fed.r), s.z, d)
