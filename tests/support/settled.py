"""What many rounds lead to, where a round is an affine map of the state: full batches of everyone on a quadratic problem."""

from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedopt.running.assemble import Experiment

ROUNDS = 2**16


def settled(e: Experiment) -> Any:
    """The state after ROUNDS rounds that are all like round 1, after round 0. Fixed points need not be unique, as in `limit`: what
    a recursion never forgets decides which one is reached."""
    first = e.algorithm.step(e.algorithm.init(e.problem), e.problem, e.federation.at(0))
    parts, structure = tree_flatten(first)
    sizes = [part.numel() for part in parts]

    def state(vector: np.ndarray) -> Any:
        split = torch.from_numpy(vector).split(sizes)
        return tree_unflatten([v.view_as(part) for v, part in zip(split, parts, strict=True)], structure)

    def after(vector: np.ndarray) -> np.ndarray:
        new = tree_flatten(e.algorithm.step(state(vector), e.problem, e.federation.at(1)))[0]
        return torch.cat([part.flatten() for part in new]).numpy()

    start = torch.cat([part.flatten() for part in parts]).numpy()
    constant = after(np.zeros(len(start)))
    columns = [after(unit) - constant for unit in np.eye(len(start))]
    affine = np.vstack([np.column_stack([*columns, constant]), np.eye(len(start) + 1)[-1]])
    return state((np.linalg.matrix_power(affine, ROUNDS) @ np.append(start, 1.0))[:-1])
