"""Many runs as numbers: what their folders say, the tidy frame, groups, lines, statistics, tables, comparisons."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
