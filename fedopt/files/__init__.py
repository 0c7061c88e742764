"""Read files safely, since they may come from somebody else, and write files completely or not at all."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
