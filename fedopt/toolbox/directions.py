"""The directions along which single-loop bilevel methods move x, y and v together, and a step along them.

Notation
    z = (x, y, v)        the variables; v estimates [grad^2_yy g]^-1 grad_y f, and is left out where the hypergradient is grad_x f
    D = (Dx, Dy, Dv)     the directions, zero in the mean at the solution; P, S^w and S^v in FedMSA's letters
    P_r                  the projection onto the ball |v| <= r
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from fedopt.federation import Client, Inverse, Sample, neumann_sum, neumann_term
from fedopt.problems import Bilevel, Minimax, Nested, ball
from fedopt.toolbox.vectors import Vectors


def bilevel_start(problem: Nested) -> Vectors:
    """Return the first variables of a single-loop bilevel method: (x, y, 0), or (x, y) if grad_y f is zero at y*(x).

    Args:
        problem: The problem, with its start.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fednest", "problem=quadratic_bilevel"]))
        >>> [len(variable) for variable in fedopt.bilevel_start(experiment.problem)]
        [5, 8, 8]
    """
    x, y = problem.start()
    return Vectors((x, y, torch.zeros_like(y)) if problem.indirect else (x, y))


def bilevel_maps(client: Client, z: Vectors, xi: Sample, damping: float = 0.0) -> Vectors:
    """Return the directions (Dx, Dy, Dv) at z = (x, y, v) on one sample, each of the shape of its variable.

    Dx = grad_x f - grad^2_xy g v,  Dy = grad_y g,  Dv = (grad^2_yy g + damping I) v - grad_y f  [FedMSA eq. 2, 10, whose 10a
    prints grad_x f in Dv]. At z = (x, y) they are (grad_x f, grad_y g).

    It counts as two gradient calls, one Hessian-vector and one Jacobian-vector product; without v, as the gradient calls
    alone.

    Args:
        client: The client, of a bilevel problem.
        z: The point (x, y, v), or (x, y) if grad_y f is zero at y*(x).
        xi: The sample, of f and of g.
        damping: A number that is added to the diagonal of the Hessian.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fednest", "problem=quadratic_bilevel"]))
        >>> z, fed = fedopt.bilevel_start(experiment.problem), experiment.federation.at(0)
        >>> def client_fn(client, z):
        ...     return fedopt.bilevel_maps(client, z, client.sample("xi"))
        >>> D = fed.exchange(client_fn, z, fed.everyone(), xi=fedopt.Steps(1, None))
        >>> [len(direction) for direction in D]
        [5, 8, 8]
    """
    x, y, *v = z
    if not v:
        return Vectors((client.outer_gradient_x(x, y, xi), client.inner_gradient(x, y, xi)))

    if hasattr(client.g, "second"):  # written by hand, as all else then is
        (f_x, f_y), (d_y, Hv, Jv) = client.outer_gradients(x, y, xi), client.inner_second(x, y, v[0], xi)
        d_v = Hv - f_y
        return Vectors((f_x - Jv, d_y, d_v.add(*v, alpha=damping) if damping else d_v))

    # The second derivatives of g along v and the gradients of -f are one backward pass through one graph
    def inner_gradient_and_outer_value(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return client.grad(client.g, x, y, xi), client.f(x, y, xi)

    (d_y, f), product = client.vjp(inner_gradient_and_outer_value, x, y, grad=2, hvp=1, jvp=1, sample=xi)
    minus_d_x, d_v = product((*v, -torch.ones_like(f)))
    return Vectors((-minus_d_x, d_y, d_v.add(*v, alpha=damping) if damping else d_v))


def independent_maps(client: Client, z: Vectors, xis: Sequence[Sample]) -> Vectors:
    """Return the directions of `bilevel_maps` without damping, with a sample for each of Dx, Dy and Dv.

    It counts as three gradient calls, one less if grad_x f is zero, one Hessian-vector and one Jacobian-vector product.
    Without v it counts as two gradient calls.

    Args:
        client: The client, of a bilevel problem.
        z: The point (x, y, v), or (x, y).
        xis: The three samples, for Dx, Dy and Dv in this order.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fednest", "problem=quadratic_bilevel"]))
        >>> z, fed = fedopt.bilevel_start(experiment.problem), experiment.federation.at(0)
        >>> def client_fn(client, z):
        ...     return fedopt.independent_maps(client, z, [client.sample(name) for name in "abc"])
        >>> one = fedopt.Steps(1, B=1)
        >>> D = fed.exchange(client_fn, z, fed.everyone(), a=one, b=one, c=one)
        >>> [len(direction) for direction in D]
        [5, 8, 8]
    """
    (x, y, *v), (xi_x, xi_y, xi_v) = z, xis
    d_x, d_y = client.outer_gradient_x(x, y, xi_x), client.inner_gradient(x, y, xi_y)
    if not v:
        return Vectors((d_x, d_y))
    d_v = client.inner_hessian(x, y, xi_v)(v[0]) - client.outer_gradient_y(x, y, xi_v)
    return Vectors((d_x - client.cross_product(x, y, v[0], xi_x), d_y, d_v))


def descend(
    space: Client | Nested | Minimax, z: Vectors, D: Vectors, steps: Sequence[float], radius: float | None = None
) -> Vectors:
    """Return z - steps D, with y projected onto the problem's constraint set Y.

    Args:
        space: The client, or on the server the problem. Its ``project`` projects onto Y.
        z: The point (x, y) or (x, y, v).
        D: The directions, of the same shapes.
        steps: A step size for each variable. If there are more, the last ones are ignored.
        radius: The radius of the ball onto which v is projected; None leaves v as it is.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fednest", "problem=quadratic_bilevel"]))
        >>> z = fedopt.bilevel_start(experiment.problem)
        >>> moved = fedopt.descend(experiment.problem, z, z, steps=(1.0, 1.0, 1.0))  # z - z
        >>> [variable.abs().max().item() for variable in moved]
        [0.0, 0.0, 0.0]
    """
    return projected(space, z.moved(D, steps), radius)


def descend_(client: Client, z: Vectors, D: Vectors, steps: Sequence[float], radius: float | None = None) -> Vectors:
    """Return what `descend` returns. It may overwrite z, as `Client.moved_` may overwrite a point.

    Args:
        client: The client.
        z, D, steps, radius: As in `descend`.
    """
    moved = Vectors(client.moved_(v, d, step) for v, d, step in zip(z, D, steps, strict=False))
    return projected(client, moved, radius)


def projected(space: Client | Nested | Minimax, z: Vectors, radius: float | None) -> Vectors:
    """Return z with y projected onto Y, and v onto the ball of that radius. space, radius: as in `descend`."""
    x, y, *v = z
    return Vectors((x, space.project(y), *(v_n if radius is None else ball(v_n, radius) for v_n in v)))


def neumann_maps(
    client: Client, z: Vectors, xi: Sequence[Sample], Q: int, theta: float, term: int | None = None
) -> Vectors:
    """Return a client's hypergradient, with a Neumann sum for the inverse Hessian, and grad_y g, at z = (x, y).

    Args:
        client: The client, of a bilevel problem.
        z: The point (x, y).
        xi: The samples, as many as `neumann_samples` returns.
        Q: The number of Hessian products.
        theta: The step size of the Neumann sum.
        term: The index, 0 to Q, of the one term that represents the sum; None takes all terms.
    """
    (x, y), l = z, 1 / theta
    inverse: Inverse = partial(neumann_sum, N=Q, l=l)
    if term is not None:
        inverse = partial(neumann_term, N=Q + 1, l=l, chosen=term)
    return Vectors((client.hypergradient(x, y, xi, inverse), client.inner_gradient(x, y, xi[0])))


def neumann_samples(problem: Bilevel, Q: int) -> int:
    """Return the number of samples that `neumann_maps` takes with Q Hessian products, which some problems do not need."""
    return problem.hypergradient_samples(Q if problem.indirect and not problem.identity else 0)
