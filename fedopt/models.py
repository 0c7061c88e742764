"""Networks as functions of one flat vector of parameters."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedopt.errors import UserError
from fedopt.randomness import Purpose, torch_seed

NAMES = ("linear", "softmax", "mlp", "cnn", "vgg11")


class FlatModel:
    """A chain of layers whose parameters live in one flat vector, in the order of `nn.Sequential.parameters()`.

    dim: the length of that vector; initial: its value after PyTorch's own initialisation, [dim], float32.
    autocast: the type that products and convolutions are computed in, None for that of the parameters.
    convolutional: whether it has convolutions.
    dense: whether it is linear layers with ReLUs between them, and no autocast: then it has `gradient` and `descend`.
    """

    def __init__(self, layers: nn.Sequential, input_shape: Sequence[int], autocast: torch.dtype | None = None):
        parameters = list(layers.parameters())
        self.input_shape = tuple(input_shape)
        self.autocast = autocast
        self.convolutional = any(isinstance(layer, nn.Conv2d) for layer in layers)
        self.sizes = [p.numel() for p in parameters]
        self.dim = sum(self.sizes)
        self.initial = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._shapes = [p.shape for p in parameters]
        self.dense = autocast is None and all(isinstance(layer, nn.Linear | nn.ReLU) for layer in layers)
        self._widths = [*(shape[1] for shape in self._shapes if len(shape) == 2), self._shapes[-1][0]]
        self._biases = any(len(shape) == 1 for shape in self._shapes)
        self._layers = [layer.requires_grad_(False) for layer in layers]

    def split_last(self) -> tuple["FlatModel", "FlatModel"]:
        """All layers but the last, and the last. Raises UserError where there is only one."""
        if len(self._layers) == 1:
            raise UserError(
                "problem.model=linear and problem.model=softmax have no hidden layers: use mlp, cnn or vgg11"
            )
        body, head = nn.Sequential(*self._layers[:-1]), nn.Sequential(self._layers[-1])
        return FlatModel(body, self.input_shape, self.autocast), FlatModel(head, (), self.autocast)

    def __call__(self, flat: Tensor, x: Tensor) -> Tensor:
        """Logits [B, classes] of x [B, features] under the parameters flat [dim], in their type."""
        if self.autocast is None:
            return self._forward(flat, x)
        with torch.autocast(flat.device.type, self.autocast, cache_enabled=False):
            return self._forward(flat, x).to(flat.dtype)

    def _forward(self, flat: Tensor, x: Tensor) -> Tensor:
        parameters = iter(self._views(flat))
        if self.convolutional:
            x = x.reshape(-1, *self.input_shape)
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                x = F.linear(x, next(parameters), None if layer.bias is None else next(parameters))
            elif isinstance(layer, nn.Conv2d):
                x = F.conv2d(x, next(parameters), next(parameters), layer.stride, layer.padding)
            elif isinstance(layer, nn.ReLU):
                x = torch.relu(x)  # never in place: derivatives need the input
            else:
                x = layer(x)
        return x

    def _views(self, flat: Tensor) -> list[Tensor]:
        """By split, not slices: the gradient is one concatenation instead of a zero-filled vector for each piece."""
        pieces = torch.split_with_sizes(flat, self.sizes)
        return [p if len(shape) == 1 else p.view(shape) for p, shape in zip(pieces, self._shapes, strict=True)]

    def gradient(
        self,
        flat: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Tensor | None:
        """The gradient of sum_j weight_j CE(scale logits_j + shift, y_j), backpropagation written out; None unless `dense`.

        The same as autograd's; on small batches autograd's bookkeeping takes as long as the matrix products.
        flat: [dim], or several points [P, dim], which share the first products; the gradient has its shape.
        x: [B, features]; y, weight: [B]; scale, shift: [classes], none by default.
        """
        if not self.dense:
            return None
        layers = _dense_layers(flat, self._widths, self._biases)
        pieces: list[Tensor] = []
        for _, b, a, delta in _backpropagation(layers, x, y, weight, scale, shift):
            pieces = [(delta @ a.mT).flatten(-2), *([] if b is None else [delta.sum(-1)]), *pieces]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)

    def descend(
        self,
        flat: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        eta: float,
        plus: Tensor | None = None,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Tensor | None:
        """A gradient step flat - eta (gradient + plus), written over flat [dim] and returned; None unless `dense`.

        The matrix products add to the weights, and so the gradient is never formed. Under vmap the steps of all
        points are taken at once; where they share one flat, it is left as it is.
        plus: [dim], zero by default; the others as those of `gradient`.
        """
        if not self.dense:
            return None
        args = (flat, x, y, weight, self._widths, self._biases, eta, plus, scale, shift)
        stepped: Tensor = torch.ops.fedopt.descend.default(*args)
        return stepped


Layer = tuple[Tensor, Tensor | None]  # weights [..., outputs, inputs] and biases [..., outputs, 1], views of a flat vector


def _dense_layers(flat: Tensor, widths: Sequence[int], biases: bool) -> list[Layer]:
    """Of one flat vector [dim] or several [C, dim]."""
    shapes = list(itertools.pairwise(widths))
    points = flat.shape[:-1]
    pieces = iter(flat.split_with_sizes([size for a, b in shapes for size in ((a * b, b) if biases else (a * b,))], -1))
    return [
        (next(pieces).view(*points, b, a), next(pieces).view(*points, b, 1) if biases else None) for a, b in shapes
    ]


def _backpropagation(
    layers: Sequence[Layer], x: Tensor, y: Tensor, weight: Tensor, scale: Tensor | None, shift: Tensor | None
) -> Iterator[tuple[Tensor, Tensor | None, Tensor, Tensor]]:
    """For each layer, the last one first: its weights, its biases, its inputs [..., inputs, B] and the derivatives of the loss
    in its outputs [..., outputs, B]. A layer may be overwritten once it has come.

    An example is a column: softmax down the columns of a small matrix is several times as fast as along its rows.
    """
    inputs = [x.mT]
    outputs = x.mT
    for W, b in layers:
        outputs = W @ inputs[-1] if b is None else (W @ inputs[-1]).add_(b)
        inputs.append(outputs.relu_() if len(inputs) < len(layers) else outputs)
    logits = inputs.pop()
    if scale is not None and shift is not None:
        logits = logits * scale.unsqueeze(-1) + shift.unsqueeze(-1)
    w = weight.unsqueeze(-2)
    at = y.unsqueeze(-2).expand(*logits.shape[:-2], 1, -1)
    delta = (torch.softmax(logits, -2) * w).scatter_add_(-2, at, -w.expand_as(at))
    if scale is not None:
        delta = delta * scale.unsqueeze(-1)
    for (W, b), a in zip(reversed(layers), reversed(inputs), strict=True):
        first = a is inputs[0]
        before = delta if first else torch.ops.aten.threshold_backward(W.mT @ delta, a, 0)  # zero where a was
        yield W, b, a, delta
        delta = before


def _descend(
    flat: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    widths: Sequence[int],
    biases: bool,
    eta: float,
    plus: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
) -> Tensor:
    """`FlatModel.descend` for one client, or for a stack of them: then all tensors have a leading dimension [C]."""
    layers = _dense_layers(flat, widths, biases)
    for W, b, a, delta in _backpropagation(layers, x, y, weight, scale, shift):
        (W.addmm_ if W.dim() == 2 else W.baddbmm_)(delta, a.mT, alpha=-eta)
        if b is not None:
            b.sub_(delta.sum(-1, keepdim=True), alpha=eta)
    return flat if plus is None else flat.sub_(plus, alpha=eta)


def _descend_stack(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    def stacked(arg: Any, dim: int | None) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        return arg.expand(info.batch_size, *arg.shape) if dim is None else arg.movedim(dim, 0)

    flat, *others = (stacked(arg, dim) for arg, dim in zip(args, in_dims, strict=True))
    return _descend(flat.clone() if in_dims[0] is None else flat, *others), 0


_library = torch.library.Library("fedopt", "FRAGMENT")
_library.define(
    "descend(Tensor(a!) flat, Tensor x, Tensor y, Tensor weight, int[] widths, bool biases, float eta, "
    "Tensor? plus, Tensor? scale, Tensor? shift) -> Tensor(a!)"
)
_library.impl("descend", _descend, "CompositeExplicitAutograd")
torch.library.register_vmap("fedopt::descend", _descend_stack, lib=_library)


def build(
    name: str,
    widths: Sequence[int],
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    autocast: torch.dtype | None = None,
) -> FlatModel:
    """A model by name.

    linear: softmax regression; softmax: the same without biases; mlp: hidden layers of the given widths; cnn: two 3x3 convolutions
    of 16 and 32 channels, each with max pooling, and a linear layer; vgg11: torchvision's features and one linear layer, for
    32 x 32 images.
    input_shape: (channels, height, width).
    """
    channels, height, width = input_shape
    layers: list[nn.Module]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, Purpose.MODEL))
        if name == "softmax":
            layers = [nn.Linear(channels * height * width, classes, bias=False)]
        elif name in ("linear", "mlp"):
            sizes = [channels * height * width, *(widths if name == "mlp" else []), classes]
            layers = [nn.Linear(sizes[0], sizes[1])]
            for a, b in itertools.pairwise(sizes[1:]):
                layers += [nn.ReLU(), nn.Linear(a, b)]
        elif name == "cnn":
            _needs_pixels(name, height, width, 4)
            layers = [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
            layers += [nn.Linear(32 * (height // 4) * (width // 4), classes)]
        elif name == "vgg11":
            from fedopt.torchvision_import import torchvision

            _needs_pixels(name, height, width, 32)
            if channels != 3:
                raise UserError(
                    f"problem.model=vgg11 needs images of 3 channels, and these have {channels}: use cnn or mlp"
                )
            features = list(torchvision.models.vgg11(weights=None).features)
            layers = [*features, nn.Flatten(), nn.Linear(512 * (height // 32) * (width // 32), classes)]
        else:
            raise UserError(f"problem.model={name} is not known; there are {', '.join(NAMES)}")
    return FlatModel(nn.Sequential(*layers), input_shape, autocast)


def _needs_pixels(name: str, height: int, width: int, least: int) -> None:
    if min(height, width) < least:
        raise UserError(
            f"problem.model={name} needs images of at least {least} x {least} pixels, and these are {height} x {width}"
        )
