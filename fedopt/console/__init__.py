"""Messages for a person, texts escaped for output, and the handling of Ctrl-C."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
