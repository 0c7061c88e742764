"""What can be asked of a problem: gradients, Hessian-vector and Jacobian-vector products at flat vectors, counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedopt.errors import UserError
from fedopt.federation.inverse import Inverse
from fedopt.problems.classes import Bilevel, Compositional, Hierarchical, Minimax, Minimisation, Problem, class_of
from fedopt.problems.classes import name as class_name

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Calls:
    """Oracle calls so far: gradients, Hessian-vector products, Jacobian-vector products, each client's counted.

    A Jacobian-vector product is a cross derivative times a vector in bilevel problems, and a vector times the Jacobian of
    one level in compositional ones.
    """

    grad: int = 0
    hvp: int = 0
    jvp: int = 0


def moved(point: Tensor, direction: Tensor, step: float | Tensor) -> Tensor:
    """point - step direction. step: a number, or each client's own as a tensor."""
    return point - step.to(point.dtype) * direction if isinstance(step, Tensor) else point.sub(direction, alpha=step)


def of(*classes: Any) -> Callable[[F], F]:
    """Marks a function of `Oracles` as one of problems of these classes: on others it raises UserError."""

    def marked(oracle: F) -> F:
        @wraps(oracle)
        def asked(self: "Oracles", *arguments: Any, **named: Any) -> Any:
            if not isinstance(self._problem, classes):
                raise _not_offered(type(self), oracle.__name__, classes, self._problem)
            return oracle(self, *arguments, **named)

        asked.classes = classes  # type: ignore[attr-defined]
        return asked  # type: ignore[return-value]

    return marked


def offered(asked: type, cls: type[Problem]) -> list[str]:
    """What `Oracles`, or `Client`, is asked for on problems of a class, and not on those of all classes."""
    return [name for name in dir(asked) if issubclass(cls, getattr(getattr(asked, name), "classes", ()))]


def _not_offered(asked: type, oracle: str, classes: tuple[type[Problem], ...], problem: Problem) -> UserError:
    kind, wanted = class_of(problem), " and ".join(map(class_name, classes))
    names = ", ".join(f"client.{name}" for name in offered(asked, kind)) or "none of its own"
    return UserError(
        f"client.{oracle} is for {wanted} problems, and {type(getattr(problem, 'original', problem)).__name__} is "
        f"{class_name(kind)} here, which offers {names}"
    )


