"""Attacks of hostile clients, and robust rules, on the clients' changes: answers minus the origin of the exchange."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedopt.config import Hostile, Rule
from fedopt.errors import UserError
from fedopt.networks import depth

SCALES = {"sign_flip": 1.0, "noise": 1.0, "ipm": 0.5, "alie": 0.0, "large": 1e6}  # default sizes; 0: see `attacked`


def origins(origin: Any, answer: Any) -> list[Tensor | None]:
    """Return the origin of each tensor of an answer. None: the tensor is a direction.

    Args:
        origin: A tuple like the answer, with None in place of tensors or tuples that are directions.
        answer: One client's answer.

    Raises:
        ValueError: The structure or a shape differs.
    """
    if origin is None:
        return [None] * len(tree_leaves(answer))
    if isinstance(origin, Tensor):
        if origin.shape != answer.shape:
            raise ValueError("the shapes differ")
        return [origin]
    return [leaf for pair in zip(origin, answer, strict=True) for leaf in origins(*pair)]


def attacked(b: Tensor, hostile: np.ndarray, attack: Hostile, noise: Callable[[], np.ndarray]) -> Tensor:
    """Return the changes, ``[n, d]``; the attack replaces the changes of hostile clients.

    Args:
        b: The changes, ``[n, d]``.
        hostile: Whether each client is hostile, ``[n]``.
        attack: The attack.
        noise: A function that returns standard normal numbers for the hostile clients, ``[hostile, d]``.
    """
    n, f, kind = len(b), int(hostile.sum()), attack.attack
    if f == 0:
        return b
    bad, others = (torch.from_numpy(np.flatnonzero(who)).to(b.device) for who in (hostile, ~hostile))
    honest, own, scale = b[others] if f < n else b, b[bad], attack.scale or SCALES[kind]
    if kind == "sign_flip":
        sent = -scale * own
    elif kind == "noise":
        sent = own + scale * torch.from_numpy(noise()).to(own)
    elif kind == "large":
        sent = torch.full_like(own, scale)
    elif kind == "ipm":
        sent = -scale * honest.mean(0).expand_as(own)
    else:
        supporters = max(n // 2 + 1 - f, 1)  # honest clients that must be further from mu than the attack
        share = max((n - f - supporters) / max(n - f, 1), 0.5)
        z = scale or NormalDist().inv_cdf(share)
        sent = (honest.mean(0) - z * honest.std(0, correction=0)).expand_as(own)
    return b.index_copy(0, bad, sent)


def combined(b: Tensor, weights: Tensor, rule: Rule, last: Tensor | float = 0.0) -> Tensor:
    """Combine the changes of the clients by a rule, and return the result, ``[d]``.

    Args:
        b: The changes, ``[n, d]``.
        weights: The weights of the clients, ``[n]``, which only the rules mean and geometric use.
        rule: The rule.
        last: The result in the last round, for clipping.

    Raises:
        UserError: There are too few answers.
    """
    n, f = len(b), rule.f or 0
    if n < rule.least:
        raise UserError(
            f"{rule.kind} with f={f} needs at least {rule.least} answers, but there are {n}; choose a smaller f"
        )
    if rule.kind == "mean":
        return weights @ b
    if rule.kind == "median":
        ordered = in_order(b)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    if rule.kind == "trimmed":
        return in_order(b)[f : n - f].mean(0)
    if rule.kind == "geometric":
        point = weights @ b / weights.sum()
        for _ in range(rule.passes):  # Weiszfeld's, smoothed as in RFA
            closeness = weights / torch.linalg.vector_norm(b - point, dim=1).clamp(min=1e-6)
            point = closeness @ b / closeness.sum()
        return point
    if rule.kind == "clipping":
        away = b - last
        return last + (away * (rule.tau / torch.linalg.vector_norm(away, dim=1)).clamp(max=1)[:, None]).mean(0)
    squares = torch.stack([torch.sum((b - one) ** 2, 1) for one in b])
    scores = squares.sort(1).values[:, 1 : n - f - 1].sum(1)  # without the distance 0 to itself
    return b[scores.topk(1 if rule.kind == "krum" else n - f, largest=False).indices].mean(0)


@dataclass(frozen=True)
class Robust:
    """The attack and the rule that apply to the answers of an exchange.

    Attributes:
        origins: The origin of each tensor of an answer, as `origins` returns it.
        lies: Whether each client is hostile, ``[n]``.
        attack: The attack. None: all clients are honest.
        noise: A function that returns standard normal numbers for the hostile clients, ``[hostile, d]``, for a number d.
        rule: The rule. None: the server uses ``combine``.
        combine: The argument of `Round.exchange`. None: the weighted mean.
        centres: The last result of clipping in each exchange, by name. It is updated in place.
        name: The name of this exchange in ``centres``.
    """

    origins: list[Tensor | None]
    lies: np.ndarray
    attack: Hostile | None
    noise: Callable[[int], np.ndarray]
    rule: Rule | None
    combine: Callable[[Any, Tensor], Any] | None
    centres: dict[str, Tensor]
    name: str

    def __call__(self, answers: Any, weights: Tensor) -> Any:
        """Return the result for the answers, whose tensors are ``[n, ...]``, and their weights, ``[n]``."""
        (leaves, structure), n = tree_flatten(answers), len(weights)
        pairs = zip(leaves, self.origins, strict=True)
        starts = [torch.zeros_like(leaf[0]) if o is None else o.to(leaf) for leaf, o in pairs]
        changes = [(leaf - o).reshape(n, o.numel()) for leaf, o in zip(leaves, starts, strict=True)]
        b = torch.cat([*changes, weights.new_zeros(n, 0)], 1)
        if self.attack:
            b = attacked(b, self.lies, self.attack, partial(self.noise, b.shape[1]))
        if self.rule:
            last = self.centres.get(self.name)
            if last is None or last.shape != b.shape[1:]:
                last = torch.zeros_like(b[0])
            b = combined(b, weights, self.rule, last.to(b))[None]
            if self.rule.kind == "clipping":
                self.centres[self.name] = b[0]
        pieces = b.split([o.numel() for o in starts], 1)
        new = [o + piece.reshape(len(b), *o.shape) for piece, o in zip(pieces, starts, strict=True)]
        if self.combine:
            return self.combine(tree_unflatten(new, structure), weights)
        return tree_unflatten([leaf[0] if self.rule else torch.tensordot(weights, leaf, 1) for leaf in new], structure)


def in_order(b: Tensor) -> Tensor:
    """Return the changes of n clients, ``[n, d]``, with each of the d entries sorted over the clients, in ascending order."""
    if b.device.type == "cpu" and depth() == 0:  # NumPy is several times faster
        return torch.from_numpy(np.sort(b.numpy(), axis=0))
    return b.sort(dim=0).values
