"""Choose one of all iterates so far uniformly at random, round by round. Theorems state their bounds at such an iterate."""

from fedopt.federation import Round
from fedopt.randomness import Purpose


def sampled_iterate(fed: Round, K: int = 1) -> int:
    """Choose the output of a method that returns a random iterate. Call it once per round.

    With probability (iterates of this round) / (iterates so far), one of this round's iterates replaces the stored one, which
    is therefore uniformly distributed over all iterates so far.

    Args:
        fed: The round.
        K: The number of iterates per round. Round 0 counts as one iterate.

    Returns:
        The index k = 1, ..., K of the new random iterate; 0 if the old random iterate stays.
    """
    rng, iterates = fed.rng(Purpose.OUTPUT), K if fed.r else 1
    if rng.random() >= iterates / (1 + fed.r * K):
        return 0
    return int(rng.integers(1, iterates + 1))
