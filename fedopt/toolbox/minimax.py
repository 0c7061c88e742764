"""The field of a minimax problem, F_i(w) = (grad_x f_i, -grad_y f_i) at w = (x, y).

Steps along -F descend in x and ascend in y. If F = mean F_i is zero, (x, y) is stationary. A correction of local steps is
`plus` and `anchor`, as in `Client.gradient_step_` on minimisation problems. `descend` of directions.py takes the step, and
projects y.
"""

from collections.abc import Sequence

from fedopt.federation import Client, Sample
from fedopt.toolbox.vectors import Vectors


def minimax_field(
    client: Client, w: Vectors, xi: Sample, plus: Vectors | None = None, anchor: Vectors | None = None
) -> Vectors:
    """Return F_i(w) - F_i(anchor) + plus on one sample, for F_i = (grad_x f_i, -grad_y f_i).

    It counts as one gradient call, or two with an anchor.

    Args:
        client: The client, of a minimax problem.
        w: The point (x, y).
        xi: The sample.
        plus: A term (x, y) that is added; None for no term.
        anchor: The point (x, y) whose field, on the same sample, is subtracted; None for no such term.

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
    """Return w = (x, y) after a step of gradient descent in x and of projected ascent in y, both from the old point.

    It counts as one gradient call, and may overwrite w, as `Client.moved_` may overwrite a point.

    Args:
        client: The client, of a minimax problem.
        w: The point (x, y).
        xi: The sample.
        steps: The step sizes of x and y.
    """
    x, y = w
    x, f_y = client.outer_step_(x, y, xi, steps[0])
    return Vectors((x, client.project(client.moved_(y, f_y, -steps[1]))))
