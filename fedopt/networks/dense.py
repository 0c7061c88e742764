"""Backpropagation written by hand for dense networks: gradients, and gradient steps in place.

For small batches, automatic differentiation takes longer than the matrix products, and so does copying parameter vectors.

Notation::

    W, b    weights [outputs, inputs] and biases [outputs, 1] of a layer
    a       input of a layer, [inputs, B]
    d       derivative of the loss with respect to the output of a layer, [outputs, B]

Examples are columns: for small batches, this makes the products a quarter faster than rows would, and softmax several
times faster (scripts/bench fedavg). All tensors may have further leading dimensions, as `at_once` adds them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedopt.networks.batch import Batch, Tuning
from fedopt.networks.dropout import Dropout
from fedopt.networks.stacked import at_once


class Layer(NamedTuple):
    """The parameters of a layer, or their gradients.

    Attributes:
        W: Weights, ``[outputs, inputs]``.
        b: Biases, ``[outputs, 1]``. None: the layer has no biases.
    """

    W: Tensor
    b: Tensor | None


class Pass(NamedTuple):
    """The result of a forward and backward pass of a network. Each list has one entry per layer.

    Attributes:
        layers: Parameters of the layers.
        a: Inputs of the layers, ``[inputs, B]``.
        d: Derivatives of the loss with respect to the outputs of the layers, ``[outputs, B]``.
        logits: Outputs of the last layer after scaling and shifting, ``[classes, B]``.
    """

    layers: list[Layer]
    a: list[Tensor]
    d: list[Tensor]
    logits: Tensor


class Dense:
    """A chain of linear layers, with ReLU and dropout between them, as a function of one flat parameter vector.

    With the weight w_j and the class y_j of example j, the loss is::

        sum_j  w_j CE(scale * logits_j + shift, y_j)

    The derivatives equal the derivatives computed by automatic differentiation.

    Args:
        shapes: Shapes of the parameters, in the order of the vector.
        dropped: Dropout probability.
    """

    def __init__(self, shapes: Sequence[torch.Size], dropped: float):
        self.sizes = [shape.numel() for shape in shapes]
        self.dim = sum(self.sizes)
        self._columns = [(*shape, 1)[:2] for shape in shapes]  # biases are columns
        self._biases = any(len(shape) == 1 for shape in shapes)
        self._hidden = sum(len(shape) == 2 for shape in shapes) - 1
        self._dropped = dropped

    @at_once
    def gradient(self, flat: Tensor, batch: Batch, tuning: Tuning = None) -> Tensor:
        """Return the gradient of the loss, ``[dim]``.

        Args:
            flat: Parameters, ``[dim]``.
            batch: The examples; the key of the batch determines the dropout masks.
            tuning: Scale and shift of the logits, ``[classes]`` each. None: the logits are used as they are.
        """
        return self._gradient(flat, self._pass(flat, batch, tuning))

    @at_once
    def gradient_and_losses(self, flat: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the gradient of the loss, ``[dim]``, and the cross-entropy of each example, ``[B]``.

        Args:
            flat: Parameters, ``[dim]``.
            batch: The examples; the key of the batch determines the dropout masks.
        """
        done = self._pass(flat, batch)
        at = batch.y.unsqueeze(-2).expand(*done.logits.shape[:-2], 1, -1)
        losses = torch.logsumexp(done.logits, -2) - done.logits.gather(-2, at).squeeze(-2)
        return self._gradient(flat, done), losses

    def _gradient(self, flat: Tensor, done: Pass) -> Tensor:
        """Return the gradient of the loss, ``[dim]``, from the result of a pass.

        Args:
            flat: The parameters of the pass, ``[dim]``.
            done: The result of the pass.
        """
        found = done.logits.new_empty((*done.logits.shape[:-2], flat.shape[-1]))
        for (W, b), a_n, d_n in zip(self._by_layer(found), done.a, done.d, strict=True):
            _add_product(W, d_n, a_n.mT, keep=0)
            if b is not None:
                b.copy_(d_n.sum(-1, keepdim=True))
        return found

    @at_once
    def descend(
        self,
        flat: Tensor,
        batch: Batch,
        eta: float,
        plus: Tensor | None = None,
        tuning: Tuning = None,
        anchor: Tensor | None = None,
        keep: float = 1.0,
    ) -> Tensor:
        """Take a gradient step in place and return the parameters.

        ``flat`` is overwritten with::

            keep * flat - eta * (gradient(flat) - gradient(anchor) + plus)

        The matrix products are added to the weights directly; the gradient is never stored. All arguments are positional.

        Args:
            flat: Parameters, ``[dim]``. Under vmap, each client's vector must have its own memory.
            batch: The examples; the key of the batch determines the dropout masks.
            eta: Step size.
            plus: Vector added to the gradient, ``[dim]``. None: nothing is added.
            tuning: Scale and shift of the logits, ``[classes]`` each. None: the logits are used as they are.
            anchor: Point whose gradient on the same batch is subtracted, ``[dim]``. None: nothing is subtracted.
            keep: Factor of the old parameters.
        """
        at_flat = self._pass(flat, batch, tuning)
        if anchor is not None:
            at_flat = _difference(at_flat, self._pass(anchor, batch, tuning))
        for (W, b), a_n, d_n in zip(at_flat.layers, at_flat.a, at_flat.d, strict=True):
            _add_product(W, d_n, a_n.mT, keep, -eta)
            if b is not None:
                (b if keep == 1 else b.mul_(keep)).sub_(d_n.sum(-1, keepdim=True), alpha=eta)
        return flat if plus is None else flat.sub_(plus, alpha=eta)

    def _pass(self, flat: Tensor, batch: Batch, tuning: Tuning = None) -> Pass:
        """Run the network forward and backward, and return what both passes computed.

        Args:
            flat: Parameters, ``[dim]``.
            batch: The examples.
            tuning: Scale and shift of the logits, ``[classes]`` each. None: the logits are used as they are.
        """
        layers = self._by_layer(flat)
        *a, logits = self._outputs(layers, batch)
        if tuning is not None:
            scale, shift = (values.unsqueeze(-1) for values in tuning)
            logits = logits * scale + shift
        weight = batch.weight.unsqueeze(-2)
        d = torch.softmax(logits, -2) * weight  # minus weight at y, below: d = weight (softmax - onehot(y))
        at = batch.y.unsqueeze(-2).expand(*d.shape[:-2], 1, -1)
        d = d.scatter_add_(-2, at, -weight.expand_as(at))
        of_layers = [d if tuning is None else d * scale]
        for (W, _), a_n in zip(layers[:0:-1], a[:0:-1], strict=True):
            # a is 0 where ReLU or dropout gave 0
            below = torch.ops.aten.threshold_backward(W.mT @ of_layers[0], a_n, 0)
            of_layers.insert(0, below * self._enlarged if batch.keys else below)
        return Pass(layers, a, of_layers, logits)

    def _outputs(self, layers: list[Layer], batch: Batch) -> list[Tensor]:
        """Run the network forward, and return the input of each layer, ``[inputs, B]``, and the output of the last layer.

        Args:
            layers: Parameters of the layers.
            batch: The examples; the key of the batch determines the dropout masks.
        """
        a, dropout = [batch.x.mT], Dropout(batch.keys[0]) if batch.keys else None
        for n, (W, b) in enumerate(layers):
            out = W @ a[-1]
            out = out if b is None else out.add_(b)
            if n < self._hidden:
                out = out.relu_()
                if dropout is not None:
                    out = out * dropout.kept(out.mT.shape[-2:], self._dropped, out.device).mT * self._enlarged
            a.append(out)
        return a

    @property
    def _enlarged(self) -> float:
        """The factor by which dropout scales the units that it keeps."""
        return 1 / (1 - self._dropped)

    def _by_layer(self, flat: Tensor) -> list[Layer]:
        """Split a parameter vector ``[dim]`` into views of the weights and biases of each layer."""
        chunks = flat.split_with_sizes(self.sizes, -1)
        views = [chunk.view(*chunk.shape[:-1], *shape) for chunk, shape in zip(chunks, self._columns, strict=True)]
        if not self._biases:
            return [Layer(W, None) for W in views]
        return [Layer(W, b) for W, b in zip(views[::2], views[1::2], strict=True)]


