"""Many runs as numbers: what their folders say, the tidy frame, groups, lines, statistics, tables, comparisons."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
