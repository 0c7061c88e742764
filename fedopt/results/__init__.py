"""The files of a run: its folder, metrics, checkpoint and run card, and experiment trackers."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
