"""What methods share: several vectors as one, directions of nested problems and steps along them, recursive momentum."""

from fedopt.federation import conjugate_gradients, moved, neumann_sum, neumann_term
from fedopt.toolbox.composition import chain
from fedopt.toolbox.directions import bilevel_maps, bilevel_start, descend, descend_, independent_maps
from fedopt.toolbox.minimax import minimax_field
from fedopt.toolbox.storm import Averages, Storm, at_start, points_first, rows, together
from fedopt.toolbox.vectors import Tensors, Vectors

__all__ = [
    "Averages",
    "Storm",
    "Tensors",
    "Vectors",
    "at_start",
    "bilevel_maps",
    "bilevel_start",
    "chain",
    "conjugate_gradients",
    "descend",
    "descend_",
    "independent_maps",
    "minimax_field",
    "moved",
    "neumann_sum",
    "neumann_term",
    "points_first",
    "rows",
    "together",
]
