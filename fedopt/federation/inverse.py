"""Estimates of H^-1 b, for a Hessian H that is known only by its products with vectors."""

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor, int], Tensor]  # H v from v; the n-th one asked for, n = 0, 1, ..., may be of another sample


def neumann_sum(product: Product, b: Tensor, N: int, l: float) -> Tensor:
    """Return (1/l) sum_{n <= N} (I - H/l)^n b, which tends to H^-1 b as N grows [LocalBSG eq. 3.3].

    H must be positive definite. The sum has the N + 1 terms n = 0, ..., N.

    Args:
        product: ``product(v, n)``, the n-th product H v, n = 0, ..., N - 1.
        b: The vector, ``[d]``.
        N: The number of products.
        l: A number that no eigenvalue of H exceeds.

    Example:
        >>> fedopt.neumann_sum(lambda v, n: 0.5 * v, torch.tensor([1.0]), N=1, l=1.0)  # H = 0.5
        tensor([1.5000])
    """
    term = total = b / l
    for n in range(N):
        term = term - product(term, n) / l
        total = total + term
    return total


def neumann_term(product: Product, b: Tensor, N: int, l: float, chosen: int) -> Tensor:
    """Return (N/l) (I - H/l)^chosen b, one term of the Neumann series times N [FedNest Alg. 3].

    If ``chosen`` is uniform in 0, ..., N - 1, its expectation is the sum of the first N terms, `neumann_sum` with N - 1
    products.

    Args:
        product: As in `neumann_sum`.
        b: The vector, ``[d]``.
        N: The number of terms of the sum.
        l: As in `neumann_sum`.
        chosen: The index of the term, which is also the number of products.

    Example:
        >>> fedopt.neumann_term(lambda v, n: 0.5 * v, torch.tensor([1.0]), N=2, l=1.0, chosen=1)  # H = 0.5
        tensor([1.])
    """
    term = b * (N / l)
    for n in range(chosen):
        term = term - product(term, n) / l
    return term


def conjugate_gradients(product: Product, b: Tensor, N: int) -> Tensor:
    """Return an estimate of H^-1 b by N steps of conjugate gradients from 0, for one positive definite H.

    If a step would divide by 0 or meets negative curvature, it and all later steps leave the estimate as it is.

    Args:
        product: As in `neumann_sum`, with the same H in all of them.
        b: The vector, ``[d]``.
        N: The number of steps, each with a product.

    Example:
        >>> fedopt.conjugate_gradients(lambda v, n: 2 * v, torch.tensor([4.0]), N=1)  # H = 2
        tensor([2.])
    """
    solution, residual = torch.zeros_like(b), b
    direction, square = b, b @ b
    for n in range(N):
        of_direction = product(direction, n)
        curvature = direction @ of_direction
        go = (curvature > 0) & (square > 0)
        step = torch.where(go, square / torch.where(go, curvature, 1.0), 0.0)
        solution, residual = solution + step * direction, residual - step * of_direction
        new = residual @ residual
        direction = residual + torch.where(go, new / torch.where(go, square, 1.0), 0.0) * direction
        square = new
    return solution


Inverse = Callable[[Product, Tensor], Tensor]  # an estimate of H^-1 b from products with H and from b
