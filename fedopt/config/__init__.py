"""Compose and check the config of a run: config files, overrides, settings, schedules and tuned values."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
