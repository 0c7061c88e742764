"""Real hyperparameters of several configurations that torch.func.vmap computes together."""

import operator
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


class Separate(Exception):
    """Configurations that are computed together must be separated.

    A condition has different results for them, or a hyperparameter is needed as one Python number.

    Args:
        answers: ``[P]``, the result of the condition, or the number, for each configuration. Configurations with equal answers
            can stay together.
    """

    def __init__(self, answers: np.ndarray):
        super().__init__("configurations take different branches")
        self.answers = answers


class Alone(Exception):
    """Configurations cannot be computed together, or that would not be faster. The message says why."""


class Place:
    """The index of the configuration that vmap computes."""

    def begin(self, index: Tensor) -> None:
        """Set the index of the configuration, a scalar tensor of the vmap that has begun."""
        self._index, self._known = index, dict[Any, tuple[Tensor, np.ndarray]]()

    def of(self, values: np.ndarray, like: Tensor) -> Tensor:
        """Return the value of the configuration that vmap computes, a scalar tensor with the type and the device of ``like``.

        Args:
            values: The values of all configurations that are computed together.
            like: A tensor.
        """
        real = like.dtype if like.dtype.is_floating_point else torch.get_default_dtype()
        key = id(values), real, like.device
        if key not in self._known:
            self._known[key] = torch.from_numpy(values).to(like.device, real)[self._index], values
        return self._known[key][0]


class Varied:
    """A real hyperparameter that differs between configurations.

    With Python numbers it computes what each configuration computes alone, in double precision. With a tensor it becomes a
    scalar tensor of that tensor's type.

    Args:
        values: ``[P]``, the value in each configuration.
        place: The index of the configuration that is computed.

    Raises:
        Separate: It is used in a condition that differs between configurations, or as one Python number.
    """

    def __init__(self, values: np.ndarray, place: Place):
        self.values, self.place = values, place

    def _with(self, operation: Callable[[Any, Any], Any], other: Any, swap: bool = False) -> Any:
        """Return ``operation(self, other)``: a scalar tensor, a `Varied`, or the answer to a comparison.

        Args:
            operation: The operation, such as `operator.mul`.
            other: A tensor, a number or a `Varied`.
            swap: Whether the arguments of the operation are exchanged.

        Raises:
            Separate: The answers to a comparison differ between configurations.
        """
        if isinstance(other, Tensor):
            mine = self.place.of(self.values, other)
            return operation(other, mine) if swap else operation(mine, other)
        if not isinstance(other, Varied | int | float | np.number):
            return NotImplemented
        others = other.values if isinstance(other, Varied) else other
        with np.errstate(all="ignore"):
            found = operation(others, self.values) if swap else operation(self.values, others)
        return _agreed(found) if found.dtype == bool else Varied(found, self.place)

    def __neg__(self) -> "Varied":
        return Varied(-self.values, self.place)

    def __bool__(self) -> bool:
        return _agreed(self.values != 0)

    __hash__ = None  # type: ignore[assignment]

    def __float__(self) -> float:
        if len(np.unique(self.values)) > 1:
            raise Separate(self.values)
        return float(self.values[0])

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
        like = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])

        def as_tensor(leaf: Any) -> Any:
            return leaf.place.of(leaf.values, like) if isinstance(leaf, Varied) else leaf

        keywords = dict(keywords or {})
        if factors := [name for name in ("alpha", "value") if isinstance(keywords.get(name), Varied)]:
            a, b, *others = arguments  # a + alpha b, a + value b / c
            arguments = (a, keywords.pop(factors[0]) * b, *others)
        return function(*tree_map(as_tensor, tuple(arguments)), **tree_map(as_tensor, keywords))


def _agreed(answers: np.ndarray) -> bool:
    """Return the one answer of all configurations, True or False. Raises Separate if they differ. answers: [P]."""
    if answers.all() or not answers.any():
        return bool(answers[0])
    raise Separate(answers)


for _name in ("add", "sub", "mul", "truediv", "pow", "lt", "le", "gt", "ge", "eq", "ne"):  # no __rlt__ is ever called
    setattr(Varied, f"__{_name}__", partialmethod(Varied._with, getattr(operator, _name)))
    setattr(Varied, f"__r{_name}__", partialmethod(Varied._with, getattr(operator, _name), swap=True))
