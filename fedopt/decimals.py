"""Products of decimal numbers as they are on paper, for ceil, floor and round. Imports no torch."""

from typing import Any

import numpy as np


def exact(product: Any) -> Any:
    """Return a product without the rounding error that ceil, floor or round would enlarge: 0.28 * 25 is 7, not 7.000000000000001.

    Numbers within a relative 1e-12 of a whole number or a half become that number; others are returned as they are.

    Args:
        product: A number or an array, such as a fraction that a user chose times a count.
    """
    halves = np.rint(2 * np.asarray(product, dtype=float)) / 2
    return np.where(np.abs(product - halves) <= 1e-12 * np.abs(halves), halves, product)[()]
