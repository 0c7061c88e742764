"""The quadratic bilevel problem in which each client has its own lower level, with closed forms.

The problem is::

    min_x  sum_i p_i f_i(x, y_i*(x))    with    y_i*(x) = argmin_y g_i(x, y) = A_i^-1 (B_i x + c_i)

The functions f_i and g_i have the same random terms as in `quadratic_bilevel`, where y* minimises the mean of the g_i.
The two problems have different solutions unless all clients are equal.
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from fedopt.problems.classes import LocalBilevel
from fedopt.problems.quadratic_bilevel import NestedQuadratic


@dataclass(eq=False)
class QuadraticLocalBilevel(NestedQuadratic, LocalBilevel):
    """A quadratic bilevel problem in which each client has its own lower level and its own solution y_i*(x).

    `NestedQuadratic` describes the arguments that are not listed here.

    Args:
        delta: Heterogeneity around a fixed mean problem (see `Quadratic`). It must be below 1, because an A_i could be singular
            otherwise.
    """

    delta: Annotated[float, Field(ge=0, lt=1)] | None = field(default=None, kw_only=True, metadata={"before": None})

    each_client = True