def _difference(one: Pass, other: Pass) -> Pass:
    """Return a pass whose gradient is the difference of the gradients of two passes on the same batch.

    A pass holds, for each layer, its inputs a and the derivatives d of the loss in its outputs, so the gradient of the layer's
    weights is d a^T. With d' and a' of the other pass, the difference is::

        [d, -d'] [a, a']^T = d a^T - d' a'^T

    The first layer has the same inputs a in both passes, so it keeps a and gets the derivatives d - d'.

    Args:
        one: The pass that is kept, apart from a and d.
        other: The pass whose gradient is subtracted.
    """
    a = [torch.cat([mine, its.expand_as(mine)], -1) for mine, its in zip(one.a[1:], other.a[1:], strict=True)]
    d = [torch.cat([mine, -its.expand_as(mine)], -1) for mine, its in zip(one.d[1:], other.d[1:], strict=True)]
    return one._replace(a=[one.a[0], *a], d=[one.d[0] - other.d[0], *d])


def _add_product(into: Tensor, left: Tensor, right: Tensor, keep: float = 1, factor: float = 1) -> None:
    """Overwrite a matrix with ``keep * into + factor * left @ right``. With ``keep = 0``, its old content is ignored.

    Args:
        into: The matrix, ``[..., rows, columns]``.
        left: The first factor, ``[..., rows, k]``.
        right: The second factor, ``[..., k, columns]``.
        keep: Factor of the old content.
        factor: Factor of the product.
    """
    if into.ndim == 2:
        into.addmm_(left, right, beta=keep, alpha=factor)
        return
    if into.ndim > 3 or not len(left) == len(right) == len(into):  # baddbmm needs equal leading sizes
        left, right = (t.expand(*into.shape[:-2], *t.shape[-2:]).flatten(0, -3) for t in (left, right))
        into = into.view(-1, *into.shape[-2:])
    into.baddbmm_(left, right, beta=keep, alpha=factor)
