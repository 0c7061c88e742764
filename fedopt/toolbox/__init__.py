"""What methods share: several vectors as one, directions of nested problems and steps along them, recursive momentum."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
