"""Estimates of H^-1 b that use only products of the Hessian H with vectors."""

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor, int], Tensor]  # (v, n) -> H v; the n-th product, n = 0, 1, ..., may use a sample of its own


def neumann_sum(product: Product, b: Tensor, N: int, l: float) -> Tensor:
    """Return the first N + 1 terms of the Neumann series for H^-1 b, ``[d]`` [LocalBSG eq. 3.3]::

        (1/l) sum_{n = 0}^{N} (I - H/l)^n b

    It tends to H^-1 b as N grows. H must be positive definite.

    Args:
        product: ``product(v, n)``, which returns H v. It is called for n = 0, ..., N - 1, and each call may use another sample.
        b: The vector, ``[d]``.
        N: The number of products.
        l: An upper bound of the eigenvalues of H.

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
    """Return N times one term of the Neumann series for H^-1 b, ``[d]`` [FedNest Alg. 3]::

        (N/l) (I - H/l)^chosen b

    If ``chosen`` is uniform in 0, ..., N - 1, the expectation is the sum of the first N terms, the same as `neumann_sum` with
    N - 1 products.

    Args:
        product: ``product(v, n)``, which returns H v. It is called for n = 0, ..., ``chosen`` - 1.
        b: The vector, ``[d]``.
        N: The number of terms of the sum.
        l: An upper bound of the eigenvalues of H.
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
    """Return an estimate of H^-1 b, ``[d]``, by N steps of the conjugate gradient method from 0.

    If a step would divide by 0 or meets negative curvature, this step and all later steps leave the estimate unchanged.

    Args:
        product: ``product(v, n)``, which returns H v. H is positive definite and the same for all n.
        b: The vector, ``[d]``.
        N: The number of steps. Each step needs one product.

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


Inverse = Callable[[Product, Tensor], Tensor]  # (product, b) -> an estimate of H^-1 b
