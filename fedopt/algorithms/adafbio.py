"""AdaFBiO [Huang 2022] and AdaFGDA [Huang et al. 2024]: bilevel and minimax steps along recursive momenta, with adaptive
matrices.

Unverified: the equations are reconstructed without the papers' text; reviews of the related method AdaMFCGD confirm the outline.
The limits that the tests check are derived here.

Explained in docs/algorithms/adafbio.md.

Notation
    z = (x, y), d = (w, v)    the variables and their momenta, of the hypergradient and of grad_y g
    a, A, b, B                running means of what the averages of w and v are, and the matrices that they make
    t, q                      the iteration, counted from 0, and the iterations of a round
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.federation import Client, Round, Sample, Steps
from fedopt.problems import Bilevel, Minimax, Problem
from fedopt.toolbox import Pair, Storm, Tensors, Vectors, check_weights, minimax_field, neumann_maps, neumann_samples

Matrix = Literal["diagonal", "norm"]
Directions = Callable[[Client, Vectors, Sample], Vectors]


class State(NamedTuple):
    """z, d: the clients' means of variables and momenta. a, b: [dim] if the matrix is diagonal, [1] if it is a multiple of I."""

    z: Vectors
    d: Vectors
    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Adaptive:
    """What AdaFBiO and AdaFGDA share.

    Args:
        gamma, lam: An iteration moves x by -eta_t gamma A^-1 w, and y by eta_t (project(y - lam B^-1 v) - y).
        k, n: eta_t = k / (n + t)^(1/3), at most 1 (else ValueError). It falls from t = 0, and is half of eta_0 at t = 7 n. k
            is the papers' times M^(1/3), with M clients.
        c1, c2: The newest directions have the weights c1 eta_t^2 in w and c2 eta_t^2 in v, each at most 1 (else ValueError).
        q: The iterations of a round. Variables and momenta are averaged at its end.
        r, rho: A becomes r a + (1 - r) w^2 and A = diag(sqrt(a) + rho). In the norm form a becomes r a + (1 - r) |w| and A =
            (a + rho) I. With r = rho = 1, A = B = I.
        A_of_x, A_of_y: The forms of the matrices A and B, diagonal or norm.
        B, B1: The examples of each sample, and of the sample for the first w and v; None for all of a client's.
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

    def eta(self, t: int) -> float:
        return float(self.k / (self.n + t) ** (1 / 3))

    def init(self, problem: Problem) -> State:
        z = Vectors(problem.start())
        kinds = zip((self.A_of_x, self.A_of_y), z, strict=True)
        return State(z, 0.0 * z, *(0.0 * (part if kind == "diagonal" else z[0][:1]) for kind, part in kinds))

    def adapted(self, s: State, fed: Round, D: Directions, samples: int | None = None) -> State:
        """Return the state after a round of iterations and one exchange.

        Args:
            D: D(client, z, xi), the directions at z on one sample, or on a list of samples.
            samples: The length of that list; None if D takes one sample.
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
        z, d = fed.exchange(iterations, (s.z, d, A, B), fed.new_cohort(), xi=Steps(self.q, self.B, samples))
        return State(z, d, a, b)

    def output(self, s: State) -> Tensors:
        return s.z


def rebuilt(kind: Matrix, a: Tensor, w: Tensor, r: float, rho: float) -> tuple[Tensor, Tensor]:
    """Return a after an exchange, and the diagonal of A that it makes.

    Both are [dim] for kind diagonal, and one number, [1], for norm.

    Args:
        kind: Diagonal or norm.
        a: Its value before.
        w: The mean direction, [dim].
        r, rho: As in `Adaptive`.
    """
    if kind == "diagonal":
        a = r * a + (1 - r) * w**2
        return a, a.sqrt() + rho
    a = r * a + (1 - r) * torch.linalg.vector_norm(w)
    return a, a + rho


@dataclass(frozen=True)
class AdaFBiO(Adaptive):
    """AdaFBiO: adaptive bilevel steps along recursive momenta [Huang 2022]. It adds two hyperparameters to those of `Adaptive`.

    Args:
        theta, Q: The step size and the number of Hessian products of the Neumann sum in the hypergradient.
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
