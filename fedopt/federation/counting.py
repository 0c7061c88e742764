"""Counts of oracle calls: of one client, or of a stack of clients at once."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Calls:
    """The oracle calls so far: gradients, Hessian-vector products and Jacobian-vector products, summed over clients.

    A Jacobian-vector product is a cross derivative times a vector in bilevel problems. In compositional ones it is a vector
    times the Jacobian of one level. A call on a sample of B examples adds B to the second count of its kind.
    Counters of the same calls are equal.
    """

    grad: int = 0
    hvp: int = 0
    jvp: int = 0
    grad_examples: int = field(default=0, compare=False)
    hvp_examples: int = field(default=0, compare=False)
    jvp_examples: int = field(default=0, compare=False)


class Counter:
    """Counts the oracle calls of a stack of clients. All copies of a client share one.

    Args:
        calls: What the calls are added to.
        clients: The number of clients in the stack.

    Attributes:
        busy: The clients that a call counts for, ``[clients]``; the others have taken all their steps.
        points: The number of points of each client at which is computed at once.
        depth: The number of derivatives that are being taken of what is computed now. Calls inside them do not count.
    """

    def __init__(self, calls: Calls, clients: int):
        self.calls, self.busy, self.points, self.depth = calls, np.ones(clients, dtype=bool), 1, 0
        self._latest = np.ones(clients, dtype=np.int64)

    def hand_out(self, sample: Any, examples: np.ndarray) -> Any:
        """Return a sample that knows its numbers of examples, ``[clients]``."""
        attributes, name = _mark(sample)
        self._latest = attributes[name] = examples
        return sample

    def count(self, sample: Any, grad: int = 0, hvp: int = 0, jvp: int = 0) -> None:
        """Count gradients, Hessian-vector and Jacobian-vector products on a sample.

        A sample that a client function made, or a part of one, counts as the one that was handed out last.
        """
        if self.depth:
            return
        attributes, name = _mark(sample)
        examples = attributes.get(name, self._latest)
        calls, number = self.calls, self.points * int(np.count_nonzero(self.busy))
        size = self.points * int(examples @ self.busy)
        calls.grad += grad * number
        calls.hvp += hvp * number
        calls.jvp += jvp * number
        calls.grad_examples += grad * size
        calls.hvp_examples += hvp * size
        calls.jvp_examples += jvp * size


def _mark(sample: Any) -> tuple[dict[str, Any], str]:
    """Return where a sample keeps its numbers of examples: the attributes of the first leaf, and the name of one of them.

    The name has the depth of the leaf, so that a part of a sample is another sample.
    """
    depth = 0
    while isinstance(sample, dict | list | tuple) and sample:
        sample, depth = next(iter(sample.values() if isinstance(sample, dict) else sample)), depth + 1
    return getattr(sample, "__dict__", {}), f"_fedopt_examples_{depth}"
