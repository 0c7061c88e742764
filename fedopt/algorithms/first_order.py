"""First-order federated bilevel optimisation: SimFBO with directions that take gradients only.

The federated form of both estimators is derived here and unpublished. Their single-machine forms are a penalty [Kwon et al. 2023,
F2SA, as in benchmark_bilevel] and differences of gradients [Yang et al. 2023, unverified]. MemFBO [Yang et al. 2025] is related;
we do not know its update.

Explained in docs/algorithms/first_order.md.

Notation
    z = (x, y, v)    the variables of SimFBO. With estimator=penalty, v is replaced with s, which tends to y*(x), while y tends to
                     the minimiser of f + lam g
    lam              the coefficient of the penalty in round r. The error of the hypergradient is of the order of 1 / lam
    delta            the two points at which grad g is taken are y + delta v and y - delta v. For quadratic g, every delta is exact
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from fedopt.algorithms.simfbo import SimFBO, State
from fedopt.federation import Client, Sample
from fedopt.problems import Bilevel
from fedopt.toolbox import Vectors, bilevel_maps, bilevel_start, moved


@dataclass(frozen=True)
class FirstOrder(SimFBO):
    """SimFBO without second derivatives. With normalised=true, it is ShroFBO without second derivatives.

    It has the hyperparameters of `SimFBO` and the following ones. With estimator=penalty, eta_v and gamma_v are the step sizes of
    s, and radius must be None (ValueError otherwise).

    Args:
        estimator: ``penalty``: gradients of f + lam g at y, and of g at s. ``difference``: gradients of g at two points near y.
        lam: The coefficient of the penalty in round 0.
        growth: The factor of the growth of the penalty, whose coefficient in round r is lam + growth r^power.
        power: The exponent of this growth.
        delta: With estimator=difference, the two points are y + delta v and y - delta v.
    """

    estimator: Literal["penalty", "difference"]
    lam: PositiveFloat
    growth: NonNegativeFloat
    power: NonNegativeFloat
    delta: PositiveFloat

    first_order: ClassVar = True

    def __post_init__(self) -> None:
        if self.estimator == "penalty" and self.radius is not None:
            raise ValueError("radius needs estimator=difference, since estimator=penalty has no v; use radius=null")

    def init(self, problem: Bilevel) -> State:
        x, y, *v = bilevel_start(problem)
        return State(Vectors((x, y, *(y if self.estimator == "penalty" else v_0 for v_0 in v))))

    def directions(self, client: Client, z: Vectors, xi: Sample, r: int) -> Vectors:
        """Return the directions D at z on one sample in round r, with the shapes of z.

        The call counts as three gradient calls with estimator=penalty, as four with estimator=difference, and as two if z has no v.

        Args:
            client: The client.
            z: The variables: (x, y, s) with estimator=penalty, (x, y, v) with estimator=difference, or (x, y).
            xi: The sample.
            r: The index of the round.
        """
        x, y, *v = z
        if not v:
            return bilevel_maps(client, z, xi)  # the hypergradient is grad_x f
        f_x, f_y = client.outer_gradients(x, y, xi)
        if self.estimator == "penalty":
            lam, (s,) = self.lam + self.growth * r**self.power, v
            (g_x, g_y), (g_x_s, g_y_s) = client.inner_gradients(x, y, xi), client.inner_gradients(x, s, xi)
            return Vectors((moved(f_x, g_x - g_x_s, -lam), moved(f_y, g_y, -lam), g_y_s))
        ahead, behind = (client.inner_gradients(x, y + d * v[0], xi) for d in (self.delta, -self.delta))
        cross, hessian = (a - b for a, b in zip(ahead, behind, strict=True))  # times 2 delta v
        half = 1 / (2 * self.delta)
        return Vectors((moved(f_x, cross, half), client.inner_gradient(x, y, xi), moved(-f_y, hessian, -half)))
