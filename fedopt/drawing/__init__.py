"""Figures, their styles and the HTML page of results, independent of runs."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
