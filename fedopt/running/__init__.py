"""One run: from config to objects, the loop, its life cycle, the sinks that take its rows, hardware."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
