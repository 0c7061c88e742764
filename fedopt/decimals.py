"""Products of decimal numbers without rounding errors, for ceil, floor and round. This module does not import torch."""

from typing import Any

import numpy as np


def exact(product: Any) -> Any:
    """Return a product without its rounding error, which ceil, floor or round would enlarge: 7 for 7.000000000000001.

    Numbers within a relative distance of 1e-12 of a whole number or a half become that number. Other numbers are returned
    unchanged.

    Args:
        product: A number or an array, such as a count times a fraction that the user chose.
    """
    halves = np.rint(2 * np.asarray(product, dtype=float)) / 2
    return np.where(np.abs(product - halves) <= 1e-12 * np.abs(halves), halves, product)[()]
