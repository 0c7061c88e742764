"""Published experiments: set-ups, claims, figures, and small copies of the results."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
