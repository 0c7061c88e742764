"""Backpropagation written out for dense networks: gradients, steps, and products with second derivatives.

On small batches automatic differentiation takes longer than the matrix products, and its copies of vectors as long.

Notation
    W, b    the weights of a layer, [outputs, inputs], and its biases, [outputs, 1]
    a, d    what goes into a layer, [inputs, B], and the derivatives of the loss in what comes out, [outputs, B]
    R_...   the derivative of a quantity along a direction v of the parameters [Pearlmutter 1994]
    logits  what the last layer gives, before they are scaled and shifted, and p, their softmax afterwards

Examples are columns: the products of small batches are then a quarter faster than with rows, and softmax is several times faster
(scripts/bench fedavg). All tensors may have further first dimensions, as `at_once` gives them.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedopt.errors import UserError
from fedopt.networks.dropout import Dropout
from fedopt.networks.stacked import Held, at_once

Flat = Tensor | tuple[Tensor, ...]  # the parameters, in one vector, or in vectors that follow each other
Tuning = tuple[Tensor, Tensor] | None  # scale and shift of the logits, [classes] each
Weights = tuple[Tensor, Tensor | None]  # of a layer
Masks = list[Tensor]  # of hidden layers, [width, B] each; [] without dropout


class Linearised(NamedTuple):
    """The gradient in the last vector of parameters, and derivatives of gradients along directions v of that vector.

    product: (v, whole) -> that of the gradient in the last vector, the product of its Hessian and v; or in all vectors.
    mixed: (v, name) -> that of another gradient: in x, [B, features], in weight, [B], or in scale or shift, [classes].
    """

    gradient: Tensor
    product: Callable[[Tensor, bool], Any]
    mixed: Callable[[Tensor, str], Tensor]


class Dense:
    """A chain of linear layers with ReLUs and dropout between them, as a function of one flat parameter vector.

    Its loss is sum_j weight_j CE(scale logits_j + shift, y_j). Derivatives equal those of automatic differentiation.

    In all methods flat is [dim], or several vectors that make it up: then its derivatives are several too. x is [B, features], y
    and weight are [B], the classes and the weights. tuning is (scale, shift) of the logits, [classes] each, or None. key is an
    int64 tensor that determines dropout masks; None: without dropout.

    shapes: those of the parameters. dropped: the probability of dropout.
    """

    def __init__(self, shapes: Sequence[torch.Size], dropped: float):
        self.sizes = [shape.numel() for shape in shapes]
        self.dim = sum(self.sizes)
        self._matrices = [shape for shape in shapes if len(shape) == 2]
        self._biases = any(len(shape) == 1 for shape in shapes)
        self._dropped = dropped
        of_layers = [shape.numel() + self._biases * shape[0] for shape in self._matrices]
        self._cuts = dict[tuple[int, int], tuple[list[int], list[tuple[int, int]]]]()
        self._ends = [*accumulate(of_layers, initial=0)]

    def gradient(self, flat: Flat, x: Tensor, y: Tensor, weight: Tensor, *options: Any) -> Any:
        """Return the gradient in ``flat``. options: tuning and key."""
        return self._gradients(flat, x, y, weight, *self._with_masks(x, *options))[0]

    def gradient_and_losses(
        self, flat: Flat, x: Tensor, y: Tensor, weight: Tensor, *options: Any
    ) -> tuple[Any, Tensor]:
        """Return the gradient in ``flat``, and the loss of each example, [B]. options: tuning and key."""
        gradient, losses = self._gradients(flat, x, y, weight, *self._with_masks(x, *options), "losses")
        return gradient, losses

    def gradients(self, flat: Flat, x: Tensor, y: Tensor, weight: Tensor, *options: Any) -> tuple[Any, Tensor]:
        """Return the gradient in ``flat``, and that in x, [B, features]. options: tuning and key."""
        gradient, d_x = self._gradients(flat, x, y, weight, *self._with_masks(x, *options), "x")
        return gradient, d_x

    def descend(
        self,
        flat: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        eta: float,
        plus: Tensor | None,
        *options: Any,
        anchor: Tensor | None = None,
        keep: float = 1.0,
    ) -> Tensor:
        """Overwrite ``flat`` by keep flat - eta (gradient - gradient at the anchor + plus), and return it.

        The matrix products add to the weights, and no gradient is formed.

        flat: [dim]. Under vmap it must be a separate vector in memory for each client. eta: the step size.
        plus: [dim], added to the gradient; None for nothing. options: tuning and key.
        anchor: [dim], a point whose gradient on the same batch is subtracted; None for nothing.
        """
        self._descend(flat, x, y, weight, *self._with_masks(x, *options), eta, plus, anchor, keep)
        return flat

    def descend_and_losses(
        self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, eta: float, *options: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the step of `descend`, and return ``flat``, and the loss of each example before it, [B]."""
        return flat, self._descend(flat, x, y, weight, *self._with_masks(x, *options), eta, None, None, 1.0, True)

    def linearised(self, flat: Flat, x: Tensor, y: Tensor, weight: Tensor, *options: Any) -> Linearised:
        """Return the gradient in the last vector of ``flat``, and derivatives along it. options: tuning and key."""
        gradient, held = self._linearised(flat, x, y, weight, *self._with_masks(x, *options))
        return Linearised(
            gradient,
            lambda v, whole: self._along(held, v, "whole" if whole else "last"),
            lambda v, name: self._along(held, v, name),
        )

    def features(self, flat: Tensor, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return what the hidden layers make of x, [B, width]. flat: the parameters of these layers alone."""
        return self._features(flat, x, self._with_masks(x, None, key)[1])

    @at_once
    def _features(self, flat: Tensor, x: Tensor, kept: Masks) -> Tensor:
        return self._forward_pass(self._weights(flat), x.mT, kept)[-1].mT

    @at_once
    def _gradients(
        self, flat: Flat, x: Tensor, y: Tensor, weight: Tensor, tuning: Tuning, kept: Masks, wanted: str = ""
    ) -> list[Any]:
        """Return the gradient, and the losses or the gradient in x, if wanted. kept: from `_with_masks`."""
        layers = self._weights(flat)
        *a, logits = self._forward_pass(layers, x.mT, kept)
        tuned, d, _ = _at_logits(logits, y, weight, tuning)
        of_layers = self._backward_pass(layers, a, _scaled(d, tuning), _enlarged(kept, self._dropped))
        gradient = self._assembled(flat, a, of_layers)
        if wanted == "losses":
            return [gradient, _losses(tuned, y)]
        return [gradient, (layers[0][0].mT @ of_layers[0]).mT] if wanted == "x" else [gradient]

    @at_once
    def _descend(
        self,
        flat: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        tuning: Tuning,
        kept: Masks,
        eta: float,
        plus: Tensor | None,
        anchor: Tensor | None,
        keep: float,
        losses: bool = False,
    ) -> Any:
        """Take the step, and return the losses before it, or None."""
        columns = x.mT

        def parts(layers: list[Weights]) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
            *a, logits = self._forward_pass(layers, columns, kept)
            tuned, d, _ = _at_logits(logits, y, weight, tuning)
            of_layers = self._backward_pass(layers, a, _scaled(d, tuning), _enlarged(kept, self._dropped))
            return list(zip(a, of_layers, strict=True)), tuned

        layers = self._weights(flat)
        of_steps, tuned = parts(layers)
        if anchor is not None:
            of_steps = list(map(_difference, of_steps, parts(self._weights(anchor))[0]))
        for (W, b), (a, d) in zip(layers, of_steps, strict=True):
            _add_product(W, d, a.mT, keep, -eta)
            if b is not None:
                (b if keep == 1 else b.mul_(keep)).sub_(d.sum(-1, keepdim=True), alpha=eta)
        if plus is not None:
            flat.sub_(plus, alpha=eta)
        return _losses(tuned, y) if losses else None

    @at_once
    def _linearised(
        self, flat: Flat, x: Tensor, y: Tensor, weight: Tensor, tuning: Tuning, kept: Masks
    ) -> tuple[Any, Held]:
        """Return the gradient, and what `_along` takes."""
        layers, enlarged = self._weights(flat), _enlarged(kept, self._dropped)
        *a, logits = self._forward_pass(layers, x.mT, kept)
        _, d_tuned, p = _at_logits(logits, y, weight, tuning)
        last = _several(flat)[-1]
        first = self._layer(self.dim - last.shape[-1], last.shape[-1])
        d = self._backward_pass(layers, a, _scaled(d_tuned, tuning), enlarged, first)
        return self._assembled(last, a[first:], d[first:], first=first), Held(
            (flat, _versions(flat), layers, a, d, logits, d_tuned, p, y, weight, tuning, enlarged)
        )

    @at_once
    def _along(self, held: Any, v: Tensor, wanted: str) -> Any:
        """Return R of a gradient along v, a direction of the last vector of parameters.

        held: from `_linearised`. wanted: whose gradient: that of all parameters (whole), of the last vector of them (last), of x,
        weight, scale, or shift. R_a is 0 before the first layer that v moves, `first`.
        """
        flat, versions, layers, a, d, logits, d_tuned, p, y, weight, tuning, enlarged = held
        if versions != _versions(flat):
            raise UserError(
                "a product with second derivatives is taken at a point that was overwritten; take the product before the step"
            )
        first = self._layer(self.dim - v.shape[-1], v.shape[-1])
        directions = self._weights(v, first)
        R_a: list[Any] = [None] * (first + 1)
        for n in range(first, len(layers)):
            (W, _), (V, c) = layers[n], directions[n - first]
            R_out = V @ a[n]
            if c is not None:
                R_out = R_out.add_(c)
            if n > first:
                R_out = R_out.add_(W @ R_a[n])
            if n < len(layers) - 1:
                R_a.append(_masked(R_out, a[n + 1], enlarged))
        R_tuned, w = _scaled(R_out, tuning), weight.unsqueeze(-2)
        of_classes = p * R_tuned
        mean = of_classes.sum(-2, keepdim=True)
        if wanted == "weight":
            return (mean - R_tuned.gather(-2, y.unsqueeze(-2))).squeeze(-2)
        R_d_tuned = (of_classes - p * mean) * w
        if wanted in ("scale", "shift"):
            return (R_d_tuned * logits + d_tuned * R_out if wanted == "scale" else R_d_tuned).sum(-1)
        R_d = [_scaled(R_d_tuned, tuning)]
        least = first if wanted == "last" else 0
        for n in reversed(range(least + 1, len(layers))):
            R_below = layers[n][0].mT @ R_d[0]
            R_below = R_below.add_(directions[n - first][0].mT @ d[n]) if n >= first else R_below
            R_d.insert(0, _masked(R_below, a[n], enlarged))
        if wanted == "x":
            R_x = layers[0][0].mT @ R_d[0]
            return (R_x if first else R_x.add_(directions[0][0].mT @ d[0])).mT
        more = list(zip(d[least:], R_a[least:], strict=True))
        return self._assembled(v if wanted == "last" else flat, a[least:], R_d, more, least)

    def _weights(self, flat: Any, first: int = 0) -> list[Weights]:
        """Return views of the parameters from the layer `first` on, W and b of each; None for b if there are no biases."""
        layers, width = list[Weights](), 1 + self._biases
        for part in _several(flat):
            sizes, shapes = self._cut(first + len(layers), part.shape[-1])
            points, pieces = part.shape[:-1], part.split_with_sizes(sizes, -1)
            views = [piece.view(points + shape) for piece, shape in zip(pieces, shapes, strict=True)]
            layers += zip(views[::width], views[1::width] if self._biases else [None] * len(views), strict=True)
        return layers

    def _cut(self, first: int, dim: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the sizes and shapes of the parameters in a vector of that dimension that begins with the layer `first`."""
        if (first, dim) not in self._cuts:
            matrices = self._matrices[first : self._layer(self._ends[first] + dim, dim)]
            shapes = [shape for n, m in matrices for shape in ((n, m), (n, 1))[: 1 + self._biases]]
            self._cuts[first, dim] = [n * m for n, m in shapes], shapes
        return self._cuts[first, dim]

    def _layer(self, at: int, dim: int) -> int:
        """Return the layer that begins at a parameter. dim: of the vector that should end or begin there, for the message."""
        if at not in self._ends:
            raise ValueError(f"a vector of {dim} numbers does not fit the network's layers, of {self.dim} numbers")
        return self._ends.index(at)

    def _assembled(
        self, like: Any, a: list[Tensor], d: list[Tensor], more: Sequence[tuple[Tensor, Any]] = (), first: int = 0
    ) -> Any:
        """Return the gradient, in vectors like those of ``like``, whose parts are d a' + more[0] more[1]'.

        a, d, more: of the layers from `first` on. more[1] is None where nothing is added.
        """
        vectors = [d[-1].new_empty((*d[-1].shape[:-2], part.shape[-1])) for part in _several(like)]
        for n, (W, b) in enumerate(self._weights(vectors, first)):
            _add_product(W, d[n], a[n].mT, 0)
            if more and more[n][1] is not None:
                _add_product(W, more[n][0], more[n][1].mT)
            if b is not None:
                torch.sum(d[n], -1, keepdim=True, out=b)
        return vectors if isinstance(like, list | tuple) else vectors[0]

    def _forward_pass(self, layers: list[Weights], x: Tensor, kept: Masks) -> list[Tensor]:
        """Return a of each of the first layers, and what comes out of the last of them."""
        a = [x]
        for n, (W, b) in enumerate(layers):
            out = W @ a[-1]
            out = out if b is None else out.add_(b)
            if n < len(self._matrices) - 1:
                out = out.relu_()
                out = out * kept[n] * _enlarged(kept, self._dropped) if kept else out
            a.append(out)
        return a

    def _backward_pass(
        self, layers: list[Weights], a: list[Tensor], d: Tensor, enlarged: float, first: int = 0
    ) -> list[Any]:
        """Return d of each layer, None for those before the layer `first`. d: of the last one."""
        of_layers = [d]
        for n in reversed(range(first + 1, len(layers))):
            of_layers.insert(0, _masked(layers[n][0].mT @ of_layers[0], a[n], enlarged))
        return [None] * first + of_layers

    def _with_masks(self, x: Tensor, tuning: Tuning = None, key: Tensor | None = None) -> tuple[Tuning, Masks]:
        """Return the tuning, and which units dropout keeps on the examples x: a bool mask for each hidden layer."""
        if key is None:
            return tuning, []
        dropout, widths = Dropout(key), [outputs for outputs, _ in self._matrices[:-1]]
        return tuning, [dropout.kept((len(x), width), self._dropped, x.device).mT for width in widths]


def _several(flat: Any) -> Sequence[Tensor]:
    return flat if isinstance(flat, list | tuple) else (flat,)


def _versions(flat: Any) -> list[int]:
    """Return a count of each vector that grows each time the vector is written over."""
    return [part._version for part in _several(flat)]


def _enlarged(kept: Masks, dropped: float) -> float:
    """Return the factor of what dropout keeps."""
    return 1 / (1 - dropped) if kept else 1.0


def _at_logits(logits: Tensor, y: Tensor, weight: Tensor, tuning: Tuning) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits as the loss takes them, its derivatives in these, and p, [classes, B] each."""
    tuned = logits if tuning is None else logits * tuning[0].unsqueeze(-1) + tuning[1].unsqueeze(-1)
    p, w = torch.softmax(tuned, -2), weight.unsqueeze(-2)
    at = y.unsqueeze(-2).expand(*tuned.shape[:-2], 1, -1)
    return tuned, (p * w).scatter_add_(-2, at, -w.expand_as(at)), p


def _losses(tuned: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each example, [B]. tuned: the logits as the loss takes them."""
    return torch.logsumexp(tuned, -2) - tuned.gather(-2, y.unsqueeze(-2)).squeeze(-2)


def _scaled(d: Tensor, tuning: Tuning) -> Tensor:
    """Return derivatives in the logits as the loss takes them as those before the scale."""
    return d if tuning is None else d * tuning[0].unsqueeze(-1)


def _masked(d: Tensor, a: Tensor, enlarged: float) -> Tensor:
    """Return derivatives in what came out of a hidden layer as derivatives before its ReLU: zero where a is."""
    d = torch.ops.aten.threshold_backward(d, a, 0)
    return d if enlarged == 1 else d * enlarged


def _difference(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return (a, d) of a layer whose product is the first gradient minus the second."""
    (a, d), (a_other, d_other) = one, other
    if a is a_other:
        return a, d - d_other
    return torch.cat([a, a_other], -1), torch.cat([d, -d_other], -1)


def _add_product(into: Tensor, a: Tensor, b: Tensor, keep: float = 1, factor: float = 1) -> None:
    """Overwrite ``into`` by keep * into + factor * a b. With keep = 0 its old content does not count."""
    if into.ndim == 2:
        into.addmm_(a, b, beta=keep, alpha=factor)
        return
    if into.ndim > 3 or not len(a) == len(b) == len(into):
        a, b = (t.expand(*into.shape[:-2], *t.shape[-2:]).flatten(0, -3) for t in (a, b))
        into = into.view(-1, *into.shape[-2:])
    into.baddbmm_(a, b, beta=keep, alpha=factor)
