"""DRFA and AFL: federated learning that is fair to every mixture of the clients, min_x max_lambda sum_i lambda_i f_i(x), lambda
in the simplex [Deng, Kamani & Mahdavi 2020; Mohri, Sivek & Suresh 2019].

The steps follow the public code FedTorch, without its decay and its lower bound of lambda. FedTorch samples cohorts uniformly;
its MPI version has one k for all clients, its centred version one k for each client. Sampling S by lambda follows another public
code, and is unverified for the paper. The weights of the kept points in a uniform cohort are derived here.

Explained in docs/algorithms/drfa.md.

Notation
    lambda_i    the weight of client i; lambda is stored on the server, and initially equals the problem's weights
    S, U        the clients in the first exchange (sampled with replacement), and in the second exchange
    k           the number of local steps after which a client stores its point, the same for all clients of a round
    M           the number of clients
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import Schedule
from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.problems import Minimisation, simplex
from fedopt.randomness import Purpose
from fedopt.toolbox import Tensors, moved

Pair = tuple[Tensor, Tensor]  # x_i, and the stored point or the last loss


class State(NamedTuple):
    """The state of DRFA and AFL.

    Attributes:
        x: The server's point, ``[d]``.
        mixture: The weights lambda of the clients, one number per client.
    """

    x: Tensor
    mixture: Memory


@dataclass(frozen=True)
class Drfa:
    """DRFA and AFL: federated learning that minimises the loss of the worst mixture of the clients.

    The server has the model x and the weights lambda of the clients in the mixture.

    Args:
        eta: The clients' step size of x.
        gamma_l: The server's step size of lambda.
        tau: The number of local steps.
        B: The batch size. None: all examples of the client.
        sampling: ``lambda``: the cohort S is sampled with the probabilities lambda, and the mean over the samples is unweighted.
            ``uniform``: the change of client i has the weight lambda_i M / |S|. These weights need not sum to 1, so x diverges if
            clients differ much. ``normalised``: the change of client i has the weight lambda_i, divided by the sum of lambda over
            S. If all clients take part, uniform and normalised both use the weights lambda.
        losses: The losses that update lambda. ``kept``: the losses of a second cohort at the mean of the stored points (DRFA).
            ``last``: the loss of each client on its last local batch, before its last step (AFL).
        k: The number of local steps after which a client stores its point, at most tau. None: sampled from 1..tau in each round.
    """

    eta: Schedule
    gamma_l: Schedule
    tau: PositiveInt
    B: PositiveInt | None
    sampling: Literal["lambda", "uniform", "normalised"] = field(metadata={"before": "uniform"})
    losses: Literal["kept", "last"]
    k: PositiveInt | None

    solves: ClassVar = (Minimisation,)
    each_once: ClassVar = True  # cohorts are sampled, and weighted, by lambda
    cohort_weights: ClassVar = "corrected"

    def init(self, problem: Minimisation) -> State:
        (x,) = problem.start()
        return State(x, Memory(x.new_tensor(problem.weights)[:, None].unbind()))

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        eta, of_kept = self.eta(fed.r), self.losses == "kept"
        k = self.k or int(fed.rng(Purpose.ESTIMATOR).integers(1, self.tau + 1))
        mixture = s.mixture.tensor()[:, 0]
        S, weights = self._cohort(mixture, fed)

        def local_steps(client: Client, x: Tensor) -> Tensors:
            def step(carry: Pair, xi: Sample, number: int) -> Pair:
                x_i, kept = carry
                loss = kept if of_kept else client.f(x_i, xi)
                x_i = moved(x_i, client.gradient(x_i, xi), eta)
                return x_i, x_i if of_kept and number < k else loss

            kept = x if of_kept else x.new_zeros(())
            x_i, kept = client.scan("local", step, (x, kept), lambda number: number)
            return x_i - x, kept - x if of_kept else kept

        def mean_changes(answers: Tensors, _: Tensor) -> Tensors:
            changes, kept = answers
            return weights @ changes, weights @ kept if of_kept else kept

        local = Steps(self.tau, self.B, replace=True)
        change, kept = fed.exchange(local_steps, s.x, S, combine=mean_changes, local=local)
        if of_kept:
            S = fed.new_cohort()  # U
            kept = fed.exchange(loss, s.x + kept, S, combine=lambda losses, _: losses, xi=Steps(1, self.B))
        gain = self.gamma_l(fed.r) * (self.tau * problem.clients / len(S) if of_kept else 1)
        mixture = mixture.index_add(0, torch.as_tensor(S, device=mixture.device), gain * kept)
        return State(s.x + change, Memory(simplex(mixture)[:, None].unbind()))

    def output(self, s: State) -> Tensors:
        return (s.x,)

    def _cohort(self, mixture: Tensor, fed: Round) -> tuple[np.ndarray, Tensor]:
        """Sample the cohort S, and return it with the weights of the changes of its clients, ``[|S|]``.

        With ``sampling=lambda``, clients are sampled with these probabilities; a client that was sampled several times is in S
        once, with a correspondingly larger weight. Otherwise S is a uniform cohort, and the weights are proportional to lambda.

        Args:
            mixture: The weights lambda, ``[M]``.
            fed: The round.
        """
        if self.sampling == "lambda":
            S, shares = fed.drawn(mixture.double().cpu().numpy())
            return S, mixture.new_tensor(shares, dtype=torch.float64)
        S = fed.cohort()
        weights = mixture[S].double()
        total = weights.sum().clamp(min=1e-300) if self.sampling == "normalised" else len(S) / len(mixture)
        return S, weights / total


def loss(client: Client, x: Tensor) -> Tensor:
    """Return f_i(x) on the client's batch ``xi``, a scalar.

    Args:
        client: The client.
        x: The point, ``[d]``.
    """
    return client.f(x, client.sample("xi"))
