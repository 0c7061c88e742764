"""The gradient of a composition, with estimates in place of the values of its levels. Compositional methods share it.

Notation
    r^1, ..., r^K, f    the levels of a composition f(r^K(... r^1(x))), which are client.level(0), ..., client.level(K)
    u^0, ..., u^K       u^0 is the point x, and u^k is the estimate of the value r^k(... r^1(x))
    xi                  one sample for each level, since a product of two levels on the same sample is biased
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from fedopt.federation import Client, Sample
from fedopt.toolbox.vectors import Tensors

Follow = Callable[[int, Tensor], Tensor]  # (k, r^{k+1}(u^k)) -> u^{k+1}


def chain(client: Client, x: Tensor, xi: Sequence[Sample], follow: Follow) -> tuple[Tensors, Tensor]:
    """Return estimates (u^1, ..., u^K) of the levels of a composition, and an estimate of its gradient, ``[d]``.

    With J for a Jacobian, the gradient is::

        J r^1(x)' J r^2(u^1)' ... J r^K(u^{K-1})' grad f(u^K)

    It counts as one gradient call and K Jacobian-vector products. No Jacobian is formed.

    Args:
        client: The client, whose problem is a composition.
        x: The point, ``[d]``.
        xi: K + 1 samples, one for each level.
        follow: A function that is called for k = 0, ..., K - 1. ``follow(k, value)`` takes the value r^{k+1}(u^k), and returns
            the estimate u^{k+1}. To use the values themselves, return ``value``.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fedmsa", "problem=mco"]))
        >>> (x, *_), fed = experiment.problem.start(), experiment.federation.at(0)
        >>> def client_fn(client, x):
        ...     xi = client.sample("xi")
        ...     estimates, gradient = fedopt.chain(client, x, [xi, xi, xi], lambda k, value: value)
        ...     return gradient
        >>> fed.exchange(client_fn, x, fed.everyone(), xi=fedopt.Steps(1, None)).shape
        torch.Size([10])
    """
    u, products, last = [x], [], len(xi) - 1
    for k in range(last):
        r, product = client.pullback(client.level, k, u[-1], xi[k])
        u.append(follow(k, r))
        products.append(product)
    p = client.grad(client.level, last, u[-1], xi[last])
    for product in reversed(products):
        p = product(p)
    return tuple(u[1:]), p
