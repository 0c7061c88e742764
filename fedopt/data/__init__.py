"""Data sets, splits and partitioners."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
