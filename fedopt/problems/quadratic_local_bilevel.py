"""The quadratic bilevel problem whose lower level belongs to each client, with closed forms.

    min_x sum_i p_i f_i(x, y_i*(x)),    y_i*(x) = argmin_y g_i(x, y) = A_i^-1 (B_i x + c_i)

f_i, g_i and their numbers are those of `quadratic_bilevel`, whose y* solves the mean of the g_i: the solutions differ unless
clients are equal.
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from fedopt.problems.classes import LocalBilevel
from fedopt.problems.quadratic_bilevel import NestedQuadratic


@dataclass(eq=False)
class QuadraticLocalBilevel(NestedQuadratic, LocalBilevel):
    """A quadratic bilevel problem in which each client has a lower level, and so a solution y_i*(x), of its own.

    delta: as in `Quadratic`, but below 1, where a client's A_i may be singular.
    """

    delta: Annotated[float, Field(ge=0, lt=1)] | None = field(default=None, kw_only=True, metadata={"before": None})

    each_client = True
