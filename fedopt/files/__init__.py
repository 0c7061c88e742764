"""Reading what somebody may have sent; writing a whole file or none."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
