"""Networks as functions of one flat vector of parameters."""

import itertools
from collections.abc import Sequence

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
    convolutional: whether it has convolutions; dense: whether `cross_entropy_gradient` knows it, that is linear layers with
        ReLUs between them, and no autocast; softmax: whether `softmax_gradient` does, that is one linear layer without biases.
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
        self.softmax = autocast is None and len(layers) == len(parameters) == 1
        linear = all(isinstance(layer, nn.Linear | nn.ReLU) for layer in layers)
        self.dense = autocast is None and linear and not self.softmax
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

    def own_gradient(
        self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, out: Tensor | None = None
    ) -> Tensor | None:
        """The gradient [dim] of sum_j weight_j CE(logits_j), where there is a faster way to it than automatic differentiation;
        arguments as those of `cross_entropy_gradient`. Of softmax regression also at several points at once, flat [P, dim]."""
        if self.softmax:
            return softmax_gradient(flat, x, y, weight)
        return self.cross_entropy_gradient(flat, x, y, weight, out) if self.dense else None

    def cross_entropy_gradient(
        self,
        flat: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        out: Tensor | None = None,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Tensor:
        """The gradient [dim] of sum_j weight_j CE(scale logits_j + shift, y_j) for a dense model, backpropagation written out.

        The same as autograd's; on small batches autograd's bookkeeping takes as long as the matrix products.
        x: [B, features]; y, weight: [B]; scale, shift: [classes], none by default.
        out: where to write it, saves a copy (not under vmap, which cannot).
        """
        views = self._views(flat)
        layers = list(zip(views[::2], views[1::2], strict=True))
        activations = [x]
        for W, b in layers[:-1]:
            activations.append(torch.addmm(b, activations[-1], W.t()).relu_())
        W, b = layers[-1]
        logits = torch.addmm(b, activations[-1], W.t())
        w = weight[:, None]
        if scale is not None and shift is not None:
            logits = logits * scale + shift
        delta = (torch.softmax(logits, 1) * w).scatter_add_(1, y[:, None], -w)
        if scale is not None:
            delta = delta * scale
        places = [None] * len(views) if out is None else self._views(out)
        pieces: list[Tensor] = []
        for (W, _), a in zip(reversed(layers), reversed(activations), strict=True):
            of_b, of_W = places.pop(), places.pop()
            pieces = [torch.mm(delta.t(), a, out=of_W), torch.sum(delta, 0, out=of_b), *pieces]
            if a is not x:
                delta = torch.ops.aten.threshold_backward(delta @ W, a, 0)  # zero where a was
        return torch.cat([piece.reshape(-1) for piece in pieces]) if out is None else out


def softmax_gradient(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The gradient of sum_j weight_j CE(logits_j), logits = x W', W = flat [classes * features], or, for several W at once,
    flat [P, classes * features]: they share the matrix products. x: [B, features]; y, weight: [B]."""
    W = flat.reshape(-1, x.shape[1])
    P, w = len(flat) if flat.dim() == 2 else 1, weight.reshape(-1, 1, 1)
    delta = torch.softmax((x @ W.mT).reshape(len(x), P, -1), 2) * w
    at = y.reshape(-1, 1, 1).expand(-1, P, 1)
    delta.scatter_add_(2, at, (-w).expand_as(at))
    return (delta.flatten(1).mT @ x).reshape(flat.shape)


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
