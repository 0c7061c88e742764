"""A custom nn.Module as a function of one flat parameter vector."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedopt.errors import UserError
from fedopt.networks.dropout import Dropout
from fedopt.networks.flat import FlatModel


class FlatModule(FlatModel):
    """A custom module as a function of one flat vector of its trainable parameters.

    Parameters with ``requires_grad=False`` are constants. Called with a key, which determines the dropout masks, the module
    runs in training mode, otherwise in evaluation mode. The same module object is used for both modes, because a copy would
    still use the original's parameters in functions that are bound to the original.

    Args:
        module: The module with its initial parameters.
        input_shape: Shape of an example.
        autocast: Type in which products and convolutions are computed. None: the type of the parameters.

    Attributes:
        names: Names of the parameters, in the order of the vector.
    """

    def __init__(self, module: nn.Module, input_shape: Sequence[int], autocast: torch.dtype | None = None):
        super().__init__(module, input_shape, autocast)
        self.dense = self.flattens = False
        self.module, self._inner = module.eval(), [*module.modules()]
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        frozen = ((name, p.detach()) for name, p in module.named_parameters() if not p.requires_grad)
        self._constants = {**dict(frozen), **dict(module.named_buffers())}

    def _forward(self, flat: Tensor, x: Tensor, key: Tensor | None) -> Tensor:
        """Return the logits, without autocast; the arguments are the same as of `__call__`."""
        return self.at(self.views(flat), x, key)

    def at(self, parameters: Sequence[Tensor], x: Tensor, key: Tensor | None) -> Tensor:
        """Return the logits, without autocast.

        Args:
            parameters: One tensor per parameter, in the order of ``names``.
            x: Inputs, ``[B, features]``.
            key: Integer tensor (int64) that determines the dropout masks. None: evaluation mode, without dropout.
        """
        like, values = parameters[0], dict(zip(self.names, parameters, strict=True))
        for name, value in self._constants.items():
            values[name] = value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
        if any(inner.training != (key is not None) for inner in self._inner):
            self.module.train(key is not None)
        with differentiable(self.module), nullcontext() if key is None or not self.random else Dropout(key):
            return torch.func.functional_call(self.module, values, (x.reshape(-1, *self.input_shape),))

    def split_last(self) -> tuple[FlatModel, FlatModel]:
        """Return two networks: all layers but the last, and the last layer.

        Raises:
            UserError: The module is not an nn.Sequential that ends with nn.Linear.
        """
        layers = self.module
        if not isinstance(layers, nn.Sequential) or len(layers) < 2 or not isinstance(layers[-1], nn.Linear):
            raise UserError("problem.model: must be an nn.Sequential of two or more layers that ends with nn.Linear")
        body, head = FlatModule(layers[:-1], self.input_shape, self.autocast), FlatModel(layers[-1:], (), self.autocast)
        body.random = self.random
        return body, head


@contextmanager
def differentiable(module: nn.Module) -> Iterator[None]:
    """Return a context in which torch uses only kernels with second derivatives.

    This concerns attention, and the recurrent layers of the module.

    Args:
        module: The module that is run in the context.
    """
    with ExitStack() as without:
        without.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        without.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(inner, nn.RNNBase) for inner in module.modules()):
            for backend in (torch.backends.mkldnn, torch.backends.cudnn):
                without.callback(backend.set_flags, backend.set_flags(False)[0])
        yield
