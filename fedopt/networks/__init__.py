"""Networks as functions of one flat parameter vector, including custom nn.Modules."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
