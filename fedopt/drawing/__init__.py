"""Figures, their styles and the page of results. Does not depend on runs."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
