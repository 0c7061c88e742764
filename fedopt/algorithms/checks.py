"""Checks of an algorithm, which run once: on its first state and on its first step."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from fedopt.algorithms import Algorithm
from fedopt.errors import WrongFunction, gives
from fedopt.federation import Memory, Round
from fedopt.problems import Problem
from fedopt.randomness import untouched


def first_state(algorithm: Algorithm, problem: Problem) -> Any:
    """Call the algorithm's `init`, check the initial state, and return it.

    Args:
        algorithm: The algorithm.
        problem: The problem.

    Raises:
        UserError: The state is not a NamedTuple or has a wrong dtype, or `output` does not return a point of the problem.
    """
    with untouched(algorithm.init, ()):
        state = algorithm.init(problem)
    if not hasattr(state, "_fields"):
        raise gives(algorithm.init, state, "a NamedTuple of tensors")
    point, start = algorithm.output(state), problem.start()
    for name, leaf in _named(state):
        real = isinstance(leaf, Tensor | Memory) and (leaf.dtype.is_floating_point or leaf.dtype.is_complex)
        if real and leaf.dtype != (wanted := start[0].dtype):
            remedy = f"hardware.dtype is {wanted}; create it with torch.zeros_like(x), which has the type of x"
            raise WrongFunction(algorithm.init, f"returns {name} of {leaf.dtype}, but {remedy}")
    shapes = [[*v.shape] for v in start]
    found = [[*getattr(v, "shape", ())] for v in point] if isinstance(point, tuple) else []  # it may have only x
    if not found or found[: len(start)] != shapes[: len(found)]:
        raise gives(algorithm.output, point, f"a point of the problem, a tuple of tensors of shapes {shapes}")
    return state


def first_step(algorithm: Algorithm, state: Any, problem: Problem, fed: Round) -> Any:
    """Call the algorithm's `step` for the first time, check the new state, and return it.

    Args:
        algorithm: The algorithm.
        state: The state before the round.
        problem: The problem.
        fed: The round.

    Raises:
        UserError: The new state has different fields, shapes or dtypes from the old state, or `step` has changed the old state.
    """
    with untouched(algorithm.step, [leaf for _, leaf in _named(state) if isinstance(leaf, Tensor)]):
        new = algorithm.step(state, problem, fed)
    leaves, structure = _flat(new)
    if structure != _flat(state)[1]:
        raise gives(algorithm.step, new, f"a {type(state).__name__} of the same structure as the one that init returns")
    for (name, was), now in zip(_named(state), leaves, strict=True):
        if _kind(was) != _kind(now):
            change = f"changes {name} from {_kind(was)} to {_kind(now)}"
            raise WrongFunction(algorithm.step, f"{change}; a state must keep the shapes that init gives it")
    return new


def _flat(value: Any) -> tuple[list[Any], Any]:
    """Return a list of the tensors, memories and numbers in a value, and the structure of the value.

    A `Memory` counts as one leaf. It is not converted to a tensor, which might not fit into memory.

    Args:
        value: A state of an algorithm, or a field of one.
    """
    return tree_flatten(value, is_leaf=lambda leaf: isinstance(leaf, Memory))


def _named(state: Any) -> list[tuple[str, Any]]:
    """Return the tensors, memories and numbers of a state, each with the name of its field, such as s.x.

    Args:
        state: The state, a NamedTuple.
    """
    return [(f"s.{name}", leaf) for name in state._fields for leaf in _flat(getattr(state, name))[0]]


def _kind(leaf: Any) -> str:
    if not isinstance(leaf, Tensor | Memory):
        return f"a {type(leaf).__name__}"
    return f"{'a Memory ' if isinstance(leaf, Memory) else ''}{list(leaf.shape)} of {leaf.dtype}"
