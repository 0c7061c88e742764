"""Data sets, splits, partitioners."""
