"""Choose one of all iterates so far uniformly at random, round by round. Theorems state their bounds at such an iterate."""

from fedopt.federation import Round
from fedopt.randomness import Purpose


def drawn_iterate(fed: Round, K: int = 1) -> int:
    """Return which iterate k = 1, ..., K of this round replaces the random iterate; 0 if the previous one is kept.

    With these choices, the random iterate is uniform over all iterates so far.

    Args:
        fed: The round.
        K: The number of iterates per round. The first round has only one.
    """
    rng, iterates = fed.rng(Purpose.OUTPUT), K if fed.r else 1
    if rng.random() >= iterates / (1 + fed.r * K):
        return 0
    return int(rng.integers(1, iterates + 1))
