"""What methods share: several vectors as one, directions of nested problems and steps along them, recursive momentum."""

from fedopt.federation import conjugate_gradients, moved, neumann_sum, neumann_term
from fedopt.toolbox.composition import chain
from fedopt.toolbox.derivatives import cross_product, hessian_product, inner_gradient, outer_gradient_y
from fedopt.toolbox.directions import bilevel_maps, bilevel_start, descend, descend_, independent_maps
from fedopt.toolbox.iterates import drawn_iterate
from fedopt.toolbox.minimax import minimax_field
from fedopt.toolbox.storm import Averages, Means, Storm, at_start, check_weights, means_at_start, points_first, together
from fedopt.toolbox.vectors import Tensors, Vectors

__all__ = [
    "Averages",
    "Means",
    "Storm",
    "Tensors",
    "Vectors",
    "at_start",
    "bilevel_maps",
    "bilevel_start",
    "chain",
    "check_weights",
    "conjugate_gradients",
    "cross_product",
    "descend",
    "descend_",
    "drawn_iterate",
    "hessian_product",
    "independent_maps",
    "inner_gradient",
    "means_at_start",
    "minimax_field",
    "moved",
    "neumann_sum",
    "neumann_term",
    "outer_gradient_y",
    "points_first",
    "together",
]
