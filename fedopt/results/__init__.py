"""The files that one run leaves: folder, metrics file, checkpoint, card, identity, trackers."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
