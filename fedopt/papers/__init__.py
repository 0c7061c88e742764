"""Published experiments: their set-ups, claims and figures, and the stored small copies of their results."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
