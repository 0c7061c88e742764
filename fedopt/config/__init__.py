"""Files, overrides, composing, settings, schedules, tuned values."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
