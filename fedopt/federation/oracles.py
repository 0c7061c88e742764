"""What can be asked of a problem: its functions, their gradients, Hessian-vector and Jacobian-vector products, counted."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedopt.errors import UserError
from fedopt.federation.counting import Calls
from fedopt.federation.derivatives import Derivatives
from fedopt.federation.inverse import Inverse
from fedopt.federation.samples import Sample
from fedopt.networks import differs_by_client
from fedopt.problems import CLASSES, Composition, Hierarchical, Minimax, Minimisation, Nested, Problem, XRisk, class_of
from fedopt.problems import name as class_name

Oracle = TypeVar("Oracle", bound=Callable[..., Any])
Step = float | Tensor  # a number, or each client's own
Term = Tensor | None  # of a sum, None for none
OWN = 8  # tensors that a client remembers as its own


def moved(point: Tensor, direction: Tensor, step: Step) -> Tensor:
    """Return ``point - step * direction``.

    Args:
        point: A vector, ``[d]``.
        direction: The direction, ``[d]``.
        step: A number, or a client's own as a scalar tensor.

    Example:
        >>> fedopt.moved(torch.tensor([1.0]), torch.tensor([2.0]), step=0.5)
        tensor([0.])
    """
    return point - step.to(point.dtype) * direction if isinstance(step, Tensor) else point.sub(direction, alpha=step)


def for_problems(*classes: Any) -> Callable[[Oracle], Oracle]:
    """Mark a method of `Oracles` as one for problems of these classes. The method then raises UserError on other problems."""

    def marked(oracle: Oracle) -> Oracle:
        @wraps(oracle)
        def checked(self: "Oracles", *arguments: Any, **keywords: Any) -> Any:
            self._check(oracle.__name__, classes)
            return oracle(self, *arguments, **keywords)

        checked.classes = classes  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return marked


class Function:
    """A function of a problem, as a client calls it: `client.f(x, sample)`.

    classes: the classes of problems that have it. On others it raises UserError.
    """

    def __init__(self, *classes: Any):
        self.classes = classes

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, oracles: "Oracles | None", owner: type) -> Callable[..., Tensor]:
        if oracles is None:
            return self  # type: ignore[return-value]
        oracles._check(self._name, self.classes)
        function = vars(oracles)[self._name] = getattr(oracles._problem, self._name)  # bound once: a step is short
        return function


def offered(kind: type, cls: type[Problem]) -> list[str]:
    """Return the names that `Oracles` or `Client` (kind) offers on problems of class `cls`, and not on all problems."""
    return [name for name in dir(kind) if issubclass(cls, getattr(getattr(kind, name), "classes", ()))]


class Oracles(Derivatives):
    """The functions of a problem and their derivatives at a point, on a sample.

    x and y are flat vectors, [dx] and [dy]. A client gets samples by `Client.scan`, `Client.steps` or `Client.sample`.

    Args:
        problem: The problem. An oracle raises UserError if it is not of a class that the oracle is for.
        calls, stack: As in `Derivatives`.
    """

    f, g = Function(Minimisation, Nested, Minimax), Function(Nested)
    level = Function(Composition)
    f2, h = Function(Hierarchical), Function(Hierarchical, XRisk)
    pair_loss, slope = Function(XRisk), Function(XRisk)

    def __init__(self, problem: Any, calls: Calls | None = None, stack: int | None = None):
        super().__init__(calls, stack)
        self._problem = problem
        self._overwritable = deque[Tensor](maxlen=OWN)  # what the last steps returned; the next steps may overwrite it

    @for_problems(Minimisation)
    def gradient(self, x: Tensor, sample: Sample) -> Tensor:
        """Return grad f_i(x), [d], of a minimisation problem. It counts as one gradient call."""
        return self.grad(self.f, x, sample)

    @for_problems(Minimisation)
    def gradient_step_(self, x: Tensor, sample: Sample, eta: Step, plus: Term = None, anchor: Term = None) -> Tensor:
        """Return x - eta (grad f_i(x) - grad f_i(anchor) + plus), [d], of a minimisation problem.

        It counts as one gradient call, or two with an anchor. If x is a tensor that such a step returned, it may be
        overwritten: do not use it afterwards. Other tensors are never overwritten.

        eta: the step size, a number, or this client's own as a scalar tensor. plus, anchor: [d]; None leaves the term out.
        """
        return self._owned(self._stepped(self.f, (x, sample), eta, plus, anchor))

    @for_problems(Nested)
    def inner_step_(
        self, x: Tensor, y: Tensor, sample: Sample, beta: Step, plus: Term = None, anchor: Term = None
    ) -> Tensor:
        """Return the projection of y - beta (grad_y g(x, y) - grad_y g(x, anchor) + plus), [dy], of a bilevel problem.

        It may overwrite y as `gradient_step_` may overwrite x. beta, plus, anchor: as eta, plus and anchor there. It counts
        as one gradient call, or two with an anchor. If the problem has no y, it returns y, and counts as none.
        """
        if not self._problem.nested:
            return y
        return self._owned(self._problem.project(self._stepped(self.g, (x, y, sample), beta, plus, anchor)))

    @for_problems(Nested, Minimax)
    def outer_step_(self, x: Tensor, y: Tensor, sample: Sample, eta: Step) -> tuple[Tensor, Tensor]:
        """Return x - eta grad_x f(x, y), [dx], and grad_y f(x, y), [dy], of a bilevel or minimax problem.

        It counts as one gradient call, and may overwrite x as `gradient_step_` does. eta: the step size, as there.
        """
        g_x, g_y = self.outer_gradients(x, y, sample)
        return self.moved_(x, g_x, eta), g_y

    @for_problems(Hierarchical)
    def lower_step_(self, x: Tensor, y: Tensor, sample: Sample, gamma: float) -> Tensor:
        """Return the projection of y - gamma grad_y h(x, y) at each of P points, [P, d], of a hierarchical problem.

        It counts as P gradient calls, and may overwrite y as `gradient_step_` may overwrite x. gamma: the step size.
        """
        if self._owns(y) and hasattr(self.h, "steps"):
            self._counter.count(sample, grad=len(y))
            y = self.h.steps(x, y, sample, gamma)
        else:
            y = moved(y, self.gradients(self.h, x, y, sample), gamma)
        return self._owned(self._problem.project(x, y, sample))

    def moved_(self, point: Tensor, direction: Tensor, step: Step) -> Tensor:
        """Return point - step * direction, [d].

        It may overwrite the point as `gradient_step_` may overwrite x. step: the step size, as there.
        """
        if self._owns(point) and not isinstance(step, Tensor):
            return point.sub_(direction, alpha=step)
        return self._owned(moved(point, direction, step))

    def _owned(self, point: Tensor) -> Tensor:
        # A point that is the same for all clients of a stack has no memory for what each of them writes
        if not self._owns(point) and (not self._stacked or differs_by_client(point)):
            self._overwritable.append(point)
        return point

    def _owns(self, point: Tensor) -> bool:
        return any(point is own for own in self._overwritable)

    def _stepped(self, fn: Any, arguments: tuple[Any, ...], eta: Step, plus: Term, anchor: Term) -> Tensor:
        """Return x - eta (gradient - gradient at the anchor + plus), where x is the last variable of the arguments.

        If x is the result of a step, the function's `step` may overwrite it. fn: the function. arguments: the
        variables and the sample.
        """
        *fixed, x, sample = arguments
        if self._owns(x) and not isinstance(eta, Tensor) and hasattr(fn, "step"):
            self._counter.count(sample, grad=1 if anchor is None else 2)
            return fn.step(*arguments, eta, plus, anchor)
        direction = self.grad(fn, *arguments)
        if anchor is not None:
            direction = direction - self.grad(fn, *fixed, anchor, sample)
        return moved(x, direction if plus is None else direction + plus, eta)

    @for_problems(Nested, Minimax)
    def outer_gradients(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return (grad_x f, grad_y f) at (x, y) of a bilevel or minimax problem, from one graph.

        It counts as one gradient call. If the problem has ``direct = False``, grad_x f is zeros.
        """
        if isinstance(self._problem, Nested) and not self._problem.direct:
            return torch.zeros_like(x), self.outer_gradient_y(x, y, sample)
        return self._both_gradients(self.f, x, y, sample)

    @for_problems(Nested, Minimax)
    def outer_gradient_x(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        """Return grad_x f(x, y), [dx], of a bilevel or minimax problem.

        It counts as one gradient call. If the problem has ``direct = False``, it is zeros, and counts as none.
        """
        if isinstance(self._problem, Nested) and not self._problem.direct:
            return torch.zeros_like(x)
        if self._form(self.f, "both") is not None:
            return self._both_gradients(self.f, x, y, sample)[0]
        return self.grad(lambda x, sample: self.f(x, y, sample), x, sample)

    @for_problems(Nested, Minimax)
    def outer_gradient_y(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        """Return grad_y f(x, y), [dy], of a bilevel or minimax problem. It counts as one gradient call."""
        return self.grad(self.f, x, y, sample)

    @for_problems(Nested)
    def inner_gradient(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        """Return grad_y g(x, y), [dy], of a bilevel problem.

        It counts as one gradient call. If the problem has no y, it is zeros, and counts as none.
        """
        return self.grad(self.g, x, y, sample) if self._problem.nested else torch.zeros_like(y)

    @for_problems(Nested)
    def inner_gradients(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return (grad_x g, grad_y g) at (x, y) of a bilevel problem, from one graph.

        It counts as one gradient call. If the problem has no y, both are zeros, and it counts as none.
        """
        if not self._problem.nested:
            return torch.zeros_like(x), torch.zeros_like(y)
        return self._both_gradients(self.g, x, y, sample)

    def _both_gradients(self, fn: Callable[..., Tensor], x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        if (both := self._form(fn, "both")) is not None:
            self._counter.count(sample, grad=1)
            return both(x, y, sample)
        value, product = self.vjp(lambda x, y: fn(x, y, sample), x, y, grad=1, sample=sample)
        grad_x, grad_y = product(torch.ones_like(value))
        return grad_x, grad_y

    @for_problems(Nested)
    def inner_hessian(self, x: Tensor, y: Tensor, sample: Sample) -> Callable[[Tensor], Tensor]:
        """Return the map v -> grad^2_yy g(x, y) v, [dy], of a bilevel problem, from one graph of the gradient.

        Each use counts as one Hessian-vector product. If the problem has no y, the map returns v, and counts as none.
        """
        if not self._problem.nested:
            return lambda v: v
        if (second := self._form(self.g, "second")) is None:
            _, product = self.vjp(lambda y: self.grad(self.g, x, y, sample), y, hvp=1, sample=sample)
            return lambda v: product(v)[0]
        return self._counting(second(x, y, sample).hessian, sample, hvp=1)

    @for_problems(Nested)
    def inner_second(self, x: Tensor, y: Tensor, v: Tensor, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Return (grad_y g, grad^2_yy g v, grad^2_xy g v) at (x, y) of a bilevel problem, [dy], [dy], [dx], from one graph.

        It counts as one gradient call, one Hessian-vector and one Jacobian-vector product. If the problem has no y, it is (0,
        v, 0), and counts as none.
        """
        if not self._problem.nested:
            return torch.zeros_like(y), v, torch.zeros_like(x)
        if (second := self._form(self.g, "second")) is not None:
            self._counter.count(sample, grad=1, hvp=1, jvp=1)
            gradient, hessian, cross = second(x, y, sample)
            return gradient, hessian(v), cross(v)
        gradient, product = self.vjp(lambda x, y: self.grad(self.g, x, y, sample), x, y, hvp=1, jvp=1, sample=sample)
        self._counter.count(sample, grad=1)
        of_x, of_y = product(v)
        return gradient, of_y, of_x

    @for_problems(Nested)
    def cross_product(self, x: Tensor, y: Tensor, v: Tensor, sample: Sample) -> Tensor:
        """Return grad^2_xy g(x, y) v, [dx], of a bilevel problem.

        It counts as one Jacobian-vector product. If the problem has no y, it is zeros, and counts as none.
        """
        if not self._problem.nested:
            return torch.zeros_like(x)
        if (second := self._form(self.g, "second")) is not None:
            self._counter.count(sample, jvp=1)
            return second(x, y, sample).cross(v)
        _, product = self.vjp(lambda x: self.grad(self.g, x, y, sample), x, jvp=1, sample=sample)
        return product(v)[0]

    @for_problems(Nested)
    def hypergradient(self, x: Tensor, y: Tensor, samples: Sequence[Sample], inverse: Inverse) -> Tensor:
        """Return one client's hypergradient of a bilevel problem, [dx] [FedNest Alg. 5, LocalBSG eq. 3.3].

        It is grad_x f - grad^2_xy g p with p = inverse(products with grad^2_yy g, grad_y f). It counts as one gradient call,
        one Jacobian-vector product and the Hessian-vector products of the inverse. If the problem has ``indirect = False``,
        it is grad_x f alone, and counts as `outer_gradient_x`. If it has ``identity = True``, p is grad_y f, without
        products.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            samples: A list of ``problem.hypergradient_samples(products)`` samples. The first is for the gradients of f, the next
                for the Hessian-vector products in their order. The cross derivative uses the first too, or a further last one
                if ``problem.shares_examples``.
            inverse: ``inverse(product, b)``, an estimate of H^-1 b, such as a partial of `neumann_sum`.
        """
        problem = self._problem
        xi, *zetas = samples
        crossed = zetas.pop() if problem.shares_examples else xi
        if not problem.indirect:
            return self.outer_gradient_x(x, y, xi)
        grad_x, b = self.outer_gradients(x, y, xi)
        hessians: dict[int, Callable[[Tensor], Tensor]] = {}  # a sample that comes again keeps its graph

        def product(v: Tensor, n: int) -> Tensor:
            zeta = zetas[n]
            if id(zeta) not in hessians:
                hessians[id(zeta)] = self.inner_hessian(x, y, zeta)
            return hessians[id(zeta)](v)

        p = b if problem.identity else inverse(product, b)
        return grad_x - self.cross_product(x, y, p, crossed)

    def _check(self, oracle: str, classes: tuple[type[Problem], ...]) -> None:
        """Raise UserError, which names the oracle, unless the problem is of one of these classes."""
        if isinstance(self._problem, classes):
            return
        kind, wanted = class_of(self._problem), " or ".join(class_name(c) for c in CLASSES if issubclass(c, classes))
        names = ", ".join(f"client.{name}" for name in offered(type(self), kind)) or "no special oracles"
        raise UserError(
            f"client.{oracle} needs a {wanted} problem, and {type(getattr(self._problem, 'original', self._problem)).__name__} is "
            f"{class_name(kind)} here, which offers {names}"
        )
