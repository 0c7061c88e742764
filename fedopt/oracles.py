"""What a client can be asked for: gradients, Hessian-vector and Jacobian-vector products. Pure functions of flat vectors,
counted, and written for one client.

The engine that runs a client announces itself with `running`: it says whether the client is one of a vmapped stack, in
which case derivatives come from torch.func, or alone, in which case plain autograd computes the same with less overhead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedopt.problems.classes import Bilevel, Compositional, Hierarchical, Minimax, Minimisation


@dataclass
class Calls:
    """Oracle calls so far, each client's counted: gradients, Hessian-vector products, Jacobian-vector products.

    A Jacobian-vector product is a cross derivative times a vector in bilevel problems and a vector times the Jacobian of
    one level in compositional ones.
    """

    grad: int = 0
    hvp: int = 0
    jvp: int = 0


@dataclass
class Scope:
    """Who is running: `clients` at once (what each oracle call counts for), stacked by vmap or not."""

    clients: int = 1
    vectorised: bool = False
    calls: Calls = field(default_factory=Calls)


_scope: ContextVar[Scope] = ContextVar("scope", default=Scope())  # noqa: B039  (calls outside any run are not read)


@contextmanager
def running(clients: int, vectorised: bool, calls: Calls) -> Iterator[None]:
    """Count the oracle calls made inside for `clients` clients."""
    token = _scope.set(Scope(clients, vectorised, calls))
    try:
        yield
    finally:
        _scope.reset(token)


def count_for(clients: int) -> None:
    """From here on in this scope, an oracle call counts for so many clients (some of a stack may have finished)."""
    _scope.get().clients = clients


def counted_clients() -> int:
    """How many that is."""
    return _scope.get().clients


def _count(**calls: int) -> None:
    scope = _scope.get()
    for name, number in calls.items():
        setattr(scope.calls, name, getattr(scope.calls, name) + number * scope.clients)


def at_each(fn: Callable[..., Tensor], *points: Tensor) -> Tensor:
    """fn at each of several points [P, ...]: all at once in a stack of clients, in turn where a client is alone."""
    if _scope.get().vectorised:
        return torch.func.vmap(fn)(*points)
    return torch.stack([fn(*point) for point in zip(*points, strict=True)])


def _vjp(fn: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
    """fn(*primals) and the map from cotangents to the gradients in the primals; the map may be called more than once.

    fn returns a tensor or a tuple of tensors.
    """
    if _scope.get().vectorised:
        out, pull_back = torch.func.vjp(fn, *primals)[:2]
        return out, pull_back
    nested = any(p.requires_grad for p in primals)  # an outer call differentiates through this one
    if not nested:
        primals = tuple(p.detach().requires_grad_() for p in primals)
    out = fn(*primals)

    def pull(cotangents: Any) -> tuple[Tensor, ...]:
        outs, cots = (out, cotangents) if isinstance(out, tuple) else ((out,), (cotangents,))
        live = [(o, c) for o, c in zip(outs, cots, strict=True) if o.requires_grad]
        if not live:
            return tuple(torch.zeros_like(p) for p in primals)
        o, c = zip(*live, strict=True)
        return torch.autograd.grad(o, primals, c, create_graph=nested, retain_graph=True, materialize_grads=True)

    detached = out if nested else tuple(o.detach() for o in out) if isinstance(out, tuple) else out.detach()
    return detached, pull


def _grad(fn: Callable[[Tensor], Tensor], x: Tensor, nested: bool = False) -> Tensor:
    """nested: an outer call differentiates through this one, by another variable than x (by x it is seen)."""
    if _scope.get().vectorised:
        return torch.func.grad(fn)(x)
    nested = nested or x.requires_grad
    if not x.requires_grad:
        x = x.detach().requires_grad_()
    value = fn(x)
    if not value.requires_grad:  # constant in x
        return torch.zeros_like(x)
    return torch.autograd.grad(value, x, create_graph=nested, materialize_grads=True)[0]


def gradient(problem: Minimisation, x: Tensor, sample: Any) -> Tensor:
    """grad f_i(x), [d]. One gradient call."""
    _count(grad=1)
    own = problem.gradient(x, sample)
    return _grad(lambda x: problem.f(x, sample), x) if own is None else own


def gradient_step(
    problem: Minimisation, x: Tensor, sample: Any, eta: float, plus: Tensor | None, overwrite: bool
) -> Tensor:
    """x - eta (grad f_i(x) + plus), [d]. overwrite: whether it may be written over x. One gradient call."""
    stepped = problem.descend(x, sample, eta, plus) if overwrite else None
    if stepped is None:
        return _step(x, gradient(problem, x, sample), eta, plus)
    _count(grad=1)
    return stepped


def inner_gradient_step(
    problem: Bilevel, x: Tensor, y: Tensor, sample: Any, eta: float, plus: Tensor | None, overwrite: bool
) -> Tensor:
    """y - eta (grad_y g_i(x, y) + plus), [dy], as `gradient_step`. One gradient call."""
    stepped = problem.inner_descend(x, y, sample, eta, plus) if overwrite else None
    if stepped is None:
        return _step(y, inner_gradient(problem, x, y, sample), eta, plus)
    _count(grad=1)
    return stepped


def _step(x: Tensor, gradient: Tensor, eta: float, plus: Tensor | None) -> Tensor:
    return x.sub(gradient if plus is None else gradient + plus, alpha=eta)


def server_gradient(problem: Hierarchical, x: Tensor, sample: Any) -> Tensor:
    """grad f1(x), [d]. The server's own, and so no client's gradient call."""
    own = problem.f1_gradient(x, sample)
    return _grad(lambda x: problem.f1(x, sample), x) if own is None else own


def local_gradients(problem: Hierarchical, x: Tensor, y: Tensor, sample: Any) -> Tensor:
    """grad_y h_i(x, y) at P points, x, y: [P, d]. P gradient calls."""
    _count(grad=len(x))
    own = problem.h_gradients(x, y, sample)
    return at_each(lambda x, y: _grad(lambda y: problem.h(x, y, sample), y), x, y) if own is None else own


def outer_gradients(problem: Bilevel | Minimax, x: Tensor, y: Tensor, sample: Any) -> tuple[Tensor, Tensor]:
    """(grad_x f, grad_y f) at (x, y), from one graph. One gradient call."""
    _count(grad=1)
    value, pull = _vjp(lambda x, y: problem.f(x, y, sample), x, y)
    grad_x, grad_y = pull(torch.ones_like(value))
    return grad_x, grad_y


def outer_gradient_x(problem: Bilevel | Minimax, x: Tensor, y: Tensor, sample: Any) -> Tensor:
    """grad_x f(x, y), [dx]. One gradient call."""
    _count(grad=1)
    return _grad(lambda x: problem.f(x, y, sample), x)


def outer_gradient_y(problem: Bilevel | Minimax, x: Tensor, y: Tensor, sample: Any) -> Tensor:
    """grad_y f(x, y), [dy]. One gradient call."""
    _count(grad=1)
    return _grad(lambda y: problem.f(x, y, sample), y)


def inner_gradient(problem: Bilevel, x: Tensor, y: Tensor, sample: Any) -> Tensor:
    """grad_y g(x, y), [dy]. One gradient call."""
    _count(grad=1)
    own = problem.inner_gradient(x, y, sample)
    return _grad(lambda y: problem.g(x, y, sample), y) if own is None else own


def inner_hessian(problem: Bilevel, x: Tensor, y: Tensor, sample: Any) -> Callable[[Tensor], Tensor]:
    """The map v -> grad^2_yy g(x, y) v, [dy], from one gradient graph. Each use is one Hessian-vector product."""
    _, pull = _vjp(lambda y: _grad(lambda y: problem.g(x, y, sample), y), y)

    def product(v: Tensor) -> Tensor:
        _count(hvp=1)
        return pull(v)[0]

    return product


def cross_product(problem: Bilevel, x: Tensor, y: Tensor, v: Tensor, sample: Any) -> Tensor:
    """grad^2_xy g(x, y) v, [dx]. One Jacobian-vector product."""
    _count(jvp=1)
    _, pull = _vjp(lambda x: _grad(lambda y: problem.g(x, y, sample), y, nested=True), x)
    return pull(v)[0]


Product = Callable[[Tensor, int], Tensor]  # H v from v; the n-th one asked for, n = 0, 1, ..., may be of another sample


def neumann_sum(product: Product, b: Tensor, N: int, l: float) -> Tensor:
    """(1/l) sum_{n <= N} (I - H/l)^n b, which tends to H^-1 b: N products [LocalBSG eq. 3.3]."""
    term = total = b / l
    for n in range(N):
        term = term - product(term, n) / l
        total = total + term
    return total


def neumann_term(product: Product, b: Tensor, N: int, l: float, chosen: int) -> Tensor:
    """(N/l) (I - H/l)^chosen b: for `chosen` uniform in 0..N-1, the sum of N terms in expectation [FedNest Alg. 3]."""
    term = b * (N / l)
    for n in range(chosen):
        term = term - product(term, n) / l
    return term


def conjugate_gradients(product: Product, b: Tensor, N: int) -> Tensor:
    """H^-1 b by N steps of conjugate gradients from zero, for one positive definite H; it stays where it is where a step
    would divide by nothing or meets negative curvature."""
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


def inverse_product(kind: str, N: int, l: float, chosen: int) -> Inverse:
    """The estimator by its name: randomised (with the term that was chosen), truncated or cg."""
    if kind == "randomised":
        return lambda product, b: neumann_term(product, b, N, l, chosen)
    if kind == "truncated":
        return lambda product, b: neumann_sum(product, b, N, l)
    return lambda product, b: conjugate_gradients(product, b, N)


def local_hypergradient(problem: Bilevel, x: Tensor, y: Tensor, samples: Sequence[Any], inverse: Inverse) -> Tensor:
    """grad_x f - grad^2_xy g p, p = inverse(Hessian products, grad_y f): all of one client [FedNest Alg. 5, LocalBSG eq. 3.3].

    samples: `local_samples` many: for the gradients and the cross derivative, then for each Hessian-vector product in turn.
    """
    xi, *zetas = samples
    crossed = zetas.pop() if _shares_examples(problem) else xi
    if not problem.indirect:
        return outer_gradient_x(problem, x, y, xi)
    if problem.direct:
        grad_x, b = outer_gradients(problem, x, y, xi)
    else:
        grad_x, b = torch.zeros_like(x), outer_gradient_y(problem, x, y, xi)
    hessians: dict[int, Callable[[Tensor], Tensor]] = {}  # a sample that comes again keeps its graph

    def product(v: Tensor, n: int) -> Tensor:
        zeta = zetas[n]
        if id(zeta) not in hessians:
            hessians[id(zeta)] = inner_hessian(problem, x, y, zeta)
        return hessians[id(zeta)](v)

    p = b if problem.identity else inverse(product, b)
    return grad_x - cross_product(problem, x, y, p, crossed)


def local_samples(problem: Bilevel, products: int) -> int:
    """Samples that `local_hypergradient` takes with so many Hessian-vector products."""
    return 1 + products + _shares_examples(problem)


def _shares_examples(problem: Bilevel) -> bool:
    """Whether f and g of one sample are of the same examples: then a product of both is biased, and takes two samples."""
    return problem.indirect and problem.f_split == problem.g_split


def msa_maps(
    problem: Bilevel | Compositional, u: Sequence[Tensor], samples: Sequence[Any], damping: float = 0.0
) -> tuple[Tensor, ...]:
    """The mappings of multi-sequence stochastic approximation at u = (x, z^1..z^N): (P, S^1..S^N) [FedMSA eq. 2, 3, 10, 11].

    * Bilevel, u = (x, w, v):  P = grad_x f - grad^2_xw g v,  S = [grad_w g, (grad^2_ww g + damping I) v - grad_w f].
      (Eq. 10a prints grad_x f in S; eq. 2 has grad_w f.) Where grad_x f is all of the hypergradient, u = (x, w) and v is left out.
    * Compositional, u = (x, z^1..z^N):  P = J f^0(x)^T J f^1(z^1)^T ... grad f^N(z^N),  S^n = z^n - f^{n-1}(z^{n-1}).

    samples: `msa_samples` many. Each mapping has the shape of its variable; P = 0, S = 0 exactly at the stationary points.
    """
    if isinstance(problem, Bilevel):
        return _bilevel_maps(problem, u, samples[0], damping)
    return _chain_maps(problem, u, samples)


def msa_samples(problem: Bilevel | Compositional) -> int:
    """Samples that `msa_maps` takes: each level its own, since the product of two levels of one sample is biased."""
    return len(problem.dims) if isinstance(problem, Compositional) else 1


def _bilevel_maps(problem: Bilevel, u: Sequence[Tensor], sample: Any, damping: float) -> tuple[Tensor, ...]:
    x, w = u[:2]
    if not problem.indirect:
        return outer_gradient_x(problem, x, w, sample), inner_gradient(problem, x, w, sample)
    v = u[2]
    _count(grad=2, hvp=1, jvp=1)

    # The second derivatives of g along v and the gradients of -f are one backward pass through one graph.
    def inner_gradient_and_outer_value(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return _grad(lambda w: problem.g(x, w, sample), w), problem.f(x, w, sample)

    (s_w, f), pull = _vjp(inner_gradient_and_outer_value, x, w)
    minus_p, s_v = pull((v, -torch.ones_like(f)))
    return -minus_p, s_w, s_v.add(v, alpha=damping) if damping else s_v


def _chain_maps(problem: Compositional, u: Sequence[Tensor], samples: Sequence[Any]) -> tuple[Tensor, ...]:
    N = len(u) - 1
    _count(grad=1, jvp=N)
    value, pull = _vjp(lambda z: problem.level(N, z, samples[N]), u[N])
    (p,) = pull(torch.ones_like(value))
    s: list[Tensor] = []
    for n in reversed(range(N)):  # from the last level back: no Jacobian is formed
        value, pull = _vjp(lambda z, n=n: problem.level(n, z, samples[n]), u[n])
        (p,) = pull(p)
        s.insert(0, u[n + 1] - value)
    return (p, *s)
