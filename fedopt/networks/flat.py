"""Networks as functions of one flat parameter vector."""

import itertools
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedopt.errors import UserError
from fedopt.networks.dense import Dense
from fedopt.networks.dropout import Dropout
from fedopt.randomness import Purpose, torch_seed

Normalisation = tuple[np.ndarray, np.ndarray] | None  # shift and scale of the inputs, [channels] or [features] each


class FlatModel(Dense):
    """A chain of layers as a function of one flat parameter vector, in the order of `nn.Module.parameters()`.

    Args:
        layers: The network with its initial parameters.
        input_shape: Shape of an example.
        autocast: Type in which products and convolutions are computed. None: the type of the parameters.

    Attributes:
        dim: Length of the parameter vector.
        initial: Initial parameters, ``[dim]``, float32.
        penalised: Float32 vector ``[dim]``: 1 for parameters that a ridge penalty applies to, 0 for biases.
        copy: Function that returns a copy of the network.
        convolutional: Whether the network has convolutions.
        flattens: Whether the layers take flat inputs ``[B, features]`` instead of images.
        dense: Whether the network consists of linear layers with ReLU and dropout, without autocast. Only then can the
            methods of `Dense` be called.
        random: Whether the network has dropout.
        vmap_error: The reason why vmap cannot run the network; empty if it can.
        remark: Text about the network for the user, such as that some parameters are never trained. Empty: nothing to say.
    """

    vmap_error = remark = ""

    def __init__(self, layers: nn.Module, input_shape: Sequence[int], autocast: torch.dtype | None = None):
        trained = {name: p.detach() for name, p in layers.named_parameters() if p.requires_grad}
        self.copy: Callable[[], nn.Module] = partial(deepcopy, layers)
        self.input_shape = tuple(input_shape)
        self.autocast = autocast
        self.convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in layers.modules())
        self._shapes, self._layers = [p.shape for p in trained.values()], list(layers.children())
        dropped = next((layer.p for layer in self._layers if isinstance(layer, nn.Dropout)), 0.0)
        super().__init__(self._shapes, dropped)
        self.initial = torch.cat([p.reshape(-1) for p in trained.values()])
        # PyTorch's names of biases begin with "bias"
        biases = {name: p.ndim == 1 and name.rpartition(".")[2].startswith("bias") for name, p in trained.items()}
        self.penalised = torch.cat([torch.full((p.numel(),), float(not biases[name])) for name, p in trained.items()])
        self.flattens = not self.convolutional  # takes [B, features] for examples of any shape
        kinds = nn.Linear | nn.ReLU | nn.Dropout
        self.dense = autocast is None and all(isinstance(layer, kinds) for layer in self._layers)
        self.random = dropped > 0

    def split_last(self) -> tuple["FlatModel", "FlatModel"]:
        """Return two networks: all layers but the last, and the last layer.

        Raises:
            UserError: The network has only one layer.
        """
        if len(self._layers) == 1:
            raise UserError("problem.model: this problem needs a network with hidden layers; use mlp, cnn or vgg11")
        body, head = nn.Sequential(*self._layers[:-1]), nn.Sequential(self._layers[-1])
        return FlatModel(body, self.input_shape, self.autocast), FlatModel(head, (), self.autocast)

    def __call__(self, flat: Tensor, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return the logits, ``[B, classes]``, in the type of the parameters.

        Args:
            flat: Parameters, ``[dim]``.
            x: Inputs, ``[B, features]``.
            key: Integer tensor (int64) that determines the dropout masks. None: no dropout.
        """
        if self.autocast is None:
            return self._forward(flat, x, key)
        with torch.autocast(flat.device.type, self.autocast, cache_enabled=False):
            return self._forward(flat, x, key).to(flat.dtype)

    def _forward(self, flat: Tensor, x: Tensor, key: Tensor | None) -> Tensor:
        """Return the logits, without autocast; the arguments are the same as of `__call__`."""
        parameters = iter(self.views(flat))
        dropout = None if key is None else Dropout(key)
        if self.convolutional:
            x = x.reshape(-1, *self.input_shape)
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                x = F.linear(x, next(parameters), None if layer.bias is None else next(parameters))
            elif isinstance(layer, nn.Conv2d):
                x = F.conv2d(x, next(parameters), next(parameters), layer.stride, layer.padding)
            elif isinstance(layer, nn.ReLU):
                x = torch.relu(x)  # not in place: derivatives need the input
            elif isinstance(layer, nn.Dropout):
                x = x if dropout is None else dropout.of_numbers(x, layer.p)
            else:
                x = layer(x)
        return x

    def trained(self, flat: Tensor) -> nn.Module:
        """Return a separate `nn.Module` with these parameters.

        The module takes examples of shape ``input_shape``. Without convolutions, it also takes flat inputs ``[B, features]``,
        unless the network is custom.

        Args:
            flat: Parameters, ``[dim]``.
        """
        network = self.copy().to(flat.dtype)
        parameters = (p for p in network.parameters() if p.requires_grad)
        with torch.no_grad():
            for parameter, value in zip(parameters, self.views(flat), strict=True):
                parameter.copy_(value)
        return nn.Sequential(nn.Flatten(), network) if self.flattens else network

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return one view of the vector per parameter, in the shape of the parameter. The views share its memory.

        With torch.split, the gradient is a single concatenation; with slices, each parameter would create a vector of zeros.

        Args:
            flat: Parameters, ``[dim]``.
        """
        chunks = torch.split_with_sizes(flat, self.sizes)
        return [p if len(shape) == 1 else p.view(shape) for p, shape in zip(chunks, self._shapes, strict=True)]


class Normalised(nn.Module):
    """A trained network that normalises its inputs, on the CPU and in evaluation mode.

    It takes examples in the units of the data set (images with pixels from 0 to 255, not from 0 to 1), as ``[B, channels,
    height, width]``, ``[B, height, width]`` if there is one channel, ``[B, features]``, or token ids ``[B, length]``. It
    returns logits ``[B, classes]``.
    """

    def __init__(self, network: nn.Module, normalisation: Normalisation, input_shape: Sequence[int]):
        """Wrap a trained network.

        Args:
            network: The network, which takes normalised examples.
            normalisation: Shift and scale of the inputs, ``[channels]`` or ``[features]`` each. None: the inputs are token ids.
            input_shape: Shape of an example.
        """
        super().__init__()
        self.network, self.input_shape = network, tuple(input_shape)
        ones = [1] * (len(self.input_shape) - 1)
        of_all = [torch.from_numpy(v).view(-1, *ones).expand(self.input_shape).clone() for v in normalisation or ()]
        mean, std = of_all or (None, None)
        self.mean: Tensor | None
        self.std: Tensor | None
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of raw examples.

        Raises:
            TypeError: ``x`` is not a tensor.
            ValueError: The examples have the wrong shape.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"the network takes a tensor, not {type(x).__name__}; use torch.as_tensor(x)")
        shape = self.input_shape
        if tuple(x.shape[1:]) not in (shape, (math.prod(shape),), shape[1:] if shape[0] == 1 else shape):
            sizes = ", ".join(map(str, shape))
            raise ValueError(f"the network takes examples [B, {sizes}], not {list(x.shape)}; reshape x")
        x, mean, std = x.reshape(-1, *shape), self.mean, self.std
        if mean is not None and std is not None:
            x = ((x - mean) / std).to(next(self.network.parameters()).dtype)
        return self.network(x)


