"""Analysis of many runs: a tidy data frame, groups, lines, statistics, tables and comparisons."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
