"""Reductions of one problem class to another, for example from minimax problems to bilevel problems."""

from abc import update_abstractmethods
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedopt.errors import UserError
from fedopt.problems.classes import (
    CLASSES,
    Bilevel,
    Compositional,
    Constrained,
    LocalCompositional,
    Minimax,
    Minimisation,
    Problem,
    Rows,
    TwoLevel,
    class_of,
    name,
)
from fedopt.problems.function import marked, scales


class _Reduced(Problem):
    """Base class of reductions: a problem in the form of another problem class.

    Attributes that a reduction does not define are taken from the original problem.

    Args:
        original: The original problem.
    """

    source: ClassVar[type[Problem]]

    def __init__(self, original: Any):
        self.original = original


# The reduced class defines the variables
for _name in {*vars(Problem), *Problem.__annotations__, "world"} - {"variables"}:
    if not _name.startswith("_"):
        setattr(_Reduced, _name, property(attrgetter(f"original.{_name}")))
update_abstractmethods(_Reduced)  # type: ignore[type-abstract]


class MinimaxAsBilevel(_Reduced, Bilevel):
    """A minimax problem as a bilevel problem.

    The inner objective is::

        g_i = -f_i

    The hypergradient is grad_x f at y*(x), since grad_y f is zero there.
    """

    source = Minimax
    indirect = False
    f_split = "train"

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return self.original.f(x, y, sample)

    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return -self.original.f(x, y, sample)

    def project(self, y: Tensor) -> Tensor:
        return self.original.project(y)


class ConstrainedAsMinimax(_Reduced, Minimax):
    """A constrained problem as a minimax problem, whose variable y contains the multipliers of the constraints.

    The functions are::

        f_i(x, y) = f_i(x) + sum_k y_k c_ik h_ik(x),    0 <= y_k <= largest_multiplier

    with the factors c of `scales`, or 1. The problem is linear, hence not strongly concave, in y.
    """

    source = Constrained

    def start(self) -> tuple[Tensor, ...]:
        (x,) = self.original.start()
        return x, x.new_zeros(marked(self.original)["h"])

    def sample(self, client: int | Tensor, rows: Rows) -> Any:
        c = scales(self.original, "h")
        return self.original.sample(client, rows), 1.0 if c is None else c[client]

    def keyed(self, sample: Any, key: Tensor) -> Any:
        return self.original.keyed(sample[0], key), sample[1]

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        of_client, c = sample
        return self.original.f(x, of_client) + y @ (c * self.original.h(x, of_client))

    def project(self, y: Tensor) -> Tensor:
        return y.clamp(0, self.original.largest_multiplier)


class TwoLevelAsBilevel(_Reduced, Bilevel):
    """A composition of two levels as a bilevel problem.

    The functions are::

        f_i(y) = f_i^1(y)    g_i(x, y) = 1/2 |y - f_i^0(x)|^2

    The solution of the lower level is y*(x) = F^0(x).
    """

    source = TwoLevel
    direct = False
    identity = True
    f_split = "train"

    def start(self) -> tuple[Tensor, ...]:
        (x,) = self.original.start()
        return x, x.new_zeros(self.original.dims[1])

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return self.original.level(1, y, sample)

    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return 0.5 * torch.sum((y - self.original.level(0, x, sample)) ** 2)


class MinimisationAsCompositional(_Reduced, Compositional):
    """A minimisation problem as a composition with a single level, f_i^0 = f_i."""

    source = Minimisation
    dims = property(lambda self: (self.original.start()[0].numel(),))

    def level(self, n: int, z: Tensor, sample: Any) -> Tensor:
        return self.original.f(z, sample)


class LocalCompositionalAsMinimisation(_Reduced, Minimisation):
    """Local compositions as a minimisation problem: all levels are evaluated on the same sample.

    The gradient is biased unless the sample contains all of the client's examples.
    """

    source = LocalCompositional

    def f(self, x: Tensor, sample: Any) -> Tensor:
        for n in range(len(self.original.dims)):
            x = self.original.level(n, x, sample)
        return x


class MinimisationAsBilevel(_Reduced, Bilevel):
    """A minimisation problem as a bilevel problem in which y has dimension 0.

    Only the outer part of a method remains [FedNest, Sec. 3.3].
    """

    source = Minimisation
    variables = ("x",)
    indirect = False
    nested = False
    own_models = False  # methods for bilevel problems train none
    f_split = "train"

    def start(self) -> tuple[Tensor, ...]:
        (x,) = self.original.start()
        return x, x.new_zeros(0)

    def solution(self) -> tuple[Tensor, ...] | None:
        solution = self.original.solution()
        return solution and (*solution, self.start()[1])

    def f(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return self.original.f(x, sample)

    def g(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return torch.sum(y)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        return self.original.evaluate(point[0])

    def clients_table(self, *point: Tensor) -> Mapping[str, np.ndarray]:
        return self.original.clients_table(point[0])


# If an algorithm solves both target classes, the first reduction is used
REDUCTIONS: tuple[type[_Reduced], ...] = (
    ConstrainedAsMinimax,
    MinimaxAsBilevel,
    TwoLevelAsBilevel,
    MinimisationAsCompositional,
    MinimisationAsBilevel,
    LocalCompositionalAsMinimisation,
)


def covered(solves: tuple[type[Problem], ...]) -> set[str]:
    """Return the names of the problem classes that an algorithm solves, directly or through a reduction.

    Args:
        solves: The problem classes that the algorithm declares.
    """
    kinds = (*solves, *(reduction.source for reduction in REDUCTIONS if issubclass(reduction, solves)))
    return {name(c) for c in CLASSES if issubclass(c, kinds)}


def fits(cls: type) -> list[str]:
    """Return the names of the problem classes that a class fits, in the order of `CLASSES`.

    Args:
        cls: The class of an algorithm or of a problem. An algorithm fits all problem classes that it can solve, and a problem fits
            the one class that it belongs to. `Problem` itself fits all classes.
    """
    if issubclass(cls, Problem) and cls is not Problem:
        return [name(class_of(cls))]
    return [kind for kind in map(name, CLASSES) if kind in covered(getattr(cls, "solves", (cls,)))]


def projects(problem: type[Problem], algorithm: Any) -> bool:
    """Return whether an algorithm respects the problem's constraint set of x; True if the problem has none.

    Args:
        problem: The class of the problem, which constrains x if it defines ``project_x``.
        algorithm: The algorithm or its class.
    """
    return problem.project_x is Problem.project_x or getattr(algorithm, "projects_x", False)


def reduce(problem: Problem, solves: tuple[type[Problem], ...]) -> Problem:
    """Return the problem itself if an algorithm solves its class, otherwise its reduction to a class that the algorithm solves.

    Args:
        problem: The problem.
        solves: The problem classes that the algorithm declares.

    Raises:
        UserError: There is no such reduction.
    """
    if isinstance(problem, solves):
        return problem
    for reduction in REDUCTIONS:
        if isinstance(problem, reduction.source) and issubclass(reduction, solves):
            return reduction(problem)
    kinds, found = ", ".join(sorted(covered(solves))), f"{type(problem).__name__} is {name(class_of(problem))}"
    raise UserError(f"the algorithm solves {kinds} problems, and {found}; choose another algorithm or problem")
