"""The quadratic composition of two levels in which each client has its own composition.

The problem is::

    min_x  mean_i f_i^1(f_i^0(x))

The functions are the same as in `quadratic_compositional`. The gradient is linear in x::

    mean_i A_i' (Q_i (A_i x + c_i) - e_i)

The two problems have different solutions unless all clients are equal.
"""

from dataclasses import dataclass

from fedopt.problems.classes import LocalCompositional
from fedopt.problems.quadratic_compositional import QuadraticComposition


@dataclass(eq=False)
class QuadraticLocalCompositional(QuadraticComposition, LocalCompositional):
    """A quadratic composition for each client. `QuadraticComposition` describes the arguments."""

    each_client = True
