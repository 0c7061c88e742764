"""Published experiments: set-up, claims, figures, and reduced copies of results."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
