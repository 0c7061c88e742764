"""Client functions that return one derivative of a bilevel problem on the client's sample ``xi``."""

from torch import Tensor

from fedopt.federation import Client

XY = tuple[Tensor, Tensor]
XYV = tuple[Tensor, Tensor, Tensor]


def inner_gradient(client: Client, point: XY) -> Tensor:
    """Return grad_y g_i(x, y), ``[dy]``, on the client's sample ``xi``. It counts as one gradient call.

    Args:
        client: The client, whose problem is bilevel.
        point: The message (x, y).
    """
    return client.inner_gradient(*point, client.sample("xi"))


def outer_gradient_y(client: Client, point: XY) -> Tensor:
    """Return grad_y f_i(x, y), ``[dy]``, on the client's sample ``xi``. It counts as one gradient call.

    Args:
        client: The client, whose problem is bilevel.
        point: The message (x, y).
    """
    return client.outer_gradient_y(*point, client.sample("xi"))


def hessian_product(client: Client, point: XYV) -> Tensor:
    """Return grad^2_yy g_i(x, y) v, ``[dy]``, on the client's sample ``xi``. It counts as one Hessian-vector product.

    Args:
        client: The client, whose problem is bilevel.
        point: The message (x, y, v).
    """
    x, y, v = point
    return client.inner_hessian(x, y, client.sample("xi"))(v)


def cross_product(client: Client, point: XYV) -> Tensor:
    """Return grad^2_xy g_i(x, y) v, ``[dx]``, on the client's sample ``xi``. It counts as one Jacobian-vector product.

    Args:
        client: The client, whose problem is bilevel.
        point: The message (x, y, v).
    """
    return client.cross_product(*point, client.sample("xi"))
