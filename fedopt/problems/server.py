"""Base class of classification problems with examples on the server and test examples for each client."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedopt.data import Batch, Examples, Ragged, cross_entropy
from fedopt.decimals import exact
from fedopt.errors import UserError
from fedopt.problems.classes import Weighting
from fedopt.problems.partition import ScoredRows
from fedopt.problems.supervised import Fraction, Share, Supervised
from fedopt.randomness import Part

Pretraining = Annotated[int, Field(ge=0, le=1_000_000)]  # bounded: these steps cannot be interrupted
PRETRAIN_BATCH = 128


@dataclass(eq=False)
class WithServer(Supervised):
    """Base class of problems that train a network on the examples of clients and of a server.

    Args:
        test: Fraction of all examples used for testing. None: the data set's own test examples.
        server: Fraction of the training examples that only the server has.
        own_test: Fraction of its examples that each client keeps for testing. None: none; not needed if the data name the
            client of each test example.
        pretrain: Number of SGD steps on the server's examples before the run, which change the initial parameters.
        pretrain_step: Step size of these steps.
        weighting: How clients count in the objective: by their numbers of examples (``samples``), so that f is a mean over
            all examples, or equally (``uniform``).

    Attributes:
        server_examples: The `Examples` that only the server has.
        own_test_seed: Seed of a choice of ``own_test`` that is stratified by class. It is refused if the data name the
            clients of test examples. None: the choice follows the run's seed and is not stratified.
    """

    test: Fraction | None
    server: Share
    own_test: Fraction | None
    pretrain: Pretraining
    pretrain_step: PositiveFloat
    weighting: Weighting

    def __post_init__(self) -> None:
        world, data = self.world, self.world.load()
        if self.test is not None:
            data = data.resplit(self.test, world.rng(Part.REDIVISION))
        n = len(data.y_train)
        of_server = round(exact(self.server * n))
        for key, fraction, count in (("test", self.test, len(data.y_test)), ("server", self.server, of_server)):
            if fraction and not count:
                raise UserError(f"problem.{key}={fraction}: is less than one example; use a larger fraction")
        order = world.rng(Part.SERVER).permutation(n)
        at_server, at_clients = (np.sort(rows) for rows in np.split(order, [of_server]))
        self.set_up(data, at_clients, self.own_test)
        self.server_examples = Examples(data.x_train[at_server], data.y_train[at_server], data, world)
        if held_out := self.splits.get("val"):
            if self.local_set and self.own_test_seed is not None:
                raise UserError("problem.own_test: the data already name each client's test rows; leave this key out")
            self.local_set = ScoredRows.of(self.train, held_out)
            numbers = at_clients if data.numbers is None else data.numbers[at_clients]
            self.own_test_rows = Ragged([numbers[rows] for rows in held_out], held_out.names)
        self.splits = {"train": self.splits["train"]}
        if self.pretrain and not of_server:
            raise UserError(f"problem.pretrain={self.pretrain}: the server has no examples; set problem.server")
        self._start = (self._pretrained(),)

    def server_batch(self, rng: np.random.Generator, size: int | None) -> Batch:
        """Return a batch of the server's examples with equal weights, and with a key if the problem uses random numbers.

        Args:
            rng: Random generator.
            size: Number of examples, sampled with replacement. None: all examples.
        """
        (x,), n = self._start, len(self.server_examples)
        at = torch.from_numpy(np.arange(n) if size is None else rng.integers(n, size=size)).to(x.device)
        batch = self.server_examples.batch(at, x.new_full(at.shape, 1 / len(at)), self.training_keys)
        return batch._replace(keys=(torch.tensor(rng.integers(2**62), device=x.device),)) if self.random else batch

    def _pretrained(self) -> Tensor:
        """Take ``pretrain`` steps of SGD on the server's examples from the initial parameters, and return the result, ``[dim]``."""
        (x,), rng = self._start, self.world.rng(Part.PRETRAINING)
        for _ in range(self.pretrain):
            batch = self.server_batch(rng, PRETRAIN_BATCH)
            loss = lambda x, batch=batch: cross_entropy(self.net(x, batch.x, *batch.keys), batch)  # noqa: E731
            x = x - self.pretrain_step * torch.func.grad(loss)(x)
        return x
