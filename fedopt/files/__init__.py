"""Read files that somebody may have sent; write a file completely or not at all."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
