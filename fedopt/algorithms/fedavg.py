"""Federated averaging [McMahan et al. 2017, Alg. 1]."""

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import size_in_bytes
from fedopt.oracles import gradient
from fedopt.problems.classes import Minimisation
from fedopt.schedules import Schedule


class State(NamedTuple):
    r: int
    x: Tensor


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FedAvg:
    """Notation: eta_r the local step size, E local epochs over batches of B examples (null: the full local data), or
    `steps` local steps on independent batches instead; clients weighted by their numbers of examples, or uniformly.
    """

    eta: Schedule
    E: PositiveInt | None
    steps: PositiveInt | None
    B: PositiveInt | None
    weighting: Literal["samples", "uniform"]

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = True

    def __post_init__(self) -> None:
        if (self.E is None) == (self.steps is None):
            raise ValueError("give either E (local epochs) or steps, and set the other to null")

    def init(self, problem: Minimisation, fed: Federation) -> State:
        return State(0, *problem.start())

    def step(self, s: State, problem: Minimisation, fed: Federation) -> State:
        eta = self.eta(s.r)

        def local_steps(client: Client, x: Tensor) -> Tensor:
            def step(x: Tensor, sample: Any) -> Tensor:
                return x.sub(gradient(problem, x, sample), alpha=eta)  # x - eta grad f_i(x)

            return client.scan(step, x)

        S = fed.cohort()
        n = problem.sizes()[S] if self.weighting == "samples" else np.ones(len(S))
        x = fed.round(local_steps, s.x, S, self._draws(fed), weights=n / n.sum())
        return State(s.r + 1, x)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.x,)

    def cost(self, s: State, problem: Minimisation, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        S = fed.cohort()
        size = len(S) * size_in_bytes(s.x)
        steps = self._draws(fed).steps_of(problem.splits, S).sum()
        return {
            "comm_rounds": 1,
            "bytes_down": size,
            "bytes_up": size,
            "grad_calls": steps,
            "hvp_calls": 0,
            "jvp_calls": 0,
        }

    def _draws(self, fed: Federation) -> Minibatches:
        if self.E is not None:
            return Minibatches(self.B, epochs=fed.work(self.E))
        return Minibatches(self.B, fed.work(self.steps or 1))
