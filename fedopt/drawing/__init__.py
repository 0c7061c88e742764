"""Figures, their styles and the page of results. Does not depend on runs."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
