"""Real hyperparameters of several configurations that are computed together by vmap."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

_place: Tensor | None = None  # under vmap the index of the configuration


class Separate(Exception):
    """Configurations take different branches.

    Args:
        answers: ``[P]``, the branch that each configuration takes, True or False.
    """

    def __init__(self, answers: np.ndarray):
        super().__init__("configurations take different branches")
        self.answers = answers


class Alone(Exception):
    """Configurations that cannot be computed together, or not faster. The message says why."""


@contextmanager
def together(place: Tensor) -> Iterator[None]:
    """Compute for several configurations: under vmap, ``place`` is the index of each one, a scalar tensor."""
    global _place
    _place = place
    try:
        yield
    finally:
        _place = None


def is_together() -> bool:
    """Tell whether several configurations are being computed."""
    return _place is not None


class Varied:
    """A real hyperparameter that differs between configurations.

    Together with Python numbers it computes as each configuration does by itself, in double precision. Together with a tensor
    it is a scalar tensor of that tensor's type. A condition must have the same truth value for all configurations.

    Args:
        values: ``[P]``, the value in each configuration.

    Raises:
        Separate: A condition differs between configurations.
    """

    def __init__(self, values: np.ndarray):
        self.values = values

    def like(self, tensor: Tensor) -> Tensor:
        """Return the value of the configuration at hand as a scalar tensor of a tensor's type and device."""
        assert _place is not None, "Varied is used outside of together()"
        real = tensor.dtype if tensor.dtype.is_floating_point else torch.get_default_dtype()
        return torch.from_numpy(self.values).to(tensor.device, real)[_place]

    def _with(self, operation: Callable[[Any, Any], Any], other: Any, swap: bool = False) -> Any:
        if isinstance(other, Tensor):
            mine = self.like(other)
            return operation(other, mine) if swap else operation(mine, other)
        if not isinstance(other, Varied | int | float | np.number):
            return NotImplemented
        theirs = other.values if isinstance(other, Varied) else other
        with np.errstate(all="ignore"):
            found = operation(theirs, self.values) if swap else operation(self.values, theirs)
        return agreed(found) if found.dtype == bool else Varied(found)

    def __bool__(self) -> bool:
        return agreed(self.values != 0)

    def __neg__(self) -> "Varied":
        return Varied(-self.values)

    def __abs__(self) -> "Varied":
        return Varied(np.abs(self.values))

    def __float__(self) -> float:
        raise Separate(self.values == self.values[0])

    __int__ = __index__ = __hash__ = __float__  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
        tensor = next((one for one in tensors if one.is_floating_point()), tensors[0])

        def as_tensor(leaf: Any) -> Any:
            return leaf.like(tensor) if isinstance(leaf, Varied) else leaf

        keywords = dict(keywords or {})
        if factors := [name for name in ("alpha", "value") if isinstance(keywords.get(name), Varied)]:
            a, b, *others = arguments  # a + alpha b, a + value b / c
            arguments = (a, keywords.pop(factors[0]) * b, *others)
        return function(*tree_map(as_tensor, tuple(arguments)), **tree_map(as_tensor, keywords))


def _method(operation: Callable[[Any, Any], Any], swap: bool = False) -> Callable[[Varied, Any], Any]:
    return lambda self, other: self._with(operation, other, swap)


for _name in ("add", "sub", "mul", "truediv", "pow", "lt", "le", "gt", "ge", "eq", "ne"):
    _operation = getattr(__import__("operator"), _name)
    setattr(Varied, f"__{_name}__", _method(_operation))
    if _name in ("add", "sub", "mul", "truediv", "pow"):
        setattr(Varied, f"__r{_name}__", _method(_operation, swap=True))


def agreed(answers: np.ndarray) -> bool:
    """Return the one answer of all configurations. Raises Separate if they differ. answers: [P], True or False."""
    if answers.all() or not answers.any():
        return bool(answers[0])
    raise Separate(answers)
