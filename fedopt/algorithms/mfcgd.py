"""MFCGD and AdaMFCGD: momentum-based compositional descent, with one step size or adaptive ones [Huang et al. 2026].

Reconstructed from reviews that quote its Algorithm 1; whether h, U and v are averaged is not known. FedCoMuon-VR, whose text we
have read (arXiv 2608.12710), keeps them local, as we do.

Explained in docs/algorithms/mfcgd.md.

Notation
    r_i, f_i     the levels of client i's composition f_i(r_i(x))
    h, U, v      the estimates of r_i(x), of its Jacobian, [d_1, d_0], and of grad f_i(h)
    w            U'v, the estimate of the gradient; the server averages w to wbar
    eta_t        k / (n + t)^(1/3), the step size of iteration t, which decays from t = 0 on
    a, A         the running mean of wbar^2 or |wbar| over the exchanges, and the matrix of the adaptive steps, which a defines
    xi, zeta     the samples of r_i and of f_i in one iteration
    t, I         the iteration, counted from 0, and the number of iterations between exchanges
    C_f, C_g     the radii of the balls onto which v and U are projected

An iteration maps (x, h, U, v) to (x', h', U', v'), with the same samples xi and zeta at the old and at the new point
    x' = x - gamma eta_t A^-1 w
    h' = r_i(x') + (1 - c1 eta_t^2) (h - r_i(x))
    U' = J r_i(x') + (1 - c2 eta_t^2) (U - J r_i(x)),             projected
    v' = grad f_i(h') + (1 - c3 eta_t^2) (v - grad f_i(h)),       projected
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.algorithms.adafbio import rebuilt
from fedopt.errors import UserError
from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import LocalCompositional, ball
from fedopt.toolbox import Tensors, check_weights, moved

LARGEST = 200  # rows of a Jacobian: each one takes a derivative, and is stored for each client


class State(NamedTuple):
    """The state of MFCGD and AdaMFCGD.

    Attributes:
        x: The clients' mean of x, ``[d_0]``.
        w: The clients' mean of the momentum w, ``[d_0]``.
        a: (a,) with the running mean for the matrix A, ``[d_0]``, or ``[1]`` with adaptive=norm; () with adaptive=none.
        memory: h, U and v of each client as one vector.
    """

    x: Tensor
    w: Tensor
    a: Tensors
    memory: Memory


@dataclass(frozen=True)
class Mfcgd:
    """MFCGD: momentum-based compositional descent.

    Args:
        gamma: The step size of x is gamma eta_t, with eta_t = k / (n + t)^(1/3).
        k: The numerator of eta_t.
        n: The offset in the denominator of eta_t, which decays from t = 0 on: slowly while t is less than n.
        c1: The newest value in h, the estimate of the inner function, has the weight c1 eta_t^2 (at most 1, ValueError otherwise).
        c2: The newest value in U, the estimate of its Jacobian, has the weight c2 eta_t^2 (at most 1, ValueError otherwise).
        c3: The newest value in v, the estimate of the outer gradient, has the weight c3 eta_t^2 (at most 1, ValueError otherwise).
        adaptive: The matrix A of a step x - gamma eta_t A^-1 w. ``none``: I, which is MFCGD. ``diagonal``: diag(sqrt(a) + rho),
            where a is the running mean of the squares of the clients' mean w. ``norm``: (a + rho) I, where a is the running mean of
            its norm.
        theta: The factor of the old a in the running mean.
        rho: The number that is added to the matrix A.
        C_f: The radius of the ball onto which v is projected. None: v is not projected.
        C_g: The radius of the ball onto which U is projected. None: U is not projected.
        I: The number of iterations between exchanges.
        B: The batch size of each sample. None: all examples of the client.
        B_start: The batch size of the first samples. None: all examples of the client.
    """

    gamma: PositiveFloat
    k: PositiveFloat
    n: PositiveFloat
    c1: PositiveFloat
    c2: PositiveFloat
    c3: PositiveFloat
    adaptive: Literal["none", "diagonal", "norm"]
    theta: Annotated[float, Field(ge=0, lt=1)]
    rho: PositiveFloat
    C_f: PositiveFloat | None
    C_g: PositiveFloat | None
    I: PositiveInt
    B: PositiveInt | None
    B_start: PositiveInt | None

    solves: ClassVar = (LocalCompositional,)

    def __post_init__(self) -> None:
        weights = {"c1": self.c1, "c2": self.c2, "c3": self.c3}
        check_weights({f"{name} * eta_0^2": c * self.eta(0) ** 2 for name, c in weights.items()})

    def eta(self, t: int) -> Any:
        """Return the step size eta_t of an iteration, which decays.

        Args:
            t: The index of the iteration, from 0.
        """
        return self.k / (self.n + t) ** (1 / 3)

    def init(self, problem: LocalCompositional) -> State:
        (x,) = problem.start()
        if len(problem.dims) != 2 or problem.dims[1] > LARGEST:
            levels = f"two levels with at most {LARGEST} inner values, but this problem has dimensions {problem.dims}"
            raise UserError(f"this algorithm stores Jacobians, so it needs {levels}; choose another problem")
        row = x.new_zeros(problem.dims[1] * (2 + len(x)))
        a = {"none": (), "diagonal": (0 * x,), "norm": (x.new_zeros(1),)}[self.adaptive]
        return State(x, 0 * x, a, Memory([row] * problem.clients))

    def step(self, s: State, problem: LocalCompositional, fed: Round) -> State:
        first, d1, entries = (fed.r - 1) * self.I, problem.dims[1], problem.dims[1] * problem.dims[0]

        def answer(x: Tensor, h: Tensor, U: Tensor, v: Tensor) -> tuple[Tensors, Tensor]:
            return (x, U.T @ v), torch.cat([h, U.flatten(), v])

        def start(client: Client, x: Tensor) -> tuple[Tensors, Tensor]:
            xi, zeta = client.sample("xi")
            h, U = value_and_jacobian(client, x, xi)
            return answer(x, h, within(U, self.C_g), within(grad_f(client, h, zeta), self.C_f))

        def iterations(client: Client, message: tuple[Tensor, Tensor, Tensors]) -> tuple[Tensors, Tensor]:
            (x, w, A), (h, U, v) = message, client.memory.split([d1, entries, d1])
            U = U.view(d1, -1)
            for t, (xi, zeta) in enumerate(client.steps("xi"), first):
                eta = self.eta(t)
                keep_h, keep_U, keep_v = (max(1 - c * eta**2, 0) for c in (self.c1, self.c2, self.c3))
                # x + eta (xh - x), xh = x - gamma A^-1 w
                x_old, x = x, moved(x, w / A[0] if A else w, eta * self.gamma)
                (r_old, J_old), (r, J) = (value_and_jacobian(client, point, xi) for point in (x_old, x))
                h_old, h = h, r + keep_h * (h - r_old)
                U = within(moved(J, U - J_old, -keep_U), self.C_g)
                v = within(grad_f(client, h, zeta) + keep_v * (v - grad_f(client, h_old, zeta)), self.C_f)
                w = U.T @ v
            return answer(x, h, U, v)

        if fed.r == 0:  # each client has its h, U and v from the start
            xi, S = Steps(1, self.B_start, samples=2), fed.everyone()
            (x, w), memory = fed.exchange(start, s.x, S, memory=s.memory, origin=(s.x, None), xi=xi)
            return State(x, w, s.a, memory)
        pairs = [rebuilt(self.adaptive, a, s.w, self.theta, self.rho) for a in s.a if self.adaptive != "none"]
        a, A = zip(*pairs, strict=True) if pairs else ((), ())
        xi, S = Steps(self.I, self.B, samples=2), fed.cohort()
        (x, w), memory = fed.exchange(iterations, (s.x, s.w, A), S, memory=s.memory, origin=(s.x, None), xi=xi)
        return State(x, w, a, memory)

    def output(self, s: State) -> Tensors:
        return (s.x,)


def value_and_jacobian(client: Client, x: Tensor, xi: Sample) -> tuple[Tensor, Tensor]:
    """Return the inner function r_i(x), ``[d_1]``, and its Jacobian, ``[d_1, d_0]``.

    The call counts as d_1 Jacobian-vector products.

    Args:
        client: The client.
        x: The point, ``[d_0]``.
        xi: The sample.
    """
    r, product = client.pullback(client.level, 0, x, xi)
    return r, torch.stack([product(unit) for unit in torch.eye(len(r), dtype=r.dtype, device=r.device)])


def grad_f(client: Client, h: Tensor, zeta: Sample) -> Tensor:
    """Return the gradient of the outer function, grad f_i(h), ``[d_1]``. It counts as one gradient call.

    Args:
        client: The client.
        h: The point, ``[d_1]``.
        zeta: The sample.
    """
    return client.grad(client.level, 1, h, zeta)


def within(value: Tensor, radius: float | None) -> Tensor:
    """Project a tensor onto a ball around 0, by the Euclidean norm of all its entries.

    Args:
        value: The tensor.
        radius: The radius of the ball. None: the tensor is returned unchanged.
    """
    return value if radius is None else ball(value.flatten(), radius).view_as(value)
