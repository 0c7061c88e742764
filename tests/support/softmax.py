"""Softmax regression without biases in NumPy, for derivations of algorithms that the tests write out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def examples(images: Any, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """x [n, features] as the model sees it, and labels."""
    batch = images.batch(torch.as_tensor(np.asarray(rows)), torch.ones(len(rows)))
    return batch.x.numpy(), batch.y.numpy()


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy, [classes * features]."""
    W = w.reshape(-1, x.shape[1])
    logits = x @ W.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return (p.T @ x / len(y)).ravel()


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The mean cross-entropy."""
    logits = x @ w.reshape(-1, x.shape[1]).T
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]))
