"""A user's nn.Module as a function of one flat parameter vector."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedopt.errors import UserError
from fedopt.networks.dropout import Dropout
from fedopt.networks.flat import FlatModel


class FlatModule(FlatModel):
    """A user's module as a function of one flat vector of its trainable parameters.

    Parameters with requires_grad=False are constants.

    With a key, which determines dropout masks, it runs in training mode, else in evaluation mode. One module object serves
    both: a copy would use the original's parameters in functions that are bound to it.

    Attributes:
        names: The names of the parameters, in the vector's order.
    """

    def __init__(self, module: nn.Module, input_shape: Sequence[int], autocast: torch.dtype | None = None):
        super().__init__(module, input_shape, autocast)
        self.dense = self.flattens = False
        self.module, self._parts = module.eval(), [*module.modules()]
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        frozen = ((name, p.detach()) for name, p in module.named_parameters() if not p.requires_grad)
        self._constants = {**dict(frozen), **dict(module.named_buffers())}

    def _forward(self, flat: Tensor, x: Tensor, key: Tensor | None) -> Tensor:
        return self.at(self.views(flat), x, key)

    def at(self, parameters: Sequence[Tensor], x: Tensor, key: Tensor | None) -> Tensor:
        """Return logits as `__call__` does, without autocast.

        parameters: one tensor per name, in the order of `names`. x, key: as in `__call__`.
        """
        like, values = parameters[0], dict(zip(self.names, parameters, strict=True))
        for name, value in self._constants.items():
            values[name] = value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
        if any(part.training != (key is not None) for part in self._parts):
            self.module.train(key is not None)
        with differentiable(self.module), nullcontext() if key is None or not self.random else Dropout(key):
            return torch.func.functional_call(self.module, values, (x.reshape(-1, *self.input_shape),))

    def split_last(self) -> tuple[FlatModel, FlatModel]:
        """Return two models: all layers but the last, and the last.

        Raises UserError unless the module is an nn.Sequential that ends with nn.Linear.
        """
        layers = self.module
        if not isinstance(layers, nn.Sequential) or len(layers) < 2 or not isinstance(layers[-1], nn.Linear):
            raise UserError(
                "problem.model: must be an nn.Sequential of two or more layers that ends with nn.Linear, since this problem "
                "separates the last one"
            )
        body, head = FlatModule(layers[:-1], self.input_shape, self.autocast), FlatModel(layers[-1:], (), self.autocast)
        body.random = self.random
        return body, head


@contextmanager
def differentiable(module: nn.Module) -> Iterator[None]:
    """Return a context in which torch uses only kernels that have second derivatives, for attention and the module's recurrent
    layers.
    """
    with ExitStack() as without:
        without.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        without.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(inner, nn.RNNBase) for inner in module.modules()):
            for backend in (torch.backends.mkldnn, torch.backends.cudnn):
                without.callback(backend.set_flags, backend.set_flags(False)[0])
        yield
