"""Read files that somebody may have sent; write a file completely or not at all."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
