"""The gradient field of a minimax problem, F_i(w) = (grad_x f_i, -grad_y f_i) at w = (x, y).

A step along -F_i descends in x and ascends in y. The point w is stationary if the mean of F_i(w) over clients is zero.
The arguments `plus` and `anchor` correct local steps. The step itself, with the projection of y, is `descend` in directions.py.
"""

from collections.abc import Sequence

from fedopt.federation import Client, Sample
from fedopt.toolbox.vectors import Vectors


def minimax_field(
    client: Client, w: Vectors, xi: Sample, plus: Vectors | None = None, anchor: Vectors | None = None
) -> Vectors:
    """Return the direction of a corrected descent-ascent step on one sample, with the shapes of (x, y)::

        F_i(w) - F_i(anchor) + plus,    where F_i(w) = (grad_x f_i(w), -grad_y f_i(w))

    It counts as one gradient call, or as two calls with an anchor.

    Args:
        client: The client, whose problem is a minimax problem.
        w: The point (x, y).
        xi: The sample on which f_i is evaluated, at both points.
        plus: Vectors that are added, with the shapes of (x, y). None: nothing is added.
        anchor: The point (x, y) at which the subtracted F_i is taken. None: nothing is subtracted.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=local_sgda", "problem=quadratic_minimax"]))
        >>> w, fed = fedopt.Vectors(experiment.problem.start()), experiment.federation.at(0)
        >>> def client_fn(client, w):
        ...     return fedopt.minimax_field(client, w, client.sample("xi"))
        >>> F = fed.exchange(client_fn, w, fed.everyone(), xi=fedopt.Steps(1, None))
        >>> [len(direction) for direction in F]
        [4, 3]
    """
    x, y = w
    f_x, f_y = client.outer_gradients(x, y, xi)
    F = Vectors((f_x, -f_y))
    if anchor is not None:
        F = F - minimax_field(client, anchor, xi)
    return F if plus is None else F + plus


def descent_ascent_(client: Client, w: Vectors, xi: Sample, steps: Sequence[float]) -> Vectors:
    """Take a step of gradient descent in x and of projected gradient ascent in y, and return the new point::

        x - eta_x grad_x f_i(x, y),    P_Y(y + eta_y grad_y f_i(x, y))

    It counts as one gradient call. If x or y was itself returned by a step, it may be overwritten, so do not use w afterwards.

    Args:
        client: The client, whose problem is a minimax problem.
        w: The point (x, y).
        xi: The sample on which f_i is evaluated.
        steps: The step sizes eta_x and eta_y.
    """
    x, y = w
    x, f_y = client.outer_step_(x, y, xi, steps[0])
    return Vectors((x, client.project(client.moved_(y, f_y, -steps[1]))))
