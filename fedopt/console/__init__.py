"""Saying things to a person, how a text leaves the program, and what Ctrl-C does."""
