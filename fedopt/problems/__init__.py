"""The problems (one per file), their classes, and the reductions between the classes."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