class Oracles:
    """The derivatives of a problem's functions at a point, on a sample.

    problem: of the class that an oracle's description names. calls: what the oracle calls are added to.
    stack: how many clients points and samples are of under torch.func.vmap, where derivatives come from torch.func; None for one
        client by itself, where plain automatic differentiation computes the same with less overhead.
    """

    def __init__(self, problem: Any, calls: Calls | None = None, stack: int | None = None):
        self._problem = problem
        self._calls = calls or Calls()
        self._stacked = stack is not None
        self._counted = stack or 1  # clients that an oracle call counts for
        self._iterate: Tensor | None = None  # what the last step returned: the next one may be written over it
        self._maps: list[tuple[Sequence[Tensor], Sequence[Any], float, tuple[Tensor, ...]]] = []  # evaluated last

    @of(Minimisation)
    def gradient(self, x: Tensor, sample: Any) -> Tensor:
        """grad f_i(x), [d], of a minimisation problem. One gradient call."""
        self._count(grad=1)
        own = self._problem.gradient(x, sample)
        return self._grad(lambda x: self._problem.f(x, sample), x) if own is None else own

    @of(Minimisation)
    def gradient_step_(self, x: Tensor, sample: Any, eta: float, plus: Tensor | None = None) -> Tensor:
        """x - eta (grad f_i(x) + plus), [d], of a minimisation problem; plus: [d], None for zero. One gradient call.

        What this returned last is written over when it comes back as x, and must not be used any more then.
        """
        stepped = self._problem.descend(x, sample, eta, plus) if x is self._iterate else None
        self._iterate = self._stepped(x, stepped, lambda: self.gradient(x, sample), eta, plus)
        return self._iterate

    @of(Bilevel)
    def inner_step_(
        self,
        x: Tensor,
        y: Tensor,
        sample: Any,
        beta: float | Tensor,
        plus: Tensor | None = None,
        anchor: Tensor | None = None,
    ) -> Tensor:
        """The projection of y - beta (grad_y g(x, y) - grad_y g(x, anchor) + plus), [dy], of a bilevel problem, written over y as
        `gradient_step_` over x. beta: a number, or each client's own as a tensor; anchor: [dy], None for no such term. One gradient
        call, and one more with an anchor."""
        written_over = y is self._iterate and not isinstance(beta, Tensor)
        stepped = self._problem.inner_descend(x, y, sample, beta, plus, anchor) if written_over else None

        def gradient() -> Tensor:
            at_y = self.inner_gradient(x, y, sample)
            return at_y if anchor is None else at_y - self.inner_gradient(x, anchor, sample)

        stepped = self._stepped(y, stepped, gradient, beta, plus, calls=1 if anchor is None else 2)
        self._iterate = self._problem.project(stepped)
        return self._iterate

    def _stepped(
        self,
        x: Tensor,
        done: Tensor | None,
        gradient: Callable[[], Tensor],
        eta: float | Tensor,
        plus: Tensor | None,
        calls: int = 1,
    ) -> Tensor:
        """The step that the problem has done by itself, counted as so many gradient calls, or else x - eta (gradient + plus)."""
        if done is not None:
            self._count(grad=calls)
            return done
        return moved(x, gradient() if plus is None else gradient() + plus, eta)

    def server_gradient(self, x: Tensor, sample: Any) -> Tensor:
        """grad f1(x), [d], of a hierarchical problem: the server's own, and so no client's gradient call."""
        own = self._problem.f1_gradient(x, sample)
        return self._grad(lambda x: self._problem.f1(x, sample), x) if own is None else own

    @of(Hierarchical)
    def local_gradients(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """grad_y h_i(x, y) of a hierarchical problem at P points, x, y: [P, d]. P gradient calls."""
        self._count(grad=len(x))
        own = self._problem.h_gradients(x, y, sample)
        if own is not None:
            return own
        return self.at_each(lambda x, y: self._grad(lambda y: self._problem.h(x, y, sample), y), x, y)

    @of(Hierarchical)
    def personal_objectives(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """f2(x, y) of a hierarchical problem at P points, [P]. x, y: [P, d]."""
        return self.at_each(lambda x, y: self._problem.f2(x, y, sample), x, y)

    @of(Bilevel, Minimax)
    def outer_gradients(self, x: Tensor, y: Tensor, sample: Any) -> tuple[Tensor, Tensor]:
        """(grad_x f, grad_y f) at (x, y) of a bilevel or minimax problem, from one graph. One gradient call."""
        self._count(grad=1)
        value, pull = self._vjp(lambda x, y: self._problem.f(x, y, sample), x, y)
        grad_x, grad_y = pull(torch.ones_like(value))
        return grad_x, grad_y

    @of(Bilevel, Minimax)
    def outer_gradient_x(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """grad_x f(x, y), [dx], of a bilevel or minimax problem. One gradient call; none where the problem says that it is zero."""
        if isinstance(self._problem, Bilevel) and not self._problem.direct:
            return torch.zeros_like(x)
        self._count(grad=1)
        return self._grad(lambda x: self._problem.f(x, y, sample), x)

    @of(Bilevel, Minimax)
    def outer_gradient_y(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """grad_y f(x, y), [dy], of a bilevel or minimax problem. One gradient call."""
        self._count(grad=1)
        return self._grad(lambda y: self._problem.f(x, y, sample), y)

    @of(Bilevel)
    def inner_gradient(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        """grad_y g(x, y), [dy], of a bilevel problem. One gradient call; none where there is no y."""
        if not self._problem.nested:
            return torch.zeros_like(y)
        self._count(grad=1)
        own = self._problem.inner_gradient(x, y, sample)
        return self._grad(lambda y: self._problem.g(x, y, sample), y) if own is None else own

    @of(Bilevel)
    def inner_gradients(self, x: Tensor, y: Tensor, sample: Any) -> tuple[Tensor, Tensor]:
        """(grad_x g, grad_y g) at (x, y) of a bilevel problem, from one graph. One gradient call; none where there is no y."""
        if not self._problem.nested:
            return torch.zeros_like(x), torch.zeros_like(y)
        self._count(grad=1)
        value, pull = self._vjp(lambda x, y: self._problem.g(x, y, sample), x, y)
        grad_x, grad_y = pull(torch.ones_like(value))
        return grad_x, grad_y

    @of(Bilevel)
    def inner_hessian(self, x: Tensor, y: Tensor, sample: Any) -> Callable[[Tensor], Tensor]:
        """The map v -> grad^2_yy g(x, y) v, [dy], from one gradient graph. Each use is one Hessian-vector product; none where
        there is no y."""
        if not self._problem.nested:
            return lambda v: v
        _, pull = self._vjp(lambda y: self._grad(lambda y: self._problem.g(x, y, sample), y), y)

        def product(v: Tensor) -> Tensor:
            self._count(hvp=1)
            return pull(v)[0]

        return product

    @of(Bilevel)
    def cross_product(self, x: Tensor, y: Tensor, v: Tensor, sample: Any) -> Tensor:
        """grad^2_xy g(x, y) v, [dx], of a bilevel problem. One Jacobian-vector product; none where there is no y."""
        if not self._problem.nested:
            return torch.zeros_like(x)
        self._count(jvp=1)
        inner_gradient = lambda x: self._grad(lambda y: self._problem.g(x, y, sample), y, nested=True)  # noqa: E731
        _, pull = self._vjp(inner_gradient, x)
        return pull(v)[0]

    @of(Bilevel)
    def hypergradient(self, x: Tensor, y: Tensor, samples: Sequence[Any], inverse: Inverse) -> Tensor:
        """grad_x f - grad^2_xy g p, p = inverse(products with grad^2_yy g, grad_y f): all of one client of a bilevel problem
        [FedNest Alg. 5, LocalBSG eq. 3.3]. One gradient call, one Jacobian-vector product and the products of the inverse.

        samples: `hypergradient_samples` many: for the gradients and the cross derivative, then for each Hessian-vector product
            in turn.
        """
        problem = self._problem
        xi, *zetas = samples
        crossed = zetas.pop() if problem.shares_examples else xi
        if not problem.indirect:
            return self.outer_gradient_x(x, y, xi)
        if problem.direct:
            grad_x, b = self.outer_gradients(x, y, xi)
        else:
            grad_x, b = torch.zeros_like(x), self.outer_gradient_y(x, y, xi)
        hessians: dict[int, Callable[[Tensor], Tensor]] = {}  # a sample that comes again keeps its graph

        def product(v: Tensor, n: int) -> Tensor:
            zeta = zetas[n]
            if id(zeta) not in hessians:
                hessians[id(zeta)] = self.inner_hessian(x, y, zeta)
            return hessians[id(zeta)](v)

        p = b if problem.identity else inverse(product, b)
        return grad_x - self.cross_product(x, y, p, crossed)

    @of(Bilevel, Compositional)
    def msa_maps(self, u: Sequence[Tensor], samples: Sequence[Any], damping: float = 0.0) -> tuple[Tensor, ...]:
        """The mappings of multi-sequence stochastic approximation at u = (x, z^1..z^N): (P, S^1..S^N) [FedMSA eq. 2, 3, 10, 11].
        Two gradient calls and one product of each kind in bilevel problems, one gradient call and N Jacobian-vector products in
        compositional ones.

        * Bilevel, u = (x, w, v):  P = grad_x f - grad^2_xw g v,  S = [grad_w g, (grad^2_ww g + damping I) v - grad_w f].
          (Eq. 10a prints grad_x f in S; eq. 2 has grad_w f.) Where grad_x f is all of the hypergradient, u = (x, w): v is left out.
        * Compositional, u = (x, z^1..z^N):  P = J f^0(x)^T J f^1(z^1)^T ... grad f^N(z^N),  S^n = z^n - f^{n-1}(z^{n-1}).

        samples: one for bilevel problems; for compositional ones one for each level, since the product of two levels of one sample
            is biased. Each mapping has the shape of its variable; P = 0, S = 0 exactly at the stationary points.

        What is asked for again at the same u on the same samples is neither computed nor counted again: with full local batches,
        the value at the previous iterate is known.
        """
        for of_u, of_samples, of_damping, value in self._maps:
            if damping == of_damping and _same(u, of_u) and _same(samples, of_samples):
                return value
        bilevel = isinstance(self._problem, Bilevel)
        value = self._bilevel_maps(u, samples[0], damping) if bilevel else self._chain_maps(u, samples)
        recent = (known for known in self._maps[-2:] if _same(samples, known[1]))
        self._maps = [*recent, (u, samples, damping, value)]
        return value

    def _bilevel_maps(self, u: Sequence[Tensor], sample: Any, damping: float) -> tuple[Tensor, ...]:
        problem = self._problem
        x, w = u[:2]
        if not problem.indirect:
            return self.outer_gradient_x(x, w, sample), self.inner_gradient(x, w, sample)
        v = u[2]
        self._count(grad=2, hvp=1, jvp=1)

        # The second derivatives of g along v and the gradients of -f are one backward pass through one graph.
        def inner_gradient_and_outer_value(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            return self._grad(lambda w: problem.g(x, w, sample), w), problem.f(x, w, sample)

        (s_w, f), pull = self._vjp(inner_gradient_and_outer_value, x, w)
        minus_p, s_v = pull((v, -torch.ones_like(f)))
        return -minus_p, s_w, s_v.add(v, alpha=damping) if damping else s_v

    def _chain_maps(self, u: Sequence[Tensor], samples: Sequence[Any]) -> tuple[Tensor, ...]:
        problem, N = self._problem, len(u) - 1
        self._count(grad=1, jvp=N)
        value, pull = self._vjp(lambda z: problem.level(N, z, samples[N]), u[N])
        (p,) = pull(torch.ones_like(value))
        s: list[Tensor] = []
        for n in reversed(range(N)):  # from the last level back: no Jacobian is formed
            value, pull = self._vjp(lambda z, n=n: problem.level(n, z, samples[n]), u[n])
            (p,) = pull(p)
            s.insert(0, u[n + 1] - value)
        return (p, *s)

    def at_each(self, fn: Callable[..., Tensor], *points: Tensor) -> Tensor:
        """fn at each of several points [P, ...]: all at once in a stack of clients, in turn where a client is alone."""
        if self._stacked:
            return torch.func.vmap(fn)(*points)
        return torch.stack([fn(*point) for point in zip(*points, strict=True)])

    def _count(self, grad: int = 0, hvp: int = 0, jvp: int = 0) -> None:
        self._calls.grad += grad * self._counted
        self._calls.hvp += hvp * self._counted
        self._calls.jvp += jvp * self._counted

    def _vjp(self, fn: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[[Any], tuple[Tensor, ...]]]:
        """fn(*primals) and the map from cotangents to the gradients in the primals; the map may be called more than once.

        fn returns a tensor or a tuple of tensors.
        """
        if self._stacked:
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

    def _grad(self, fn: Callable[[Tensor], Tensor], x: Tensor, nested: bool = False) -> Tensor:
        """nested: an outer call differentiates through this one, by another variable than x (by x it is seen)."""
        if self._stacked:
            return torch.func.grad(fn)(x)
        nested = nested or x.requires_grad
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        value = fn(x)
        if not value.requires_grad:  # constant in x
            return torch.zeros_like(x)
        return torch.autograd.grad(value, x, create_graph=nested, materialize_grads=True)[0]


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(one is other for one, other in zip(a, b, strict=True))
