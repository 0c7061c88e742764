"""Execute one run: build its objects from the config, run the loop, and write its results."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
