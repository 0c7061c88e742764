"""One problem, one file; the classes of problems and the reductions between them."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
