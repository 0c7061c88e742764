"""Saying things to a person, how a text leaves the program, and what Ctrl-C does."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