def build(
    name: str,
    widths: Sequence[int],
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    autocast: torch.dtype | None = None,
    dropout: float = 0.0,
) -> FlatModel:
    """Build a built-in model with PyTorch's default initialisation.

    * ``linear``: softmax regression.
    * ``softmax``: softmax regression without biases.
    * ``mlp``: hidden layers with ReLU.
    * ``cnn``: two 3 x 3 convolutions with 16 and 32 channels, each followed by max pooling, and a linear layer.
    * ``vgg11``: torchvision's VGG-11 features and one linear layer, for images with 3 channels and at least 32 x 32 pixels.

    Args:
        name: Name of the model.
        widths: Widths of the hidden layers of ``mlp``.
        input_shape: ``(channels, height, width)`` or ``(features,)``.
        classes: Number of classes.
        seed: Seed of the run.
        autocast: Type in which products and convolutions are computed. None: the type of the parameters.
        dropout: Dropout probability of the hidden units of ``mlp``.

    Raises:
        UserError: The name is unknown, or the model does not accept examples of this shape.
    """
    least = {"cnn": 4, "vgg11": 32}.get(name, 1)
    channels, height, width = input_shape if len(input_shape) == 3 else (*input_shape, 1, 1)
    if min(height, width) < least:
        raise UserError(
            f"problem.model={name} needs {least} x {least} pixels or more, not {list(input_shape)}; use mlp"
        )
    layers: list[nn.Module]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, Purpose.MODEL))
        if name in ("linear", "softmax", "mlp"):
            sizes = [channels * height * width, *(widths if name == "mlp" else []), classes]
            layers = [nn.Linear(sizes[0], sizes[1], bias=name != "softmax")]
            for a, b in itertools.pairwise(sizes[1:]):
                layers += [nn.ReLU(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(a, b)]
        elif name == "cnn":
            layers = [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
            layers += [nn.Linear(32 * (height // 4) * (width // 4), classes)]
        elif name == "vgg11":
            from fedopt.networks.torchvision_import import torchvision

            if channels != 3:
                raise UserError(f"problem.model=vgg11 needs images with 3 channels, not {channels}; use cnn or mlp")
            features = list(torchvision.models.vgg11(weights=None).features)
            layers = [*features, nn.Flatten(), nn.Linear(512 * (height // 32) * (width // 32), classes)]
        else:
            known = "linear, softmax, mlp, cnn, vgg11 or a custom PACKAGE.CLASS"
            raise UserError(f"problem.model={name}: there is no such model; use {known}")
    return FlatModel(nn.Sequential(*layers), input_shape, autocast)
