"""Count the oracle calls of a client or of a stack of clients."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

EXAMPLES = "_fedopt_examples"  # the attribute of a sample's first tensor that holds its numbers of examples


@dataclass
class Calls:
    """The oracle calls so far: gradients, Hessian-vector products and Jacobian-vector products, summed over clients.

    In bilevel problems, a Jacobian-vector product is a cross derivative times a vector. In compositional problems, it is a
    vector times the Jacobian of one level. A call on a sample of B examples adds 1 to the number of calls and B to the number
    of examples, such as ``grad`` and ``grad_examples``. Two objects are equal if their numbers of calls are; the numbers of
    examples are not compared.
    """

    grad: int = 0
    hvp: int = 0
    jvp: int = 0
    grad_examples: int = field(default=0, compare=False)
    hvp_examples: int = field(default=0, compare=False)
    jvp_examples: int = field(default=0, compare=False)


class Counter:
    """Counts the oracle calls of a stack of clients. All copies of a client share one counter.

    Args:
        calls: The oracle calls of the run, to which the calls of the stack are added.
        clients: The number of clients in the stack.

    Attributes:
        busy: Whether calls of each client count, ``[clients]``. They do not after the client has taken all its steps.
        points: The number of points that each client evaluates in parallel.
        depth: The number of nested derivatives that surround the current computation. Calls count only at depth 0.
    """

    def __init__(self, calls: Calls, clients: int):
        self.calls, self.busy, self.points, self.depth = calls, np.ones(clients, dtype=bool), 1, 0
        self._latest = np.ones(clients, dtype=np.int64)

    def hand_out(self, sample: Any, examples: np.ndarray) -> Any:
        """Attach the numbers of examples to a sample, and return the sample.

        Args:
            sample: The sample of the stack.
            examples: The number of examples of each client in it, ``[clients]``.
        """
        self._latest = _attributes(sample)[EXAMPLES] = examples
        return sample

    def count(self, sample: Any, grad: int = 0, hvp: int = 0, jvp: int = 0) -> None:
        """Count oracle calls on a sample.

        If a client function made the sample itself, the numbers of examples are the ones of the last sample that `hand_out`
        returned. A part of a sample that contains its first tensor counts as the complete sample.

        Args:
            sample: The sample. None: the last sample that `hand_out` returned.
            grad: The number of gradient calls.
            hvp: The number of Hessian-vector products.
            jvp: The number of Jacobian-vector products.
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
    """Return the attributes of the first leaf of a sample. This leaf stores the sample's numbers of examples."""
    while isinstance(sample, dict | list | tuple) and sample:
        sample = next(iter(sample.values() if isinstance(sample, dict) else sample))
    return getattr(sample, "__dict__", {})
