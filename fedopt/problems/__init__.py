"""One problem, one file; the classes of problems and the reductions between them."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
