"""Keyed randomness: every draw is a function of (seed, purpose, round, exchange, client) and of nothing else.

A counter-based generator (Philox) makes this literal. The purpose is half of its key; round, exchange and client are the
high words of its counter, so that two keys never share a stream and no draw depends on what was drawn before it.
Users name their streams: a hash of the name takes the purpose's place, in a range that has no purposes.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fedopt.errors import UserError, WrongFunction

DRAWING = 'draw from self.world.rng("NAME"), fed.rng("NAME") or the generator that is given'

WRITES = "writes over what it is given: write x = x - 1 in place of x -= 1"


class Purpose(IntEnum):
    """The purpose of a draw; a part of its key."""

    PARTITION = 0
    SPLIT = 1
    PROBLEM = 2
    MODEL = 3
    COHORT = 4
    SAMPLES = 5
    OUTPUT = 6
    ESTIMATOR = 7
    DROPOUT = 8
    WORK = 9
    STRAGGLERS = 10
    SERVER = 11
    DIRECTIONS = 12
    NOISE = 13
    TEST = 14  # which examples of a file are for testing
    COIN = 15  # when a round ends, where that is random
    AVAILABILITY = 16
    POOL = 17  # which scores of other clients a client gets
    LATE = 18


class Part(IntEnum):
    """The purpose of a problem's draw, within `Purpose.PROBLEM`; a part of the draw's key.

    Names of different families may share a number: no run has both.
    """

    DATA = 0  # of problems in closed form

    COMMON = 0  # of quadratics
    CLIENTS = 1
    EXAMPLES = 2
    COUPLING = 3

    SUBSET = 0  # of problems on labelled examples
    REDIVISION = 1
    SERVER = 2
    FIT = 3
    PRETRAINING = 4
    LABELS = 5  # which of them are made wrong


def keyed_rng(
    seed: int, purpose: Purpose | str | None, round: int = 0, exchange: int = 0, client: int = 0
) -> np.random.Generator:
    """Return the generator that belongs to a key. The same key gives the same numbers, whatever was drawn before.

    Args:
        seed: The seed of the run.
        purpose: One of fedopt's purposes, or a text by which a user names the random numbers.
        round, exchange, client: The indices of the round, of the exchange in it, and of the client, for draws that differ by
            them.

    Raises:
        UserError: The purpose is neither a `Purpose` nor a text.
    """
    if isinstance(purpose, str):
        number = 2**63 | int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest())
    elif isinstance(purpose, Purpose):
        number = purpose
    else:
        given = "" if purpose is None else purpose
        raise UserError(f'rng({given}): give a name, as in rng("noise"); each name has its own random numbers')
    key = np.array([seed, number], dtype=np.uint64)
    counter = np.array([0, client, exchange, round], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(_Key(key), counter=counter))  # type: ignore[arg-type]


def keyed_rngs(seed: int, purpose: Purpose, clients: Iterable[int]) -> Iterator[np.random.Generator]:
    """Yield what `keyed_rng` returns for each of these clients, four times as fast. seed, purpose: as in `keyed_rng`.

    It is one generator, set again each time: draw from it before you take the next.
    """
    rng = keyed_rng(seed, purpose)
    state: Any = rng.bit_generator.state
    for client in clients:
        state["state"]["counter"][1] = client
        rng.bit_generator.state = state
        yield rng


class _Key(np.random.bit_generator.ISeedSequence):
    """Gives Philox a key. With key=, numpy would first gather entropy that nobody uses, which takes three times as long."""

    def __init__(self, key: np.ndarray):
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self.key


def torch_seed(seed: int, purpose: Purpose) -> int:
    """Return the seed of a purpose, for `torch.Generator` or `torch.manual_seed`. seed: the seed of the run."""
    return int(keyed_rng(seed, purpose).integers(2**63 - 1))


def normal(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return standard normal numbers as a tensor of this shape. They are drawn in double precision, then converted to dtype."""
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


@contextmanager
def untouched(function: Any, given: Any, instead: str = DRAWING) -> Iterator[None]:
    """Raise WrongFunction if a user's function, called in the context, changes what it is given or draws from a shared
    generator.

    These are the generators of torch, `numpy.random` and `random`, which the whole program shares.
    function: the user's. given: its arguments, whose tensors are watched. instead: what to draw from, for the message.
    """
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    before, drawn = [tensor._version for tensor in tensors], _shared_generators()
    yield
    if before != [tensor._version for tensor in tensors]:
        raise WrongFunction(function, WRITES)
    for library, state in _shared_generators().items():
        if state != drawn[library]:
            raise WrongFunction(
                function, f"draws random numbers from {library}, which do not follow the seed; {instead}"
            )


def _shared_generators() -> dict[str, Any]:
    """Return the states of the generators that a program shares: torch's, `numpy.random`'s and `random`'s."""
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    of_numpy = numpy["state"]["key"].tobytes(), numpy["state"]["pos"]
    of_torch = torch.get_rng_state().numpy().tobytes()
    return {"torch": of_torch, "numpy.random": of_numpy, "random": random.getstate()}
