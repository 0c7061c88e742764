"""A uniformly random one of all iterates so far, at which theorems state their bounds, drawn round by round."""

from fedopt.federation import Round
from fedopt.randomness import Purpose


def drawn_iterate(fed: Round, K: int = 1) -> int:
    """Draw which iterate k = 1, ..., K of this round becomes the random one; 0 if the one of earlier rounds stays it.

    Args:
        K: The iterates of a round. The first round has one.
    """
    rng, iterates = fed.rng(Purpose.OUTPUT), K if fed.r else 1
    if rng.random() >= iterates / (1 + fed.r * K):
        return 0
    return int(rng.integers(1, iterates + 1))
