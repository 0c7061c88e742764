"""The directions along which single-loop bilevel methods move x, y and v together, and a step along them.

Notation
    z = (x, y, v)        the variables; v estimates [grad^2_yy g]^-1 grad_y f. If the hypergradient is grad_x f, there is no v
    D = (Dx, Dy, Dv)     the directions of x, y and v, whose means over clients are zero at the solution. FedMSA calls them P, S^w
                         and S^v
    P_r                  the projection onto the ball |v| <= r
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from fedopt.federation import Client, Inverse, Sample, neumann_sum, neumann_term
from fedopt.problems import Bilevel, Minimax, Nested, ball
from fedopt.toolbox.vectors import Vectors

Space = Client | Nested | Minimax  # their method `project` projects y onto the constraint set


def bilevel_start(problem: Nested) -> Vectors:
    """Return the initial variables of a single-loop bilevel method: (x, y, 0), or (x, y) if grad_y f is zero at y*(x).

    Args:
        problem: The problem. Its ``start`` returns x, ``[dx]``, and y, ``[dy]``.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fednest", "problem=quadratic_bilevel"]))
        >>> [len(variable) for variable in fedopt.bilevel_start(experiment.problem)]
        [5, 8, 8]
    """
    x, y = problem.start()
    return Vectors((x, y, torch.zeros_like(y)) if problem.indirect else (x, y))


def bilevel_maps(client: Client, z: Vectors, xi: Sample, damping: float = 0.0) -> Vectors:
    """Return the directions (Dx, Dy, Dv) at z = (x, y, v) on one sample, each of the shape of its variable.

    The directions are FedMSA's (eq. 2 and 10, but eq. 10a prints grad_x f for grad_y f in Dv)::

        Dx = grad_x f_i - grad^2_xy g_i v
        Dy = grad_y g_i
        Dv = (grad^2_yy g_i + damping I) v - grad_y f_i

    At z = (x, y), without v, they are (grad_x f_i, grad_y g_i).

    The call counts as two gradient calls, one Hessian-vector product and one Jacobian-vector product. Without v, it counts as
    gradient calls only.

    Args:
        client: The client, whose problem is bilevel.
        z: The point (x, y, v), or (x, y) if grad_y f is zero at y*(x).
        xi: The sample on which f_i and g_i are evaluated.
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

    if hasattr(client.g, "second"):  # if g has hand-written second derivatives, it also has the others
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
    """Return the directions (Dx, Dy, Dv) at z = (x, y, v), each evaluated on a sample of its own.

    They are::

        Dx = grad_x f_i - grad^2_xy g_i v
        Dy = grad_y g_i
        Dv = grad^2_yy g_i v - grad_y f_i

    At z = (x, y), without v, they are (grad_x f_i, grad_y g_i). The call counts as three gradient calls (two if grad_x f is
    zero), one Hessian-vector product and one Jacobian-vector product. Without v, it counts as two gradient calls.

    Args:
        client: The client, whose problem is bilevel.
        z: The point (x, y, v), or (x, y) if grad_y f is zero at y*(x).
        xis: Three samples, for Dx, Dy and Dv. Without v, the third is not used.

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


def descend(space: Space, z: Vectors, D: Vectors, steps: Sequence[float], radius: float | None = None) -> Vectors:
    """Take a step along the directions, and return the new point::

        x - eta_x Dx,    P_Y(y - eta_y Dy),    P_r(v - eta_v Dv)

    P_Y is the projection onto the problem's constraint set, and P_r the projection onto the ball of radius r.

    Args:
        space: The client, or the problem if the step is taken on the server. Its ``project`` is P_Y.
        z: The point (x, y) or (x, y, v).
        D: The directions (Dx, Dy) or (Dx, Dy, Dv), with the shapes of the variables.
        steps: The step sizes (eta_x, eta_y, eta_v). The last one is ignored if z has no v.
        radius: The radius r. None: v is not projected.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fednest", "problem=quadratic_bilevel"]))
        >>> z = fedopt.bilevel_start(experiment.problem)
        >>> moved = fedopt.descend(experiment.problem, z, z, steps=(1.0, 1.0, 1.0))  # z - z
        >>> [variable.abs().max().item() for variable in moved]
        [0.0, 0.0, 0.0]
    """
    return projected(space, z.moved(D, steps), radius)


def descend_(client: Client, z: Vectors, D: Vectors, steps: Sequence[float], radius: float | None = None) -> Vectors:
    """Take a step along the directions on a client, and return the new point; see `descend` for the formula.

    A variable of z that was itself returned by a step may be overwritten, so do not use z afterwards.

    Args:
        client: The client.
        z: The point (x, y) or (x, y, v).
        D: The directions (Dx, Dy) or (Dx, Dy, Dv), with the shapes of the variables.
        steps: The step sizes (eta_x, eta_y, eta_v). The last one is ignored if z has no v.
        radius: The radius of the ball onto which v is projected. None: v is not projected.
    """
    moved = Vectors(client.moved_(v, d, step) for v, d, step in zip(z, D, steps, strict=False))
    return projected(client, moved, radius)


def projected(space: Space, z: Vectors, radius: float | None) -> Vectors:
    """Return z with y projected onto the problem's constraint set, and v projected onto a ball around 0.

    Args:
        space: The client or the problem, whose ``project`` projects y.
        z: The point (x, y) or (x, y, v).
        radius: The radius of the ball. None: v is not projected.
    """
    x, y, *v = z
    return Vectors((x, space.project(y), *(v_n if radius is None else ball(v_n, radius) for v_n in v)))


def neumann_maps(
    client: Client, z: Vectors, xi: Sequence[Sample], Q: int, theta: float, term: int | None = None
) -> Vectors:
    """Return a client's hypergradient, ``[dx]``, and grad_y g_i, ``[dy]``, at z = (x, y).

    The inverse Hessian in the hypergradient is estimated by a Neumann sum.

    Args:
        client: The client, whose problem is bilevel.
        z: The point (x, y).
        xi: The independent samples of the derivatives, as many as `neumann_samples` returns.
        Q: The number of Hessian-vector products.
        theta: The step size of the Neumann sum, at most the inverse of the largest eigenvalue of the Hessian.
        term: The index, 0 to Q, of a randomly chosen term of the sum. This term, multiplied by Q + 1, replaces the sum. None: the
            sum of all terms is used.
    """
    (x, y), l = z, 1 / theta
    inverse: Inverse = partial(neumann_sum, N=Q, l=l)
    if term is not None:
        inverse = partial(neumann_term, N=Q + 1, l=l, chosen=term)
    return Vectors((client.hypergradient(x, y, xi, inverse), client.inner_gradient(x, y, xi[0])))


def neumann_samples(problem: Bilevel, Q: int) -> int:
    """Return the number of samples that `neumann_maps` needs on each client.

    Args:
        problem: The problem. If its hypergradient needs no Hessian-vector products, fewer samples suffice.
        Q: The number of Hessian-vector products of the Neumann sum.
    """
    return problem.hypergradient_samples(Q if problem.indirect and not problem.identity else 0)
