"""Keyed randomness: every random number is a function of (seed, purpose, round, exchange, client) and of nothing else.

The generator is counter-based (Philox). The seed and the purpose form its key; round, exchange and client are the high words
of its counter. Two streams with different keys or counters therefore never overlap, and no number depends on the numbers that
were sampled before. Users name their own streams; a hash of the name replaces the purpose, in a range of numbers that no
purpose uses.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fedopt.errors import UserError, WrongFunction

SOURCES = 'sample with self.world.rng("NAME"), fed.rng("NAME") or the generator that is passed to it'

WRITES = "changes its arguments in place: write x = x - 1 instead of x -= 1"


class Purpose(IntEnum):
    """The purpose of a random number, which is part of its key."""

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
    TEST = 14  # which examples of a file are test examples
    COIN = 15  # when a round ends, in methods with rounds of random length
    AVAILABILITY = 16
    POOL = 17  # which scores of other clients a client receives
    LATE = 18
    HOSTILE = 19  # the noise that hostile clients add


class Part(IntEnum):
    """The purpose of a random number within `Purpose.PROBLEM`, which is part of its key.

    Different families of problems may use the same number, since a run has only one problem.
    """

    DATA = 0  # problems in closed form

    COMMON = 0  # quadratic problems
    CLIENTS = 1
    EXAMPLES = 2
    COUPLING = 3

    SUBSET = 0  # problems on labelled examples
    REDIVISION = 1
    SERVER = 2
    FIT = 3
    PRETRAINING = 4
    LABELS = 5  # which labels are corrupted


def keyed_rng(
    seed: int, purpose: Purpose | str | None, round: int = 0, exchange: int = 0, client: int = 0
) -> np.random.Generator:
    """Return the random generator of a key. The same key always gives the same numbers, whichever numbers were sampled before.

    Args:
        seed: The seed of the run.
        purpose: A `Purpose`, or a name that the user chooses for a stream of random numbers.
        round: The index of the round, if the numbers differ between rounds.
        exchange: The index of the exchange in the round, if the numbers differ between exchanges.
        client: The index of the client, if the numbers differ between clients.

    Raises:
        UserError: The purpose is neither a `Purpose` nor a string.
    """
    number: Any = purpose
    if isinstance(purpose, str):
        number = 2**63 | int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest())
    elif not isinstance(purpose, Purpose):
        raise UserError('rng: needs a name, such as rng("noise"); each name has its own random numbers')
    key = np.array([seed, number], dtype=np.uint64)
    counter = np.array([0, client, exchange, round], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(_Key(key), counter=counter))  # type: ignore[arg-type]


def keyed_rngs(seed: int, purpose: Purpose, clients: Iterable[int]) -> Iterator[np.random.Generator]:
    """Yield the random generator of each of several clients, four times as fast as calls of `keyed_rng`.

    The same object is yielded each time, with another state. Sample from it before taking the next one.

    Args:
        seed: The seed of the run.
        purpose: The purpose of the random numbers.
        clients: The indices of the clients.
    """
    rng = keyed_rng(seed, purpose)
    state = cast(dict[str, dict[str, np.ndarray]], rng.bit_generator.state)
    for client in clients:
        state["state"]["counter"][1] = client
        rng.bit_generator.state = state
        yield rng


class _Key(np.random.bit_generator.ISeedSequence):
    """A seed sequence that passes a key to the Philox generator, three times as fast as numpy's argument ``key``."""

    def __init__(self, key: np.ndarray):
        self.key = key

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return self.key


def torch_seed(seed: int, purpose: Purpose) -> int:
    """Return a seed for `torch.Generator` or `torch.manual_seed`.

    Args:
        seed: The seed of the run.
        purpose: The purpose of the random numbers.
    """
    return int(keyed_rng(seed, purpose).integers(2**63 - 1))


def normal(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a tensor of standard normal numbers, which are sampled in double precision and then converted.

    Args:
        rng: The generator.
        shape: The shape of the tensor.
        dtype: The dtype of the tensor.
    """
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


@contextmanager
def untouched(function: object, args: object, instead: str = SOURCES) -> Iterator[None]:
    """Check that a user's function, called in the context, does not change its arguments or use a global random generator.

    The global generators are the generators of torch, `numpy.random` and `random`.

    Args:
        function: The user's function, for the message.
        args: The function's arguments, nested in any way. Their tensors are checked.
        instead: Which generators the function may use, for the message.

    Raises:
        WrongFunction: The function changed a tensor or used a global generator.
    """
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    versions, states = [tensor._version for tensor in tensors], _global_generators()
    yield
    if versions != [tensor._version for tensor in tensors]:
        raise WrongFunction(function, WRITES)
    for library, state in _global_generators().items():
        if state != states[library]:
            raise WrongFunction(function, f"uses the random numbers of {library}, which ignore the seed; {instead}")


def _global_generators() -> dict[str, object]:
    """Return the states of the global generators of torch, `numpy.random` and `random`."""
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    numpy_state = numpy["state"]["key"].tobytes(), numpy["state"]["pos"]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return {"torch": torch_state, "numpy.random": numpy_state, "random": random.getstate()}
