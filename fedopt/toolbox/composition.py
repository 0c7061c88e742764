"""The gradient of a composition along estimates of its levels, which compositional methods share.

Notation
    r^1, ..., r^K, f    the levels of a composition f(r^K(... r^1(x))), client.level(0), ..., client.level(K)
    u^0, ..., u^K       u^0 = x, and the estimates of the values of r^1, ..., r^K
    xi                  a sample for each level, since the product of two levels of one sample is biased
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from fedopt.federation import Client, Sample
from fedopt.toolbox.vectors import Tensors


def chain(
    client: Client, x: Tensor, xi: Sequence[Sample], follow: Callable[[int, Tensor], Tensor]
) -> tuple[Tensors, Tensor]:
    """Return estimates (u^1, ..., u^K) of the levels of a composition, and its gradient along them, ``[d]``.

    The gradient is J r^1(x)' J r^2(u^1)' ... grad f(u^K). It counts as one gradient call and K Jacobian-vector products; no
    Jacobian is formed.

    Args:
        client: The client, of a composition.
        x: The point, ``[d]``.
        xi: A sample for each level.
        follow: ``follow(k, value)``, the estimate u^{k+1} from the value r^{k+1}(u^k), k = 0, ..., K - 1.

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
