"""Counts of oracle calls: of one client, or of a stack of clients."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

EXAMPLES = "_fedopt_examples"  # the attribute of a sample's first tensor that holds its numbers of examples


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
        points: The number of points that each client evaluates in parallel.
        depth: The number of derivatives that are being taken of what is computed now. Calls inside them do not count.
    """

    def __init__(self, calls: Calls, clients: int):
        self.calls, self.busy, self.points, self.depth = calls, np.ones(clients, dtype=bool), 1, 0
        self._latest = np.ones(clients, dtype=np.int64)

    def hand_out(self, sample: Any, examples: np.ndarray) -> Any:
        """Return a sample that knows its numbers of examples, ``[clients]``."""
        self._latest = _attributes(sample)[EXAMPLES] = examples
        return sample

    def count(self, sample: Any, grad: int = 0, hvp: int = 0, jvp: int = 0) -> None:
        """Count gradients, Hessian-vector and Jacobian-vector products on a sample.

        A sample that a client function made counts as the one that was handed out last. A part with the first tensor of a
        sample counts as the whole sample.
        """
        if self.depth:
            return
        examples = _attributes(sample).get(EXAMPLES, self._latest)
        calls, number = self.calls, self.points * int(np.count_nonzero(self.busy))
        size = self.points * int(examples @ self.busy)
        calls.grad += grad * number
        calls.hvp += hvp * number
        calls.jvp += jvp * number
        calls.grad_examples += grad * size
        calls.hvp_examples += hvp * size
        calls.jvp_examples += jvp * size


def _attributes(sample: Any) -> dict[str, Any]:
    """Return the attributes of the first leaf of a sample, which keeps its numbers of examples."""
    while isinstance(sample, dict | list | tuple) and sample:
        sample = next(iter(sample.values() if isinstance(sample, dict) else sample))
    return getattr(sample, "__dict__", {})
