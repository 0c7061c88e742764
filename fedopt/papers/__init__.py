"""Published experiments: set-up, claims, figures, and reduced copies of results."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
