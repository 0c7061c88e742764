"""Figures, their styles and the HTML page of results. This package does not depend on runs."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
