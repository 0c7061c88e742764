"""The quadratic of two levels in which each client has a composition of its own: f_i^0 and f_i^1 are those of
`quadratic_compositional`, and the objective is the mean of f_i^1(f_i^0(x)).

The gradient is mean_i A_i' (Q_i (A_i x + c_i) - e_i), linear in x. The solution is another one unless clients are equal.
"""

from dataclasses import dataclass

from fedopt.problems.classes import LocalCompositional
from fedopt.problems.quadratic_compositional import QuadraticComposition


@dataclass(eq=False)
class QuadraticLocalCompositional(QuadraticComposition, LocalCompositional):
    """A quadratic composition for each client. The keys are those of `QuadraticComposition`."""

    each_client = True
