"""What every problem is held to once, before a run: objectives that are one number, functions that leave no state behind."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedopt.errors import UserError
from fedopt.problems.classes import Bilevel, Compositional, Hierarchical, Minimax, Minimisation, Problem

Value = tuple[str, Any, tuple[int, ...]]  # a function's name, what it gives, the shape that this must have


def check(problem: Problem) -> None:
    """Tries a problem's functions on two examples of its first client.

    Raises UserError for one that does not give a tensor of its shape, and for a network whose buffers change: clients that are run
    one by one would share them.
    """
    name, (x, *_) = type(problem).__name__, problem.start()
    rows = {split: torch.from_numpy(of[0][:2]).to(x.device) for split, of in problem.splits.items()}
    weighted = {split: (of, x.new_full(of.shape, 1 / len(of))) for split, of in rows.items()}
    sample = problem.sample(0, weighted)
    if problem.random:
        sample = problem.keyed(sample, torch.zeros((), dtype=torch.int64, device=x.device))
    networks = {key: value for key, value in vars(problem).items() if isinstance(value, nn.Module)}
    before = {(key, of): b.clone() for key, network in networks.items() for of, b in network.named_buffers()}
    with torch.no_grad():
        for function, found, shape in _values(problem, sample):
            if getattr(found, "shape", None) != shape:
                what = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
                wanted = f"of shape {list(shape)}" if shape else "of one number, [], such as a mean over the examples"
                raise UserError(f"{name}.{function} gives {what}; it must give a tensor {wanted}")
    for (key, of), buffer in before.items():
        if not torch.equal(networks[key].get_buffer(of), buffer):
            raise UserError(
                f"{name}.{key}: its buffer {of} changes when it is used, and clients would share it; use nn.GroupNorm in place of "
                "BatchNorm"
            )


def _values(problem: Problem, sample: Any) -> Iterator[Value]:
    x, *rest = problem.start()
    if isinstance(problem, Minimisation):
        yield "f", problem.f(x, sample), ()
    elif isinstance(problem, Hierarchical):
        yield "f1", problem.f1(x, problem.server_sample(np.random.default_rng(0), 1)), ()
        yield "f2", problem.f2(x, x, sample), ()
        yield "h", problem.h(x, x, sample), ()
    elif isinstance(problem, Compositional):
        for n, shape in enumerate([*((dim,) for dim in problem.dims[1:]), ()]):
            x = problem.level(n, x, sample)
            yield f"level at n = {n}", x, shape
    elif isinstance(problem, Bilevel | Minimax):
        yield "f", problem.f(x, rest[0], sample), ()
        if isinstance(problem, Bilevel):
            yield "g", problem.g(x, rest[0], sample), ()
