"""Terminal output: messages, tables, the progress bar, escaping of texts, and the handling of Ctrl-C."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
