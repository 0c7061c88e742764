"""The files that one run leaves: folder, metrics file, checkpoint, card, identity, trackers."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
