"""Functions that several methods share: vectors of variables, directions of nested problems, and recursive momentum."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
