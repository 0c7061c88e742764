"""AdaFBiO [Huang 2022] and AdaFGDA [Huang et al. 2024]: bilevel and minimax steps along recursive momenta, with adaptive
matrices.

Unverified: the equations are reconstructed without the papers' text; reviews of the related method AdaMFCGD confirm the outline.
The limits that the tests check are derived here.

Explained in docs/algorithms/adafbio.md.

Notation
    z = (x, y)    the variables
    d = (w, v)    the momenta: w estimates the hypergradient, and v estimates grad_y g
    a, b          running means over the exchanges: a of w^2 or |w|, and b of v^2 or |v|, for the w and v that the server averages
    A, B          the matrices of the adaptive steps, which a and b define
    eta_t         the step size of iteration t, which decays from t = 0 on
    t, q          the iteration, counted from 0, and the number of iterations per round
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.federation import Client, Round, Sample, Steps
from fedopt.problems import Bilevel, Minimax, Problem
from fedopt.toolbox import Pair, Storm, Tensors, Vectors, check_weights, minimax_field, neumann_maps, neumann_samples

Matrix = Literal["diagonal", "norm"]
Directions = Callable[[Client, Vectors, Sample], Vectors]


class State(NamedTuple):
    """The state of AdaFBiO and AdaFGDA.

    Attributes:
        z: The clients' means of the variables.
        d: The clients' means of the momenta.
        a: The running mean that defines the matrix A, ``[dim]`` if A is diagonal, or ``[1]`` if A is a multiple of I.
        b: The running mean that defines the matrix B, with a shape of the same kind.
    """

    z: Vectors
    d: Vectors
    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Adaptive:
    """The common part of AdaFBiO and AdaFGDA. Iteration t = 0, 1, ... is::

        x <- x - eta_t gamma A^-1 w
        y <- y + eta_t (project(y - lam B^-1 v) - y),    eta_t = k / (n + t)^(1/3)

    Args:
        gamma: The step size of x, relative to eta_t.
        lam: The step size of y, relative to eta_t.
        k: The numerator of eta_t, which must be at most 1 (ValueError otherwise). k is the papers' k times M^(1/3), for M clients.
        n: The offset in the denominator. eta_t decays from t = 0 on: slowly while t is less than n, and it is half of eta_0 at
            t = 7 n.
        c1: The newest direction in w has the weight c1 eta_t^2, which must be at most 1 (ValueError otherwise).
        c2: The newest direction in v has the weight c2 eta_t^2, which must be at most 1 (ValueError otherwise).
        q: The number of iterations per round. Variables and momenta are averaged at the end of a round.
        r: The factor of the old value in the running means a and b; see A_of_x.
        rho: The number that is added to the matrices A and B; see A_of_x. With r = rho = 1, A = B = I.
        A_of_x: The form of the matrix A. ``diagonal``: A = diag(sqrt(a) + rho), with a <- r a + (1 - r) w^2 in each coordinate.
            ``norm``: A = (a + rho) I, with a <- r a + (1 - r) |w|.
        A_of_y: The form of the matrix B, which is defined by b and v in the same way.
        B: The batch size. None: all examples of the client.
        B1: The batch size for the first w and v. None: all examples of the client.
    """

    gamma: PositiveFloat
    lam: PositiveFloat
    k: PositiveFloat
    n: PositiveFloat
    c1: NonNegativeFloat
    c2: NonNegativeFloat
    q: PositiveInt
    r: Annotated[float, Field(ge=0, le=1)]
    rho: PositiveFloat
    A_of_x: Matrix
    A_of_y: Matrix
    B: PositiveInt | None
    B1: PositiveInt | None

    def __post_init__(self) -> None:
        eta = self.eta(0)
        check_weights({"k / n^(1/3)": eta, "c1 * eta_0^2": self.c1 * eta**2, "c2 * eta_0^2": self.c2 * eta**2})

    def eta(self, t: int) -> Any:
        return self.k / (self.n + t) ** (1 / 3)

    def init(self, problem: Problem) -> State:
        z = Vectors(problem.start())
        kinds = zip((self.A_of_x, self.A_of_y), z, strict=True)
        return State(z, 0.0 * z, *(0.0 * (v if kind == "diagonal" else z[0][:1]) for kind, v in kinds))

    def adapted(self, s: State, fed: Round, D: Directions, samples: int | None = None) -> State:
        """Run the iterations of one round, whose averages take one exchange, and return the new state.

        Args:
            s: The state before the round.
            fed: The round.
            D: A function ``D(client, z, xi)`` that returns the directions at z. The argument xi is a sample or a list of samples.
            samples: The number of samples in the list xi. None: xi is one sample.
        """
        start = fed.r * self.q

        def c(t: int) -> tuple[float, float]:
            return self.c1 * self.eta(t) ** 2, self.c2 * self.eta(t) ** 2

        def first(client: Client, z: Vectors) -> Vectors:
            return D(client, z, client.sample("first"))

        def iterations(client: Client, message: tuple[Vectors, Vectors, Tensor, Tensor]) -> Pair:
            z, d, A, B = message

            def move(client: Client, z: Vectors, d: Vectors, t: int) -> Vectors:
                (x, y), (w, v), eta = z, d, self.eta(t)
                target = client.project(y.addcdiv(v, B, value=-self.lam))  # P(y - lam v / B)
                return Vectors((x.addcdiv(w, A, value=-eta * self.gamma), torch.lerp(y, target, eta)))

            return Storm(D, move, c).iterations(client, z, d, client.steps("xi"), start)

        d = s.d if fed.r else fed.exchange(first, s.z, fed.cohort(), first=Steps(1, self.B1, samples))
        a, A = rebuilt(self.A_of_x, s.a, d[0], self.r, self.rho)
        b, B = rebuilt(self.A_of_y, s.b, d[1], self.r, self.rho)
        z, d = fed.exchange(
            iterations, (s.z, d, A, B), fed.new_cohort(), origin=(s.z, None), xi=Steps(self.q, self.B, samples)
        )
        return State(z, d, a, b)

    def output(self, s: State) -> Tensors:
        return s.z


def rebuilt(kind: Matrix, a: Tensor, w: Tensor, r: float, rho: float) -> tuple[Tensor, Tensor]:
    """Update the running mean a with a mean direction, and return the new a and the diagonal of the matrix A that it defines.

    Both results have the shape ``[dim]`` if the matrix is diagonal, and ``[1]`` if it is a multiple of the identity (``norm``).

    Args:
        kind: The form of the matrix, ``diagonal`` or ``norm``.
        a: The running mean before the exchange.
        w: The mean direction, ``[dim]``.
        r: The factor of the old running mean.
        rho: The number that is added to the matrix.
    """
    if kind == "diagonal":
        a = r * a + (1 - r) * w**2
        return a, a.sqrt() + rho
    a = r * a + (1 - r) * torch.linalg.vector_norm(w)
    return a, a + rho


@dataclass(frozen=True)
class AdaFBiO(Adaptive):
    """AdaFBiO: adaptive bilevel steps along recursive momenta [Huang 2022].

    It has the following hyperparameters in addition to the ones of `Adaptive`.

    Args:
        theta: The step size of the Neumann sum in the hypergradient.
        Q: The number of Hessian-vector products of the Neumann sum.
    """

    theta: PositiveFloat
    Q: NonNegativeInt

    solves: ClassVar = (Bilevel,)

    def step(self, s: State, problem: Bilevel, fed: Round) -> State:
        directions = partial(neumann_maps, Q=self.Q, theta=self.theta)
        return self.adapted(s, fed, directions, neumann_samples(problem, self.Q))


@dataclass(frozen=True)
class AdaFGDA(Adaptive):
    """AdaFGDA: AdaFBiO with the two gradients of a minimax problem as directions [Huang et al. 2024]."""

    solves: ClassVar = (Minimax,)

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        return self.adapted(s, fed, minimax_field)
