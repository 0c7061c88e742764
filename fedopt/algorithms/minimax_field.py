"""The field of a minimax problem, F_i(w) = (grad_x f_i, -grad_y f_i) at w = (x, y), and steps along it: descent in x, ascent in y.

Where F = mean F_i is zero, (x, y) is stationary. A correction of local steps is `plus` and `anchor`, as in
`Client.gradient_step_` on minimisation problems; `descend` of directions.py takes the step, and projects y.
"""

from typing import Any

from torch import Tensor

from fedopt.algorithms.vectors import Vectors
from fedopt.federation.client import Client

Etas = tuple[float, float]  # steps of x and of y


def minimax_field(
    client: Client, w: Vectors, xi: Any, plus: Vectors | None = None, anchor: Vectors | None = None
) -> Vectors:
    """Return F_i(w) - F_i(anchor) + plus on one sample; None leaves a term out. It counts as one gradient call, or two with an
    anchor.
    """
    x, y = w
    f_x, f_y = client.outer_gradients(x, y, xi)
    F = Vectors((f_x, -f_y))
    if anchor is not None:
        F = F - minimax_field(client, anchor, xi)
    return F if plus is None else F + plus


def moved(w: Vectors, direction: Vectors, eta: Etas) -> Vectors:
    """Return w - eta direction."""
    return Vectors(v.sub(d, alpha=e) for v, d, e in zip(w, direction, eta, strict=True))


def parts(row: Tensor, like: Vectors) -> Vectors:
    """Split a row of a memory, [dx + dy], into the x and y that it was made of."""
    return Vectors(row.split([v.numel() for v in like]))
