"""What methods share: several vectors as one, directions of nested problems and steps along them, recursive momentum."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
