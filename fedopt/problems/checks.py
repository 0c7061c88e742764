"""Checks of a problem before a run: flat vectors, scalar objectives, and functions that do not modify their arguments."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedopt.errors import WrongFunction, gives
from fedopt.networks import FlatModule
from fedopt.problems.classes import (
    CLASSES,
    Composition,
    Constrained,
    Hierarchical,
    Minimax,
    Minimisation,
    MultiObjective,
    Nested,
    Problem,
    class_of,
    name,
)
from fedopt.problems.function import marked
from fedopt.randomness import untouched

# A function, its arguments, and the shape that its result must have
Call = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def check(problem: Problem) -> None:
    """Try the functions of a problem on two examples of its first client.

    Args:
        problem: The problem.

    Raises:
        UserError: A function returns something other than a tensor of the required shape and type, modifies its arguments,
            or uses random numbers that do not follow the seed; or splits are missing.
    """
    _check_splits(problem)
    _refuse_uncalled(problem)
    start = _start(problem)
    rows = {split: torch.from_numpy(of[0][:2]).to(start[0].device) for split, of in problem.splits.items()}
    weighted = {split: (of, start[0].new_full(of.shape, 1 / len(of))) for split, of in rows.items()}
    with untouched(problem.sample, weighted):
        sample = problem.sample(0, weighted)
    if arrays := [leaf for leaf in tree_leaves(sample) if isinstance(leaf, np.ndarray)]:
        raise gives(problem.sample, arrays[0], "tensors, such as self.world.tensor(array)")
    if problem.random:
        sample = problem.keyed(sample, torch.zeros((), dtype=torch.int64, device=start[0].device))
    dropping = [value for value in vars(problem).values() if isinstance(value, FlatModule) and value.random]
    with torch.no_grad():
        for function, arguments, shape in _calls(problem, start, sample):
            with untouched(function, arguments):
                found = function(*arguments)
            if not isinstance(found, Tensor) or found.shape != shape:
                wanted = f"of shape {list(shape)}" if shape else "of one number, [], such as a mean over the examples"
                raise gives(function, found, f"a tensor {wanted}")
            if problem.world.autocast is None:
                _check_type(function, found, problem.world.dtype)
        if dropping and not dropping[0].module.training:  # after the last function in _calls, which is g or f
            raise WrongFunction(function, "calls its network without *batch.keys, which turns off dropout; add it")
        if isinstance(problem, Nested) and not problem.direct:
            (x, y), by_x = start, problem.f
            if not torch.equal(by_x(x, y, sample), by_x(x + 1, y, sample)):
                raise WrongFunction(by_x, "depends on x, but the class has direct = False; delete that line")


def measured(problem: Problem, original: Problem, point: Sequence[Tensor]) -> dict[str, float]:
    """Return the value of each metric at a point, in the order of ``metrics``. All values are nan if the point is not finite.

    Args:
        problem: The problem, possibly reduced to another class.
        original: The problem before any reduction; messages name its `evaluate`.
        point: The variables.

    Raises:
        UserError: `evaluate` does not return exactly one number for each metric.
    """
    names = [metric.name for metric in problem.metrics]
    values = problem.evaluate(*point) if all(v.isfinite().all() for v in point) else dict.fromkeys(names, math.nan)
    found = [*values] if isinstance(values, dict) else [str(values)]
    if {*found} != {*names}:
        fault = f"returns {', '.join(found)}, but the class declares the metrics {', '.join(names)}"
        raise WrongFunction(original.evaluate, f"{fault}; return exactly these")
    if several := [name for name, value in values.items() if np.ndim(value) != 0]:
        raise WrongFunction(original.evaluate, f"returns several numbers as {several[0]}; return one float per metric")
    return {name: float(values[name]) for name in names}


def _start(problem: Problem) -> tuple[Tensor, ...]:
    """Call the problem's ``start``, and return the initial point.

    Args:
        problem: The problem.

    Raises:
        UserError: The point is not a tuple of flat vectors of the required type, one for each variable.
    """
    with untouched(problem.start, ()):
        start = problem.start()
    count = 2 if isinstance(problem, Nested | Minimax) else 1
    tensors = isinstance(start, tuple) and all(isinstance(v, Tensor) for v in start)
    if tensors and (shaped := [v for v in start if v.ndim != 1]):
        raise gives(problem.start, shaped[0], "flat vectors, such as v.flatten(), which v.view(shape) undoes in f")
    if not tensors or len(start) != count:
        raise gives(problem.start, start, "(x, y), two vectors" if count == 2 else "(x,), a tuple of one vector")
    for vector in start:
        _check_type(problem.start, vector, problem.world.dtype)
    return start


def _refuse_uncalled(problem: Problem) -> None:
    """Raise UserError if the problem defines a function or attribute that only other problem classes use.

    Hyperparameters (dataclass fields) may have any name.

    Args:
        problem: The problem.
    """
    cls, kind = type(problem), class_of(problem)
    for attribute in sorted({*dir(cls)} - {*dir(kind)} - {field.name for field in fields(cls)} - {*marked(problem)}):
        if users := ", ".join(name(other) for other in CLASSES if hasattr(other, attribute)):
            value = getattr(cls, attribute)
            fault = f"has {attribute}, which only {users} problems use, not {name(kind)} problems"
            raise WrongFunction(value if callable(value) else cls, f"{fault}; rename it, or subclass another class")


def _check_splits(problem: Problem) -> None:
    """Raise UserError if the problem lacks the split ``train``, or a split whose examples f or g use.

    Args:
        problem: The problem.
    """
    splits = getattr(problem, "splits", ())
    uses = {"f": problem.f_split, "g": problem.g_split} if isinstance(problem, Nested) else {}
    for function, split in uses.items():
        if split not in splits and "train" in splits:
            why = f"evaluates {function} on the split {split}, and self.splits has {', '.join(splits)}"
            raise WrongFunction(type(problem), f"{why}; set {function}_split to one of them, or add the split")
    if "train" not in splits:
        raise WrongFunction(type(problem), "has no splits; in __post_init__, set self.splits = self.world.split(n)")


def _calls(problem: Problem, start: tuple[Tensor, ...], sample: Any) -> Iterator[Call]:
    """Yield the functions of a problem that `check` tries, with arguments.

    Args:
        problem: The problem.
        start: Its initial point.
        sample: A sample of one client.

    Yields:
        A function, its arguments, and the shape that its result must have.
    """
    x = start[0]
    if isinstance(problem, Constrained | MultiObjective) and "h" not in marked(problem):
        raise WrongFunction(problem.h, "is not decorated with @oracle(K), where K is the number of its values")
    yield from ((getattr(problem, name), (x, sample), (K,)) for name, K in marked(problem).items())
    if isinstance(problem, Hierarchical):
        yield problem.f1, (x, problem.server_sample(np.random.default_rng(0), 1)), ()
        yield problem.f2, (x, x, sample), ()
        yield problem.h, (x, x, sample), ()
    elif isinstance(problem, Composition):
        shapes = [*((dim,) for dim in problem.dims), ()]
        for n, dim in enumerate(problem.dims):
            yield partial(problem.level, n), (x.new_zeros(dim), sample), shapes[n + 1]
    elif isinstance(problem, Minimisation | Nested | Minimax | Constrained):
        yield problem.f, (*start, sample), ()
        if isinstance(problem, Nested):
            yield problem.g, (*start, sample), ()


def _check_type(function: Callable[..., Any], found: Tensor, dtype: torch.dtype) -> None:
    """Raise UserError if the numbers in a result do not have the type of the run.

    Args:
        function: The function that returned the result.
        found: The result.
        dtype: The type of numbers of the run (``hardware.dtype``).
    """
    if found.dtype != dtype:
        remedy = "create tensors with self.world.tensor(array) or torch.zeros_like(x)"
        raise WrongFunction(function, f"returns {found.dtype}, but hardware.dtype is {dtype}; {remedy}")
