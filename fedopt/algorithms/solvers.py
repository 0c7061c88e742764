"""The local solvers of Fed-Norm-SGDA, with momentum, a proximal term and decaying step sizes, and the weights of their gradients.

Notation
    a_i, |a_i|_1    the weights of client i's local gradients in its last iterate, and the sum of these weights [Sharma, Panda &
                    Joshi 2023, App. A.1]
    d_x, d_y        the directions of the solver, which are the momenta of grad_x f and of -grad_y f
    m               the value that a direction would have if all gradients were 1
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedopt.federation import Client, Sample
from fedopt.toolbox import Tensors, moved

Etas = tuple[float, float]  # the step sizes of x and of y in the first local step
Gradients = Callable[[Tensor, Tensor, Sample], tuple[Tensor, Tensor]]


class Solver(NamedTuple):
    """A local solver. Each value is a number, or an array with one number per client. SGD is (0, 0, 1).

    Attributes:
        rho: The momentum.
        mu: The proximal coefficient.
        decay: The factor of the step size from one step to the next.
    """

    rho: Any
    mu: Any
    decay: Any

    @property
    def is_sgd(self) -> bool:
        """Whether the solver is plain SGD. Then |a|_1 is the number of steps."""
        return all(isinstance(value, float) for value in self) and tuple(self) == (0, 0, 1)

    def local_steps(self, client: Client, gradients: Gradients, x: Tensor, y: Tensor, etas: Etas) -> Tensors:
        """Take the local steps of a client, and return x_i, y_i, u_i, and the sums |a_i|_1 of gradient weights for x and for y.

        The point u_i moves as y_i does, but is not projected.

        Args:
            client: The client.
            gradients: ``gradients(x_i, y_i, xi)``, which returns (grad_x f, grad_y f).
            x: The initial x, ``[dx]``.
            y: The initial y, ``[dy]``.
            etas: The step sizes of x and y in the first step.
        """

        def step(carry: Tensors, xi: Sample, k: int) -> Tensors:
            x_i, y_i, u_i, d_x, d_y, a_x, a_y, m = carry
            (g_x, g_y), (eta_x, eta_y) = gradients(x_i, y_i, xi), etas
            d_x, d_y, m = moved(g_x, d_x, -self.rho), moved(-g_y, d_y, -self.rho), self.rho * m + 1
            x_i = self.moved_(client, x_i, x, d_x, k, eta_x)
            y_i = client.project(self.moved_(client, y_i, y, d_y, k, eta_y))
            u_i = self.moved_(client, u_i, y, d_y, k, eta_y)
            return x_i, y_i, u_i, d_x, d_y, self.norm(a_x, m, k, eta_x), self.norm(a_y, m, k, eta_y), m

        zero = y.new_zeros(())
        start: Tensors = (x, y, y, 0 * x, 0 * y, zero, zero, zero)
        x_i, y_i, u_i, _, _, *norms, _ = client.scan("local", step, start, lambda k: k)
        return x_i, y_i, u_i, *norms

    def moved_(self, client: Client, z: Tensor, start: Tensor, d: Tensor, k: int, eta: float) -> Tensor:
        """Take a local step along -d, and return the new z. If z was itself returned by a step, it may be overwritten.

        Args:
            client: The client.
            z: The point before the step.
            start: The point before the first local step, towards which the proximal term pulls.
            d: The direction.
            k: The index of the local step, from 0.
            eta: The step size in the first step.
        """
        pulled = z if isinstance(self.mu, float) and self.mu == 0 else start + (1 - eta * self.mu) * (z - start)
        return client.moved_(pulled, d, eta * self.decay**k)

    def norm(self, a: Any, m: Any, k: int, eta: Any) -> Any:
        """Return |a|_1, the sum of the weights of all gradients so far in the iterate, after local step k.

        Args:
            a: |a|_1 before the step.
            m: The value that the direction of the step would have if all gradients were 1.
            k: The index of the step, from 0.
            eta: The step size in the first step.
        """
        return (1 - eta * self.mu) * a + self.decay**k * m

    def norms(self, steps: np.ndarray, etas: Etas) -> np.ndarray:
        """Return |a_i|_1, the sum of the weights of a client's gradients, for x and for y of each client, ``[2, n]``.

        Args:
            steps: The number of local steps of each client, ``[n]``.
            etas: The step sizes of x and y in the first step.
        """
        a, m, eta = np.zeros((2, len(steps))), np.zeros(len(steps)), np.array(etas)[:, None]
        for k in range(steps.max()):
            m = self.rho * m + 1
            a = np.where(k < steps, self.norm(a, m, k, eta), a)
        return a
