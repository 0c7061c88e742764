"""The oracles of a problem: its functions, gradients, Hessian-vector and Jacobian-vector products. Each derivative is counted."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fedopt.errors import UserError
from fedopt.federation.counting import Calls
from fedopt.federation.derivatives import Derivatives
from fedopt.federation.inverse import Inverse
from fedopt.federation.samples import Sample
from fedopt.federation.varied import Varied
from fedopt.networks import depth, differs_by_client
from fedopt.problems import (
    CLASSES,
    Composition,
    Constrained,
    Hierarchical,
    Minimax,
    Minimisation,
    Nested,
    Problem,
    XRisk,
    class_of,
    marked,
)
from fedopt.problems import name as class_name

Oracle = TypeVar("Oracle", bound=Callable[..., Any])
Step = float | Tensor  # a number, or a scalar tensor that differs between clients
Term = Tensor | None  # a term of a sum; None leaves it out
OWN = 8  # number of a client's latest tensors that may be overwritten


def moved(point: Tensor, direction: Tensor, step: Step) -> Tensor:
    """Return ``point - step * direction``.

    Args:
        point: The point, ``[d]``.
        direction: The direction, ``[d]``.
        step: The step size: a number, or a scalar tensor with the client's step size.

    Example:
        >>> fedopt.moved(torch.tensor([1.0]), torch.tensor([2.0]), step=0.5)
        tensor([0.])
    """
    if isinstance(step, Tensor):
        step = step.to(point.dtype)
    return point - step * direction if isinstance(step, Tensor | Varied) else point.sub(direction, alpha=step)


def for_problems(*classes: Any) -> Callable[[Oracle], Oracle]:
    """Return a decorator of a method of `Oracles`, which then raises UserError on problems of other classes.

    Args:
        classes: The problem classes that the method supports.
    """

    def marked(oracle: Oracle) -> Oracle:
        @wraps(oracle)
        def checked(self: "Oracles", *arguments: Any, **keywords: Any) -> Any:
            self._check(oracle.__name__, classes)
            return oracle(self, *arguments, **keywords)

        checked.classes = classes  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return marked


class Function:
    """A descriptor that gives a client access to a function of the problem, as in `client.f(x, sample)`.

    Args:
        classes: The problem classes that have the function. On problems of other classes, access raises UserError.
    """

    def __init__(self, *classes: Any):
        self.classes = classes

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, oracles: "Oracles | None", owner: type) -> Callable[..., Tensor]:
        if oracles is None:
            return self  # type: ignore[return-value]
        if self._name not in marked(oracles._problem):
            oracles._check(self._name, self.classes)
        # Bound only once, since a step is short
        function = vars(oracles)[self._name] = getattr(oracles._problem, self._name)
        return function


def offered(kind: type, cls: type[Problem]) -> list[str]:
    """Return the names of the oracles that exist for a problem class, without those that exist for all problems.

    Args:
        kind: The class that defines the oracles: `Oracles` or `Client`.
        cls: The problem class.
    """
    return [name for name in dir(kind) if issubclass(cls, getattr(getattr(kind, name), "classes", ()))]


class Oracles(Derivatives):
    """The functions of a problem and their derivatives at a point, evaluated on a sample.

    The variables x and y are flat vectors, ``[dx]`` and ``[dy]``. A client gets samples by `Client.scan`, `Client.steps` or
    `Client.sample`.

    Args:
        problem: The problem. An oracle raises UserError if it does not support the problem's class.
        calls: The oracle calls to which new calls are added. None: a new counter.
        stack: The number of clients that are vectorised by torch.func.vmap. None: a single client.
    """

    f, g = Function(Minimisation, Nested, Minimax, Constrained), Function(Nested)
    level = Function(Composition)
    f2, h = Function(Hierarchical), Function(Hierarchical, XRisk)
    pair_loss, slope = Function(XRisk), Function(XRisk)
    h_vjp: Callable[[Tensor, Tensor, Sample], Tensor]
    h_jacobian: Callable[[Tensor, Sample], Tensor]

    def __init__(self, problem: Any, calls: Calls | None = None, stack: int | None = None):
        super().__init__(calls, stack)
        self._problem = problem
        # The results of the last steps, which the next steps may overwrite
        self._overwritable = deque[Tensor](maxlen=OWN)

    if not TYPE_CHECKING:  # so that mypy refuses misspelt names

        def __getattr__(self, name: str) -> Any:
            """Return a function that the problem marks with `oracle`, or one of its forms, such as ``h_vjp`` of ``h``."""
            function, _, form = name.rpartition("_")
            if name[0] != "_" and name in marked(self._problem):
                return getattr(self._problem, name)
            if name[0] != "_" and function in marked(self._problem) and hasattr(type(self), f"_oracle_{form}"):
                return partial(getattr(self, f"_oracle_{form}"), function)
            raise AttributeError(f"client.{name} does not exist, and the problem marks no such function with @oracle")

    def _oracle_vjp(self, name: str, x: Tensor, w: Tensor, sample: Sample) -> Tensor:
        """Return the gradient of w'h_i(x), ``[d]``, for the function h of this name. It counts as one gradient call.

        Args:
            name: The name of the function.
            x: The point, ``[d]``.
            w: The weights of the values of h, ``[K]``.
            sample: The sample on which h_i is evaluated.
        """
        return self.grad(lambda x, sample: w @ getattr(self, name)(x, sample), x, sample)

    def _oracle_jacobian(self, name: str, x: Tensor, sample: Sample) -> Tensor:
        """Return the Jacobian of h_i, ``[K, d]``, for the function h of this name. It counts as K gradient calls.

        Args:
            name: The name of the function.
            x: The point, ``[d]``.
            sample: The sample on which h_i is evaluated.
        """
        value, product = self.vjp(lambda x: getattr(self, name)(x, sample), x, grad=1, sample=sample)
        return self.at_each(lambda w: product(w)[0], torch.eye(len(value)).to(value))

    @for_problems(Minimisation, Constrained)
    def gradient(self, x: Tensor, sample: Sample) -> Tensor:
        """Return the gradient of the client's objective, grad f_i(x), [d], of a minimisation or constrained problem.

        It counts as one gradient call.

        Args:
            x: The point, ``[d]``.
            sample: The sample on which f_i is evaluated.
        """
        return self.grad(self.f, x, sample)

    @for_problems(Minimisation, Constrained)
    def gradient_step_(self, x: Tensor, sample: Sample, eta: Step, plus: Term = None, anchor: Term = None) -> Tensor:
        """Return P(x - eta (grad f_i(x) - grad f_i(anchor) + plus)), [d], of a minimisation or constrained problem.

        This is the new point after a gradient step with the step size eta. P is the problem's ``project_x``.

        It counts as one gradient call, or two with an anchor. If x was itself returned by such a step, it may be
        overwritten, so do not use it afterwards. Other tensors are never overwritten.

        Args:
            x: The point, ``[d]``.
            sample: The sample on which f_i is evaluated, at both points.
            eta: The step size: a number, or a scalar tensor with this client's step size.
            plus: A vector that is added to the gradient, ``[d]``. None: no such term.
            anchor: The point whose gradient is subtracted, ``[d]``. None: no such term.
        """
        return self._owned(self._problem.project_x(self._stepped(self.f, (x, sample), eta, plus, anchor)))

    @for_problems(Nested)
    def inner_step_(
        self, x: Tensor, y: Tensor, sample: Sample, beta: Step, plus: Term = None, anchor: Term = None
    ) -> Tensor:
        """Return P_Y(y - beta (grad_y g_i(x, y) - grad_y g_i(x, anchor) + plus)), [dy], of a bilevel problem.

        This is the new y after a projected gradient step on the inner objective. P_Y is the projection onto the constraint set.

        It counts as one gradient call, or two with an anchor. If y was itself returned by such a step, it may be
        overwritten, so do not use it afterwards. If the problem has no y, y is returned, and nothing is counted.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which g_i is evaluated, at both points.
            beta: The step size: a number, or a scalar tensor with this client's step size.
            plus: A vector that is added to the gradient, ``[dy]``. None: no such term.
            anchor: The point whose gradient is subtracted, ``[dy]``. None: no such term.
        """
        if not self._problem.nested:
            return y
        return self._owned(self._problem.project(self._stepped(self.g, (x, y, sample), beta, plus, anchor)))

    @for_problems(Nested, Minimax)
    def outer_step_(self, x: Tensor, y: Tensor, sample: Sample, eta: Step) -> tuple[Tensor, Tensor]:
        """Return P(x - eta grad_x f_i(x, y)), [dx], and grad_y f_i(x, y), [dy], of a bilevel or minimax problem.

        The first vector is the new x after a gradient step, and the second one is the gradient in y at the old point. P is the
        problem's ``project_x``.

        It counts as one gradient call. If x was itself returned by such a step, it may be overwritten, so do not use it
        afterwards.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which f_i is evaluated.
            eta: The step size: a number, or a scalar tensor with this client's step size.
        """
        g_x, g_y = self.outer_gradients(x, y, sample)
        return self._owned(self._problem.project_x(self.moved_(x, g_x, eta))), g_y

    @for_problems(Hierarchical)
    def lower_step_(self, x: Tensor, y: Tensor, sample: Sample, gamma: float) -> Tensor:
        """Return the projection of y - gamma grad_y h_i(x, y) at each of P points, [P, d], of a hierarchical problem.

        This is the new y at each point after a projected gradient step on the lowest level h_i.

        It counts as P gradient calls. If y was itself returned by such a step, it may be overwritten, so do not use it afterwards.

        Args:
            x: The upper variables, ``[P, d]``.
            y: The lower variables, ``[P, d]``.
            sample: The sample on which h is evaluated.
            gamma: The step size.
        """
        if self._owns(y) and hasattr(self.h, "steps"):
            self._counter.count(sample, grad=len(y))
            y = self.h.steps(x, y, sample, gamma)
        else:
            y = moved(y, self.gradients(self.h, x, y, sample), gamma)
        return self._owned(self._problem.project(x, y, sample))

    def moved_(self, point: Tensor, direction: Tensor, step: Step) -> Tensor:
        """Return ``point - step * direction``, ``[d]``.

        If the point was itself returned by this method or by another one that takes a step, such as ``descend``, it may be
        overwritten, so do not use it afterwards.

        Args:
            point: The point, ``[d]``.
            direction: The direction, ``[d]``.
            step: The step size: a number, or a scalar tensor with this client's step size.
        """
        if self._owns(point) and not isinstance(step, Tensor):
            return point.sub_(direction, alpha=step)
        return self._owned(moved(point, direction, step))

    def _owned(self, point: Tensor) -> Tensor:
        # A point that all clients of a stack share has no storage of its own for each client, so it must not be overwritten.
        # Inside a second vmap, nothing is overwritten
        if depth() < 2 and not self._owns(point) and (not self._stacked or differs_by_client(point)):
            self._overwritable.append(point)
        return point

    def _owns(self, point: Tensor) -> bool:
        return any(point is own for own in self._overwritable)

    def _stepped(self, fn: Any, arguments: tuple[Any, ...], eta: Step, plus: Term, anchor: Term) -> Tensor:
        """Return x - eta (grad fn(x) - grad fn(anchor) + plus), where x is the last variable of the arguments.

        If x was returned by a step, it may be overwritten.

        Args:
            fn: The function.
            arguments: The variables and the sample. The gradient is with respect to the last variable, x.
            eta: The step size: a number, or a scalar tensor with this client's step size.
            plus: A vector that is added to the gradient. None: no such term.
            anchor: The value of x whose gradient is subtracted. None: no such term.
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
        """Return grad_x f_i(x, y), [dx], and grad_y f_i(x, y), [dy], of a bilevel or minimax problem.

        It counts as one gradient call, since both are computed by one backward pass. If the problem has ``direct = False`` (f
        does not depend on x directly), grad_x f_i is zero.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which f_i is evaluated.
        """
        if isinstance(self._problem, Nested) and not self._problem.direct:
            return torch.zeros_like(x), self.outer_gradient_y(x, y, sample)
        return self._both_gradients(self.f, x, y, sample)

    @for_problems(Nested, Minimax)
    def outer_gradient_x(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        """Return grad_x f_i(x, y), [dx], of a bilevel or minimax problem.

        It counts as one gradient call. If the problem has ``direct = False`` (f does not depend on x directly), it is zero and
        is not counted.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which f_i is evaluated.
        """
        if isinstance(self._problem, Nested) and not self._problem.direct:
            return torch.zeros_like(x)
        if self._form(self.f, "both") is not None:
            return self._both_gradients(self.f, x, y, sample)[0]
        return self.grad(lambda x, sample: self.f(x, y, sample), x, sample)

    @for_problems(Nested, Minimax)
    def outer_gradient_y(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        """Return grad_y f_i(x, y), [dy], of a bilevel or minimax problem. It counts as one gradient call.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which f_i is evaluated.
        """
        return self.grad(self.f, x, y, sample)

    @for_problems(Nested)
    def inner_gradient(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        """Return grad_y g_i(x, y), [dy], of a bilevel problem.

        It counts as one gradient call. If the problem has no y, the result is zero and is not counted.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which g_i is evaluated.
        """
        return self.grad(self.g, x, y, sample) if self._problem.nested else torch.zeros_like(y)

    @for_problems(Nested)
    def inner_gradients(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return grad_x g_i(x, y), [dx], and grad_y g_i(x, y), [dy], of a bilevel problem.

        It counts as one gradient call, since both are computed by one backward pass. If the problem has no y, both are zero
        and are not counted.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which g_i is evaluated.
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
        """Return the function v -> grad^2_yy g_i(x, y) v, [dy], of a bilevel problem.

        Each use counts as one Hessian-vector product. All products reuse one graph of the gradient.
        If the problem has no y, the function returns v and nothing is counted.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            sample: The sample on which g_i is evaluated.
        """
        if not self._problem.nested:
            return lambda v: v
        if (second := self._form(self.g, "second")) is None:
            _, product = self.vjp(lambda y: self.grad(self.g, x, y, sample), y, hvp=1, sample=sample)
            return lambda v: product(v)[0]
        return self._counting(second(x, y, sample).hessian, sample, hvp=1)

    @for_problems(Nested)
    def inner_second(self, x: Tensor, y: Tensor, v: Tensor, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Return (grad_y g_i, grad^2_yy g_i v, grad^2_xy g_i v) at (x, y), with shapes [dy], [dy] and [dx], of a bilevel problem.

        It counts as one gradient call, one Hessian-vector and one Jacobian-vector product, all from one graph.
        If the problem has no y, the result is (0, v, 0) and is not counted.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            v: The vector, ``[dy]``.
            sample: The sample on which g_i is evaluated.
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
        """Return grad^2_xy g_i(x, y) v, [dx], of a bilevel problem.

        It counts as one Jacobian-vector product. If the problem has no y, the result is zero and is not counted.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            v: The vector, ``[dy]``.
            sample: The sample on which g_i is evaluated.
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
        """Return the client's hypergradient of a bilevel problem, [dx] [FedNest Alg. 5, LocalBSG eq. 3.3].

        It is::

            grad_x f_i - grad^2_xy g_i p,    where p estimates [grad^2_yy g_i]^-1 grad_y f_i

        It counts as one gradient call, one Jacobian-vector product and the Hessian-vector products of ``inverse``. If the
        problem has ``indirect = False`` (grad_y f is zero at the solution), the result is grad_x f_i, which counts as one
        gradient call, or as none if ``direct`` is also False. If the problem has ``identity = True`` (grad^2_yy g is the
        identity), p is grad_y f_i, without Hessian-vector products.

        Args:
            x: The outer variable, ``[dx]``.
            y: The inner variable, ``[dy]``.
            samples: A list of ``problem.hypergradient_samples(products)`` samples. The first sample is for the gradients of f_i,
                and the following ones are for the Hessian-vector products, in their order. The cross derivative uses the last
                sample if ``problem.shares_examples`` is True, otherwise the first sample.
            inverse: ``inverse(product, b)``, which returns an estimate of H^-1 b. It is typically a partial of `neumann_sum`.
        """
        problem = self._problem
        xi, *zetas = samples
        crossed = zetas.pop() if problem.shares_examples else xi
        if not problem.indirect:
            return self.outer_gradient_x(x, y, xi)
        grad_x, b = self.outer_gradients(x, y, xi)
        hessians: dict[int, Callable[[Tensor], Tensor]] = {}  # samples that are used repeatedly share a graph

        def product(v: Tensor, n: int) -> Tensor:
            zeta = zetas[n]
            if id(zeta) not in hessians:
                hessians[id(zeta)] = self.inner_hessian(x, y, zeta)
            return hessians[id(zeta)](v)

        p = b if problem.identity else inverse(product, b)
        return grad_x - self.cross_product(x, y, p, crossed)

    def _check(self, oracle: str, classes: tuple[type[Problem], ...]) -> None:
        """Raise UserError unless the problem belongs to one of these classes.

        Args:
            oracle: The name of the oracle, for the message.
            classes: The problem classes that the oracle supports.
        """
        if isinstance(self._problem, classes):
            return
        kind, wanted = class_of(self._problem), " or ".join(class_name(c) for c in CLASSES if issubclass(c, classes))
        names = ", ".join(f"client.{name}" for name in offered(type(self), kind)) or "no special oracles"
        problem = type(getattr(self._problem, "original", self._problem)).__name__
        here = f"{problem} is {class_name(kind)} here, which offers {names}"
        raise UserError(f"client.{oracle} needs a {wanted} problem, and {here}")
