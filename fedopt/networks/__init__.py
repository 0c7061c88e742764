"""Networks as functions of one flat vector; your own nn.Module."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
